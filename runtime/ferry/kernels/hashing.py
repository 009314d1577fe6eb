"""The 64-bit key hash and the byte encoding of keys.

Both are fixed for ever: they decide which key group, and so which virtual node, a key belongs to, and they are written to
disk and sent between versions. The test vectors in the tests must never change.

A single integer key is hashed by the finaliser of splitmix64, which is a bijection: equal hashes mean equal keys.
Every other key is encoded element by element (tag 1 and int64 little endian, or tag 2, uint32 little endian length and
UTF-8) and the bytes are folded by the same finaliser, beginning with their length, in zero-padded 8-byte words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

TAG_INT = 1
TAG_STRING = 2


@njit(cache=True, nogil=True)
def _mix(x):  # type: ignore[no-untyped-def]
    x = np.uint64(x)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


@njit(cache=True, nogil=True)
def hash_ints(values: Ints) -> Hashes:
    """Hash of single integer keys, int64[n] -> uint64[n]; a bijection."""
    out = np.empty(values.size, np.uint64)
    for i in range(values.size):
        out[i] = _mix(np.uint64(values[i]))
    return out


@njit(cache=True, nogil=True)
def hash_bytes(offsets: Ints, data: Bytes) -> Hashes:
    """Hash of encoded keys: row i is data[offsets[i]:offsets[i + 1]]; offsets int64[n + 1] -> uint64[n]."""
    rows = offsets.size - 1
    out = np.empty(rows, np.uint64)
    for i in range(rows):
        begin, end = offsets[i], offsets[i + 1]
        h = _mix(np.uint64(end - begin))
        p = begin
        while p < end:
            word = np.uint64(0)
            stop = min(p + 8, end)
            for q in range(p, stop):
                word |= np.uint64(data[q]) << np.uint64(8 * (q - p))
            h = _mix(h ^ word)
            p += 8
        out[i] = h
    return out


@njit(cache=True, nogil=True)
def encode_int(values: Ints, position: Ints, out: Bytes) -> None:
    """Write one integer element per row at position[i], and advance position[i] by 9."""
    for i in range(values.size):
        p = position[i]
        out[p] = TAG_INT
        x = np.uint64(values[i])
        for b in range(8):
            out[p + 1 + b] = np.uint8((x >> np.uint64(8 * b)) & np.uint64(255))
        position[i] = p + 9


@njit(cache=True, nogil=True)
def encode_string(offsets: Ints, data: Bytes, position: Ints, out: Bytes) -> None:
    """Write one string element per row at position[i], and advance position[i] by 5 and its length."""
    for i in range(offsets.size - 1):
        p = position[i]
        begin, end = offsets[i], offsets[i + 1]
        length = end - begin
        out[p] = TAG_STRING
        for b in range(4):
            out[p + 1 + b] = np.uint8((length >> (8 * b)) & 255)
        for q in range(length):
            out[p + 5 + q] = data[begin + q]
        position[i] = p + 5 + length


@njit(cache=True, nogil=True)
def decode_int(data: Bytes, position: Ints) -> Ints:
    """Read one integer element per row at position[i], and advance; a wrong tag raises ValueError."""
    out = np.empty(position.size, np.int64)
    for i in range(position.size):
        p = position[i]
        if data[p] != TAG_INT:
            raise ValueError("encoded key: an integer was expected, another tag was found")
        x = np.uint64(0)
        for b in range(8):
            x |= np.uint64(data[p + 1 + b]) << np.uint64(8 * b)
        out[i] = np.int64(x)
        position[i] = p + 9
    return out


@njit(cache=True, nogil=True)
def decode_string(data: Bytes, position: Ints) -> tuple[Ints, Bytes]:
    """Read one string element per row at position[i], and advance: (offsets int64[n + 1], UTF-8 bytes)."""
    rows = position.size
    offsets = np.zeros(rows + 1, np.int64)
    for i in range(rows):
        p = position[i]
        if data[p] != TAG_STRING:
            raise ValueError("encoded key: a string was expected, another tag was found")
        length = np.int64(0)
        for b in range(4):
            length |= np.int64(data[p + 1 + b]) << (8 * b)
        offsets[i + 1] = offsets[i] + length
    out = np.empty(offsets[rows], np.uint8)
    for i in range(rows):
        p, o = position[i] + 5, offsets[i]
        length = offsets[i + 1] - o
        for q in range(length):
            out[o + q] = data[p + q]
        position[i] = p + length
    return offsets, out
