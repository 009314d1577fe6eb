"""Which way the bytes of a connection go: through rings, or over the TCP connection on which the rings are agreed.

    apart --hello--> offered --peer's hello, ready--> met --peer's ready--> proving --its device has answered, turn--> joined
      ^                                                                                                               |
      '--------------- peer's fall: what it did not read is sent again over TCP ---------------------------------- fallen

From any stage either side may fall, because its link broke or because it is told to: it takes the peer's rights away, reads
what has arrived, says how many slots that was, and goes on over TCP when the peer has said the same. So no byte is lost or
comes twice. It must never wait, nor keep the peer's rights while anybody goes on without this link.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from enum import Enum

from ferry.channel.base import HANDSHAKE_SECONDS
from ferry.channel.rdma import pace
from ferry.channel.rdma.connection import ConnectionFactory, LinkLost, RdmaConnection, ReassemblyBuffer, about_the_link
from ferry.channel.rdma.control_stream import PING, READY, TURN, ControlStream, Fall, Hello, data, fall
from ferry.channel.tcp.channel import GATHER_MAX, behind, unacknowledged
from ferry.contract.errors import Refusal, Unreachable

log = logging.getLogger(__name__)

UNACKNOWLEDGED_SECONDS = 0.3
"""A peer whose device does not answer has this long to acknowledge a TCP segment: its kernel does, however busy it is."""

PING_SECONDS = 0.1
"""A device that has not answered for this long: the peer's kernel is asked, too, so that both are known dead at once."""

RETRY_SECONDS, RETRY_SECONDS_MAX = 0.25, 30.0
"""From a fall until the next attempt; doubled by each that does not last STEADY_SECONDS."""

STEADY_SECONDS = 10.0


class LinkPhase(Enum):
    """Of a link."""

    APART = "apart"
    OFFERED = "offered"
    MET = "met"
    PROVING = "proving"
    JOINED = "joined"
    FALLEN = "fallen"


