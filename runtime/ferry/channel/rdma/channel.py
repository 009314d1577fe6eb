"""One connection that may use RDMA: an authenticated TCP connection for liveness, the beginning and the end, and a carriage.

One thread makes progress: it reads what came, gives credit, notices completions and sends what senders could not send
themselves. It waits by looking, ever less often, and when nothing is under way by sleeping until the peer's doorbell.
It must never report the end before the peer's rights to this side's memory are revoked, nor wait inside a verbs call.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator

from ferry.channel.base import LinkState
from ferry.channel.rdma import pace
from ferry.channel.rdma.connection import LinkLost
from ferry.channel.rdma.control_stream import Bye, Fall, bye
from ferry.channel.rdma.link_control import LinkPhase
from ferry.channel.rdma.sender import RdmaSender
from ferry.contract.errors import Unreachable

log = logging.getLogger(__name__)

_FAREWELL_SECONDS = 0.5
"""For the wire lock: making a queue pair takes tens of milliseconds."""

_JOIN_SECONDS = 1.0


class RdmaChannel(RdmaSender):
    """See TcpChannel; `start` sets up the link, and what is sent before goes over TCP."""

    def start(self) -> None:
        """Start the thread; once."""
        self._reader.start()

    def discard(self) -> None:
        """See TcpChannel.discard."""
        super().discard()
        self._bell.close()

    @property
    def link(self) -> LinkState:
        """See Endpoint.links."""
        joined = self._carriage.joined is not None
        return LinkState(self.peer, "rdma" if joined else "tcp", "" if joined else self._carriage.reason)

    def prefer(self, rdma: bool) -> None:
        """Let the bytes go over RDMA, if that can be, or over TCP from now on; nothing is lost or sent twice."""
        self._wish = rdma
        self._bell.ring()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._progress()
            reason = "closed"
        except Unreachable as error:
            reason = self._last_words() or str(error)
        except OSError as error:
            reason, self._deaf = f"connection lost: {error}", True
        except Exception as error:  # a handler's failure must end its connection, not the thread in silence
            reason = self._blame(error)
        self.close(reason)
        self._shut_down.wait(_JOIN_SECONDS)
        self._finish()
        self._on_end(self, self._closed or reason)

    def _progress(self) -> None:
        with self._falling(), self._wire:
            self._carriage.offer()
        while self._closed is None:
            with self._falling():
                if self._step():
                    self._pace.worked()
                else:
                    self._pause()

    def _step(self) -> bool:
        """Do what there is to do; False when there was nothing."""
        now = time.monotonic()
        busy = False
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._wish is not None:
            self._follow()
        if not self._joined or now - self._listened >= pace.LISTEN_SECONDS:
            self._listened = now
            busy = self._listen()
        busy |= self._receive()
        with self._wire:
            more, reaped = self._carriage.progress(idle=not busy)
            busy |= more | self._send(batches=4)
            self._carriage.mind(now)
        if reaped:
            with self._lock:
                self._idle.notify_all()
        return busy

    @property
    def _joined(self) -> bool:
        return self._carriage.joined is not None

    def _receive(self) -> bool:
        moved = self._carriage.receive(self._intake)
        if moved:
            self._intake.empty(self._feed)
        return moved

    def _listen(self) -> bool:
        """What the peer says over TCP; False when it says nothing. Raises Unreachable when it ends."""
        heard = False
        while self._closed is None:
            try:
                message = self._carriage.control.read()
            except Unreachable:
                self._deaf = True
                self._drain(0)
                raise
            if message is None:
                return heard
            heard = True
            if isinstance(message, memoryview):
                self._intake.add(message, self._feed)
            elif isinstance(message, Fall):
                self._part(message)
            elif isinstance(message, Bye):
                self._deaf = True
                self._drain(message.landed)
                raise Unreachable(message.reason)
            else:
                with self._wire:
                    self._carriage.hear(message)
        return heard

    # -- falling back to TCP ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _falling(self) -> Iterator[None]:
        """A link that is lost does not end the connection, when that is allowed."""
        try:
            yield
        except LinkLost as error:
            if not self._fallback:
                raise
            self._fall(str(error))

    def _fall(self, reason: str) -> None:
        if self._carriage.stage is LinkPhase.FALLEN:
            return
        with self._wire:
            with self._lock:
                self._in_hand = True  # what was sent may have to be sent again, and then it will be handed over again
            self._carriage.revoke(reason)
        with contextlib.suppress(LinkLost):
            while self._receive():
                pass
        with self._wire:
            self._failure = None
            self._carriage.tell_fall()
        with self._lock:
            self._idle.notify_all()

    def _part(self, peers: Fall) -> None:
        """The peer has left the ring: this side does, too, if it has not yet."""
        if not self._fallback:
            raise Unreachable(f"the peer goes on over TCP: {peers.reason}")
        self._fall(f"{peers.reason} (says the peer)")
        with self._wire:
            self._rest = [*self._carriage.part(peers), *self._rest]

    def _follow(self) -> None:
        wish, self._wish = bool(self._wish), None
        with self._wire:
            self._carriage.want(wish)
        if not wish and self._carriage.stage is not LinkPhase.APART:
            self._fall("TCP is preferred")

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if self._joined and self._pace.nap():
            return
        self._asleep = True
        try:
            if not (self._joined and self._pace.sleepy and self._drowse()):
                joined = self._joined
                self._wait(self._pace.milliseconds if joined else self._carriage.patience(time.monotonic()))
        finally:
            self._asleep = False

    def _drowse(self) -> bool:
        """Sleep until the doorbell rings, if nothing is under way; False when something is."""
        with self._wire:
            if self._rest or not self._carriage.fall_asleep():
                return False
        # What came or was queued before the peer and the senders knew that this thread sleeps.
        if not self._step():
            self._slumber()
        with self._wire:
            self._carriage.wake_up()
        return True

    def _slumber(self) -> None:
        """Until something rings; meanwhile the peer's device is asked now and then, and nothing else is done."""
        pipe = self._carriage.joined
        while self._closed is None and pipe is not None and pipe.calm:
            if self._wait(pace.PROBE_MILLISECONDS, pipe.link.fd):
                return
            with self._wire:
                self._carriage.probe()
            for pause in pace.ANSWER_MILLISECONDS:
                if self._wait(pause, pipe.link.fd):
                    return
                if self._carriage.answered():
                    break
            else:
                return

    def _wait(self, milliseconds: int, *doorbell: int) -> bool:
        """True when there may be something to do before the time is over."""
        with self._lock:
            if self._sendable() and not self._rest and not self._carriage.unsent:
                return True
        blocked = self._carriage.unsent
        readable = self._bell.wait(milliseconds, self._socket.fileno(), *doorbell, writable=blocked)
        if self._socket.fileno() in readable:
            self._listened = 0.0
        return bool(readable)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, landed: int) -> None:
        """Deliver what reached this side before the peer ended; its link is broken by now, or will be."""
        deadline = time.monotonic() + pace.DRAIN_SECONDS
        with contextlib.suppress(Unreachable):
            while time.monotonic() < deadline and self._closed is None:
                if not self._receive():
                    if self._carriage.consumed >= landed:
                        return
                    time.sleep(pace.NAP_SECONDS)

    def _last_words(self) -> str | None:
        """The link broke; the peer may have closed it, and says so."""
        deadline = time.monotonic() + pace.LAST_WORDS_SECONDS
        while not self._deaf and self._closed is None and time.monotonic() < deadline:
            try:
                self._listen()
            except Unreachable as error:
                return str(error)
            except Exception as error:  # of a handler, or of the peer's last bytes
                return self._blame(error)
            time.sleep(0.001)
        return None

    def _cut(self) -> None:
        if not self._deaf and self._wire.acquire(timeout=_FAREWELL_SECONDS):
            try:
                with contextlib.suppress(OSError, Unreachable):
                    if self._carriage.push():
                        said = bye(self._carriage.landed, self._closed or "")
                        self._socket.send(said, socket.MSG_DONTWAIT)
            finally:
                self._wire.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._bell.ring()
        self._shut_down.set()

    def _finish(self) -> None:
        """The peer loses its rights before anybody hears of the end."""
        with self._wire:
            try:
                self._carriage.close()
            except Exception:  # it must still be reported, and whoever reads the log must know
                log.exception("the link to %s could not be closed", self.peer)
            self._rest = []
            self._socket.close()
        self._bell.close()
