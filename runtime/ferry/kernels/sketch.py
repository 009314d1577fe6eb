"""HyperLogLog: approximate number of distinct values, in registers of a fixed size (Flajolet et al. 2007).

The first bits of a value's hash choose a register, which keeps the greatest rank of its other bits: the number of
trailing zeros plus one. So a sketch depends on the set of its values only, not on their order or partition. The sketch
of a union has the maximum of each two registers, which is a merge of cells in `ferry.kernels.grouping`.

512 registers give a standard error of 1.04 / sqrt(512) = 4.6 %, less for small counts; 1,024 would give 3.25 %. They
are 5 bits wide, which suffices for 5e11 values. That is 344 bytes per key and slice, however few its values are: a row
of a table has 376 bytes where a count's has 32, and a sliding window of n panes needs n sketches per key.

The estimate is the improved raw estimator of Ertl 2017 (arXiv 1702.01284). It needs no table of corrections, and avoids
the bias around a switch between formulas for small and large counts.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from ferry.kernels.hashing import Ints

INDEX_BITS = 9
REGISTERS = 1 << INDEX_BITS
REGISTER_BITS = 5
RANK_MAX = (1 << REGISTER_BITS) - 1
PER_WORD = 12
WORDS = -(-REGISTERS // PER_WORD)
"""Register r is the r % 12th of word r // 12, from its low end."""

COUNT_MAX = 2**63 - 1
"""Result of a sketch whose registers are all full: its limit."""

_SCALE = REGISTERS * REGISTERS / (2 * math.log(2))


@njit(cache=True, nogil=True)
def singles(hashes, counted):  # type: ignore[no-untyped-def]
    """Sketches of one value each, int64[n, WORDS]; empty where it is not `counted`."""
    out = np.zeros((hashes.size, WORDS), np.int64)
    for i in range(hashes.size):
        if counted[i]:
            register = np.int64(hashes[i] >> np.uint64(64 - INDEX_BITS))
            rest = np.int64(hashes[i] & np.uint64(0xFFFFFFFF))
            rank = 1
            while rank < RANK_MAX and rest & 1 == 0:
                rank += 1
                rest >>= 1
            out[i, register // PER_WORD] = np.int64(rank) << (REGISTER_BITS * (register % PER_WORD))
    return out


@njit(cache=True, nogil=True)
def _of_empty(share):  # type: ignore[no-untyped-def]
    # Contribution of empty registers; `share` of all.
    if share == 1.0:
        return np.inf
    power, total, before = 1.0, share, -1.0
    while total != before:
        share *= share
        before = total
        total += share * power
        power += power
    return total


@njit(cache=True, nogil=True)
def _of_full(share):  # type: ignore[no-untyped-def]
    # Contribution of registers with the highest rank; the others are `share` of all.
    if share == 0.0 or share == 1.0:
        return 0.0
    power, total, before = 1.0, 1.0 - share, -1.0
    while total != before:
        share = math.sqrt(share)
        before = total
        power *= 0.5
        total -= (1.0 - share) * (1.0 - share) * power
    return total / 3.0


@njit(cache=True, nogil=True)
def counts(sketches: Ints) -> Ints:
    """Approximate number of distinct values that these sketches have seen, int64[n, WORDS] -> int64[n]."""
    out = np.empty(sketches.shape[0], np.int64)
    for i in range(sketches.shape[0]):
        having = np.zeros(RANK_MAX + 1, np.int64)
        for w in range(WORDS):
            word = sketches[i, w]
            for _ in range(PER_WORD):
                having[word & RANK_MAX] += 1
                word >>= REGISTER_BITS
        having[0] -= WORDS * PER_WORD - REGISTERS  # The last word has unused registers.
        total = REGISTERS * _of_full(1.0 - having[RANK_MAX] / REGISTERS)
        for rank in range(RANK_MAX - 1, 0, -1):
            total = 0.5 * (total + having[rank])
        total += REGISTERS * _of_empty(having[0] / REGISTERS)
        out[i] = np.int64(_SCALE / total + 0.5) if total > 0.0 else COUNT_MAX
    return out
