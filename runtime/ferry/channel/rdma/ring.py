"""A ring of slots in each direction: the sender writes the receiver's slots by RDMA, the receiver returns credit.

    slot          | unused | payload, right-aligned | footer: length, checksum, ring, kind, flags, sequence |
    credit word   top bit: the receiver sleeps; the other bits: slots consumed since the link began

The footer's sequence is the last word of the slot, so it is written last (or immediate data proves that the slot is
complete). It must never trust the peer: impossible lengths, sequences and credits are refused, and every slot is copied
once, before the copy is checked. It takes no locks and never waits.
"""

from __future__ import annotations

import ctypes
import struct
import time
import zlib
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ferry.channel.rdma.memory import FOOTER_BYTES, PAGE_BYTES, LentMemory, RingShape
from ferry.channel.rdma.queue_pair import SGES
from ferry.channel.rdma.verbs import ScatterGatherEntry
from ferry.contract.errors import Refusal

if TYPE_CHECKING:
    from ferry.channel.rdma.control_stream import Hello
    from ferry.channel.rdma.queue_pair import QueuePair
    from ferry.channel.rdma.work_requests import WorkRequests

DATA, DOORBELL = 0, 0xFFFFFFFF
"""Immediate data of a write. The same in both byte orders."""

SLEEPING = 1 << 63
TORN_SECONDS = 0.02
"""Without guaranteed order impossible bytes may be half written: they are refused when they stay this long."""

_FOOTER = struct.Struct("<IIIHHQ")
_UNCHECKED = struct.Struct("<IIHHQ")
_KIND = 1
LENT_BYTES_MIN = 4096
"""Smaller pieces are copied, also from lent memory: cheaper than a scatter/gather entry."""

assert _FOOTER.size == FOOTER_BYTES


def footer(length: int, ring_id: int, sequence: int, pieces: Sequence[memoryview]) -> bytes:
    """The footer of a slot with that payload."""
    checksum = zlib.crc32(_UNCHECKED.pack(length, ring_id, _KIND, 0, sequence))
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return _FOOTER.pack(length, checksum, ring_id, _KIND, 0, sequence)


