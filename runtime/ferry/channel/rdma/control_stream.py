"""What the two sides of an RDMA link say to each other over their authenticated TCP connection.

    hello   where the ring and the credit word are, and how to reach the queue pair
    ready   from now on this side can be written to
    turn    this side's stream goes on in the ring
    fall    this side has closed its ring after so many slots; the stream goes on here
    data    bytes of the stream
    ping    nothing: the peer's kernel acknowledges it, however busy the peer is
    bye     why this side ends, and how many slots have reached the peer for certain

Fixed layouts with bounds only; nothing that a peer says is used before it was judged. It must never know whose turn it is.
"""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv6Address
from typing import NamedTuple

from ferry.channel.base import REPLACED
from ferry.channel.frames import BYE_BYTES_MAX
from ferry.channel.rdma.verbs import QueuePairAddress
from ferry.contract.errors import Refusal, Unreachable

MAGIC = b"FERRYRC1"
_HELLO = struct.Struct("<8sIIB16sQIIIIQIB")
_TOLD = struct.Struct("<QH")
_DATA = struct.Struct("<I")
_MTUS = range(1, 6)
_NUMBERS = 1 << 24
_BUFFER_BYTES = 128 * 1024

READY, TURN, PING = b"R", b"T", b"P"


class Hello(NamedTuple):
    """One side of a link, as its peer has to know it."""

    remote: QueuePairAddress
    ring: int
    ring_key: int
    slots: int
    slot_bytes: int
    link: int
    """drawn by the owner of the ring for this one connection: what was meant for another one is refused"""
    word: int
    word_key: int
    imm: bool
    """the owner of the ring wants a notice with every slot: its device guarantees no order of bytes"""

    def encode(self) -> bytes:
        """As a message."""
        remote = self.remote
        return b"H" + _HELLO.pack(
            MAGIC,
            remote.number,
            remote.first,
            remote.mtu,
            remote.gid.packed,
            self.ring,
            self.ring_key,
            self.slots,
            self.slot_bytes,
            self.link,
            self.word,
            self.word_key,
            self.imm,
        )


def decode(data: bytes) -> Hello:
    """Read and judge a peer's hello; whether its ring is like this side's is another question. Raises Refusal."""
    magic, number, first, mtu, gid, ring, ring_key, slots, slot_bytes, link, word, word_key, imm = _HELLO.unpack(data)
    if magic != MAGIC:
        raise Refusal(f"the peer's RDMA hello begins with {magic!r}: run the same release everywhere")
    if mtu not in _MTUS or number >= _NUMBERS or first >= _NUMBERS or imm > 1:
        raise Refusal(f"impossible RDMA hello: queue pair {number}, first {first}, mtu {mtu}, notice {imm}")
    if ring + slots * slot_bytes >= 1 << 64 or word % 8 or word + 8 >= 1 << 64:
        raise Refusal(f"impossible RDMA hello: ring at {ring:#x}, word at {word:#x}")
    remote = QueuePairAddress(number, first, IPv6Address(gid), mtu)
    return Hello(remote, ring, ring_key, slots, slot_bytes, link, word, word_key, bool(imm))


class Fall(NamedTuple):
    """The peer has closed its ring."""

    consumed: int
    """slots that it has read; what came after them has to be said again"""
    reason: str


class Bye(NamedTuple):
    """The peer's farewell."""

    landed: int
    text: str

    @property
    def reason(self) -> str:
        """Why this side closes."""
        return self.text if self.text == REPLACED else f"closed by the peer: {self.text}"


def bye(landed: int, text: str) -> bytes:
    """As a message."""
    return b"B" + _counted(landed, text)


def fall(consumed: int, reason: str) -> bytes:
    """As a message."""
    return b"L" + _counted(consumed, reason)


def data(size: int) -> bytes:
    """What comes before so many bytes of the stream."""
    return b"D" + _DATA.pack(size)


def _counted(count: int, text: str) -> bytes:
    said = text.encode()[:BYE_BYTES_MAX]
    return _TOLD.pack(count, len(said)) + said


class ControlStream:
    """Reads messages from the connection, and never waits. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._stream = 0

    def read(self) -> Hello | Fall | Bye | bytes | memoryview | None:
        """The next message: READY, TURN or PING as they are, a piece of the stream as a view (until the next call), or None.

        Raises Unreachable when the peer is gone, Refusal for what is no message.
        """
        while (message := self._next()) is None:
            if self._start:
                left = self._end - self._start
                self._buffer[:left] = self._buffer[self._start : self._end]
                self._start, self._end = 0, left
            try:
                count = self._socket.recv_into(self._buffer[self._end :], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                raise Unreachable(f"connection lost: {error}") from error
            if not count:
                raise Unreachable("closed by the peer")
            self._end += count
        return message

    def _next(self) -> Hello | Fall | Bye | bytes | memoryview | None:
        there = self._end - self._start
        if self._stream and there:
            piece = self._take(min(self._stream, there))
            self._stream -= len(piece)
            return piece
        if not there or (size := self._size(there)) is None or there < size:
            return None
        message = bytes(self._take(size))
        kind, rest = message[:1], message[1:]
        if kind == b"D":
            self._stream = int(_DATA.unpack(rest)[0])
            return self._next()
        if kind == b"H":
            return decode(rest)
        if kind in (b"B", b"L"):
            count, length = _TOLD.unpack_from(rest)
            text = rest[_TOLD.size : _TOLD.size + length].decode(errors="replace")
            return Bye(count, text) if kind == b"B" else Fall(count, text)
        return message

    def _take(self, size: int) -> memoryview:
        start = self._start
        self._start += size
        return self._buffer[start : self._start]

    def _size(self, there: int) -> int | None:
        kind = bytes(self._buffer[self._start : self._start + 1])
        if kind in (READY, TURN, PING):
            return 1
        if kind == b"H":
            return 1 + _HELLO.size
        if kind == b"D":
            return 1 + _DATA.size
        if kind not in (b"B", b"L"):
            said = bytes(self._buffer[self._start : self._start + min(4, there)])
            raise Refusal(f"the peer's connection carries no RDMA link: it says {said!r}")
        if there < 1 + _TOLD.size:
            return None
        length = int(_TOLD.unpack_from(self._buffer, self._start + 1)[1])
        if length > BYE_BYTES_MAX:
            raise Refusal(f"a reason of {length} bytes, {BYE_BYTES_MAX} are allowed")
        return 1 + _TOLD.size + length
