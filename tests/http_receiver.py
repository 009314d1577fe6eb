"""A server of HTTP, as a process of its own, that keeps each request and answers as a file says. It asserts nothing itself.

Each line of the file `answers` is for one request, then the line is removed: a status, "503", with a header, "429 Retry-After:
1", with words, "400 no such shop", or "drop": the request is kept, and the connection closed. Without a line it is 200.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

START_SECONDS = 30.0


class HttpReceiver:
    """The process, as tests see it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = subprocess.Popen([sys.executable, __file__, str(folder)])
        until = time.monotonic() + START_SECONDS
        while not (folder / "port").exists():
            assert self._process.poll() is None and time.monotonic() < until, "the receiver does not start"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{(folder / 'port').read_text()}/rows"

    def answer(self, *lines: str) -> None:
        """To the next requests."""
        (self._folder / "answers").write_text("".join(f"{line}\n" for line in lines))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Headers (in small letters) and body of each so far."""
        return [json.loads(line) for line in (self._folder / "requests").read_text().splitlines()]

    @property
    def rows(self) -> list[Any]:
        """Of the requests, once for each key: what a receiver has that remembers keys."""
        by_key = {one["headers"]["idempotency-key"]: one["body"] for one in self.requests}
        return [row for body in by_key.values() for row in json.loads(body)]

    def forget(self) -> None:
        """All requests, and what was to be answered."""
        for name in ("requests", "answers"):
            (self._folder / name).write_text("")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _serve(folder: Path) -> None:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                with (folder / "requests").open("a") as kept:
                    kept.write(json.dumps({"headers": headers, "body": body}) + "\n")
                answers = folder / "answers"
                lines = answers.read_text().splitlines() if answers.exists() else []
                answers.write_text("".join(f"{line}\n" for line in lines[1:]))
            status, _, more = (lines[0] if lines else "200").partition(" ")
            if status == "drop":
                self.close_connection = True
                self.connection.close()
                return
            name, colon, value = more.partition(": ")
            words = b"" if colon else more.encode()
            self.send_response(int(status))
            if colon:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(words)))
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, *_: Any) -> None:
            """Nothing is printed."""

    (folder / "requests").touch()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    (folder / "port.new").write_text(str(server.server_address[1]))
    (folder / "port.new").rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
