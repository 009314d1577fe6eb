"""Inner join of two sides that are sorted by hash: pairs of row numbers, in pieces of bounded size.

A key with a million rows on either side makes 10**12 pairs; a position to continue from is three integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def _same(offsets, data, a, b):  # type: ignore[no-untyped-def]
    length = offsets[a + 1] - offsets[a]
    if length != offsets[b + 1] - offsets[b]:
        return False
    for q in range(length):
        if data[offsets[a] + q] != data[offsets[b] + q]:
            return False
    return True


@njit(cache=True, nogil=True)
def join_pairs(  # type: ignore[no-untyped-def]
    left_hash, left_row, right_hash, right_row, by_bytes, offsets, data, i, j, k, pairs_max
):
    """Next pairs from place (i, j, k), at most pairs_max: (left rows, right rows, i, j, k); at the end i is len(left).

    `left_row` and `right_row` are row numbers in the common batch, to which `offsets` and `data` (byte keys) belong.
    Integer keys are equal exactly if their hashes are; byte keys are compared.
    """
    lefts = np.empty(pairs_max, np.int64)
    rights = np.empty(pairs_max, np.int64)
    count = 0
    while i < left_hash.size:
        h = left_hash[i]
        while j < right_hash.size and right_hash[j] < h:
            j += 1
        if j == right_hash.size:
            i = left_hash.size
            break
        k = max(k, j)
        while k < right_hash.size and right_hash[k] == h:
            if not by_bytes or _same(offsets, data, left_row[i], right_row[k]):
                if count == pairs_max:
                    return lefts, rights, i, j, k
                lefts[count] = left_row[i]
                rights[count] = right_row[k]
                count += 1
            k += 1
        i += 1
        k = 0
    return lefts[:count], rights[:count], i, j, k


@njit(cache=True, nogil=True)
def count_pairs(left_hash, right_hash):  # type: ignore[no-untyped-def]
    """Pairs of equal hash: exact for integer keys, an upper bound for byte keys."""
    total = 0
    j = 0
    i = 0
    while i < left_hash.size and j < right_hash.size:
        h = left_hash[i]
        if right_hash[j] < h:
            j += 1
            continue
        lefts = 0
        while i < left_hash.size and left_hash[i] == h:
            lefts += 1
            i += 1
        rights = 0
        while j < right_hash.size and right_hash[j] == h:
            rights += 1
            j += 1
        total += lefts * rights
    return total
