"""A channel over TCP: one reading and one writing thread on one connection.

The reader receives, delivers and takes credit; it never sends and never waits for a sender. A sender sends in its own
thread if no other thread does and the socket takes the bytes at once (no thread switch: the latency of a control
message); the writer sends the rest. It must never decide what a message means, nor reconnect.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from ferry.channel.base import LinkState
from ferry.channel.flow import FlowChannel
from ferry.channel.frames import FRAME_BYTES
from ferry.channel.tcp.connection import Opening, TcpConnection, receive, send_some
from ferry.contract import limits
from ferry.contract.errors import Unreachable

RECEIVE_BYTES = 512 * 1024
"""Bytes taken from the socket at once; at least two frames."""

_FAREWELL_SECONDS = 0.02
"""A writer that is stuck in a full socket is not waited for."""

assert RECEIVE_BYTES >= 2 * FRAME_BYTES


class TcpTransport:
    """One reading and one writing thread on one connection."""

    name = "tcp"

    def __init__(self, opening: Opening, reason: str = "") -> None:
        """`reason`: why the channel is not over RDMA although it could have been."""
        self.channel = FlowChannel(opening.peer, opening.job, opening.on_message, self)
        self.connection = TcpConnection(opening, self)
        self.link = LinkState(opening.peer, "tcp", reason)
        self._socket = opening.sock
        self._rest: list[bytes | memoryview] = []
        """rest of the last gather; with the sending lock"""
        self._send_error: str | None = None
        self._work = threading.Event()
        self._writer = threading.Thread(target=self._write, name=f"channel-write-{opening.peer}", daemon=True)

    def start(self) -> None:
        self._writer.start()
        self.connection.start()

    # -- sending ------------------------------------------------------------------------------------------------------

    def queued(self, size: int) -> None:
        if size <= limits.SLOT_BYTES and self.connection.sending.acquire(blocking=False):
            try:
                self._send(socket.MSG_DONTWAIT, batches=1)
            finally:
                self.connection.sending.release()
        if self.channel.sendable:
            self._work.set()

    def wake(self) -> None:
        self._work.set()

    def flush(self, timeout: float) -> bool:
        return self.channel.wait_handed_over(timeout)

    def _write(self) -> None:
        while self.channel.closed is None:
            self._work.wait()
            self._work.clear()
            while self.channel.closed is None and (self._rest or self.channel.sendable):
                with self.connection.sending:
                    self._send(0, batches=64)

    def _send(self, flags: int, batches: int) -> None:
        """With the sending lock: send the rest of the last gather, then up to `batches` gathers."""
        for _ in range(batches):
            if not self._rest:
                self._rest = self.channel.collect()
                if not self._rest:
                    return
            try:
                while self._rest:
                    self._rest = send_some(self._socket, self._rest, flags)
            except BlockingIOError:
                self._work.set()
                return
            except OSError as error:
                self._give_up(f"connection lost: {error}")
                return
            self.channel.handed_over()

    def _give_up(self, error: str) -> None:
        # The reader ends when it has received the peer's last bytes: they may hold the reason.
        self._send_error = error
        self._rest = []
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.channel.drop_queued()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        start = end = 0
        try:
            while self.channel.closed is None:
                end += self._receive(buffer[end:])
                start += self.channel.feed(buffer[start:end])
                if start == end:
                    start = end = 0
                elif RECEIVE_BYTES - end < FRAME_BYTES:
                    buffer[: end - start] = buffer[start:end]
                    start, end = 0, end - start
        except Unreachable:
            self.connection.peer_gone = True
            raise

    def _receive(self, buffer: memoryview) -> int:
        try:
            return receive(self._socket, buffer)
        except Unreachable as error:
            raise Unreachable(self._send_error or str(error)) from error

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self, reason: str) -> None:
        self._work.set()
        self.connection.shut_down(lambda: b"" if self._rest else self.channel.bye(reason), _FAREWELL_SECONDS)

    def release(self) -> None:
        if self._writer.ident is not None:
            self._writer.join()
        with self.connection.sending:
            self._socket.close()
