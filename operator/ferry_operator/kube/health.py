"""/healthz and /metrics over HTTP. What they say is given; nothing is asked of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST


class Health:
    """A server in a thread. `trouble` is None while the process is well."""

    def __init__(self, port: int, trouble: Callable[[], str | None], metrics: Callable[[], bytes]) -> None:
        """Port 0: any free one."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, metrics())
                elif self.path == "/healthz":
                    wrong = trouble()
                    self._answer(200 if wrong is None else 503, "text/plain", (wrong or "ok").encode())
                else:
                    self._answer(404, "text/plain", b"/healthz and /metrics")

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are no news."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
