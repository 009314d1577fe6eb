"""Partials part by part: rows are scattered to the parts of a table, and equal groups are searched for within a part.

The first bits of a hash are the number of its part, so rows in the order of parts are in the order of virtual nodes. Each
row is moved once, where sorting by hash moves it six times, and the index of a part stays in the cache.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.grouping import CELLS, COUNT, HASH, KEY, SLICE


@njit(cache=True, nogil=True)
def count_parts(hashes, bits, bounds):  # type: ignore[no-untyped-def]
    """Add the number of rows of each part to bounds[part + 1], int64[2**bits + 1]."""
    shift = np.uint64(64 - bits)
    for i in range(hashes.size):
        bounds[np.int64(hashes[i] >> shift) + 1] += 1


@njit(cache=True, nogil=True)
def rows_of_parts(order, hashes, parts, bits):  # type: ignore[no-untyped-def]
    """Number of rows `order` in each part, int64[parts]."""
    counts = np.zeros(parts, np.int64)
    for o in range(order.size):
        counts[np.int64(hashes[order[o]] >> np.uint64(64 - bits)) if bits else np.int64(0)] += 1
    return counts


@njit(cache=True, nogil=True)
def scatter(  # type: ignore[no-untyped-def]
    rows, salts, at, bits, by_bytes, heap, heap_end, slices, hashes, keys, offsets, data, salts_of, n, cells
):
    """Write each row to rows[at[part]], at int64[2**bits], and its salt, `salts_of`, to `salts`, if keys are bytes; their
    bytes go to the end of the heap. Returns the end."""
    shift = np.uint64(64 - bits)
    for i in range(hashes.size):
        part = np.int64(hashes[i] >> shift)
        r = at[part]
        at[part] = r + 1
        rows[r, SLICE] = slices[i]
        rows[r, HASH] = np.int64(hashes[i])
        rows[r, COUNT] = n[i]
        for c in range(cells.shape[1]):
            rows[r, CELLS + c] = cells[i, c]
        if by_bytes:
            begin = offsets[i]
            length = offsets[i + 1] - begin
            for b in range(4):
                heap[heap_end + b] = np.uint8((length >> (8 * b)) & 255)
            into, text = heap[heap_end + 4 : heap_end + 4 + length], data[begin : begin + length]
            for q in range(length):
                into[q] = text[q]
            salts[r] = salts_of[i]
            rows[r, KEY] = heap_end
            heap_end += 4 + length
        else:
            rows[r, KEY] = keys[i]
    return heap_end


@njit(cache=True, nogil=True)
def _same_key(heap, x, y):  # type: ignore[no-untyped-def]
    size = np.int64(4)
    for b in range(4):
        if heap[x + b] != heap[y + b]:
            return False
        size += np.int64(heap[x + b]) << (8 * b)
    # Slices without early exit, so that they compile to moves of many bytes.
    a, b = heap[x : x + size], heap[y : y + size]
    differs = np.uint8(0)
    for q in range(size):
        differs |= a[q] ^ b[q]
    return differs == 0


@njit(cache=True, nogil=True)
def _home(slice_start, salted, mask, seed):  # type: ignore[no-untyped-def]
    """The first place of a group in an index; `salted`: its hash, changed by its salt if its key is bytes."""
    x = np.uint64(salted) * np.uint64(seed)
    x = (x ^ x >> np.uint64(32)) + np.uint64(slice_start) * np.uint64(0x9E3779B97F4A7C15)
    x *= np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ x >> np.uint64(32)) & np.uint64(mask))


@njit(cache=True, nogil=True)
def same_groups(rows, heap, salts, by_bytes, bounds, seed):  # type: ignore[no-untyped-def]
    """Rows, in order of parts, with an earlier row of their group: (their numbers, the number of the first row of each).
    `salts`: of rows whose keys are bytes."""
    size = np.int64(16)
    while size < 2 * np.diff(bounds).max():
        size *= 2
    index = np.zeros(size, np.int32)
    later, first = np.empty(rows.shape[0], np.int64), np.empty(rows.shape[0], np.int64)
    count = 0
    for part in range(bounds.size - 1):
        begin, end = bounds[part], bounds[part + 1]
        if end - begin < 2:
            continue
        size = np.int64(16)
        while size < 2 * (end - begin):
            size *= 2
        index[:size] = 0
        for r in range(begin, end):
            s, h, key = rows[r, SLICE], rows[r, HASH], rows[r, KEY]
            p = _home(s, h ^ salts[r] if by_bytes else h, size - 1, seed)
            while True:
                g = np.int64(index[p]) - 1
                if g < 0:
                    index[p] = r - begin + 1
                    break
                g += begin
                if rows[g, HASH] == h and rows[g, SLICE] == s:
                    if _same_key(heap, rows[g, KEY], key) if by_bytes else rows[g, KEY] == key:
                        later[count], first[count] = r, g
                        count += 1
                        break
                p = (p + 1) & (size - 1)
    return later[:count], first[:count]


@njit(cache=True, nogil=True)
def add_records(hashes, n, bits, counts):  # type: ignore[no-untyped-def]
    """Add the records behind each row to the count of its part, int64[2**bits]; an empty `n`: one of each row."""
    for i in range(hashes.size):
        part = np.int64(hashes[i] >> np.uint64(64 - bits)) if bits else np.int64(0)
        counts[part] += n[i] if n.size else 1
