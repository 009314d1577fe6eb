"""What monitors ask of a process: `GET /metrics` of one registry for whoever shows the token, `GET /healthz` for everybody.

On the standard library's server, which prometheus_client loads anyway (docs/decisions/0012-two-servers-for-http.md). Must
know nothing of what is measured, and never show metrics when no token is set.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client as prom

from ferry.contract import bearer, variables
from ferry.system.sockets import listening

log = logging.getLogger("ferry.monitoring")

SECONDS_MAX = 10.0
"""A client that says nothing for this long is sent away."""

_NOTHING = f"there is /metrics when {variables.METRICS_TOKEN} is set\n".encode()

Start = Callable[[str, list[tuple[str, str]]], Any]
"""Begins an answer, as WSGI defines it."""


class MonitoringServer:
    """Answers on threads of its own."""

    def __init__(
        self,
        registry: prom.CollectorRegistry,
        address: tuple[str, int],
        token: str | None,
        problem: Callable[[], str | None] | None = None,
    ) -> None:
        """At (host, port), '' for all addresses, 0 for any free port. Raises OSError when it is taken.

        `token`: None: there are no metrics. `problem`: None while the process is well; without it nobody asks for health.
        """
        assert token != "", "metrics without a token are open to everybody"
        self._exposed = prom.make_wsgi_app(registry)
        self._token = token
        self._problem = problem
        self._server = _Server(listening(*address), self._answer)
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


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, application: Callable[..., Iterable[bytes]]) -> None:
        """Serves what comes to a socket that listens already."""
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.setup_environ()
        self.set_app(application)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is a fault of ours."""
        failed = sys.exception()
        level = logging.DEBUG if isinstance(failed, ConnectionError | TimeoutError) else logging.ERROR
        log.log(level, "a request failed", exc_info=failed)


class _Handler(WSGIRequestHandler):
    timeout = SECONDS_MAX

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are no news."""
        log.debug(format, *args)
