"""Frames: the layout of messages on the wire, one frame for each slot, with a header that lets a receiver refuse errors.

Pure functions on bytes; it must never keep the state of a connection, do I/O or start a thread.

A frame is a header of 64 bytes and up to PAYLOAD_BYTES of payload. The concatenated payloads of a message's frames are
its head and then its body. Every header carries the whole length, so a receiver can allocate once. The checksum covers
the header before it and the payload; it detects torn or corrupted frames, and authenticates nothing. It is the lower
half of XXH3, which costs a tenth of a CRC: with a CRC both ends would spend more on the checksum than on sending.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from ferry.channel.base import MESSAGE_BYTES_MAX, Lane
from ferry.contract import limits
from ferry.contract.errors import Refusal

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"FeRy"
VERSION = 1
HEADER = struct.Struct("<4sBBBxIIQQQQQII")
HEADER_BYTES = HEADER.size
PAYLOAD_BYTES = limits.SLOT_BYTES
"""Payload of a slot: a message of exactly this size is one frame. The header is extra."""

FRAME_BYTES = HEADER_BYTES + PAYLOAD_BYTES
"""The largest frame."""

FIRST, LAST, CREDIT, BYE = 1, 2, 4, 8
"""Flags. CREDIT and BYE frames are not part of a lane's sequence and cost no credit; the payload of a BYE is the
reason."""

BYE_BYTES_MAX = 512
COPY_BYTES = 4096
"""Payloads up to this size are copied behind their header: cheaper than another entry in a gather list."""

_CHECKED = HEADER_BYTES - 4
_CHECKSUM = struct.Struct("<I")
_FLAGS_ALLOWED = frozenset({0, FIRST, LAST, FIRST | LAST, CREDIT, BYE})

assert HEADER_BYTES == 64


class Header(NamedTuple):
    """A decoded header. Lengths in bytes."""

    lane: int
    flags: int
    length: int
    """of the frame, header included"""
    kind: int
    job: int
    generation: int
    sequence: int
    """number of the frame in its lane, from 1"""
    credit: int
    """slots of this lane, of the opposite direction, that were consumed since the connection was opened"""
    total: int
    """head and body of the whole message"""
    head: int
    checksum: int


def job_hash(job: str) -> int:
    """64 bits that identify the job in every frame, so that a stray frame of another job is refused."""
    return int.from_bytes(hashlib.blake2b(job.encode(), digest_size=8).digest(), "little")


def slots_of(total: int) -> int:
    """Frames, and so credits, that a message of `total` bytes needs."""
    return max(1, -(-total // PAYLOAD_BYTES))


class Outgoing:
    """A message to be sent: returns its payload piece by piece, without copying."""

    __slots__ = ("_at", "_index", "_pieces", "generation", "head", "kind", "lane", "planned", "total")

    def __init__(self, lane: Lane, kind: int, generation: int, head: bytes, body: Sequence[Buffer]) -> None:
        pieces = [memoryview(head)] if head else []
        for buffer in body:
            view = memoryview(buffer)
            if view.nbytes:
                pieces.append(view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B"))
        self.lane = int(lane)
        self.kind = kind
        self.generation = generation
        self.head = len(head)
        self.total = sum(map(len, pieces))
        if self.total > MESSAGE_BYTES_MAX:
            raise Refusal(
                f"a message of {self.total} bytes on lane {lane.name} is larger than MESSAGE_BYTES_MAX "
                f"({MESSAGE_BYTES_MAX}): cut it into several"
            )
        self.planned = 0
        """bytes that already have a frame, as counted by the lane"""
        self._pieces = pieces
        self._index = 0
        self._at = 0

    def take(self, count: int) -> list[memoryview]:
        """The next `count` bytes of the payload, as views of the sender's buffers."""
        out: list[memoryview] = []
        while count:
            piece = self._pieces[self._index]
            view = piece[self._at : self._at + count]
            out.append(view)
            count -= len(view)
            self._at += len(view)
            if self._at == len(piece):
                self._index, self._at = self._index + 1, 0
        return out


def encode(
    payload: Sequence[bytes | memoryview],
    *,
    lane: int,
    flags: int,
    job: int,
    kind: int = 0,
    generation: int = 0,
    sequence: int = 0,
    credit: int = 0,
    total: int = 0,
    head: int = 0,
) -> list[bytes | memoryview]:
    """One frame as a gather list; small payloads are copied behind the header, others stay views."""
    size = sum(map(len, payload))
    assert size <= PAYLOAD_BYTES, size
    length = HEADER_BYTES + size
    header = HEADER.pack(MAGIC, VERSION, lane, flags, length, kind, job, generation, sequence, credit, total, head, 0)
    if size <= COPY_BYTES:
        body = b"".join(payload)
        return [header[:_CHECKED] + _CHECKSUM.pack(checksum(header[:_CHECKED], (body,))) + body]
    return [header[:_CHECKED] + _CHECKSUM.pack(checksum(header[:_CHECKED], payload)), *payload]


def checksum(header: Buffer, payload: Sequence[bytes | memoryview]) -> int:
    """The checksum of the header without its own field, and of the payload in pieces."""
    seed = xxhash.xxh3_64_intdigest(header)
    if len(payload) == 1:
        whole: int = xxhash.xxh3_64_intdigest(payload[0], seed)
    else:
        state = xxhash.xxh3_64(seed=seed)
        for piece in payload:
            state.update(piece)
        whole = state.intdigest()
    return whole & 0xFFFFFFFF


def decode_header(data: memoryview, offset: int, job: int) -> Header:
    """Read and check the header at `offset`; `verify` checks the checksum once the whole frame has arrived.

    Raises Refusal for any header that this version of this job cannot have sent.
    """
    magic, version, *rest = HEADER.unpack_from(data, offset)
    if magic != MAGIC:
        raise Refusal(f"not a frame: it begins with {magic!r}")
    if version != VERSION:
        raise Refusal(f"frame version {version}, this side speaks {VERSION}: run the same release everywhere")
    header = Header._make(rest)
    if not HEADER_BYTES <= header.length <= FRAME_BYTES:
        raise Refusal(f"frame of {header.length} bytes, the largest has {FRAME_BYTES}")
    if header.job != job:
        raise Refusal("frame of another job")
    if header.lane >= len(Lane) or header.flags not in _FLAGS_ALLOWED:
        raise Refusal(f"frame with lane {header.lane} and flags {header.flags}")
    if header.total > MESSAGE_BYTES_MAX or header.head > header.total:
        raise Refusal(
            f"message of {header.total} bytes with a head of {header.head}, MESSAGE_BYTES_MAX is {MESSAGE_BYTES_MAX}"
        )
    return header


def verify(frame: memoryview, header: Header) -> None:
    """Raises Refusal when the checksum of the whole frame differs from the announced one."""
    if checksum(frame[:_CHECKED], (frame[HEADER_BYTES:],)) != header.checksum:
        lane = Lane(header.lane).name
        raise Refusal(f"checksum of frame {header.sequence} of lane {lane} is wrong: it was corrupted on the way")
