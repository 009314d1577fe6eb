"""Flow control of one connection: queues, credits, sequences. Every carrier is this class plus a way to move bytes.

Sending and receiving share one short lock and nothing else: the side that receives never waits for the side that sends,
and a lane without credit is simply passed over. It must never do I/O or call a handler under the lock.

    send/post -> queue of the lane -> collect() -> the carrier's bytes -> feed() -> handler -> credit -> collect() ...
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ferry.channel.base import (
    QUEUE_BYTES_MAX,
    QUEUE_MESSAGES_MAX,
    REPLACED,
    Channel,
    ChannelStatistics,
    Handler,
    Held,
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
"""Payload of one gather: small enough that a control message never waits behind more than this in our own hands."""

BATCH_FRAMES = 256

_TURN = (Lane.DELTA, Lane.FRAGMENT, Lane.BULK)
"""Lanes take turns frame by frame; control messages, which travel on DELTA, begin."""


class FlowChannel(Channel):
    """A channel without a carrier. Subclasses implement `_kick`, `_rouse` and `_cut`."""

    transport = "none"

    def __init__(self, peer: str, job: str, on_message: Handler, reason: str = "") -> None:
        self.peer = peer
        self._reason = reason
        self._job = job_hash(job)
        self._on_message = on_message
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._room = tuple(threading.Condition(self._lock) for _ in Lane)
        self._out = tuple(SendLane(lane) for lane in Lane)
        self._in = tuple(ReceiveLane(lane) for lane in Lane)
        self._in_hand = False
        self._closed: str | None = None

    @abstractmethod
    def _kick(self, size: int) -> None:
        """A message of `size` bytes was queued; called by its sender, without the lock. Must not block."""

    @abstractmethod
    def _rouse(self) -> None:
        """Something became sendable, on a receiving thread; called without the lock. Must not block or send."""

    @abstractmethod
    def _cut(self) -> None:
        """The channel was just closed; stop the carrier. Called once, without the lock. Must not wait for the peer."""

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
        """See Channel.send."""
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
        self._kick(message.total)

    def send_nowait(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> bool:
        """See Channel.send_nowait."""
        message = Outgoing(lane, kind, generation, head, body)
        out = self._out[lane]
        with self._lock:
            if self._closed is None and not (out.room and self._fits(out, message)):
                return False
            self._queue(out, message)
        self._kick(message.total)
        return True

    def post(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer] = ()) -> None:
        """See Channel.post."""
        message = Outgoing(lane, kind, generation, head, body)
        out = self._out[lane]
        with self._lock:
            if self._closed is None and not self._fits(out, message):
                raise Exhausted(
                    f"the queue of lane {lane.name} to {self.peer} is full: {len(out.queue)} messages, "
                    f"{out.queued_bytes} bytes (QUEUE_BYTES_MAX {QUEUE_BYTES_MAX}); the peer does not consume"
                )
            self._queue(out, message)
        self._kick(message.total)

    def _fits(self, out: SendLane, message: Outgoing) -> bool:
        # An empty queue takes any message: a bound must not make one legal message impossible.
        return not out.queue or (
            out.queued_bytes + message.total <= QUEUE_BYTES_MAX and len(out.queue) < QUEUE_MESSAGES_MAX
        )

    def _queue(self, out: SendLane, message: Outgoing) -> None:
        if self._closed is not None:
            raise Unreachable(f"the channel to {self.peer} is closed: {self._closed}")
        out.push(message)

    def flush(self, timeout: float) -> bool:
        """See Channel.flush."""
        with self._lock:
            done = self._idle.wait_for(
                lambda: self._closed is not None or not (self._in_hand or any(o.queue for o in self._out)), timeout
            )
            return done and self._closed is None

    # -- for the carrier: what to send --------------------------------------------------------------------------------

    def _sendable(self) -> bool:
        """With the lock: is there anything that `_collect` would return?"""
        return any(o.sendable for o in self._out) or any(i.due for i in self._in)

    def _collect(self) -> list[bytes | memoryview]:
        """The next gather, in wire order; empty when nothing may go. One thread at a time; then `_handed_over`."""
        plans: list[tuple[Planned, int]] = []
        size = 0
        with self._lock:
            if self._closed is not None:
                return []
            due = [(lane, self._in[lane].tell()) for lane in _TURN if self._in[lane].due]
            while size < BATCH_BYTES and len(plans) < BATCH_FRAMES:
                before = len(plans)
                for lane in _TURN:
                    if self._out[lane].sendable:
                        plans.append((self._out[lane].plan(), self._in[lane].tell()))
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

    def _handed_over(self) -> None:
        """The last gather has left."""
        with self._lock:
            self._in_hand = False
            self._idle.notify_all()

    def _farewell(self, reason: str) -> bytes:
        """The frame that tells the peer why."""
        text = reason.encode()[:BYE_BYTES_MAX]
        return b"".join(encode((text,), lane=Lane.DELTA, flags=BYE, job=self._job))

    # -- for the carrier: what arrived --------------------------------------------------------------------------------

    def _feed(self, data: memoryview) -> int:
        """Handle the whole frames at the start of `data`; returns the bytes used.

        One thread at a time. Raises Refusal for bytes that this peer should not have sent, Unreachable for a farewell.
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
                said = bytes(payload[:BYE_BYTES_MAX]).decode(errors="replace")
                raise Unreachable(said if said == REPLACED else f"closed by the peer: {said}")
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
            self._rouse()

    def _deliver(self, lane: ReceiveLane, whole: Whole) -> None:
        held = self._on_message(Message(self.peer, lane.lane, whole.kind, whole.generation, whole.head, whole.body))
        if isinstance(held, Held):
            slots = whole.slots
            held.bind(lambda: self._consumed(lane, slots))
            # Nothing is consumed, but the sender came nearer to its end of credit: what was consumed before may be due.
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
            self._rouse()

    @property
    def link(self) -> LinkState:
        """See Endpoint.links."""
        return LinkState(self.peer, self.transport, self._reason)

    # -- closing ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> str | None:
        """Why the channel is closed, or None."""
        return self._closed

    def close(self, reason: str = "closed by this side") -> None:
        """See Channel.close."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            for out in self._out:
                out.queue.clear()
                out.queued_bytes = out.queued_slots = 0
            for condition in (self._work, self._idle, *self._room):
                condition.notify_all()
        self._cut()

    def _blame(self, error: Exception) -> str:
        """The reason of a close that was caused by an error while receiving."""
        return str(error) if isinstance(error, FerryError) else f"the handler failed: {error!r}"

    def statistics(self) -> ChannelStatistics:
        """See Channel.statistics."""
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
            return ChannelStatistics(self.peer, self.transport, lanes, self._closed)
