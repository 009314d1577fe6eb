"""Endpoints for monitoring: `GET /metrics` of one registry with a token, `GET /healthz` without one.

On the standard library's server, which prometheus_client imports anyway (docs/decisions/0012-two-servers-for-http.md).
Must not know the metrics, and never show them when no token is set.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import prometheus_client as prom

from ferry.contract import bearer, variables
from ferry.system.sockets import listening
from ferry.system.wsgi import Start, ThreadedServer

_NOTHING = f"there is /metrics when {variables.METRICS_TOKEN} is set\n".encode()


class MonitoringServer:
    """Serves on threads of its own."""

    def __init__(
        self,
        registry: prom.CollectorRegistry,
        address: tuple[str, int],
        token: str | None,
        problem: Callable[[], str | None] | None = None,
    ) -> None:
        """Listen at (host, port), '' for all addresses, 0 for any free port. Raises OSError when it is taken.

        `token`: None: no metrics. `problem`: returns None while the process is healthy; without it there is no
        /healthz.
        """
        assert token != "", "an empty token would admit every request"
        self._exposed = prom.make_wsgi_app(registry)
        self._token = token
        self._problem = problem
        self._server = ThreadedServer(listening(*address), self._answer)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="monitoring", daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/healthz" and self._problem is not None:
            found = self._problem()
            return _text(start, "200 OK" if found is None else "503 Service Unavailable", (found or "ok").encode())
        if self._token is not None and not bearer.is_shown(self._token, environ.get("HTTP_AUTHORIZATION", "")):
            return _text(start, "401 Unauthorized", bearer.REFUSED, bearer.CHALLENGE)
        if self._token is None or path != "/metrics":
            return _text(start, "404 Not Found", _NOTHING)
        exposed: Iterable[bytes] = self._exposed(environ, start)
        return exposed


def _text(start: Start, status: str, body: bytes, *headers: tuple[str, str]) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), *headers])
    return [body]
