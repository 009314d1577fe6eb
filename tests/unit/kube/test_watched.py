"""Changes of objects as the API server streams them: at once, line by line, until an error or the end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes
import pytest

from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.port import GONE, NODES, ApiError

Say = Callable[[bytes], None]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.queries.append((self.path.partition("?")[0], parse_qs(urlsplit(self.path).query)))
        if server.code != 200:
            body = json.dumps({"kind": "Status", "code": server.code, "message": "too old resource version"}).encode()
            self.send_response(server.code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        server.script(self._say)
        self.wfile.write(b"0\r\n\r\n")

    def _say(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    one: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    one.queries, one.code, one.script = [], 200, lambda say: None
    thread = threading.Thread(target=one.serve_forever, daemon=True)
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


@pytest.fixture
def api(server: Any) -> KubeApi:
    configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    return KubeApi("jobs", lambda *_: None, (1.0, 1.0), configuration)


def line(change: str, **metadata: str) -> bytes:
    return json.dumps({"type": change, "object": {"metadata": metadata}}).encode() + b"\n"


def test_a_change_is_known_at_once_and_the_watch_ends_with_the_server(server: Any, api: KubeApi) -> None:
    more = threading.Event()

    def script(say: Say) -> None:
        first = line("ADDED", name="n0")
        say(first[:7])
        say(first[7:])
        more.wait(10.0)
        say(line("MODIFIED", name="n0") + line("BOOKMARK", resourceVersion="9"))

    server.script = script
    changes = api.changes(NODES, "5", 20)
    began = time.monotonic()
    assert next(changes) == ("ADDED", {"metadata": {"name": "n0"}})
    assert time.monotonic() - began < 5.0
    more.set()
    assert [change for change, _ in changes] == ["MODIFIED", "BOOKMARK"]
    ((path, query),) = server.queries
    assert path == "/api/v1/nodes" and query["watch"] == ["true"] and query["timeoutSeconds"] == ["20"]
    assert query["resourceVersion"] == ["5"] and query["allowWatchBookmarks"] == ["true"]


def test_a_version_that_is_too_old_is_told_in_either_way(server: Any, api: KubeApi) -> None:
    status = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server.script = lambda say: say(json.dumps(status).encode() + b"\n")
    for server.code in (200, 410):
        with pytest.raises(ApiError, match="too old") as expired:
            list(api.changes(NODES, "5", 20))
        assert expired.value.status == GONE


def test_a_server_that_falls_silent_is_given_up(server: Any, api: KubeApi) -> None:
    server.script = lambda say: (say(line("ADDED", name="n0")), time.sleep(30.0))
    began, seen = time.monotonic(), []
    with pytest.raises(ApiError) as silent:
        seen.extend(api.changes(NODES, "5", 1))
    assert silent.value.status == 0 and 1.0 < time.monotonic() - began < 25.0


@pytest.mark.parametrize("words", [b"no\n", b"[]\n", b'{"type": "ADDED"}\n'])
def test_words_that_are_no_change_are_an_error(server: Any, api: KubeApi, words: bytes) -> None:
    server.script = lambda say: say(words)
    with pytest.raises(ApiError, match="no change"):
        list(api.changes(NODES, "5", 20))