class LinkControl:
    """Used with the wire lock, but for `receive`. `leads`: this side begins a new attempt after a fall."""

    def __init__(self, sock: socket.socket, peer: str, means: ConnectionFactory, leads: bool) -> None:
        self._socket = sock
        self._peer = peer
        self._means = means
        self._leads = leads
        self.control = ControlStream(sock)
        self._said: list[bytes | memoryview] = []
        self._pipe: RdmaConnection | None = None
        self._out = self._in = False
        self._wanted = True
        self._pinged = False
        self.stage = LinkPhase.APART
        self._since = time.monotonic()
        self._retry_at = self._heard = self._since
        self._pause = RETRY_SECONDS / 2
        self.reason = "the link is being set up"
        """why the bytes go over TCP, when they do"""

    # -- joining ------------------------------------------------------------------------------------------------------

    @property
    def joined(self) -> RdmaConnection | None:
        """The link, when both directions go through its rings."""
        return self._pipe if self._out and self._in else None

    @property
    def outgoing(self) -> RdmaConnection | None:
        """The link, when this side's bytes go through its ring."""
        return self._pipe if self._out else None

    def offer(self) -> None:
        """Make a ring and describe it to the peer. Raises LinkLost."""
        with about_the_link():
            self._pipe = self._means.open(self._peer)
        self._say(self._pipe.hello.encode())
        self._enter(LinkPhase.OFFERED)

    def hear(self, message: Hello | bytes) -> None:
        """What the peer says on the way to a link. Raises LinkLost, or Refusal for what it may not say now."""
        if self.stage is LinkPhase.FALLEN or message == PING:
            return  # the peer said it before it knew, or says nothing
        if isinstance(message, Hello):
            if self.stage is LinkPhase.APART:
                if not self._wanted:
                    raise LinkLost(self.reason)
                self.offer()
            if self.stage is not LinkPhase.OFFERED or self._pipe is None:
                raise Refusal("the peer describes its RDMA link twice")
            with about_the_link():
                self._pipe.attach(message)
            self._say(READY)
            self._enter(LinkPhase.MET)
        elif message == READY and self.stage is LinkPhase.MET:
            self._enter(LinkPhase.PROVING)
            self.probe()
        elif message == TURN and self.stage in (LinkPhase.PROVING, LinkPhase.JOINED) and not self._in:
            self._in = True
            log.debug("the link to %s goes over RDMA", self._peer)
        else:
            raise Refusal(f"the peer says {message!r} while its RDMA link is {self.stage.value}")

    def _enter(self, stage: LinkPhase) -> None:
        self.stage, self._since = stage, time.monotonic()
        if stage is LinkPhase.JOINED:
            self._device_answers()

    # -- falling ------------------------------------------------------------------------------------------------------

    def revoke(self, reason: str) -> None:
        """The fence; what has arrived can be read. Raises Unreachable when TCP is known to be dead, too."""
        log.warning("the link to %s goes on over TCP: %s", self._peer, reason)
        steady = self.stage is LinkPhase.JOINED and time.monotonic() - self._since > STEADY_SECONDS
        self._pause = RETRY_SECONDS if steady else min(2 * self._pause, RETRY_SECONDS_MAX)
        self.reason, self._out = reason, False
        self._enter(LinkPhase.FALLEN)
        if self._pipe is not None:
            self._pipe.link.revoke()
        pinged, self._pinged = self._pinged, False
        if pinged and unacknowledged(self._socket):
            raise Unreachable(f"{reason}, and its TCP connection does not answer either")

    def tell_fall(self) -> None:
        """Everything that had arrived was read: say so."""
        self._in = False
        self._say(fall(0 if self._pipe is None else self._pipe.inbound.consumed, self.reason))

    def part(self, peers: Fall) -> list[bytes]:
        """Both sides have fallen: what the peer did not read, to be sent again before everything else."""
        pipe, self._pipe = self._pipe, None
        try:
            again = [] if pipe is None else pipe.outbound.again(peers.consumed)
        finally:
            if pipe is not None:
                pipe.close()
        self._enter(LinkPhase.APART)
        self._retry_at = self._since + self._pause
        return again

    def want(self, rdma: bool) -> None:
        """Whether to try; True: at once."""
        self._wanted = rdma
        self._leads |= rdma
        self._retry_at = time.monotonic()

    def close(self) -> None:
        """Take all rights away and end the link, if there is one."""
        self._out, self._in, self._said = False, False, []
        if self._pipe is not None:
            self._pipe.close()

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def landed(self) -> int:
        """Slots that are in the peer's memory for certain."""
        if self._pipe is None or not self._out:
            return 0
        with contextlib.suppress(Unreachable):
            self._pipe.posts.reap()
        return self._pipe.outbound.landed

    @property
    def consumed(self) -> int:
        """Slots of this side's ring that were read."""
        return 0 if self._pipe is None else self._pipe.inbound.consumed

    def put(self, gather: list[bytes | memoryview]) -> list[bytes | memoryview]:
        """Send as much as there is room for; returns the rest. Raises LinkLost, or Unreachable."""
        if self._out and self._pipe is not None:
            with about_the_link():
                return self._pipe.outbound.put(gather)
        assert self.stage is not LinkPhase.FALLEN
        if not self.push():
            return gather
        self._said = [data(sum(map(len, gather))), *gather]
        self.push()
        return []

    def push(self) -> bool:
        """Hand what goes over TCP to the kernel; True when nothing is left. Raises Unreachable."""
        try:
            while self._said:
                self._said = behind(self._said, self._socket.sendmsg(self._said[:GATHER_MAX], [], socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError as error:
            self._said = []
            raise Unreachable(f"connection lost: {error}") from error
        return True

    def _say(self, message: bytes) -> None:
        self._said.append(message)
        self.push()

    def receive(self, intake: ReassemblyBuffer) -> bool:
        """Copy some slots of the ring; True when there were any. Raises LinkLost."""
        if not self._in or self._pipe is None:
            return False
        with about_the_link():
            return intake.fill(self._pipe.inbound)

    def look(self) -> None:
        """Read the credit that the peer gave."""
        if self._out and self._pipe is not None:
            self._pipe.outbound.look()

    def progress(self, idle: bool) -> tuple[bool, bool]:
        """Notice credit and completions, give credit; returns whether there were any of each. Raises LinkLost."""
        pipe = self._pipe
        if pipe is not None and self.stage is LinkPhase.PROVING and self.answered():
            self._say(TURN)
            self._out = True
            self._enter(LinkPhase.JOINED)
        if pipe is None or not self._out:
            return False, False
        with about_the_link():
            reaped = pipe.posts.reap()
            more = pipe.outbound.look()
            pipe.inbound.report(idle=idle and not more)
        if reaped:
            self._device_answers()
        return more, reaped

    # -- time ---------------------------------------------------------------------------------------------------------

    def mind(self, now: float) -> None:
        """What is due: a bell, a probe, a new attempt, or the end of patience. Raises LinkLost, or Unreachable."""
        pipe, waited = self._pipe, now - self._since
        if self.stage is LinkPhase.JOINED and pipe is not None:
            with about_the_link():
                pipe.outbound.nudge()
                silent = now - self._heard - pace.PROBE_MILLISECONDS / 1000
                if pipe.answered and silent >= 0:
                    pipe.outbound.probe()
                elif silent > PING_SECONDS and not self._pinged:
                    self._pinged = True
                    self._say(PING)
        elif self.stage is LinkPhase.FALLEN:
            if waited > UNACKNOWLEDGED_SECONDS and unacknowledged(self._socket):
                raise Unreachable(f"{self.reason}, and its TCP connection does not answer either")
            if waited > HANDSHAKE_SECONDS:
                raise Unreachable(f"{self.reason}, and the peer does not go on over TCP")
        elif self.stage is LinkPhase.APART:
            if self._wanted and self._leads and now >= self._retry_at:
                self.offer()
        elif waited > HANDSHAKE_SECONDS:
            raise LinkLost(f"the peer did not set up its side of the RDMA link within {HANDSHAKE_SECONDS} s")

    def patience(self, now: float) -> int:
        """Milliseconds until `mind` is due, when nothing happens before; only while not joined."""
        if self.stage is not LinkPhase.APART:
            return 2 if self.stage is LinkPhase.PROVING else 50
        due = self._retry_at - now if self._wanted and self._leads else 1.0
        return max(1, min(1000, int(due * 1000) + 1))

    @property
    def unsent(self) -> bool:
        """There is something that the kernel did not take yet."""
        return bool(self._said)

    # -- sleeping (see connection) -------------------------------------------------------------------------------------

    def fall_asleep(self) -> bool:
        """The peer knows that it has to ring; False when something is under way. Raises LinkLost."""
        pipe = self.joined
        with about_the_link():
            return pipe is not None and not self._said and pipe.calm and pipe.fall_asleep()

    def wake_up(self) -> None:
        """The peer need not ring any more."""
        if self._pipe is not None:
            with about_the_link():
                self._pipe.wake_up()

    def probe(self) -> None:
        """Ask the peer's device whether it is there."""
        if self._pipe is not None:
            with about_the_link():
                self._pipe.outbound.probe()

    def answered(self) -> bool:
        """The peer's device has answered since the last look."""
        with about_the_link():
            answered = self._pipe is not None and self._pipe.posts.reap()
        if answered:
            self._device_answers()
        return answered

    def _device_answers(self) -> None:
        self._heard, self._pinged = time.monotonic(), False
