"""The standard library's WSGI server on a socket that already listens, with a thread for each request.

With a TLS context each thread does its own handshake, so a silent client delays no other one.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

SECONDS_MAX = 10.0
"""A silent client is disconnected after this long."""

Start = Callable[[str, list[tuple[str, str]]], Any]
"""Begins a response, as WSGI defines it."""

log = logging.getLogger("ferry.wsgi")


class ThreadedServer(ThreadingMixIn, WSGIServer):
    """Serves an application until `shutdown`."""

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        application: Callable[[dict[str, Any], Start], Iterable[bytes]],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve a socket that already listens."""
        address = listener.getsockname()[:2]
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        if tls is not None:
            listener = tls.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)
        self.socket = listener
        self.server_name, self.server_port = address
        self.setup_environ()
        self.set_app(application)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A disconnect or a failed handshake of a client is not logged as an error; any other exception is."""
        failed = sys.exception()
        level = logging.DEBUG if isinstance(failed, ConnectionError | TimeoutError | ssl.SSLError) else logging.ERROR
        log.log(level, "a request failed", exc_info=failed)


class _Handler(WSGIRequestHandler):
    timeout = SECONDS_MAX

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
        log.debug(format, *args)
