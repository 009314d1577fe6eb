"""The 64-bit key hash.

It is fixed for ever: it decides the key group, and so the virtual node, of a key, and it is written to disk and sent
between versions. The test vectors in the tests must never change.

A single integer key is hashed by the finaliser of splitmix64, which is a bijection: equal hashes mean equal keys.
Every other key is encoded (`ferry.kernels.row_codec`) and the bytes are folded by the same finaliser, beginning with their
length, in zero-padded 8-byte words.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


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
        while p + 8 <= end:
            eight = data[p : p + 8]
            word = np.uint64(0)
            for q in range(8):  # A loop of a known length compiles to one move.
                word |= np.uint64(eight[q]) << np.uint64(8 * q)
            h = _mix(h ^ word)
            p += 8
        if p < end:
            word = np.uint64(0)
            for q in range(p, end):
                word |= np.uint64(data[q]) << np.uint64(8 * (q - p))
            h = _mix(h ^ word)
        out[i] = h
    return out
