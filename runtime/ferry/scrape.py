"""The door for Prometheus: `GET /metrics` of one registry for whoever shows the token, and nothing else.

Must know nothing of what is measured.
"""

from __future__ import annotations

import hmac
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client as prom

from ferry.contract.addresses import is_v6

log = logging.getLogger("ferry.scrape")

SECONDS_MAX = 10.0
"""A client that says nothing for this long is sent away."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news; anything else is a fault of ours."""
        failed = sys.exception()
        level = logging.DEBUG if isinstance(failed, ConnectionError | TimeoutError) else logging.ERROR
        log.log(level, "a scrape failed", exc_info=failed)


class _Handler(WSGIRequestHandler):
    timeout = SECONDS_MAX

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


def serve(registry: prom.CollectorRegistry, address: tuple[str, int], token: str) -> int:
    """Answer on a thread of its own at (host, port), 0 for any free one; returns the port. Raises OSError when taken."""
    assert token, "metrics without a token are open to everybody"
    exposed = prom.make_wsgi_app(registry)

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        shown = environ.get("HTTP_AUTHORIZATION", "")
        if not hmac.compare_digest(shown.encode(), f"Bearer {token}".encode()):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"a valid bearer token is needed\n"]
        if environ.get("PATH_INFO") != "/metrics":
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"there is /metrics\n"]
        return exposed(environ, start)

    made: type[_Server] = type(
        "Server", (_Server,), {"address_family": socket.AF_INET6 if is_v6(address[0]) else socket.AF_INET}
    )
    server = make_server(*address, application, server_class=made, handler_class=_Handler)
    threading.Thread(target=server.serve_forever, name="scrape", daemon=True).start()
    return int(server.server_port)
