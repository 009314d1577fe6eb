"""A channel over RDMA: an authenticated TCP connection for liveness, the beginning and the end, and a link with rings.

`link_control` decides whether bytes go through the rings or over TCP; this file moves them. One thread makes progress:
it receives, gives credit, polls completions and sends bytes that senders could not send themselves. It waits by
polling, ever less often, and in idle times by sleeping until the peer rings its doorbell. It must never report the end
before the peer's rights to this side's memory are revoked, nor wait inside a verbs call.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator

from ferry.channel.base import LinkState
from ferry.channel.flow import FlowChannel, reason_of
from ferry.channel.rdma import pace
from ferry.channel.rdma.connection import ConnectionFactory, LinkLost, RdmaConnection, ReassemblyBuffer
from ferry.channel.rdma.control_stream import Bye, FallBack
from ferry.channel.rdma.link_control import LinkControl, LinkPhase
from ferry.channel.rdma.pace import PollPace, Waker
from ferry.channel.tcp.connection import Opening, TcpConnection
from ferry.contract import limits
from ferry.contract.errors import FerryError, Unreachable

log = logging.getLogger(__name__)

_FAREWELL_SECONDS = 0.5
"""Wait for the sending lock: making a queue pair takes tens of milliseconds."""


class RdmaTransport:
    """`start` begins to set up the link; earlier messages go over TCP."""

    name = "rdma"

    def __init__(self, opening: Opening, factory: ConnectionFactory) -> None:
        self.channel = FlowChannel(opening.peer, opening.job, opening.on_message, self)
        self.connection = TcpConnection(opening, self)
        self._sending = self.connection.sending
        self._socket = opening.sock
        self._fallback = factory.fallback
        self._control = LinkControl(opening.sock, opening.peer, factory, leads=opening.initiator != opening.peer)
        self._waker = Waker()
        self._pace = PollPace()
        self._received = ReassemblyBuffer(factory.shape)
        self._rest: list[bytes | memoryview] = []
        """rest of the last gather; with the sending lock"""
        self._asleep = False
        self._listened_at = 0.0
        self._failure: FerryError | None = None
        """error of a sender, for the thread that makes progress"""

    @property
    def link(self) -> LinkState:
        if self._control.established is not None:
            return LinkState(self.channel.peer, "rdma", "")
        return LinkState(self.channel.peer, "tcp", self._control.reason)

    def start(self) -> None:
        self.connection.start()

    # -- sending: in senders' threads, and in the progress thread ---------------------------------------------------

    def queued(self, size: int) -> None:
        if size <= limits.SLOT_BYTES and self._failure is None and self._sending.acquire(blocking=False):
            try:
                self._control.read_credit()
                self._send(batches=1)
            except FerryError as error:
                self._failure = error
            finally:
                self._sending.release()
        self.wake()

    def wake(self) -> None:
        # Set before the thread's last look for work, and read after work was added.
        if self._asleep:
            self._waker.wake()

    def _send(self, batches: int) -> bool:
        """With the sending lock: send as much as there is room for; True when bytes were sent."""
        if self._control.phase is LinkPhase.FALLING_BACK:
            return False  # the peer must first say how much it has read
        moved = False
        for _ in range(batches):
            if not self._control.push():
                break
            if not self._rest:
                self._handed_over()
                self._rest = self.channel.collect()
                if not self._rest:
                    break
            before = sum(map(len, self._rest))
            self._rest = self._control.send(self._rest)
            moved |= sum(map(len, self._rest)) != before
            if self._rest:
                break
        if not self._rest and not self._control.unsent:
            self._handed_over()
        if moved:
            self._pace.worked()
        return moved

    def _handed_over(self) -> None:
        if self.channel.in_hand:
            self.channel.handed_over()

    def flush(self, timeout: float) -> bool:
        """When it returns True, everything is in the peer's memory, or in its kernel's queue."""
        deadline = time.monotonic() + timeout
        while self.channel.wait_handed_over(max(0.0, deadline - time.monotonic())):
            with self._sending:
                link = self._control.outgoing
                if self.channel.in_hand:
                    continue  # the link was lost meanwhile
                if link is None:
                    return self.channel.closed is None
                try:
                    target = link.last_request()
                except Unreachable as error:  # bytes may have to be sent again over TCP
                    self._failure, target = LinkLost(str(error)), sys.maxsize
            self.wake()
            if self._completed(link, target, deadline):
                return self.channel.closed is None
            if time.monotonic() >= deadline:
                return False
        return False

    def _completed(self, link: RdmaConnection, target: int, deadline: float) -> bool:
        """Wait for that request; False after the deadline, or when it can never complete."""
        self.channel.wait_for(
            lambda: link.requests.completed >= target or self._control.outgoing is not link,
            max(0.0, deadline - time.monotonic()),
        )
        return link.requests.completed >= target

    # -- the thread ---------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        try:
            with self._falling_back(), self._sending:
                self._control.offer()
            while self.channel.closed is None:
                with self._falling_back():
                    if self._step():
                        self._pace.worked()
                    else:
                        self._pause()
        except Unreachable as error:
            raise Unreachable(self._last_words() or str(error)) from error

    def _step(self) -> bool:
        """One pass of work; False when there was none."""
        now = time.monotonic()
        busy = False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._established or now - self._listened_at >= pace.LISTEN_SECONDS:
            self._listened_at = now
            busy = self._listen()
        busy |= self._receive()
        with self._sending:
            credited, completed = self._control.progress(idle=not busy)
            busy |= credited | self._send(batches=4)
            self._control.on_timer(now)
        if completed:
            self.channel.notify()
        return busy

    @property
    def _established(self) -> bool:
        return self._control.established is not None

    def _receive(self) -> bool:
        moved = self._control.receive(self._received)
        if moved:
            self._received.empty(self.channel.feed)
        return moved

    def _listen(self) -> bool:
        """Read the peer's TCP messages; False when there is none. Raises Unreachable when it ends."""
        heard = False
        while self.channel.closed is None:
            try:
                message = self._control.stream.read()
            except Unreachable:
                self.connection.peer_gone = True
                self._drain(0)
                raise
            if message is None:
                return heard
            heard = True
            if isinstance(message, memoryview):
                self._received.add(message, self.channel.feed)
            elif isinstance(message, FallBack):
                self._resume_tcp(message)
            elif isinstance(message, Bye):
                self.connection.peer_gone = True
                self._drain(message.landed)
                raise Unreachable(message.reason)
            else:
                with self._sending:
                    self._control.on_message(message)
        return heard

    # -- falling back to TCP ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _falling_back(self) -> Iterator[None]:
        """With fallback enabled, a lost link does not end the connection."""
        try:
            yield
        except LinkLost as error:
            if not self._fallback:
                raise
            self._fall_back(str(error))

    def _fall_back(self, reason: str) -> None:
        """Leave the link: fence it, read the received slots, and tell the peer."""
        if self._control.phase is LinkPhase.FALLING_BACK:
            return
        with self._sending:
            self.channel.take_back()  # sent bytes may have to be sent again
            self._control.revoke(reason)
        with contextlib.suppress(LinkLost):
            while self._receive():
                pass
        with self._sending:
            self._failure = None
            self._control.announce_fall_back()
        self.channel.notify()

    def _resume_tcp(self, peer: FallBack) -> None:
        """The peer has left the link: this side leaves it, too, and resumes where the peer stopped."""
        if not self._fallback:
            raise Unreachable(f"the peer goes on over TCP: {peer.reason}")
        self._fall_back(f"{peer.reason} (says the peer)")
        with self._sending:
            self._rest = [*self._control.resume_tcp(peer), *self._rest]

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self._established and self._pace.nap():
            return
        self._asleep = True
        try:
            if not (self._established and self._pace.sleepy and self._wait_for_doorbell()):
                established = self._established
                self._wait(
                    self._pace.milliseconds if established else self._control.timer_milliseconds(time.monotonic())
                )
        finally:
            self._asleep = False

    def _wait_for_doorbell(self) -> bool:
        """Sleep until the peer rings, if no transfer is under way; False otherwise."""
        with self._sending:
            if self._rest or not self._control.arm():
                return False
        # Handle work from before the peer and the senders knew that this thread sleeps.
        if not self._step():
            self._sleep()
        with self._sending:
            self._control.disarm()
        return True

    def _sleep(self) -> None:
        """Sleep until woken; the peer's device is probed at times, nothing else is done."""
        link = self._control.established
        while self.channel.closed is None and link is not None and link.idle:
            if self._wait(pace.PROBE_MILLISECONDS, link.queue_pair.fd):
                return
            with self._sending:
                self._control.probe()
            for pause in pace.ANSWER_MILLISECONDS:
                if self._wait(pause, link.queue_pair.fd):
                    return
                if self._control.poll_answer():
                    break
            else:
                return

    def _wait(self, milliseconds: int, *doorbell: int) -> bool:
        """True when there may be work before the time is over."""
        blocked = self._control.unsent
        if not blocked and not self._rest and self.channel.sendable:
            return True
        readable = self._waker.wait(milliseconds, self._socket.fileno(), *doorbell, writable=blocked)
        if self._socket.fileno() in readable:
            self._listened_at = 0.0
        return bool(readable)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, landed: int) -> None:
        """Deliver slots that arrived before the peer ended; its link is broken by now, or will be."""
        deadline = time.monotonic() + pace.DRAIN_SECONDS
        with contextlib.suppress(Unreachable):
            while time.monotonic() < deadline and self.channel.closed is None:
                if not self._receive():
                    if self._control.consumed >= landed:
                        return
                    time.sleep(pace.NAP_SECONDS)

    def _last_words(self) -> str | None:
        """The link broke; the peer may have closed it, and may have sent a reason."""
        deadline = time.monotonic() + pace.LAST_WORDS_SECONDS
        while not self.connection.peer_gone and self.channel.closed is None and time.monotonic() < deadline:
            try:
                self._listen()
            except Exception as error:  # also of a handler, or of the peer's last bytes
                return reason_of(error)
            time.sleep(0.001)
        return None

    def close(self, reason: str) -> None:
        self.connection.shut_down(
            lambda: Bye(self._control.landed, reason).encode() if self._control.push() else b"", _FAREWELL_SECONDS
        )
        self._waker.wake()

    def release(self) -> None:
        """The peer loses its rights before the end is reported."""
        with self._sending:
            try:
                self._control.close()
            except Exception:  # the end must still be reported, and the error logged
                log.exception("the link to %s could not be closed", self.channel.peer)
            self._rest = []
            self._socket.close()
        self._waker.close()
