"""/healthz and /metrics over HTTP. What they say is given; nothing is asked of the cluster.

Whoever probes need not say who it is; metrics are for those who show the token. Must never be open to all when none is set.
"""

from __future__ import annotations

import hmac
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST


class _Server(ThreadingHTTPServer):
    """At all addresses of the machine, of both families where it has them."""

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        """Version 4 comes to the same socket."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has hung up is no news; the rest is."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Health:
    """A server in a thread. `trouble` is None while the process is well."""

    def __init__(
        self, port: int, trouble: Callable[[], str | None], metrics: Callable[[], bytes], token: str | None
    ) -> None:
        """Port 0: any free one. Without a token there are no metrics."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/healthz":
                    wrong = trouble()
                    self._answer(200 if wrong is None else 503, "text/plain", (wrong or "ok").encode())
                elif self.path != "/metrics" or not token:
                    self._answer(404, "text/plain", b"/healthz, and /metrics when FERRY_METRICS_TOKEN is set")
                elif not self._shows(token):
                    self._answer(401, "text/plain", b"a valid bearer token is needed")
                else:
                    self._answer(200, CONTENT_TYPE_LATEST, metrics())

            def _shows(self, token: str) -> bool:
                shown = self.headers.get("Authorization", "")
                return hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {token}".encode())

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                if code == 401:
                    self.send_header("WWW-Authenticate", "Bearer")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are no news."""

        self._server = _Server(("", port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
