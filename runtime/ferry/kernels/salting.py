"""Seeds of tables, and salts of keys of bytes: keys cannot be chosen to fall on one place of a table.

The hash of a key is public and fixed for ever (`ferry.kernels.hashing`), and keys of bytes that share a hash can be
computed. So the place of a key in a table depends on a secret number of the table, its seed, and for keys of bytes also
on a second hash under this seed, the salt. Neither is sent. The salt is the hash NH of UMAC (RFC 4418, section 5.2) with
keys from the seed: two keys of one length share a salt with a probability of 2**-32, also when they were chosen.
"""

from __future__ import annotations

import secrets

import numpy as np
from numba import njit

from ferry.kernels.grouping import Ints


def new_seed() -> int:
    """An odd secret number of 63 bits. 0 stands for no seed: tables of earlier versions."""
    return secrets.randbits(62) << 1 | 1


SEED = new_seed()
"""of the tables of groups in memory of this process"""


@njit(cache=True, nogil=True)
def key_salts(offsets, data, order, seed) -> Ints:  # type: ignore[no-untyped-def]
    """Salts of the keys data[offsets[r]:offsets[r + 1]] of rows `order`: int64[order.size], each of 61 bits."""
    out = np.empty(order.size, np.int64)
    half, golden = np.uint64(0xFFFFFFFF), np.uint64(0x9E3779B97F4A7C15)
    for o in range(order.size):
        p, end = offsets[order[o]], offsets[order[o] + 1]
        total, state = np.uint64(end - p) * golden, np.uint64(seed)
        while p < end:
            word = np.uint64(0)
            if p + 8 <= end:
                eight = data[p : p + 8]
                for q in range(8):  # A loop of a known length compiles to one move.
                    word |= np.uint64(eight[q]) << np.uint64(8 * q)
            else:
                for q in range(p, end):
                    word |= np.uint64(data[q]) << np.uint64(8 * (q - p))
            p += 8
            state += golden
            key = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
            key = (key ^ key >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
            key ^= key >> np.uint64(31)
            total += ((word + key) & half) * (((word >> np.uint64(32)) + (key >> np.uint64(32))) & half)
        out[o] = np.int64(total >> np.uint64(3))
    return out
