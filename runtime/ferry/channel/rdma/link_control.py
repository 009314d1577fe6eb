"""Decides the path of a channel's bytes: through the rings of a link, or over the TCP connection that began the link.

    phase         the peer says, or what happens      this side                                        next
    ------------  ----------------------------------  -----------------------------------------------  ------------
    DETACHED      nothing, and a retry is due         opens a link, says hello                         OFFERED
    DETACHED      hello                               opens a link, says hello; attaches, says ready   ATTACHED
    OFFERED       hello                               attaches to the peer's ring, says ready          ATTACHED
    ATTACHED      ready                               probes the peer's device                         PROBING
    PROBING       the device answers the probe        says switch, and sends through the ring          ESTABLISHED
    PROBING       switch                              receives through the ring
    ESTABLISHED   switch                              receives through the ring
    any           the link broke                      revokes the peer's rights, reads the slots that  FALLING_BACK
                                                      have arrived, and sends their number
    FALLING_BACK  fall back                           sends over TCP, first the bytes that the peer    DETACHED
                                                      did not read

A peer that falls back makes this side fall back, too, so no byte is lost or duplicated.
It must never wait, nor leave the peer its rights while either side goes on without this link.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from ferry.channel.base import HANDSHAKE_SECONDS
from ferry.channel.rdma import pace
from ferry.channel.rdma.connection import ConnectionFactory, LinkLost, RdmaConnection, ReassemblyBuffer, link_errors
from ferry.channel.rdma.control_stream import ControlStream, FallBack, Hello, Signal, stream_header
from ferry.channel.tcp.connection import send_some, unacknowledged
from ferry.contract.errors import Refusal, Unreachable

log = logging.getLogger(__name__)

UNACKNOWLEDGED_SECONDS = 0.3
"""Time for a peer with a silent device to acknowledge a TCP segment: its kernel does, however busy it is."""

PING_SECONDS = 0.1
"""Silence of a device after which the peer's kernel is asked, too, so that the death of both is known at the same
time."""

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.25, 30.0
"""From a fall back until the next attempt; doubled by each link that does not last STEADY_SECONDS."""

STEADY_SECONDS = 10.0


class LinkPhase(Enum):
    """The state of a link; the table above has the transitions."""

    DETACHED = "detached"
    OFFERED = "offered"
    ATTACHED = "attached"
    PROBING = "probing"
    ESTABLISHED = "established"
    FALLING_BACK = "falling back"


class LinkControl:
    """Called with the sending lock, except `receive`. `leads`: this side begins a new attempt after a fall back."""

    def __init__(self, sock: socket.socket, peer: str, factory: ConnectionFactory, leads: bool) -> None:
        self._socket = sock
        self._peer = peer
        self._factory = factory
        self._leads = leads
        self.stream = ControlStream(sock)
        self._unsent: list[bytes | memoryview] = []
        """bytes that the TCP connection did not take yet"""
        self._connection: RdmaConnection | None = None
        self._sends_by_ring = False
        self._receives_by_ring = False
        self._pinged = False
        self.phase = LinkPhase.DETACHED
        self._since = time.monotonic()
        self._retry_at = self._since
        self._answered_at = self._since
        self._pause = RETRY_SECONDS / 2
        self.reason = "the link is being set up"
        """why the bytes go over TCP, when they do"""

    @property
    def established(self) -> RdmaConnection | None:
        """The link, when both directions go through its rings."""
        return self._connection if self._sends_by_ring and self._receives_by_ring else None

    @property
    def outgoing(self) -> RdmaConnection | None:
        """The link, when this side's bytes go through its ring."""
        return self._connection if self._sends_by_ring else None

    # -- setting up a link --------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """Make a ring and describe it to the peer. Raises LinkLost."""
        with link_errors():
            self._connection = self._factory.open(self._peer)
        self._say(self._connection.hello.encode())
        self._enter(LinkPhase.OFFERED)

    def on_message(self, message: Hello | Signal) -> None:
        """Handle a message of the peer during the set-up. Raises LinkLost, or Refusal for a message out of turn."""
        if self.phase is LinkPhase.FALLING_BACK or message is Signal.PING:
            return  # sent before the peer knew, or only for an acknowledgement of TCP
        kind = Hello if isinstance(message, Hello) else message
        handler = _HANDLERS.get((self.phase, kind))
        if handler is None or (message is Signal.SWITCH and self._receives_by_ring):
            raise Refusal(f"the peer says {message!r} while its RDMA link is {self.phase.value}")
        handler(self, message)

    def _on_first_hello(self, hello: Hello) -> None:
        self.offer()
        self._on_hello(hello)

    def _on_hello(self, hello: Hello) -> None:
        assert self._connection is not None
        with link_errors():
            self._connection.attach(hello)
        self._say(Signal.READY)
        self._enter(LinkPhase.ATTACHED)

    def _on_ready(self, _: Signal) -> None:
        self._enter(LinkPhase.PROBING)
        self.probe()

    def _on_switch(self, _: Signal) -> None:
        self._receives_by_ring = True
        log.debug("the link to %s goes over RDMA", self._peer)

    def _on_answer(self) -> None:
        """The peer's device has answered the first probe."""
        self._say(Signal.SWITCH)
        self._sends_by_ring = True
        self._enter(LinkPhase.ESTABLISHED)

    def _enter(self, phase: LinkPhase) -> None:
        self.phase, self._since = phase, time.monotonic()
        if phase is LinkPhase.ESTABLISHED:
            self._device_answers()

    # -- falling back to TCP ------------------------------------------------------------------------------------------

    def revoke(self, reason: str) -> None:
        """The fence; received slots can still be read. Raises Unreachable when TCP is known to be dead, too."""
        log.warning("the link to %s goes on over TCP: %s", self._peer, reason)
        steady = self.phase is LinkPhase.ESTABLISHED and time.monotonic() - self._since > STEADY_SECONDS
        self._pause = RETRY_SECONDS if steady else min(2 * self._pause, RETRY_SECONDS_MAX)
        self.reason, self._sends_by_ring = reason, False
        self._enter(LinkPhase.FALLING_BACK)
        if self._connection is not None:
            self._connection.queue_pair.revoke()
        pinged, self._pinged = self._pinged, False
        if pinged and unacknowledged(self._socket):
            raise Unreachable(f"{reason}, and its TCP connection does not answer either")

    def announce_fall_back(self) -> None:
        """All received slots were read: tell the peer."""
        self._receives_by_ring = False
        self._say(FallBack(self.consumed, self.reason).encode())

    def resume_tcp(self, peer: FallBack) -> list[bytes]:
        """Both sides have fallen back: returns the bytes that the peer did not read, to be sent again first."""
        connection, self._connection = self._connection, None
        try:
            unread = [] if connection is None else connection.outbound.unread(peer.consumed)
        finally:
            if connection is not None:
                connection.close()
        self._enter(LinkPhase.DETACHED)
        self._retry_at = self._since + self._pause
        return unread

    def close(self) -> None:
        """Revoke all rights and end the link, if there is one."""
        self._sends_by_ring = self._receives_by_ring = False
        self._unsent = []
        if self._connection is not None:
            self._connection.close()

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def landed(self) -> int:
        """Slots that are known to be in the peer's memory."""
        if self._connection is None or not self._sends_by_ring:
            return 0
        with contextlib.suppress(Unreachable):
            self._connection.requests.poll()
        return self._connection.outbound.landed

    @property
    def consumed(self) -> int:
        """Slots of this side's ring that were read."""
        return 0 if self._connection is None else self._connection.inbound.consumed

    def send(self, gather: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Send as much as there is room for; returns the rest. Raises LinkLost, or Unreachable."""
        if self._sends_by_ring and self._connection is not None:
            with link_errors():
                return self._connection.outbound.put(gather)
        assert self.phase is not LinkPhase.FALLING_BACK
        if not self.push():
            return gather
        self._unsent = [stream_header(sum(map(len, gather))), *gather]
        self.push()
        return []

    def push(self) -> bool:
        """Hand TCP bytes to the kernel; True when no byte is left. Raises Unreachable."""
        try:
            while self._unsent:
                self._unsent = send_some(self._socket, self._unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            self._unsent = []
            raise Unreachable(f"connection lost: {error}") from error
        return True

    @property
    def unsent(self) -> bool:
        """Whether bytes wait that the kernel did not take yet."""
        return bool(self._unsent)

    def _say(self, message: bytes) -> None:
        self._unsent.append(message)
        self.push()

    def receive(self, received: ReassemblyBuffer) -> bool:
        """Copy some slots of the ring; True when there were some. Raises LinkLost."""
        if not self._receives_by_ring or self._connection is None:
            return False
        with link_errors():
            return received.fill(self._connection.inbound)

    def read_credit(self) -> None:
        """Read the credit that the peer gave."""
        if self._sends_by_ring and self._connection is not None:
            self._connection.outbound.read_credit()

    def progress(self, idle: bool) -> tuple[bool, bool]:
        """Read credit, poll completions, give credit; returns whether there was any credit, and any completion. Raises
        LinkLost."""
        connection = self._connection
        if self.phase is LinkPhase.PROBING and self.poll_answer():
            self._on_answer()
        if connection is None or not self._sends_by_ring:
            return False, False
        with link_errors():
            completed = connection.requests.poll()
            credited = connection.outbound.read_credit()
            connection.inbound.post_credit(idle=idle and not credited)
        if completed:
            self._device_answers()
        return credited, completed

    # -- time ---------------------------------------------------------------------------------------------------------

    def on_timer(self, now: float) -> None:
        """Run due work: a doorbell, a probe, a new attempt, or a timeout. Raises LinkLost, or Unreachable."""
        waited = now - self._since
        if self.phase is LinkPhase.ESTABLISHED:
            self._keep_alive(now)
        elif self.phase is LinkPhase.FALLING_BACK:
            if waited > UNACKNOWLEDGED_SECONDS and unacknowledged(self._socket):
                raise Unreachable(f"{self.reason}, and its TCP connection does not answer either")
            if waited > HANDSHAKE_SECONDS:
                raise Unreachable(f"{self.reason}, and the peer does not go on over TCP")
        elif self.phase is LinkPhase.DETACHED:
            if self._leads and now >= self._retry_at:
                self.offer()
        elif waited > HANDSHAKE_SECONDS:
            raise LinkLost(f"the peer did not set up its side of the RDMA link within {HANDSHAKE_SECONDS} s")

    def _keep_alive(self, now: float) -> None:
        connection = self._connection
        assert connection is not None
        silent = now - self._answered_at - pace.PROBE_MILLISECONDS / 1000
        with link_errors():
            connection.outbound.ring_doorbell()
            if connection.all_completed and silent >= 0:
                connection.outbound.probe()
            elif silent > PING_SECONDS and not self._pinged:
                self._pinged = True
                self._say(Signal.PING)

    def timer_milliseconds(self, now: float) -> int:
        """Longest wait until the next `on_timer`; only while no link is established."""
        if self.phase is not LinkPhase.DETACHED:
            return 2 if self.phase is LinkPhase.PROBING else 50
        due = self._retry_at - now if self._leads else 1.0
        return max(1, min(1000, int(due * 1000) + 1))

    # -- sleeping (see RdmaConnection) --------------------------------------------------------------------------------

    def arm(self) -> bool:
        """Ask the peer to ring the doorbell; False when a transfer is under way. Raises LinkLost."""
        connection = self.established
        with link_errors():
            return connection is not None and not self._unsent and connection.idle and connection.arm()

    def disarm(self) -> None:
        """The peer need not ring any more."""
        if self._connection is not None:
            with link_errors():
                self._connection.disarm()

    def probe(self) -> None:
        """Probe the peer's device."""
        if self._connection is not None:
            with link_errors():
                self._connection.outbound.probe()

    def poll_answer(self) -> bool:
        """Whether the peer's device has answered since the last call."""
        with link_errors():
            answered = self._connection is not None and self._connection.requests.poll()
        if answered:
            self._device_answers()
        return answered

    def _device_answers(self) -> None:
        self._answered_at, self._pinged = time.monotonic(), False


_HANDLERS: Mapping[tuple[LinkPhase, type[Hello] | Signal], Callable[[LinkControl, Any], None]] = {
    (LinkPhase.DETACHED, Hello): LinkControl._on_first_hello,
    (LinkPhase.OFFERED, Hello): LinkControl._on_hello,
    (LinkPhase.ATTACHED, Signal.READY): LinkControl._on_ready,
    (LinkPhase.PROBING, Signal.SWITCH): LinkControl._on_switch,
    (LinkPhase.ESTABLISHED, Signal.SWITCH): LinkControl._on_switch,
}
"""The messages that the peer may send in each phase; all others are refused."""
