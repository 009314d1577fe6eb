"""Mutual challenge and response on a new socket, before anything else is parsed.

Messages of fixed size only, and one deadline for all of them. It must never reveal to a stranger why it was refused,
nor send a name before the stranger has proved that it knows the secret.

    connecting side                                    accepting side
      magic, nonce            --------------------->
                              <---------------------   magic, nonce
      name, life, number, MAC --------------------->     checks the MAC; the endpoint decides
                              <---------------------   verdict, life, MAC

Each side names its transports besides TCP; both use the common ones.
Both MACs are HMAC-SHA256 with the job's secret over the role, the job, both names, both nonces and the message itself.
A *life* is 16 bytes that identify one endpoint object; of two with the same name the greater one is later. The *number*
counts the connections that the endpoint opened.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ferry.channel.base import NAME_BYTES_MAX
from ferry.contract.errors import Refusal, Superseded, Unreachable

MAGIC = b"FERRY/1\n"
NONCE_BYTES = 32
LIFE_BYTES = 16
_MAC_BYTES = 32
_HELLO = struct.Struct(f"<{len(MAGIC)}s{NONCE_BYTES}s")
_PROOF = struct.Struct(f"<{NAME_BYTES_MAX}s{LIFE_BYTES}sQB")
_VERDICT = struct.Struct(f"<B{LIFE_BYTES}sB")

RDMA = 1
"""A transport."""


class Verdict(IntEnum):
    """The accepting side's decision about a caller."""

    REFUSED = 0
    """it could not prove its identity"""
    ADMITTED = 1
    DUPLICATE = 2
    """another connection to the same life stays"""
    FORMER = 3
    """a later life of the caller's name has connected before"""


MISMATCH = "the secret, the job or the names of the two sides differ"


class Caller(NamedTuple):
    """A caller that has proved its identity."""

    name: str
    life: bytes
    number: int
    transport_flags: int = 0
    """besides TCP: RDMA or 0"""


class Admission(NamedTuple):
    """The answer of the accepting side, which has proved its identity."""

    admitted: bool
    """False: it keeps another connection to this side"""
    life: bytes
    transport_flags: int
    """besides TCP, common to both sides"""


class _TimedSocket:
    """A socket with one deadline for everything."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._socket = sock
        self._deadline = time.monotonic() + seconds

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the handshake took too long")
        self._socket.settimeout(left)

    def put(self, data: bytes) -> None:
        self._arm()
        self._socket.sendall(data)

    def get(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            self._arm()
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the other side closed during the handshake")
            data += piece
        return data


def _mac(secret: bytes, role: bytes, job: str, names: tuple[str, str], nonces: bytes, message: bytes) -> bytes:
    parts = (role, job.encode(), names[0].encode(), names[1].encode(), nonces, message)
    text = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return hmac.digest(secret, text, "sha256")


def _hello(data: bytes) -> bytes:
    magic, nonce = _HELLO.unpack(data)
    if magic != MAGIC:
        raise Refusal(f"the other side does not speak this protocol: it begins with {magic!r}")
    return bytes(nonce)


def greet(sock: socket.socket, me: Caller, peer: str, job: str, secret: bytes, seconds: float) -> Admission:
    """The connecting side.

    Raises Refusal when either side cannot prove its identity, Superseded when a later life of this one has connected
    before, Unreachable when the connection breaks or takes too long.
    """
    try:
        timed = _TimedSocket(sock, seconds)
        mine = os.urandom(NONCE_BYTES)
        timed.put(_HELLO.pack(MAGIC, mine))
        nonces = mine + _hello(timed.get(_HELLO.size))
        proof = _PROOF.pack(me.name.encode(), me.life, me.number, me.transport_flags)
        timed.put(proof + _mac(secret, b"caller", job, (me.name, peer), nonces, proof))
        answer = timed.get(_VERDICT.size + _MAC_BYTES)
    except OSError as error:
        raise Unreachable(f"handshake with {peer} failed: {error}") from error
    verdict, life, transport_flags = _VERDICT.unpack_from(answer)
    if verdict == Verdict.REFUSED:
        raise Refusal(f"{peer} refused the handshake: {MISMATCH}")
    expected = _mac(secret, b"accepter", job, (me.name, peer), nonces, answer[: _VERDICT.size])
    if not hmac.compare_digest(expected, answer[_VERDICT.size :]):
        raise Refusal(f"the process that answered for {peer} could not prove its identity: {MISMATCH}")
    if verdict == Verdict.FORMER:
        raise Superseded(f"{peer} knows a later life of {me.name}")
    return Admission(verdict == Verdict.ADMITTED, life, transport_flags & me.transport_flags)


def welcome(
    sock: socket.socket,
    me: str,
    life: bytes,
    job: str,
    secret: bytes,
    seconds: float,
    transport_flags: int,
    decide: Callable[[Caller, Callable[[Verdict], None]], None],
) -> None:
    """The accepting side, with these transports besides TCP.

    `decide(caller, answer)` is called for a caller that has proved its identity, with the common transports, and calls
    `answer` once.

    Raises Refusal when the caller could not prove its identity, Unreachable when the connection breaks or takes too
    long.
    """
    try:
        timed = _TimedSocket(sock, seconds)
        theirs = _hello(timed.get(_HELLO.size))
        mine = os.urandom(NONCE_BYTES)
        timed.put(_HELLO.pack(MAGIC, mine))
        nonces = theirs + mine
        data = timed.get(_PROOF.size + _MAC_BYTES)
        proof = data[: _PROOF.size]
        padded, caller_life, number, theirs_too = _PROOF.unpack(proof)
        name = padded.rstrip(b"\0").decode("utf-8", "replace")
        expected = _mac(secret, b"caller", job, (name, me), nonces, proof)
        if not hmac.compare_digest(expected, data[_PROOF.size :]) or not name or name == me:
            timed.put(_VERDICT.pack(Verdict.REFUSED, bytes(LIFE_BYTES), 0) + bytes(_MAC_BYTES))
            raise Refusal(f"refused a caller that claims to be {name[:NAME_BYTES_MAX]!r}: {MISMATCH}")

        def answer(verdict: Verdict) -> None:
            answer = _VERDICT.pack(verdict, life, transport_flags)
            timed.put(answer + _mac(secret, b"accepter", job, (name, me), nonces, answer))

        decide(Caller(name, caller_life, number, theirs_too & transport_flags), answer)
    except OSError as error:
        raise Unreachable(f"handshake of a caller failed: {error}") from error
