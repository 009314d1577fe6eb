"""Numbers keys, and orders rows by such numbers: without sorting, because there are few keys."""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.grouping import Bytes, Hashes, Ints


@njit(cache=True, nogil=True)
def _numbered(hashes, keys, offsets, data):  # type: ignore[no-untyped-def]
    by_bytes = keys.size == 0
    size = 1024
    index = np.zeros(size, np.int32)
    numbers, firsts = np.empty(hashes.size, np.int64), np.empty(hashes.size, np.int64)
    count = 0
    for r in range(hashes.size):
        h = hashes[r]
        p = np.int64(h & np.uint64(size - 1))
        while index[p] != 0:
            f = firsts[index[p] - 1]
            if hashes[f] == h:
                if by_bytes:
                    length = offsets[r + 1] - offsets[r]
                    same = offsets[f + 1] - offsets[f] == length
                    q = 0
                    while same and q < length:
                        same = data[offsets[f] + q] == data[offsets[r] + q]
                        q += 1
                else:
                    same = keys[f] == keys[r]
                if same:
                    break
            p = (p + 1) & (size - 1)
        if index[p] == 0:
            firsts[count] = r
            count += 1
            index[p] = count
        numbers[r] = index[p] - 1
        if 2 * count > size:
            size *= 4
            index = np.zeros(size, np.int32)
            for n in range(count):
                p = np.int64(hashes[firsts[n]] & np.uint64(size - 1))
                while index[p] != 0:
                    p = (p + 1) & (size - 1)
                index[p] = n + 1
    return numbers, firsts[:count].copy()


def numbered(hashes: Hashes, keys: Ints, offsets: Ints, data: Bytes) -> tuple[Ints, Ints]:
    """The number of each row's key, in the order of first appearance, and the first row of each key.

    Depending on the type of the key `keys` are in use, or the bytes (`ferry.kernels.keys`).
    """
    numbers, firsts = _numbered(hashes, keys, offsets, data)
    return numbers, firsts


@njit(cache=True, nogil=True)
def _by_number(numbers, count):  # type: ignore[no-untyped-def]
    at = np.zeros(count + 1, np.int64)
    for i in range(numbers.size):
        at[numbers[i] + 1] += 1
    for n in range(count):
        at[n + 1] += at[n]
    order = np.empty(numbers.size, np.int64)
    for i in range(numbers.size):
        order[at[numbers[i]]] = i
        at[numbers[i]] += 1
    return order


def ordered(numbers: Ints, values: Ints) -> Ints:
    """Rows by their numbers, which are small, then by these values; equal ones stay in order."""
    rows = None if (values[1:] >= values[:-1]).all() else np.argsort(values, kind="stable")
    within = numbers if rows is None else numbers[rows]
    order: Ints = _by_number(within, int(numbers.max(initial=-1)) + 1)
    return order if rows is None else rows[order]
