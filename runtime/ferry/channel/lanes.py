"""The two halves of a lane: the sender's credit, and the receiver's sequence and returned credit.

Plain state without locks, clock or I/O: `flow` has the lock. It must never guess: a peer that breaks the sequence,
exceeds its credit or contradicts the announced lengths is refused, because every later byte would be misread.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from ferry.channel.base import CREDIT_BATCH, DEFERRED_SLOTS_MAX, Lane
from ferry.channel.frames import FIRST, LAST, PAYLOAD_BYTES, Header, Outgoing, encode, slots_of
from ferry.contract import limits
from ferry.contract.errors import Refusal

_DEFERRED_BYTES = DEFERRED_SLOTS_MAX * PAYLOAD_BYTES


class Planned(NamedTuple):
    """A frame to be sent: `size` payload bytes of the message."""

    message: Outgoing
    size: int
    flags: int
    sequence: int

    def encode(self, job: int, credit: int) -> list[bytes | memoryview]:
        """The frame as a gather list. Call it once, in wire order."""
        message = self.message
        return encode(
            message.take(self.size),
            lane=message.lane,
            flags=self.flags,
            job=job,
            kind=message.kind,
            generation=message.generation,
            sequence=self.sequence,
            credit=credit,
            total=message.total,
            head=message.head,
        )


class SendLane:
    """Queue and credit of one lane towards the peer. One credit is one frame."""

    __slots__ = (
        "lane",
        "queue",
        "queued_bytes",
        "queued_slots",
        "returned",
        "sent_bytes",
        "sent_messages",
        "sequence",
        "stalls",
    )

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.queue: deque[Outgoing] = deque()
        self.queued_bytes = self.queued_slots = 0
        self.sequence = self.returned = 0
        self.sent_messages = self.sent_bytes = self.stalls = 0

    @property
    def credits(self) -> int:
        """Frames that may be sent now."""
        return limits.SLOTS + self.returned - self.sequence

    @property
    def room(self) -> bool:
        """Whether one more message would have credit for its first slot."""
        return self.credits > self.queued_slots

    @property
    def sendable(self) -> bool:
        """Whether a frame waits and has credit."""
        return bool(self.queue) and self.credits > 0

    def push(self, message: Outgoing) -> None:
        """Queue a message."""
        self.queue.append(message)
        self.queued_bytes += message.total
        self.queued_slots += slots_of(message.total)

    def plan(self) -> Planned:
        """Take the next frame; only when `sendable`."""
        assert self.sendable
        message = self.queue[0]
        count = min(PAYLOAD_BYTES, message.total - message.planned)
        flags = FIRST if message.planned == 0 else 0
        message.planned += count
        if message.planned == message.total:
            flags |= LAST
            self.queue.popleft()
            self.sent_messages += 1
        self.sequence += 1
        self.queued_bytes -= count
        self.queued_slots -= 1
        self.sent_bytes += count
        return Planned(message, count, flags, self.sequence)

    def credit(self, count: int) -> None:
        """The peer has consumed `count` slots in total. Raises Refusal when that is impossible."""
        if not self.returned <= count <= self.sequence:
            raise Refusal(
                f"impossible credit on lane {self.lane.name}: {count} slots consumed, "
                f"{self.returned} were before and {self.sequence} were sent"
            )
        self.returned = count


class Whole(NamedTuple):
    """A complete message; the credit of `slots` returns when it is consumed."""

    kind: int
    generation: int
    head: bytes
    body: bytes | memoryview
    slots: int


class ReceiveLane:
    """Sequence, credit and the unfinished message of one lane from the peer."""

    __slots__ = (
        "_body",
        "_first",
        "_got",
        "_head",
        "_kept",
        "consumed",
        "lane",
        "received_bytes",
        "received_messages",
        "sequence",
        "reported",
    )

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.sequence = self.consumed = self.reported = 0
        self.received_messages = self.received_bytes = 0
        self._first: Header | None = None
        self._head = memoryview(b"")
        self._body = memoryview(b"")
        self._got = self._kept = 0

    @property
    def due(self) -> bool:
        """Whether credit must be reported now: a whole batch, or less when the sender may be running out."""
        pending = self.consumed - self.reported
        return pending >= CREDIT_BATCH or (pending > 0 and self.sequence - self.reported >= limits.SLOTS // 2)

    def report(self) -> int:
        """The cumulative credit, which counts as reported from now on."""
        self.reported = self.consumed
        return self.reported

    def accept(self, header: Header, payload: memoryview) -> Whole | int:
        """Take one verified frame; returns the message that it completes, or the number of slots consumed already.

        The credit of the first parts of a long message returns at once, otherwise a message larger than the credit
        could never arrive; the credit of its last DEFERRED_SLOTS_MAX slots returns when the message is consumed. Needs
        no lock: only the receiving thread writes these fields. Raises Refusal for a frame out of order.
        """
        if header.sequence != self.sequence + 1:
            raise Refusal(f"frame {header.sequence} of lane {self.lane.name} came after frame {self.sequence}")
        if header.sequence - self.reported > limits.SLOTS:
            raise Refusal(f"frame {header.sequence} of lane {self.lane.name} was sent without credit")
        self.sequence += 1
        self.received_bytes += len(payload)
        first = self._first
        if bool(header.flags & FIRST) != (first is None):
            raise Refusal(f"frame {header.sequence} of lane {self.lane.name} is not the expected part")
        if first is None and header.flags & LAST:
            if header.total != len(payload):
                raise Refusal(f"message of {header.total} bytes with {len(payload)} bytes on lane {self.lane.name}")
            self.received_messages += 1
            cut = header.head
            return Whole(header.kind, header.generation, bytes(payload[:cut]), bytes(payload[cut:]), 1)
        return self._part(header, payload)

    def _part(self, header: Header, payload: memoryview) -> Whole | int:
        first = self._first
        if first is None:
            first = self._first = header
            self._head = memoryview(bytearray(header.head))
            # Not a bytearray, which would be zeroed first: every byte is about to be written.
            self._body = np.empty(header.total - header.head, np.uint8).data
            self._got = self._kept = 0
        got, size = self._got, len(payload)
        left = first.total - got - size
        if header.total != first.total or left < 0 or (left == 0) != bool(header.flags & LAST) or not size:
            raise Refusal(f"parts of a message on lane {self.lane.name} do not add up to {first.total} bytes")
        in_head = min(size, max(0, first.head - got))
        if in_head:
            self._head[got : got + in_head] = payload[:in_head]
        if in_head < size:
            at = got + in_head - first.head
            self._body[at : at + size - in_head] = payload[in_head:]
        self._got = got + size
        early = left >= _DEFERRED_BYTES
        self._kept += not early
        if left:
            return int(early)
        whole = Whole(first.kind, first.generation, bytes(self._head), self._body, self._kept)
        self._first, self._head, self._body = None, memoryview(b""), memoryview(b"")
        self.received_messages += 1
        return whole
