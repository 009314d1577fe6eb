"""Rows of groups, and how they are merged: merge codes say it for the cells of each column.

A group is (slice, key) with a number of records and cells of state. A cell has 8 bytes; floats are kept as their bit
pattern. NaN is greater than every number, as in Spark. A sum of integers that overflows sets its flag permanently.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ferry.contract.descriptors import Number
from ferry.kernels.hash_order import order_by_hash as order_by_hash

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

SLICE, HASH, KEY, COUNT, CELLS = 0, 1, 2, 3, 4
"""Words of a group's row; the state cells follow. With byte keys, KEY is an offset into the heap."""

SUM: dict[Number, int] = {"int": 0, "float": 1}
LEAST: dict[Number, int] = {"int": 2, "float": 3}
GREATEST: dict[Number, int] = {"int": 4, "float": 5}
BEST: dict[Number, int] = {"int": 6, "float": 7}
"""This column and the `THEN` columns after it are taken from the row with the greater first value, or at a tie the
greater second value, and so on. FLAGS come somewhere after them."""

MOMENTS = 8
"""Three columns: number of values, their mean, and the sum of their squared differences from it (Chan, Golub,
LeVeque)."""

RANKS = 9
"""Twelve numbers of 5 bits, the greatest of each; see `ferry.kernels.sketch`."""

SUM_WIDE = 10
"""Two columns: the sum of integers of 128 bits (`ferry.kernels.values`)."""

SUM_AND_COUNT = 11
"""Two columns: the sum and the number of integers, for a mean (`ferry.kernels.means`)."""

REST = -1
"""Merged with the column before it."""

FLAGS = -2
"""The last column: bit c says that column c has a value, bit OVERFLOWED + c that its sum has overflowed."""

THEN: dict[Number, int] = {"int": -3, "float": -4}

OVERFLOWED = 31

CARRY_BITS = 40

SIGN = np.int64(-(2**63))
"""Flipped in the low word of 128 bits, so that it orders as a signed word."""

NO_BYTES: Bytes = np.empty(0, np.uint8)
NO_INTS: Ints = np.empty(0, np.int64)


@njit(cache=True, nogil=True)
def heap_keys(heap, at):  # type: ignore[no-untyped-def]
    """Keys at these heap offsets, concatenated: (offsets int64[n + 1], bytes)."""
    offsets = np.zeros(at.size + 1, np.int64)
    for i in range(at.size):
        a = at[i]
        length = (
            np.int64(heap[a]) | np.int64(heap[a + 1]) << 8 | np.int64(heap[a + 2]) << 16 | np.int64(heap[a + 3]) << 24
        )
        offsets[i + 1] = offsets[i] + length
    out = np.empty(offsets[at.size], np.uint8)
    for i in range(at.size):
        a, length = at[i] + 4, offsets[i + 1] - offsets[i]
        into, text = out[offsets[i] : offsets[i + 1]], heap[a : a + length]
        for q in range(length):
            into[q] = text[q]
    return offsets, out
