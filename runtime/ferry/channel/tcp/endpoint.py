"""Channels over TCP: listens, connects, admits authenticated peers, and keeps one connection for each peer.

It must never parse a frame, nor decide when to connect: reconnecting is the caller's decision.

A rule, the same at both ends, decides which of two connections of one pair stays:

* of two lives of the peer: the connection of the later life stays, and the earlier life is refused for ever;
* opened by the same side: the later connection stays;
* opened by both sides at the same time: the connection of the smaller name stays.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from ferry.channel.base import (
    HANDSHAKE_SECONDS,
    NAME_BYTES_MAX,
    REPLACED,
    Channel,
    Endpoint,
    Handler,
    LinkState,
    OnClose,
    OnOpen,
)
from ferry.channel.handshake import Caller, Verdict, greet, welcome
from ferry.channel.tcp.connection import Opening, SocketTransport, tune
from ferry.channel.tcp.transport import TcpTransport
from ferry.contract.addresses import is_v6, netloc
from ferry.contract.errors import FerryError, NobodyListens, Refusal, Unreachable

log = logging.getLogger(__name__)

HANDSHAKES_MAX = 64
"""Handshakes under way at one time; more connections are closed at once."""

REFUSALS_KEPT = 32

_RETRY_SECONDS = 0.02


class TcpEndpoint(Endpoint):
    """Keeps one TCP connection per peer."""

    transport_flags = 0
    """besides TCP, as the handshake names them"""

    def __init__(
        self,
        name: str,
        job: str,
        secret: bytes,
        on_message: Handler,
        on_open: OnOpen,
        on_close: OnClose,
        life: bytes | None = None,
    ) -> None:
        """`life`: 16 bytes, greater than the lives of all former endpoints of this name; by default derived from the
        time."""
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
            raise Refusal(f"{name!r} is not a name: 1 to {NAME_BYTES_MAX} bytes without NUL")
        self.name = name
        self._job = job
        self._secret = secret
        self._on_message = on_message
        self._on_open = on_open
        self._on_close = on_close
        self._life = life or struct.pack(">Q8s", time.time_ns(), os.urandom(8))
        self._latest: dict[str, bytes] = {}
        """The latest life of each peer that has connected."""
        self._opened = 0
        self._lock = threading.Lock()
        self._admission = threading.Lock()
        self._transports: dict[str, SocketTransport] = {}
        """By peer."""
        self._handshakes = threading.BoundedSemaphore(HANDSHAKES_MAX)
        self._listener: socket.socket | None = None
        self._closing = False
        self.refusals: deque[str] = deque(maxlen=REFUSALS_KEPT)
        """Why the last callers were refused; the callers do not learn it."""

    # -- accepting ----------------------------------------------------------------------------------------------------

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Raises Unreachable when the address cannot be bound."""
        try:
            listener = socket.create_server(
                (host, port), family=socket.AF_INET6 if is_v6(host) else socket.AF_INET, backlog=128
            )
        except OSError as error:
            raise Unreachable(f"{self.name} cannot listen on {netloc(host, port)}: {error}") from error
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name=f"channel-accept-{self.name}", daemon=True).start()
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                # Out of descriptors, or a caller that left early: neither may end the listening.
                log.warning("%s could not accept: %s", self.name, error)
                time.sleep(_RETRY_SECONDS)
                continue
            if not self._handshakes.acquire(blocking=False):
                self._refuse(sock, f"more than {HANDSHAKES_MAX} handshakes at one time")
                continue
            threading.Thread(target=self._welcome, args=(sock,), name=f"channel-greet-{self.name}", daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        def decide(caller: Caller, answer: Callable[[Verdict], None]) -> None:
            opening = self._opening(sock, caller.name, caller.name, caller.life, caller.number)
            self._admit(self._transport(opening, caller.transport_flags), answer)

        try:
            tune(sock)
            welcome(
                sock, self.name, self._life, self._job, self._secret, HANDSHAKE_SECONDS, self.transport_flags, decide
            )
        except FerryError as error:
            self._refuse(sock, str(error))
        except Exception:  # a failed callback ends this connection, not the endpoint
            log.exception("%s could not open a connection", self.name)
            sock.close()
        finally:
            self._handshakes.release()

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        self.refusals.append(reason)
        log.warning("%s closed a connection: %s", self.name, reason)
        sock.close()

    # -- connecting ---------------------------------------------------------------------------------------------------

    def connect(self, peer: str, address: tuple[str, int], timeout: float = HANDSHAKE_SECONDS) -> Channel:
        if peer == self.name:
            raise Refusal(f"{peer} does not connect to itself: hand the message over locally")
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unreachable(f"{peer} keeps an older connection to {self.name} that is gone on this side")
            transport = self._dial(peer, address, left)
            if transport is not None:
                return transport.channel
            # The peer keeps another connection: one that it opened itself, which is registered here already or
            # breaking, or one to a later life of this side.
            other = self.channel(peer)
            if other is not None:
                return other
            time.sleep(_RETRY_SECONDS)

    def _dial(self, peer: str, address: tuple[str, int], seconds: float) -> SocketTransport | None:
        with self._lock:
            if self._closing:
                raise Unreachable(f"endpoint {self.name} is closed")
            self._opened += 1
            number = self._opened
        try:
            sock = socket.create_connection(address, timeout=seconds)
        except OSError as error:
            kind = NobodyListens if isinstance(error, ConnectionRefusedError) else Unreachable
            raise kind(f"{self.name} cannot reach {peer} at {address[0]}:{address[1]}: {error}") from error
        try:
            tune(sock)
            me = Caller(self.name, self._life, number, self.transport_flags)
            admitted, life, transport_flags = greet(sock, me, peer, self._job, self._secret, seconds)
            if admitted:
                transport = self._transport(self._opening(sock, peer, self.name, life, number), transport_flags)
                if self._admit(transport, None):
                    return transport
            sock.close()
            return None
        except BaseException:
            sock.close()
            raise

    # -- the one connection per peer ----------------------------------------------------------------------------------

    def _transport(self, opening: Opening, transport_flags: int) -> SocketTransport:
        return TcpTransport(opening)

    def _opening(self, sock: socket.socket, peer: str, initiator: str, life: bytes, number: int) -> Opening:
        return Opening(sock, peer, self._job, self._on_message, self._ended, initiator, life, number)

    def _admit(self, transport: SocketTransport, answer: Callable[[Verdict], None] | None) -> bool:
        """Make it the peer's connection, or refuse it; the end of the old one is reported before the new one opens."""
        connection, channel = transport.connection, transport.channel
        with self._admission:
            old = self._transports.get(channel.peer)
            verdict = self._judge(old, connection.opening)
            if answer is not None:
                answer(verdict)
            if verdict != Verdict.ADMITTED:
                transport.release()
                return False
            self._latest[channel.peer] = connection.opening.life
            connection.ready()
            if old is not None:
                old.channel.close(REPLACED)
                old.connection.wait_end()
            with self._lock:
                self._transports[channel.peer] = transport
            try:
                self._on_open(channel.peer, channel)
            except Exception as error:  # the open was reported, so the end has to be reported, too
                log.exception("on_open of %s for %s failed", self.name, channel.peer)
                channel.close(f"on_open failed: {error!r}")
            transport.start()
            return True

    def _judge(self, old: SocketTransport | None, new: Opening) -> Verdict:
        if new.life < self._latest.get(new.peer, b""):
            return Verdict.FORMER
        stays = old is not None and old.channel.closed is None and preferred(old.connection.opening, new)
        return Verdict.DUPLICATE if self._closing or stays else Verdict.ADMITTED

    def _ended(self, transport: SocketTransport, reason: str) -> None:
        peer = transport.channel.peer
        with self._lock:
            if self._transports.get(peer) is transport:
                del self._transports[peer]
        try:
            self._on_close(peer, reason)
        except Exception:  # the thread ends anyway; the failure must be logged
            log.exception("on_close of %s for %s failed", self.name, peer)

    def channel(self, peer: str) -> Channel | None:
        transport = self._transports.get(peer)
        return None if transport is None or transport.channel.closed is not None else transport.channel

    def links(self) -> tuple[LinkState, ...]:
        with self._lock:
            transports = sorted(self._transports.items())
        return tuple(transport.link for _, transport in transports if transport.channel.closed is None)

    def close(self) -> None:
        self._closing = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._admission, self._lock:
            transports = list(self._transports.values())
        for transport in transports:
            transport.channel.close("endpoint closed")
        for transport in transports:
            transport.connection.wait_end()


def preferred(old: Opening, new: Opening) -> bool:
    """Of two connections of one pair the preferred one stays; both ends get the same answer."""
    if old.life != new.life:
        return old.life > new.life
    if old.initiator == new.initiator:
        return old.number > new.number
    return old.initiator < new.initiator
