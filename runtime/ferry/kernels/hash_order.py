"""Rows in the order of their hashes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit


@njit(cache=True, nogil=True)
def _radix_order(hashes):  # type: ignore[no-untyped-def]
    n = hashes.size
    order = np.arange(n)
    other = np.empty(n, np.int64)
    for digit in range(6):
        shift = np.uint64(11 * digit)
        starts = np.zeros(2049, np.int64)
        for i in range(n):
            starts[np.int64((hashes[i] >> shift) & np.uint64(2047)) + 1] += 1
        for d in range(2048):
            starts[d + 1] += starts[d]
        for i in range(n):
            bucket = np.int64((hashes[order[i]] >> shift) & np.uint64(2047))
            other[starts[bucket]] = order[i]
            starts[bucket] += 1
        order, other = other, order
    return order


def order_by_hash(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Stable order of rows by hash, int64[n]."""
    if hashes.size < 1 << 14:
        return np.argsort(hashes, kind="stable")
    ordered: npt.NDArray[np.int64] = _radix_order(hashes)
    return ordered
