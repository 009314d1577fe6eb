"""The circular queue of a link: one side writes its slots from afar, the other reads them and gives credit back.

    slot   | unused | payload, right-aligned | footer: length, checksum, link, kind, flags, sequence |
    word   top bit: the reader sleeps; the rest: slots consumed since the link began

The footer's sequence is the last word of the slot, so it is written last (or a notice says that all is there). It must
never believe the peer: lengths, sequences and credits that cannot be are refused, and every slot is copied once, before
it is looked at. No locks, no clock of its own, no decision when to wait.
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

from ferry.channel.rdma.link import SGES
from ferry.channel.rdma.memory import FOOTER_BYTES, PAGE_BYTES, Lent, RingShape
from ferry.channel.rdma.verbs import Piece
from ferry.contract.errors import Refusal

if TYPE_CHECKING:
    from ferry.channel.rdma.control_stream import Hello
    from ferry.channel.rdma.link import Link
    from ferry.channel.rdma.work_requests import WorkRequests

DATA, DOORBELL = 0, 0xFFFFFFFF
"""Notices. The same in both byte orders."""

SLEEPING = 1 << 63
DOUBT_SECONDS = 0.02
"""Bytes that cannot be may still be on their way, where the device guarantees no order: after this they are refused."""

_FOOTER = struct.Struct("<IIIHHQ")
_UNCHECKED = struct.Struct("<IIHHQ")
_KIND = 1
LENT_BYTES_MIN = 4096
"""Smaller pieces are copied, also from lent memory: cheaper than an entry of a gather."""

assert _FOOTER.size == FOOTER_BYTES


def footer(length: int, link: int, sequence: int, pieces: Sequence[memoryview]) -> bytes:
    """Of a slot with that payload."""
    checksum = zlib.crc32(_UNCHECKED.pack(length, link, _KIND, 0, sequence))
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return _FOOTER.pack(length, checksum, link, _KIND, 0, sequence)


class Outbound:
    """The slots of the peer's ring, seen by the side that writes them."""

    def __init__(self, link: Link, posts: WorkRequests, shape: RingShape, lent: Lent) -> None:
        self.shape = shape
        self._posts = posts
        self._lent = lent
        self._sources = [link.region(len(one), remote=False, mapping=one) for one in lent.mappings]
        self._kept: deque[tuple[int, int, list[memoryview]]] = deque()
        """of slots with lent memory: how many had been sent with it, its request, and what keeps the memory as it is"""
        self._stage = link.region(shape.ring_bytes, remote=False)
        self._empty = Piece(self._stage.address, 0, self._stage.local_key)
        self.credit = link.region(PAGE_BYTES, remote=True)
        self._words = self.credit.view.cast("Q")
        self._numbers = [0] * shape.slots
        self._gathers: list[list[Piece]] = [[] for _ in range(shape.slots)]
        self.sent = self.consumed = 0
        self._word = self._rung = 0
        self._doubt: tuple[int, float] | None = None
        self._peer: Hello | None = None

    def attach(self, peer: Hello) -> None:
        """Where to write."""
        self._peer = peer

    @property
    def settled(self) -> bool:
        """The peer has consumed everything."""
        return self.sent == self.consumed

    @property
    def landed(self) -> int:
        """Slots that are in the peer's memory for certain."""
        slots, done = self.shape.slots, self._posts.done
        first = max(0, self.sent - slots)
        return next((n for n in range(self.sent, first, -1) if self._numbers[(n - 1) % slots] <= done), first)

    def look(self) -> bool:
        """Read the credit; True when there is more. Raises Refusal for one that cannot be."""
        word = self._words[0]
        consumed = word & ~SLEEPING
        if not self.consumed <= consumed <= self.sent:
            now = time.monotonic()
            if self._doubt is None or self._doubt[0] != word:
                self._doubt = (word, now)
            elif now - self._doubt[1] > DOUBT_SECONDS:
                raise Refusal(
                    f"impossible credit of the ring: {consumed} slots consumed, "
                    f"{self.consumed} were before and {self.sent} were sent"
                )
            return False
        self._doubt = None
        self._word = word
        more = consumed > self.consumed
        self.consumed = consumed
        while self._kept and self._kept[0][0] <= consumed and self._kept[0][1] <= self._posts.done:
            self._kept.popleft()
        return more

    @property
    def keeps(self) -> bool:
        """Lent memory may have to be read again: by the own device, or for a peer that did not get it."""
        return bool(self._kept)

    def let_go(self) -> None:
        """The link is closed: nothing is read any more."""
        self._kept.clear()

    @property
    def room(self) -> bool:
        """The next slot is free: read by the peer, and no longer read by our own device."""
        slots = self.shape.slots
        return self.sent - self.consumed < slots and self._numbers[self.sent % slots] <= self._posts.done

    def put(self, gather: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Send as much as there are free slots for; returns the rest. Raises Unreachable."""
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
        foot = footer(size, peer.link, self.sent + 1, pieces)
        gather, lent = self._gather(slot * shape.slot_bytes, [*pieces, memoryview(foot)])
        wake = bool(self._word & SLEEPING) and self._word != self._rung
        if wake:
            self._rung = self._word
        self.sent += 1
        self._gathers[slot] = gather
        if lent:
            self._kept.append((self.sent, self._posts.posted + 1, lent))
            self._lent.sent(sum(map(len, lent)))
        self._numbers[slot] = self._posts.post(
            gather,
            peer.ring + (slot + 1) * shape.slot_bytes - FOOTER_BYTES - size,
            peer.ring_key,
            signal=bool(lent),  # who owns the memory waits for it
            notice=DATA if peer.imm else DOORBELL if wake else None,
            wake=wake,
        )

    def again(self, consumed: int) -> list[bytes]:
        """The payloads that a peer did not read that has read so many slots; what was sent lies where it lay.

        Raises Refusal for a number that cannot be.
        """
        if not self.consumed <= consumed <= self.sent:
            raise Refusal(f"the peer says it read {consumed} slots: {self.consumed} were, {self.sent} were sent")
        slots = (self._gathers[n % self.shape.slots] for n in range(consumed, self.sent))
        return [b"".join(ctypes.string_at(p.address, p.length) for p in slot)[:-FOOTER_BYTES] for slot in slots]

    def _gather(self, at: int, pieces: list[memoryview]) -> tuple[list[Piece], list[memoryview]]:
        """Pieces of lent memory as they are, all others copied into the stage, in order; and those of lent memory."""
        stage, out, start, lent = self._stage, list[Piece](), at, list[memoryview]()
        for piece in pieces:
            found = self._find(piece, len(out))
            if found is None:
                stage.view[at : at + len(piece)] = piece
                at += len(piece)
                continue
            if at > start:
                out.append(Piece(stage.address + start, at - start, stage.local_key))
                start = at
            out.append(found)
            lent.append(piece)
        out.append(Piece(stage.address + start, at - start, stage.local_key))
        return out, lent

    def _find(self, piece: memoryview, used: int) -> Piece | None:
        """The piece where it is, if that is memory lent to the device and worth an entry of its own."""
        if not self._sources or len(piece) < LENT_BYTES_MIN or used > SGES - 3:
            return None
        address = int(np.frombuffer(piece, np.uint8).__array_interface__["data"][0])
        for region in self._sources:
            if region.address <= address and address + len(piece) <= region.address + region.size:
                return Piece(address, len(piece), region.local_key)
        return None

    def nudge(self) -> None:
        """Ring when the peer went to sleep before it saw what was sent."""
        peer = self._peer
        if self._word & SLEEPING and self._word != self._rung and not self.settled and self._posts.room:
            assert peer is not None
            self._rung = self._word
            self._posts.post([self._empty], peer.ring, peer.ring_key, notice=DOORBELL, wake=True)

    def probe(self) -> int:
        """Ask the peer's device, which needs no credit and not the peer's attention, whether it is there."""
        assert self._peer is not None
        return self._posts.post([self._empty], self._peer.ring, self._peer.ring_key, signal=True)


class Inbound:
    """This side's ring, which the peer writes."""

    def __init__(self, link: Link, posts: WorkRequests, shape: RingShape, imm: bool, number: int) -> None:
        self.shape = shape
        self._link = link
        self._posts = posts
        self._imm = imm
        self._number = number
        self.ring = link.region(shape.ring_bytes, remote=True)
        self._words = self.ring.view.cast("Q")
        self._report = link.region(PAGE_BYTES, remote=False)
        self._arrived = 0
        self._told = 0
        self._doubt: float | None = None
        self._peer: Hello | None = None
        self.consumed = 0

    def attach(self, peer: Hello) -> None:
        """Where credit goes. From now on notices are expected."""
        self._peer = peer
        self._link.receive(self.shape.receives)

    def notices(self) -> bool:
        """Take the notices that came; True when there were some."""
        came = self._link.notices()
        if came:
            self._link.receive(len(came))
            self._arrived += came.count(DATA)
        return bool(came)

    def take(self, into: memoryview) -> int:
        """Copy the payload of the next slot; returns its length, 0 when there is none. Raises Refusal."""
        if self._imm and not self._arrived and not (self.notices() and self._arrived):
            return 0
        shape = self.shape
        end = (self.consumed % shape.slots + 1) * shape.slot_bytes
        wanted = self.consumed + 1
        if self._words[end // 8 - 1] != wanted:
            return self._wait("its sequence is another") if self._imm else 0
        self._link.barrier()
        foot = bytes(self.ring.view[end - FOOTER_BYTES : end])
        length, _, number, kind, flags, sequence = _FOOTER.unpack(foot)
        if not 0 < length <= shape.payload_bytes or (number, kind, flags, sequence) != (self._number, _KIND, 0, wanted):
            return self._wait(f"its footer says {length} bytes, link {number}, kind {kind}, sequence {sequence}")
        end -= FOOTER_BYTES
        into[:length] = self.ring.view[end - length : end]
        if footer(length, number, sequence, [into[:length]]) != foot:
            return self._wait("its checksum is wrong")
        self._doubt = None
        self.consumed = wanted
        self._arrived -= self._imm
        return length

    def _wait(self, problem: str) -> int:
        now = time.monotonic()
        if self._doubt is None:
            self._doubt = now
        elif now - self._doubt > DOUBT_SECONDS:
            raise Refusal(f"slot {self.consumed + 1} of the ring is not what was sent: {problem}")
        return 0

    @property
    def told_sleeping(self) -> bool:
        """The last report said that this side sleeps."""
        return bool(self._told & SLEEPING)

    def report(self, *, idle: bool = False, sleeping: bool = False) -> bool:
        """Give credit back, a quarter of the ring at a time, or all when there is nothing else to do."""
        fresh = self.consumed - (self._told & ~SLEEPING)
        due = (
            fresh >= max(1, self.shape.slots // 4)
            or (fresh and idle)
            or (sleeping and (fresh or not self.told_sleeping))
        )
        if not due or not self._posts.room:
            return False
        peer = self._peer
        assert peer is not None
        self._told = self.consumed | (SLEEPING if sleeping else 0)
        self._report.view[:8] = self._told.to_bytes(8, "little")
        piece = Piece(self._report.address, 8, self._report.local_key)
        self._posts.post([piece], peer.word, peer.word_key, inline=True)
        return True
