"""One authenticated TCP connection as a channel, with one reading and one writing thread.

The reader receives, delivers and notices credit; it never sends and never waits for a sender. What is to be sent goes
out in the sender's own thread when the wire is free and the socket takes it at once (no thread switch: the latency of a
control message), else in the writer. It must never decide what a message means, nor reconnect by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ferry.channel.base import Handler
from ferry.channel.flow import FlowChannel
from ferry.channel.frames import FRAME_BYTES
from ferry.contract import limits
from ferry.contract.errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKET_BYTES = 1 << 20
"""Kernel buffer each way: a control message waits behind at most this, about 1 ms on a fast link."""

RECEIVE_BYTES = 512 * 1024
"""Bytes taken from the socket at once; at least two frames."""

GATHER_MAX = 1000
"""Entries of one sendmsg; Linux allows 1024."""

SILENT_SECONDS = 15
"""Unacknowledged bytes for this long mean that the node is gone; a dead process is noticed at once. Generous, because
the heartbeats of the membership are quicker and a process that is merely stopped must not look dead to TCP."""

_SIOCOUTQNSD = 0x894B
"""Bytes of the send queue that were not sent yet: of linux/sockios.h, Python has no name for it."""

_JOIN_SECONDS = 1.0
_FAREWELL_SECONDS = 0.02

assert RECEIVE_BYTES >= 2 * FRAME_BYTES


def tune(sock: socket.socket) -> None:
    """Socket options of every connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux names; elsewhere only the heartbeats of the membership notice a dead node.
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@dataclass(frozen=True, slots=True)
class Opening:
    """A connection that has proved itself, and who is to hear of it."""

    sock: socket.socket
    peer: str
    job: str
    on_message: Handler
    on_end: Callable[[TcpChannel, str], None]
    initiator: str
    """who dialled"""
    life: bytes
    """of the peer"""
    number: int
    """of the connections that the initiator opened"""


class TcpChannel(FlowChannel):
    """One authenticated connection. `start` begins to receive; sending is possible before."""

    transport = "tcp"

    def __init__(self, opening: Opening, reason: str = "") -> None:
        super().__init__(opening.peer, opening.job, opening.on_message, reason)
        self.opening = opening
        self._socket = opening.sock
        self._on_end = opening.on_end
        self._wire = threading.Lock()
        self._rest: list[bytes | memoryview] = []
        self._stuck = False
        self._lost: str | None = None
        self._deaf = False
        self._shut_down = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"channel-read-{self.peer}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"channel-write-{self.peer}", daemon=True)

    def ready(self) -> None:
        """The handshake is over: no more deadline on the socket."""
        self._socket.settimeout(None)

    def discard(self) -> None:
        """Drop a connection that was never opened."""
        self._socket.close()

    def start(self) -> None:
        """Start both threads; once."""
        self._writer.start()
        self._reader.start()

    def wait_end(self) -> None:
        """After close: until the reader has reported the end, unless called by the reader itself."""
        if threading.current_thread() is not self._reader and self._reader.ident is not None:
            self._reader.join(_JOIN_SECONDS)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _kick(self, size: int) -> None:
        if size <= limits.SLOT_BYTES and self._wire.acquire(blocking=False):
            try:
                self._put(socket.MSG_DONTWAIT, batches=1)
            finally:
                self._wire.release()
        with self._lock:
            if self._stuck or self._sendable():
                self._work.notify()

    def _rouse(self) -> None:
        with self._lock:
            self._work.notify()

    def _write(self) -> None:
        while True:
            with self._lock:
                while self._closed is None and not self._stuck and not self._sendable():
                    self._work.wait()
                if self._closed is not None:
                    return
            with self._wire:
                self._put(0, batches=64)

    def _put(self, flags: int, batches: int) -> None:
        """With the wire lock: send what was left, then up to `batches` gathers."""
        for _ in range(batches):
            if not self._rest:
                self._rest = self._collect()
                if not self._rest:
                    return
            try:
                while self._rest:
                    self._rest = behind(self._rest, self._socket.sendmsg(self._rest[:GATHER_MAX], [], flags))
            except BlockingIOError:
                # `_stuck` is read by the writer's wait, `_rest` only under the wire lock.
                self._stuck = True
                return
            except OSError as error:
                self._lost = f"connection lost: {error}"
                self._rest = []
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                # The reader ends when it has taken what the peer still said: that may be the reason.
                self._stuck = False
                self._writer_gone()
                return
            self._stuck = False
            self._handed_over()

    def _writer_gone(self) -> None:
        with self._lock:
            for out in self._out:
                out.queue.clear()
                out.queued_bytes = out.queued_slots = 0

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        start = end = 0
        reason = "closed by the peer"
        try:
            while self._closed is None:
                count = self._socket.recv_into(buffer[end:])
                if count == 0:
                    reason, self._deaf = self._lost or reason, True
                    break
                end += count
                start += self._feed(buffer[start:end])
                if start == end:
                    start = end = 0
                elif RECEIVE_BYTES - end < FRAME_BYTES:
                    buffer[: end - start] = buffer[start:end]
                    start, end = 0, end - start
        except OSError as error:
            reason, self._deaf = self._lost or f"connection lost: {error}", True
        except Unreachable as error:
            reason, self._deaf = str(error), True
        except Exception as error:  # a handler's failure must end its connection, not the thread in silence
            reason = self._blame(error)
        self.close(reason)
        self._shut_down.wait(_JOIN_SECONDS)
        self._writer.join()
        with self._wire:
            self._socket.close()
        self._on_end(self, self._closed or reason)

    def _cut(self) -> None:
        # The peer is told why, at best effort: a writer that is stuck in a full socket is not waited for.
        if not self._deaf and self._wire.acquire(timeout=_FAREWELL_SECONDS):
            try:
                if not self._rest:
                    with contextlib.suppress(OSError):
                        self._socket.send(self._farewell(self._closed or ""), socket.MSG_DONTWAIT)
            finally:
                self._wire.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._shut_down.set()


def behind(gather: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """What is left of a gather list after `count` bytes of it were sent."""
    for index, piece in enumerate(gather):
        if count < len(piece):
            return [memoryview(piece)[count:], *gather[index + 1 :]]
        count -= len(piece)
    return []


def unacknowledged(sock: socket.socket) -> bool:
    """The peer's kernel has not said that it has got what was sent; asked of Linux, elsewhere never known.

    What waits here because the peer does not read is not sent: a slow or frozen process is no dead machine.
    """
    try:
        queued, unsent = (_count(sock, request) for request in (termios.TIOCOUTQ, _SIOCOUTQNSD))
    except OSError:
        return False
    return queued > unsent


def _count(sock: socket.socket, request: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])
