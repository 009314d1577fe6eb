"""One authenticated TCP connection: its socket, the lock of senders, the receiving thread, and its end.

Every transport has one, for all messages or only for the beginning. It must never know what is sent.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ferry.channel.base import Handler
from ferry.channel.flow import ChannelTransport, FlowChannel, reason_of
from ferry.contract.errors import Unreachable

SOCKET_BYTES = 1 << 20
"""Kernel buffer each way: a control message waits behind at most this, about 1 ms on a fast link."""

GATHER_MAX = 1000
"""Entries of one sendmsg; Linux allows 1024."""

SILENT_SECONDS = 15
"""Unacknowledged bytes for this long mean that the node is lost; a dead process is noticed at once. Generous, because
heartbeats of the membership are quicker and a process that is merely stopped must not look dead to TCP."""

_SIOCOUTQNSD = 0x894B
"""Bytes of the send queue that were not sent yet: from linux/sockios.h, unnamed in Python."""

_JOIN_SECONDS = 1.0


class SocketTransport(ChannelTransport, Protocol):
    """A transport that begins with an authenticated TCP connection; an endpoint keeps one for each peer."""

    channel: FlowChannel
    connection: TcpConnection

    def start(self) -> None:
        """Begin to receive; once. Sending is possible before."""

    def serve(self) -> None:
        """Receive until the channel is closed, on the connection's thread. Raises the reason of the end."""

    def release(self) -> None:
        """Release all resources: the connection has ended but the end was not reported yet, or it was never started."""


@dataclass(frozen=True, slots=True)
class Opening:
    """An authenticated connection, and the callbacks for its messages and its end."""

    sock: socket.socket
    peer: str
    job: str
    on_message: Handler
    on_end: Callable[[SocketTransport, str], None]
    initiator: str
    """name of the side that dialled"""
    life: bytes
    """life of the peer"""
    number: int
    """number among the initiator's connections"""


class TcpConnection:
    """The socket of one transport."""

    def __init__(self, opening: Opening, transport: SocketTransport) -> None:
        self.opening = opening
        self.socket = opening.sock
        self.sending = threading.Lock()
        """Held by the sending thread."""
        self.peer_gone = False
        """The peer has ended the connection: a farewell would not be read."""
        self._transport = transport
        self._shut_down = threading.Event()
        self._reader = threading.Thread(target=self._read, name=f"channel-read-{opening.peer}", daemon=True)

    def ready(self) -> None:
        """The handshake is over: no more deadline on the socket."""
        self.socket.settimeout(None)

    def start(self) -> None:
        """Start the thread that receives; once."""
        self._reader.start()

    def _read(self) -> None:
        reason = "closed"
        try:
            self._transport.serve()
        except OSError as error:
            reason, self.peer_gone = f"connection lost: {error}", True
        except Exception as error:  # a handler's failure must end its connection, not silently the thread
            reason = reason_of(error)
        self._transport.channel.close(reason)
        self._shut_down.wait(_JOIN_SECONDS)
        self._transport.release()
        self.opening.on_end(self._transport, self._transport.channel.closed or reason)

    def shut_down(self, farewell: Callable[[], bytes], seconds: float) -> None:
        """Send the reason to the peer, at best effort and waiting `seconds` for another sender, and end both
        directions."""
        if not self.peer_gone and self.sending.acquire(timeout=seconds):
            try:
                with contextlib.suppress(OSError, Unreachable):
                    self.socket.send(farewell(), socket.MSG_DONTWAIT)
            finally:
                self.sending.release()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self._shut_down.set()

    def wait_end(self) -> None:
        """After a close: wait until the end was reported, unless called by the reporting thread."""
        if threading.current_thread() is not self._reader and self._reader.ident is not None:
            self._reader.join(_JOIN_SECONDS)


def tune(sock: socket.socket) -> None:
    """Socket options of every connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Linux names; on other systems only heartbeats of the membership notice a dead node.
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def receive(sock: socket.socket, buffer: memoryview, flags: int = 0) -> int:
    """Receive some bytes. Raises Unreachable when the peer has closed, BlockingIOError when the flags forbid
    waiting."""
    try:
        count = sock.recv_into(buffer, 0, flags)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Unreachable(f"connection lost: {error}") from error
    if not count:
        raise Unreachable("closed by the peer")
    return count


def send_some(sock: socket.socket, gather: list[bytes | memoryview], flags: int = 0) -> list[bytes | memoryview]:
    """One sendmsg of the gather; returns the rest."""
    return unsent(gather, sock.sendmsg(gather[:GATHER_MAX], [], flags))


def unsent(gather: list[bytes | memoryview], count: int) -> list[bytes | memoryview]:
    """The rest of a gather after `count` bytes of it were sent."""
    for index, piece in enumerate(gather):
        if count < len(piece):
            return [memoryview(piece)[count:], *gather[index + 1 :]]
        count -= len(piece)
    return []


def unacknowledged(sock: socket.socket) -> bool:
    """Whether the peer's kernel has unacknowledged bytes; from Linux, elsewhere always False.

    Bytes that wait here because the peer does not read are not sent: a slow or frozen process is no dead machine.
    """
    try:
        queued, not_sent = (_count(sock, request) for request in (termios.TIOCOUTQ, _SIOCOUTQNSD))
    except OSError:
        return False
    return queued > not_sent


def _count(sock: socket.socket, request: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(sock, request, bytes(4)))[0])
