"""What the two sides of an RDMA link say to each other over their authenticated TCP connection.

    hello   where the ring and the credit word are, and how to reach the queue pair
    ready   from now on this side can be written to
    bye     why this side ends, and how many slots have reached the peer for certain

Fixed layouts with bounds only; nothing that a peer says is used before it was judged. It must never send data.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from ipaddress import IPv6Address
from typing import NamedTuple

from ferry.channel.base import REPLACED
from ferry.channel.frames import BYE_BYTES_MAX
from ferry.channel.rdma_memory import Shape
from ferry.channel.verbs import Remote
from ferry.contract.errors import Refusal, Unreachable

MAGIC = b"FERRYRC1"
_HELLO = struct.Struct("<8sIIB16sQIIIIQIB")
_BYE = struct.Struct("<QH")
_MTUS = range(1, 6)
_NUMBERS = 1 << 24


class Hello(NamedTuple):
    """One side of a link, as its peer has to know it."""

    remote: Remote
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


def decode(data: bytes, shape: Shape) -> Hello:
    """Read and judge a peer's hello. Raises Refusal."""
    magic, number, first, mtu, gid, ring, ring_key, slots, slot_bytes, link, word, word_key, imm = _HELLO.unpack(data)
    if magic != MAGIC:
        raise Refusal(f"the peer's RDMA hello begins with {magic!r}: run the same release everywhere")
    if (slots, slot_bytes) != (shape.slots, shape.slot_bytes):
        raise Refusal(
            f"the peer's ring has {slots} x {slot_bytes} bytes, this side's {shape.slots} x {shape.slot_bytes}: "
            "use the same setting everywhere"
        )
    if mtu not in _MTUS or number >= _NUMBERS or first >= _NUMBERS or imm > 1:
        raise Refusal(f"impossible RDMA hello: queue pair {number}, first {first}, mtu {mtu}, notice {imm}")
    if ring + shape.ring_bytes >= 1 << 64 or word % 8 or word + 8 >= 1 << 64:
        raise Refusal(f"impossible RDMA hello: ring at {ring:#x}, word at {word:#x}")
    remote = Remote(number, first, IPv6Address(gid), mtu)
    return Hello(remote, ring, ring_key, slots, slot_bytes, link, word, word_key, bool(imm))


class Bye(NamedTuple):
    """The peer's farewell."""

    landed: int
    text: str

    @property
    def reason(self) -> str:
        """Why this side closes."""
        return self.text if self.text == REPLACED else f"closed by the peer: {self.text}"


READY = b"R"


def bye(landed: int, text: str) -> bytes:
    """As a message."""
    said = text.encode()[:BYE_BYTES_MAX]
    return b"B" + _BYE.pack(landed, len(said)) + said


class Control:
    """Reads messages from the connection, without waiting unless told to. One thread at a time."""

    def __init__(self, sock: socket.socket, shape: Shape) -> None:
        self._socket, self._shape = sock, shape
        self._data = b""

    def read(self) -> Hello | Bye | bytes | None:
        """The next message, READY for a ready, None when none is there. Raises Unreachable when the peer is gone."""
        while (size := self._size()) is None or len(self._data) < size:
            try:
                piece = self._socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            except OSError as error:
                raise Unreachable(f"connection lost: {error}") from error
            if not piece:
                raise Unreachable("closed by the peer")
            self._data += piece
        message, self._data = self._data[:size], self._data[size:]
        if message[:1] == b"H":
            return decode(message[1:], self._shape)
        if message[:1] == b"B":
            landed, length = _BYE.unpack_from(message, 1)
            return Bye(landed, message[-length:].decode(errors="replace") if length else "")
        return READY

    def _size(self) -> int | None:
        kind = self._data[:1]
        if not kind:
            return None
        if kind == b"H":
            return 1 + _HELLO.size
        if kind == READY:
            return 1
        if kind != b"B":
            raise Refusal(f"the peer's connection carries no RDMA link: it says {self._data[:4]!r}")
        if len(self._data) < 1 + _BYE.size:
            return None
        length = int(_BYE.unpack_from(self._data, 1)[1])
        if length > BYE_BYTES_MAX:
            raise Refusal(f"a farewell of {length} bytes, {BYE_BYTES_MAX} are allowed")
        return 1 + _BYE.size + length

    def wait(self, seconds: float) -> Hello | bytes:
        """The next message of the beginning. Raises Unreachable when it does not come in time or is a farewell."""
        deadline = time.monotonic() + seconds
        while (message := self.read()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Unreachable(f"the peer did not set up its side of the RDMA link within {seconds} s")
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            poller.poll(left * 1000)
        if isinstance(message, Bye):
            raise Unreachable(message.reason)
        return message
