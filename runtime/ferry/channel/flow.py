"""Flow control of one connection: queues, credits, sequences. One class for every transport, which moves the bytes.

Sending and receiving share nothing but one short lock: receiving never waits for sending, and a lane without credit is
skipped. It must never do I/O or call a handler under the lock.

    send/post -> queue of the lane -> collect() -> the transport -> feed() -> handler -> credit -> collect() ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ferry.channel.base import (
    BY_PRIORITY,
    QUEUE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    REPLACED,
    Channel,
    ChannelStatistics,
    DeferredCredit,
    Handler,
    Lane,
    LaneStatistics,
    LinkState,
    Message,
)
from ferry.channel.frames import (
    BYE,
    BYE_BYTES_MAX,
    CREDIT,
    HEADER_BYTES,
    Outgoing,
    decode_header,
    encode,
    job_hash,
    verify,
)
from ferry.channel.lanes import Planned, ReceiveLane, SendLane, Whole
from ferry.contract.errors import Exhausted, FerryError, Unreachable

if TYPE_CHECKING:
    from typing_extensions import Buffer

BATCH_BYTES = 256 * 1024
"""Payload of one gather: a control message never waits behind more than this in this process."""

BATCH_FRAMES = 256


class ChannelTransport(Protocol):
    """The part of a transport for one FlowChannel: it sends what `collect` returns, and passes received bytes to
    `feed`.

    The channel calls these methods without its lock, from any thread.
    """

    name: str
    """memory, tcp or rdma"""

    @property
    def link(self) -> LinkState:
        """The transport in use now."""

    def queued(self, size: int) -> None:
        """A message of `size` bytes was queued; called by its sender. Must not block."""

    def wake(self) -> None:
        """There may be bytes to send; called on a receiving thread. Must not block or send."""

    def flush(self, timeout: float) -> bool:
        """Wait until all queued bytes are handed over; False after `timeout` seconds."""

    def close(self, reason: str) -> None:
        """The channel was just closed: stop. Called once; must not wait for the peer."""


class FlowChannel(Channel):
    """A channel over any transport."""

    def __init__(self, peer: str, job: str, on_message: Handler, transport: ChannelTransport) -> None:
        self.peer = peer
        self.transport = transport
        self._job = job_hash(job)
        self._on_message = on_message
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self._room = tuple(threading.Condition(self._lock) for _ in Lane)
        self._out = tuple(SendLane(lane) for lane in Lane)
        self._in = tuple(ReceiveLane(lane) for lane in Lane)
        self._in_hand = False
        self._closed: str | None = None

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        lane: Lane,
        kind: int,
        generation: int,
        head: bytes,
        body: Sequence[Buffer] = (),
        timeout: float | None = None,
    ) -> None:
        message = Outgoing(lane, kind, generation, head, body)
        out = self._out[lane]
        with self._lock:
            if not out.room and self._closed is None:
                out.stalls += 1
                if not self._room[lane].wait_for(lambda: out.room or self._closed is not None, timeout):
                    raise Exhausted(
                        f"no credit on lane {lane.name} to {self.peer} for {timeout} s: "
                        f"{len(out.queue)} messages wait; the peer does not consume what it got"
                    )
            self._queue(out, message)
        self.transport.queued(message.total)

    def send_nowait(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> bool:
        message = Outgoing(lane, kind, generation, head, body)
        out = self._out[lane]
        with self._lock:
            if self._closed is None and not (out.room and self._fits(out, message)):
                return False
            self._queue(out, message)
        self.transport.queued(message.total)
        return True

    def post(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> None:
        message = Outgoing(lane, kind, generation, head, body)
        out = self._out[lane]
        with self._lock:
            if self._closed is None and not self._fits(out, message):
                raise Exhausted(
                    f"the queue of lane {lane.name} to {self.peer} is full: {len(out.queue)} messages, "
                    f"{out.queued_bytes} bytes (QUEUE_BYTES_MAX {QUEUE_BYTES_MAX}); the peer does not consume"
                )
            self._queue(out, message)
        self.transport.queued(message.total)

    def _fits(self, out: SendLane, message: Outgoing) -> bool:
        # An empty queue takes any message: the bound must not make a legal message impossible.
        return not out.queue or (
            out.queued_bytes + message.total <= QUEUE_BYTES_MAX and len(out.queue) < QUEUE_MESSAGES_MAX
        )

    def _queue(self, out: SendLane, message: Outgoing) -> None:
        if self._closed is not None:
            raise Unreachable(f"the channel to {self.peer} is closed: {self._closed}")
        out.push(message)

    def flush(self, timeout: float) -> bool:
        return self.transport.flush(timeout)

    # -- for the transport: what to send ------------------------------------------------------------------------------

    @property
    def sendable(self) -> bool:
        """Whether `collect` would return bytes."""
        with self._lock:
            return any(o.sendable for o in self._out) or any(i.due for i in self._in)

    def collect(self) -> list[bytes | memoryview]:
        """The next gather, in wire order; empty without sendable bytes. One thread at a time; then `handed_over`."""
        plans: list[tuple[Planned, int]] = []
        size = 0
        with self._lock:
            if self._closed is not None:
                return []
            due = [(lane, self._in[lane].report()) for lane in BY_PRIORITY if self._in[lane].due]
            while size < BATCH_BYTES and len(plans) < BATCH_FRAMES:
                before = len(plans)
                for lane in BY_PRIORITY:
                    if self._out[lane].sendable:
                        plans.append((self._out[lane].plan(), self._in[lane].report()))
                        size += plans[-1][0].size
                if len(plans) == before:
                    break
            self._in_hand = bool(plans or due)
        gather: list[bytes | memoryview] = []
        for lane, credit in due:
            gather += encode((), lane=lane, flags=CREDIT, job=self._job, credit=credit)
        for plan, credit in plans:
            gather += plan.encode(self._job, credit)
        return gather

    @property
    def in_hand(self) -> bool:
        """Whether a gather was collected, or taken back, and is not handed over."""
        return self._in_hand

    def handed_over(self) -> None:
        """The last gather was sent."""
        with self._lock:
            self._in_hand = False
            self._progress.notify_all()

    def take_back(self) -> None:
        """Sent bytes may have to be sent again: they are in hand again, until `handed_over`."""
        with self._lock:
            self._in_hand = True

    def drop_queued(self) -> None:
        """No byte can be sent any more: drop the queues. The channel is about to close."""
        with self._lock:
            self._clear_queues()

    def _clear_queues(self) -> None:
        for out in self._out:
            out.queue.clear()
            out.queued_bytes = out.queued_slots = 0

    def wait_handed_over(self, timeout: float) -> bool:
        """Wait until everything queued is handed over; False after the timeout or when the channel is closed."""
        return self.wait_for(lambda: not (self._in_hand or any(o.queue for o in self._out)), timeout)

    def wait_for(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until it is true, checked at each `notify`; False after the timeout or when the channel is closed."""
        with self._lock:
            done = self._progress.wait_for(lambda: self._closed is not None or condition(), timeout)
            return done and self._closed is None

    def notify(self) -> None:
        """The condition of a `wait_for` may be true now."""
        with self._lock:
            self._progress.notify_all()

    def bye(self, reason: str) -> bytes:
        """The frame with this side's reason for closing."""
        text = reason.encode()[:BYE_BYTES_MAX]
        return b"".join(encode((text,), lane=Lane.DELTA, flags=BYE, job=self._job))

    # -- for the transport: what arrived ------------------------------------------------------------------------------

    def feed(self, data: memoryview) -> int:
        """Handle the complete frames at the start of `data`; returns the bytes used.

        One thread at a time. Raises Refusal for bytes that this peer must not send, Unreachable for its BYE.
        """
        position, end = 0, len(data)
        while end - position >= HEADER_BYTES and self._closed is None:
            header = decode_header(data, position, self._job)
            stop = position + header.length
            if stop > end:
                break
            verify(data[position:stop], header)
            payload = data[position + HEADER_BYTES : stop]
            if header.flags == BYE:
                text = bytes(payload[:BYE_BYTES_MAX]).decode(errors="replace")
                raise Unreachable(text if text == REPLACED else f"closed by the peer: {text}")
            if header.credit != self._out[header.lane].returned:
                self._credit(header.lane, header.credit)
            if header.flags != CREDIT:
                lane = self._in[header.lane]
                got = lane.accept(header, payload)
                if isinstance(got, Whole):
                    self._deliver(lane, got)
                else:
                    self._consumed(lane, got)
            position = stop
        return position

    def _credit(self, lane: int, count: int) -> None:
        out = self._out[lane]
        with self._lock:
            out.credit(count)
            if out.room:
                self._room[lane].notify_all()
            waiting = bool(out.queue)
        if waiting:
            self.transport.wake()

    def _deliver(self, lane: ReceiveLane, whole: Whole) -> None:
        deferred = self._on_message(Message(self.peer, lane.lane, whole.kind, whole.generation, whole.head, whole.body))
        if isinstance(deferred, DeferredCredit):
            slots = whole.slots
            deferred.bind(lambda: self._consumed(lane, slots))
            # No slot is consumed, but the sender has less credit left: earlier consumed slots may now have to be
            # reported.
            self._consumed(lane, 0)
        else:
            self._consumed(lane, whole.slots)

    def _consumed(self, lane: ReceiveLane, slots: int) -> None:
        with self._lock:
            if self._closed is not None:
                return
            lane.consumed += slots
            due = lane.due
        if due:
            self.transport.wake()

    # -- closing ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> str | None:
        """The reason of the close, or None."""
        return self._closed

    def close(self, reason: str = "closed by this side") -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            self._clear_queues()
            for condition in (self._progress, *self._room):
                condition.notify_all()
        self.transport.close(reason)

    def statistics(self) -> ChannelStatistics:
        with self._lock:
            lanes = tuple(
                LaneStatistics(
                    sent_messages=o.sent_messages,
                    sent_bytes=o.sent_bytes,
                    received_messages=i.received_messages,
                    received_bytes=i.received_bytes,
                    queued_messages=len(o.queue),
                    queued_bytes=o.queued_bytes,
                    credits=o.credits,
                    unreturned=i.sequence - i.reported,
                    stalls=o.stalls,
                )
                for o, i in zip(self._out, self._in, strict=True)
            )
            return ChannelStatistics(self.peer, self.transport.name, lanes, self._closed)


def reason_of(error: Exception) -> str:
    """The reason of a close after this error while receiving; an error that is not Ferry's comes from a handler."""
    return str(error) if isinstance(error, FerryError) else f"the handler failed: {error!r}"
