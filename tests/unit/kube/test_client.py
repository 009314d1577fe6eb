"""The client of the API server tells its name with every request, and as the owner of what it writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import kubernetes
import pytest

from ferry_operator.kube.api.client import BEGIN_AGAIN_MAX, KubeApi, UserClient
from ferry_operator.kube.api.names import FIELD_MANAGER, Doc
from ferry_operator.kube.api.port import EVENTS, GONE, JOBS, PODS, ApiError

Request = tuple[str, str, dict[str, list[str]]]


class _Server(HTTPServer):
    """Answers every request with an empty object, and keeps (method, user agent, query)."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[Request] = []


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = parse_qs(urlsplit(self.path).query)
        self.server.requests.append((self.command, self.headers["User-Agent"], query))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def test_every_write_names_the_operator(server: _Server) -> None:
    configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
    api = KubeApi("jobs", lambda *_: None, configuration=configuration)
    api.get(JOBS, "a")
    api.find(PODS, "x=y")
    api.create(EVENTS, {})
    api.replace(PODS, "a", {})
    api.patch(JOBS, "a", {}, "status")
    api.json_patch(PODS, "a", [])
    api.delete(PODS, "a")
    assert {agent for _, agent, _ in server.requests} == {FIELD_MANAGER}
    named = [(method, query.get("fieldManager")) for method, _, query in server.requests]
    owned = [FIELD_MANAGER]
    assert named == [
        ("GET", None), ("GET", None), ("POST", owned), ("PUT", owned), ("PATCH", owned), ("PATCH", owned), ("DELETE", None)
    ]  # fmt: skip


def test_a_command_of_a_user_has_a_name_of_its_own(server: _Server, tmp_path: object) -> None:
    file = f"{tmp_path}/config"
    with open(file, "w") as out:
        out.write(
            "{apiVersion: v1, kind: Config, current-context: c, users: [],"
            f" clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{server.server_port}'}}}}],"
            " contexts: [{name: c, context: {cluster: k, user: ''}}]}"
        )
    UserClient(file, None, "jobs").dry_run(JOBS, "a", {})
    ((method, agent, query),) = server.requests
    assert (method, agent) == ("PATCH", "kubectl-streamjob")
    assert query == {"dryRun": ["All"], "fieldValidation": ["Strict"], "fieldManager": ["kubectl-streamjob"]}


PODS_OF_TWO_PAGES = {"": (["a", "b"], "2"), "2": (["c"], "")}


class _Pages(BaseHTTPRequestHandler):
    server: _PagesServer

    def do_GET(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.queries.append(query)
        token = query.get("continue", "")
        code = 410 if token and self.server.expire else 200
        self.server.expire -= code == 410
        found, more = PODS_OF_TWO_PAGES[token]
        page = {"metadata": {"continue": more}, "items": [{"metadata": {"name": name}} for name in found]}
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(page if code == 200 else {"code": 410, "message": "too old"}).encode())

    def log_message(self, *_: object) -> None:
        pass


class _PagesServer(HTTPServer):
    """Answers with pages; `expire` of its continue tokens are too old."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.queries: list[dict[str, str]] = []
        self.expire = 0


@pytest.fixture
def paged() -> Iterator[tuple[_PagesServer, KubeApi]]:
    made = _PagesServer()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    configuration = kubernetes.client.Configuration(host=f"http://127.0.0.1:{made.server_port}")
    yield made, KubeApi("jobs", lambda *_: None, configuration=configuration)
    made.shutdown()
    made.server_close()
    thread.join()


def listed(documents: Iterable[Doc]) -> str:
    return "".join(document["metadata"]["name"] for document in documents)


def test_a_list_comes_in_pages(paged: tuple[_PagesServer, KubeApi]) -> None:
    server, api = paged
    assert listed(api.find(PODS, "x=y")) == listed(api.each(PODS, "x=y")) == "abc"
    first, second = {"limit": "100", "labelSelector": "x=y"}, {"limit": "100", "labelSelector": "x=y", "continue": "2"}
    assert server.queries == [first, second] * 2


def test_a_page_is_fetched_when_the_last_one_is_used_up(paged: tuple[_PagesServer, KubeApi]) -> None:
    server, api = paged
    documents = api.each(PODS)
    assert listed([next(documents), next(documents)]) == "ab" and len(server.queries) == 1


def test_a_list_that_is_too_old_to_go_on_begins_again(paged: tuple[_PagesServer, KubeApi]) -> None:
    server, api = paged
    server.expire = 1
    assert listed(api.find(PODS)) == "abc", "each once"
    server.expire = 1
    assert listed(api.each(PODS)) == "ababc", "a caller that holds no document sees some again"
    server.expire = 99
    with pytest.raises(ApiError, match="too old") as expired:
        api.find(PODS)
    assert expired.value.status == GONE and server.expire == 99 - BEGIN_AGAIN_MAX - 1
