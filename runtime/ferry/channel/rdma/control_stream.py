"""The messages with which both ends of a link agree on it, over their authenticated TCP connection.

    hello      where the ring and the credit word are, and how to reach the queue pair
    ready      from now on this side can be written to
    switch     this side's stream goes on in the ring
    fall back  this side has left its ring after this many slots; the stream goes on here
    data       bytes of the stream
    ping       nothing: the peer's kernel acknowledges it, however busy the peer is
    bye        why this side ends, and how many slots have reached the peer for certain

Fixed layouts with bounds only; no value of a peer is used unchecked. It must never know which message may come when:
`link_control` does.
"""

from __future__ import annotations

import socket
import struct
from enum import Enum
from ipaddress import IPv6Address
from typing import NamedTuple

from ferry.channel.base import REPLACED
from ferry.channel.frames import BYE_BYTES_MAX
from ferry.channel.rdma.verbs import QueuePairAddress
from ferry.channel.tcp.connection import receive
from ferry.contract.errors import Refusal

MAGIC = b"FERRYRC1"
_HELLO = struct.Struct("<8sIIB16sQIIIIQIB")
_COUNTED = struct.Struct("<QH")
_DATA = struct.Struct("<I")
_MTUS = range(1, 6)
_24_BITS = 1 << 24
_BUFFER_BYTES = 128 * 1024


class Signal(bytes, Enum):
    """A message of one byte."""

    READY = b"R"
    SWITCH = b"T"
    PING = b"P"


_SIGNALS = {bytes(signal): signal for signal in Signal}


class Hello(NamedTuple):
    """One side of a link, described for its peer."""

    remote: QueuePairAddress
    ring: int
    ring_rkey: int
    slots: int
    slot_bytes: int
    ring_id: int
    """random, unique to this ring: slots for another ring are refused"""
    credit: int
    credit_rkey: int
    imm: bool
    """the owner of the ring wants immediate data with every slot, because its device guarantees no order of bytes"""

    def encode(self) -> bytes:
        """The message."""
        remote = self.remote
        return b"H" + _HELLO.pack(
            MAGIC,
            remote.qp_num,
            remote.psn,
            remote.mtu,
            remote.gid.packed,
            self.ring,
            self.ring_rkey,
            self.slots,
            self.slot_bytes,
            self.ring_id,
            self.credit,
            self.credit_rkey,
            self.imm,
        )


def decode(data: bytes) -> Hello:
    """Read and check a peer's hello, but not whether its ring matches this side's. Raises Refusal."""
    magic, qp_num, psn, mtu, gid, *ring_fields, imm = _HELLO.unpack(data)
    ring, ring_rkey, slots, slot_bytes, ring_id, credit, credit_rkey = ring_fields
    if magic != MAGIC:
        raise Refusal(f"the peer's RDMA hello begins with {magic!r}: run the same release everywhere")
    if mtu not in _MTUS or qp_num >= _24_BITS or psn >= _24_BITS or imm > 1:
        raise Refusal(f"impossible RDMA hello: queue pair {qp_num}, psn {psn}, mtu {mtu}, imm {imm}")
    if ring + slots * slot_bytes >= 1 << 64 or credit % 8 or credit + 8 >= 1 << 64:
        raise Refusal(f"impossible RDMA hello: ring at {ring:#x}, credit word at {credit:#x}")
    remote = QueuePairAddress(qp_num, psn, IPv6Address(gid), mtu)
    return Hello(remote, ring, ring_rkey, slots, slot_bytes, ring_id, credit, credit_rkey, bool(imm))


class FallBack(NamedTuple):
    """The sender has left its ring."""

    consumed: int
    """slots that it has read; bytes after them have to be sent again"""
    reason: str

    def encode(self) -> bytes:
        """The message."""
        return b"L" + _counted(self.consumed, self.reason)


class Bye(NamedTuple):
    """The sender's farewell."""

    landed: int
    text: str

    @property
    def reason(self) -> str:
        """Reason for the receiver to close, too."""
        return self.text if self.text == REPLACED else f"closed by the peer: {self.text}"

    def encode(self) -> bytes:
        """The message."""
        return b"B" + _counted(self.landed, self.text)


def stream_header(size: int) -> bytes:
    """The header of a piece of the stream of this size."""
    return b"D" + _DATA.pack(size)


def _counted(count: int, text: str) -> bytes:
    encoded = text.encode()[:BYE_BYTES_MAX]
    return _COUNTED.pack(count, len(encoded)) + encoded


ControlMessage = Hello | FallBack | Bye | Signal | memoryview
"""A view is a piece of the stream, valid until the next one is read."""


class ControlStream:
    """Reads messages from the connection, and never waits. One thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._stream = 0

    def read(self) -> ControlMessage | None:
        """The next message, or None. Raises Unreachable when the peer has closed, Refusal for invalid bytes."""
        while (message := self._next()) is None:
            if self._start:
                left = self._end - self._start
                self._buffer[:left] = self._buffer[self._start : self._end]
                self._start, self._end = 0, left
            try:
                count = receive(self._socket, self._buffer[self._end :], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            self._end += count
        return message

    def _next(self) -> ControlMessage | None:
        there = self._end - self._start
        if self._stream and there:
            piece = self._take(min(self._stream, there))
            self._stream -= len(piece)
            return piece
        if not there or (size := self._size(there)) is None or there < size:
            return None
        message = bytes(self._take(size))
        kind, rest = message[:1], message[1:]
        if kind in _SIGNALS:
            return _SIGNALS[kind]
        if kind == b"D":
            self._stream = int(_DATA.unpack(rest)[0])
            return self._next()
        if kind == b"H":
            return decode(rest)
        count, length = _COUNTED.unpack_from(rest)
        text = rest[_COUNTED.size : _COUNTED.size + length].decode(errors="replace")
        return Bye(count, text) if kind == b"B" else FallBack(count, text)

    def _take(self, size: int) -> memoryview:
        start = self._start
        self._start += size
        return self._buffer[start : self._start]

    def _size(self, there: int) -> int | None:
        kind = bytes(self._buffer[self._start : self._start + 1])
        if kind in _SIGNALS:
            return 1
        if kind == b"H":
            return 1 + _HELLO.size
        if kind == b"D":
            return 1 + _DATA.size
        if kind not in (b"B", b"L"):
            begin = bytes(self._buffer[self._start : self._start + min(4, there)])
            raise Refusal(f"the peer's connection carries no RDMA link: it says {begin!r}")
        if there < 1 + _COUNTED.size:
            return None
        length = int(_COUNTED.unpack_from(self._buffer, self._start + 1)[1])
        if length > BYE_BYTES_MAX:
            raise Refusal(f"a reason of {length} bytes, {BYE_BYTES_MAX} are allowed")
        return 1 + _COUNTED.size + length