class Outbound:
    """The peer's ring, which this side writes."""

    def __init__(self, queue_pair: QueuePair, requests: WorkRequests, shape: RingShape, lent: LentMemory) -> None:
        self.shape = shape
        self._requests = requests
        self._lent = lent
        self._sources = [queue_pair.region(len(one), remote=False, mapping=one) for one in lent.mappings]
        self._lent_slots: deque[tuple[int, int, list[memoryview]]] = deque()
        """For each slot with lent memory: its sequence, its wr_id, and views that keep the memory unchanged."""
        self._staging = queue_pair.region(shape.ring_bytes, remote=False)
        self._nothing = ScatterGatherEntry(self._staging.address, 0, self._staging.lkey)
        self.credit = queue_pair.region(PAGE_BYTES, remote=True)
        self._words = self.credit.view.cast("Q")
        self._wr_ids = [0] * shape.slots
        self._entries: list[list[ScatterGatherEntry]] = [[] for _ in range(shape.slots)]
        self.sent = 0
        self.consumed = 0
        self._credit_word = 0
        self._rung_for = 0
        """The credit word for which the doorbell was rung: one doorbell for each sleep of the peer."""
        self._suspect: tuple[int, float] | None = None
        self._peer: Hello | None = None

    def attach(self, peer: Hello) -> None:
        """Take the peer's description of its ring."""
        self._peer = peer

    @property
    def settled(self) -> bool:
        """Whether the peer has consumed everything."""
        return self.sent == self.consumed

    @property
    def landed(self) -> int:
        """Slots that are known to be in the peer's memory."""
        slots, completed = self.shape.slots, self._requests.completed
        first = max(0, self.sent - slots)
        return next((n for n in range(self.sent, first, -1) if self._wr_ids[(n - 1) % slots] <= completed), first)

    def read_credit(self) -> bool:
        """Read the credit word; True when it grew. Raises Refusal for an impossible one."""
        word = self._words[0]
        consumed = word & ~SLEEPING
        if not self.consumed <= consumed <= self.sent:
            now = time.monotonic()
            if self._suspect is None or self._suspect[0] != word:
                self._suspect = (word, now)
            elif now - self._suspect[1] > TORN_SECONDS:
                raise Refusal(
                    f"impossible credit of the ring: {consumed} slots consumed, "
                    f"{self.consumed} were before and {self.sent} were sent"
                )
            return False
        self._suspect = None
        self._credit_word = word
        more = consumed > self.consumed
        self.consumed = consumed
        self._release_consumed()
        return more

    def _release_consumed(self) -> None:
        lent, completed = self._lent_slots, self._requests.completed
        while lent and lent[0][0] <= self.consumed and lent[0][1] <= completed:
            lent.popleft()

    @property
    def keeps_lent(self) -> bool:
        """Whether lent memory is still in use: the device of this process reads it, or a peer may need it again."""
        return bool(self._lent_slots)

    def release_lent(self) -> None:
        """The link is closed: its memory is not read any more."""
        self._lent_slots.clear()

    @property
    def room(self) -> bool:
        """Whether the next slot is free: consumed by the peer, and completed by the device of this process."""
        slots = self.shape.slots
        return self.sent - self.consumed < slots and self._wr_ids[self.sent % slots] <= self._requests.completed

    def put(self, gather: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Send as much as fits into free slots; returns the rest. Raises Unreachable."""
        rest = list(gather)
        rest.reverse()
        while rest and self.room:
            pieces: list[memoryview] = []
            left = self.shape.payload_bytes
            while rest and left:
                view = memoryview(rest.pop())
                pieces.append(view[:left])
                if len(view) > left:
                    rest.append(view[left:])
                left -= len(pieces[-1])
            self._send(pieces, self.shape.payload_bytes - left)
        rest.reverse()
        return rest

    def _send(self, pieces: list[memoryview], size: int) -> None:
        peer, shape = self._peer, self.shape
        assert peer is not None
        slot = self.sent % shape.slots
        end = footer(size, peer.ring_id, self.sent + 1, pieces)
        entries, lent = self._stage(slot * shape.slot_bytes, [*pieces, memoryview(end)])
        doorbell = self._peer_sleeps
        if doorbell:
            self._rung_for = self._credit_word
        self.sent += 1
        self._entries[slot] = entries
        if lent:
            self._lent_slots.append((self.sent, self._requests.posted + 1, lent))
            self._lent.sent(sum(map(len, lent)))
        self._wr_ids[slot] = self._requests.post_write(
            entries,
            peer.ring + (slot + 1) * shape.slot_bytes - FOOTER_BYTES - size,
            peer.ring_rkey,
            signaled=bool(lent),  # the owner of the memory waits for it
            imm_data=DATA if peer.imm else DOORBELL if doorbell else None,
            solicited=doorbell,
        )

    def unread(self, consumed: int) -> list[bytes]:
        """The payloads after the first `consumed` slots: they are still in their original place.

        Raises Refusal for an impossible number.
        """
        if not self.consumed <= consumed <= self.sent:
            raise Refusal(f"the peer says it read {consumed} slots: {self.consumed} were, {self.sent} were sent")
        slots = (self._entries[n % self.shape.slots] for n in range(consumed, self.sent))
        return [b"".join(ctypes.string_at(e.address, e.length) for e in slot)[:-FOOTER_BYTES] for slot in slots]

    def _stage(self, at: int, pieces: list[memoryview]) -> tuple[list[ScatterGatherEntry], list[memoryview]]:
        """Entries for the pieces in order, and the pieces in lent memory; all others are copied into staging memory."""
        stage, out, start, lent = self._staging, list[ScatterGatherEntry](), at, list[memoryview]()
        for piece in pieces:
            entries = self._lent_entry(piece, len(out))
            if entries is None:
                stage.view[at : at + len(piece)] = piece
                at += len(piece)
                continue
            if at > start:
                out.append(ScatterGatherEntry(stage.address + start, at - start, stage.lkey))
                start = at
            out.append(entries)
            lent.append(piece)
        out.append(ScatterGatherEntry(stage.address + start, at - start, stage.lkey))
        return out, lent

    def _lent_entry(self, piece: memoryview, used: int) -> ScatterGatherEntry | None:
        """An entry for the piece in place, if it is in lent memory and worth an entry of its own."""
        if not self._sources or len(piece) < LENT_BYTES_MIN or used > SGES - 3:
            return None
        address = int(np.frombuffer(piece, np.uint8).__array_interface__["data"][0])
        for region in self._sources:
            if region.address <= address and address + len(piece) <= region.address + region.size:
                return ScatterGatherEntry(address, len(piece), region.lkey)
        return None

    @property
    def _peer_sleeps(self) -> bool:
        """Whether the peer waits for a doorbell that was not rung yet."""
        return bool(self._credit_word & SLEEPING) and self._credit_word != self._rung_for

    def ring_doorbell(self) -> None:
        """Wake a peer that went to sleep before it saw the last slots."""
        peer = self._peer
        if self._peer_sleeps and not self.settled and self._requests.room:
            assert peer is not None
            self._rung_for = self._credit_word
            self._requests.post_write([self._nothing], peer.ring, peer.ring_rkey, imm_data=DOORBELL, solicited=True)

    def probe(self) -> int:
        """Post an empty write, which needs no credit: its completion shows that the peer's device is alive."""
        assert self._peer is not None
        return self._requests.post_write([self._nothing], self._peer.ring, self._peer.ring_rkey, signaled=True)


class Inbound:
    """This side's ring, which the peer writes."""

    def __init__(
        self, queue_pair: QueuePair, requests: WorkRequests, shape: RingShape, imm: bool, ring_id: int
    ) -> None:
        self.shape = shape
        self._queue_pair = queue_pair
        self._requests = requests
        self._imm = imm
        self._ring_id = ring_id
        self.ring = queue_pair.region(shape.ring_bytes, remote=True)
        self._words = self.ring.view.cast("Q")
        self._credit_staging = queue_pair.region(PAGE_BYTES, remote=False)
        self._immediates = 0
        self._reported = 0
        self._suspect: float | None = None
        self._peer: Hello | None = None
        self.consumed = 0

    def attach(self, peer: Hello) -> None:
        """Take the peer's description of its credit word. From now on it may send immediate data."""
        self._peer = peer
        self._queue_pair.post_receives(self.shape.receives)

    def poll_receives(self) -> bool:
        """Poll for immediate data; True when some came."""
        came = self._queue_pair.poll_receives()
        if came:
            self._queue_pair.post_receives(len(came))
            self._immediates += came.count(DATA)
        return bool(came)

    def take(self, into: memoryview) -> int:
        """Copy the payload of the next slot; returns its length, 0 when there is none. Raises Refusal."""
        if self._imm and not self._immediates and not (self.poll_receives() and self._immediates):
            return 0
        shape = self.shape
        end = (self.consumed % shape.slots + 1) * shape.slot_bytes
        wanted = self.consumed + 1
        if self._words[end // 8 - 1] != wanted:
            return self._suspicious("it has another sequence") if self._imm else 0
        self._queue_pair.barrier()
        written = bytes(self.ring.view[end - FOOTER_BYTES : end])
        length, _, ring_id, kind, flags, sequence = _FOOTER.unpack(written)
        expected = (self._ring_id, _KIND, 0, wanted)
        if not 0 < length <= shape.payload_bytes or (ring_id, kind, flags, sequence) != expected:
            return self._suspicious(f"its footer says {length} bytes, ring {ring_id}, kind {kind}, sequence {sequence}")
        end -= FOOTER_BYTES
        into[:length] = self.ring.view[end - length : end]
        if footer(length, ring_id, sequence, [into[:length]]) != written:
            return self._suspicious("its checksum is wrong")
        self._suspect = None
        self.consumed = wanted
        self._immediates -= self._imm
        return length

    def _suspicious(self, problem: str) -> int:
        """The slot may be half written: 0 for now. Raises Refusal when it stays like that."""
        now = time.monotonic()
        if self._suspect is None:
            self._suspect = now
        elif now - self._suspect > TORN_SECONDS:
            raise Refusal(f"slot {self.consumed + 1} of the ring is damaged: {problem}")
        return 0

    @property
    def reported_sleeping(self) -> bool:
        """Whether the peer's credit word says that this side sleeps."""
        return bool(self._reported & SLEEPING)

    def post_credit(self, *, idle: bool = False, sleeping: bool = False) -> bool:
        """Write the peer's credit word after a quarter of the ring was consumed; False when it was not written.

        `idle`: also for less, because there is no other work. `sleeping`: the peer has to ring the doorbell.
        """
        fresh = self.consumed - (self._reported & ~SLEEPING)
        due = (
            fresh >= max(1, self.shape.slots // 4)
            or (fresh and idle)
            or (sleeping and (fresh or not self.reported_sleeping))
        )
        if not due or not self._requests.room:
            return False
        peer = self._peer
        assert peer is not None
        self._reported = self.consumed | (SLEEPING if sleeping else 0)
        self._credit_staging.view[:8] = self._reported.to_bytes(8, "little")
        entry = ScatterGatherEntry(self._credit_staging.address, 8, self._credit_staging.lkey)
        self._requests.post_write([entry], peer.credit, peer.credit_rkey, inline=True)
        return True
