"""HTTP to a peer that runs users' code: every request ends after a bound of seconds and bytes, whatever the peer does.

`httpx` only bounds the wait for the next byte: a peer that sends one byte per second, or never stops, would hold its
caller for ever.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

CHUNK = 16 * 1024
"""Bytes that are sent between two checks of the deadline."""


class AnswerCut(httpx.TransportError):
    """The connection or the answer took too long, or the answer was too long; the text names the bound."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Limits of one request and its answer."""

    seconds: float
    """whole time, from the first packet to the last"""
    connect_seconds: float
    """the part of it for the connection and its TLS handshake"""
    bytes_max: int
    """size of the answer, with its headers"""
    keep_seconds: float
    """time for which an idle connection stays open"""


class BoundedTransport(httpx.BaseTransport):
    """Connections with bounded requests. Thread-safe. Answers have no headers, so httpx decodes and redirects nothing."""

    def __init__(self, bounds: RequestBounds, context: ssl.SSLContext) -> None:
        self._bounds = bounds
        self._backend = _Backend()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context, keepalive_expiry=bounds.keep_seconds, network_backend=self._backend
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and read the whole answer. Raises AnswerCut, httpx.TransportError."""
        budget = self._backend.begin(self._bounds)
        url, target = request.url, request.url.raw_path
        bounded = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=target),
            headers=request.headers.raw,
            content=request.read(),
            extensions={"timeout": {"connect": self._bounds.connect_seconds, "pool": self._bounds.seconds}},
        )
        try:
            answer = self._pool.handle_request(bounded)
            try:
                body = answer.read()
            finally:
                answer.close()
        except _TooLong:
            raise AnswerCut(f"its answer is longer than {self._bounds.bytes_max} bytes") from None
        except httpcore.ConnectTimeout:
            raise AnswerCut(f"no connection after {self._bounds.connect_seconds:g} s") from None
        except httpcore.TimeoutException:
            how = "was not complete" if budget.came else "had not begun"
            raise AnswerCut(f"its answer {how} after {self._bounds.seconds:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise httpx.NetworkError(str(error) or type(error).__name__) from None
        return httpx.Response(answer.status, content=body)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _TooLong(Exception):
    pass


class _Budget:
    """The time and the bytes that remain for one request."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._deadline = time.monotonic() + bounds.seconds
        self._bytes_max = bounds.bytes_max
        self.came = 0
        """bytes of the answer that have arrived"""

    def seconds(self, at_most: float | None = None) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout
        return left if at_most is None else min(left, at_most)

    def take(self, count: int) -> None:
        self.came += count
        if self.came > self._bytes_max:
            raise _TooLong


class _Backend(httpcore.SyncBackend):
    """Connections that keep to the budget of the request that runs in their thread."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def begin(self, bounds: RequestBounds) -> _Budget:
        budget = self._thread.budget = _Budget(bounds)
        return budget

    def budget(self) -> _Budget:
        budget: _Budget = self._thread.budget
        return budget

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, self.budget().seconds(timeout), local_address, socket_options)
        return _Stream(self, stream)


class _Stream(httpcore.NetworkStream):
    def __init__(self, backend: _Backend, stream: httpcore.NetworkStream) -> None:
        self._backend = backend
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        budget = self._backend.budget()
        data = self._stream.read(max_bytes, budget.seconds(timeout))
        budget.take(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), CHUNK):
            self._stream.write(buffer[at : at + CHUNK], self._backend.budget().seconds(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = self._backend.budget().seconds(timeout)
        return _Stream(self._backend, self._stream.start_tls(ssl_context, server_hostname, seconds))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
