"""One connection over RDMA: an authenticated TCP connection for the beginning, liveness and the end, a link for the data.

One thread makes progress: it reads the ring, gives credit, notices completions and sends what senders could not send
themselves. It waits by looking, ever less often, and when nothing is under way by sleeping until the peer's doorbell.
It must never report the end before the peer's rights to this side's memory are revoked, nor wait inside a verbs call.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable

from ferry.channel import rdma_wait
from ferry.channel.base import Handler
from ferry.channel.rdma_hello import Bye, Control, bye
from ferry.channel.rdma_pipe import Intake, Means, Pipe
from ferry.channel.rdma_wait import Bell, Pace
from ferry.channel.tcp_channel import TcpChannel
from ferry.contract import limits
from ferry.contract.errors import FerryError, Refusal, Unreachable

log = logging.getLogger(__name__)

_FAREWELL_SECONDS = 0.02
_JOIN_SECONDS = 1.0


class RdmaChannel(TcpChannel):
    """See TcpChannel; `start` sets up the link, and what is sent before it is ready waits."""

    transport = "rdma"

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        job: str,
        on_message: Handler,
        on_end: Callable[[TcpChannel, str], None],
        *,
        initiator: str,
        life: bytes,
        number: int,
        means: Means,
    ) -> None:
        super().__init__(sock, peer, job, on_message, on_end, initiator=initiator, life=life, number=number)
        self._means = means
        self._control = Control(sock, means.shape)
        self._pipe: Pipe | None = None
        """the link that can be sent on; used with the wire lock"""
        self._opened: Pipe | None = None
        """the link that has to be closed"""
        self._bell, self._pace, self._intake = Bell(), Pace(), Intake(means.shape)
        self._asleep = False
        self._heard = self._listened = 0.0

    def start(self) -> None:
        """Start the thread; once."""
        self._reader.start()

    def discard(self) -> None:
        """See TcpChannel.discard."""
        super().discard()
        self._bell.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _kick(self, size: int) -> None:
        if size <= limits.SLOT_BYTES and self._wire.acquire(blocking=False):
            try:
                if self._pipe is not None:
                    self._pipe.outbound.look()
                    self._send(self._pipe, batches=1)
            except FerryError as error:
                self._lost = str(error)
            finally:
                self._wire.release()
        self._rouse()

    def _rouse(self) -> None:
        # Set before the thread looks for the last time what there is to do, and read after there was something to do.
        if self._asleep:
            self._bell.ring()

    def _send(self, pipe: Pipe, batches: int) -> bool:
        """With the wire lock: as much as there is room for; True when something went."""
        before = pipe.outbound.sent
        for _ in range(batches):
            if not self._rest:
                self._rest = self._collect()
                if not self._rest:
                    break
            self._rest = pipe.outbound.put(self._rest)
            if self._rest:
                break
            self._handed_over()
        moved = pipe.outbound.sent != before
        if moved:
            self._pace.worked()
        return moved

    def flush(self, timeout: float) -> bool:
        """See Channel.flush; when it returns True, everything is in the peer's memory."""
        deadline = time.monotonic() + timeout
        if not super().flush(timeout):
            return False
        with self._wire:
            pipe = self._pipe
            if pipe is None:
                return self._closed is None
            target = pipe.settle()
        self._rouse()
        with self._lock:
            done = self._idle.wait_for(
                lambda: self._closed is not None or pipe.posts.done >= target, max(0.0, deadline - time.monotonic())
            )
            return done and self._closed is None

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            self._progress(self._begin())
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

    def _begin(self) -> Pipe:
        """Set up both sides of the link."""
        pipe = self._opened = self._means.open(self.peer)
        try:
            pipe.meet(self._socket, self._control)
        except Unreachable:
            self._deaf = True
            raise
        self._heard = time.monotonic()
        with self._wire:
            self._pipe = pipe
        return pipe

    def _progress(self, pipe: Pipe) -> None:
        while self._closed is None:
            if self._step(pipe):
                self._pace.worked()
            else:
                self._pause(pipe)

    def _step(self, pipe: Pipe) -> bool:
        """Do what there is to do; False when there was nothing."""
        now = time.monotonic()
        if now - self._listened >= rdma_wait.LISTEN_SECONDS:
            self._listened = now
            self._listen(pipe)
        if self._lost is not None:
            raise Unreachable(self._lost)
        busy = self._receive(pipe)
        with self._wire:
            reaped = pipe.posts.reap()
            busy |= pipe.outbound.look()
            pipe.inbound.report(idle=not busy)
            busy |= self._send(pipe, batches=4)
            pipe.outbound.nudge()
            if reaped:
                self._heard = now
            elif pipe.answered and (now - self._heard) * 1000 >= rdma_wait.PROBE_MILLISECONDS:
                pipe.outbound.probe()
        if reaped:
            with self._lock:
                self._idle.notify_all()
        return busy

    def _receive(self, pipe: Pipe) -> bool:
        moved = self._intake.fill(pipe.inbound)
        if moved:
            self._intake.empty(self._feed)
        return moved

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _pause(self, pipe: Pipe) -> None:
        if self._pace.nap():
            return
        self._asleep = True
        try:
            if not (self._pace.sleepy and self._drowse(pipe)):
                self._wait(self._pace.milliseconds)
        finally:
            self._asleep = False

    def _drowse(self, pipe: Pipe) -> bool:
        """Sleep until the doorbell rings, if nothing is under way; False when something is."""
        with self._wire:
            if not pipe.calm or self._rest or not pipe.fall_asleep():
                return False
        # What came or was queued before the peer and the senders knew that this thread sleeps.
        if not self._step(pipe) and pipe.calm:
            self._slumber(pipe)
        with self._wire:
            pipe.wake_up()
        return True

    def _slumber(self, pipe: Pipe) -> None:
        """Until something rings; meanwhile the peer's device is asked now and then, and nothing else is done."""
        while self._closed is None and not self._wait(rdma_wait.PROBE_MILLISECONDS, pipe.link.fd):
            with self._wire:
                pipe.outbound.probe()
            if self._wait(rdma_wait.ANSWER_MILLISECONDS, pipe.link.fd) or not pipe.posts.reap():
                return
            self._heard = time.monotonic()

    def _wait(self, milliseconds: int, *doorbell: int) -> bool:
        """True when there may be something to do before the time is over."""
        with self._lock:
            if self._sendable() and not self._rest:
                return True
        readable = self._bell.wait(milliseconds, self._socket.fileno(), *doorbell)
        if self._socket.fileno() in readable:
            self._listened = 0.0
        return bool(readable)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _listen(self, pipe: Pipe) -> None:
        """What the peer says over TCP: nothing, or that it ends."""
        try:
            message = self._control.read()
        except Unreachable:
            self._deaf = True
            self._drain(pipe, 0)
            raise
        if isinstance(message, Bye):
            self._deaf = True
            self._drain(pipe, message.landed)
            raise Unreachable(message.reason)
        if message is not None:
            raise Refusal("the peer describes its RDMA link twice")

    def _drain(self, pipe: Pipe, landed: int) -> None:
        """Deliver what reached this side before the peer ended; its link is broken by now, or will be."""
        deadline = time.monotonic() + rdma_wait.DRAIN_SECONDS
        with contextlib.suppress(Unreachable):
            while time.monotonic() < deadline and self._closed is None:
                if not self._receive(pipe):
                    if pipe.inbound.consumed >= landed:
                        return
                    time.sleep(rdma_wait.NAP_SECONDS)

    def _last_words(self) -> str | None:
        """The link broke; the peer may have closed it, and says so."""
        pipe = self._pipe
        deadline = time.monotonic() + rdma_wait.LAST_WORDS_SECONDS
        while not self._deaf and self._closed is None and pipe is not None and time.monotonic() < deadline:
            try:
                self._listen(pipe)
            except Unreachable as error:
                return str(error)
            except Exception as error:  # of a handler, or of the peer's last bytes
                return self._blame(error)
            time.sleep(0.001)
        return None

    def _cut(self) -> None:
        if not self._deaf and self._wire.acquire(timeout=_FAREWELL_SECONDS):
            try:
                landed = 0
                with contextlib.suppress(Unreachable):
                    if self._pipe is not None:
                        self._pipe.posts.reap()
                        landed = self._pipe.outbound.landed
                with contextlib.suppress(OSError):
                    self._socket.send(bye(landed, self._closed or ""), socket.MSG_DONTWAIT)
            finally:
                self._wire.release()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._bell.ring()
        self._shut_down.set()

    def _finish(self) -> None:
        """The peer loses its rights before anybody hears of the end."""
        with self._wire:
            pipe, self._opened, self._pipe = self._opened, None, None
            if pipe is not None:
                try:
                    pipe.close()
                except Exception:  # it must still be reported, and whoever reads the log must know
                    log.exception("the link to %s could not be closed", self.peer)
            self._socket.close()
        self._bell.close()
