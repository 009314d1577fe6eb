"""The table of one slice: V regions of equal capacity, open addressing inside a region, rows of 8-byte words.

A row is (used, hash, key or heap offset, n, cells...). The region of virtual node v is rows
[v * capacity, (v + 1) * capacity), so a virtual node is one piece of the file. Rows that come sorted
by hash walk through the regions from front to back.

A row is written values first, then key and hash, then the used word, so that a put that was torn can be done again.
Merge codes are those of ferry.kernels.grouping; they are repeated here because files of kernels are self-contained.
"""

from __future__ import annotations

import numpy as np
from numba import njit

USED, HASH, KEY, COUNT, CELLS = 0, 1, 2, 3, 4
DONE, TABLE_FULL, HEAP_FULL = 0, 1, 2


@njit(cache=True, nogil=True)
def _vnode(hash_, vnode_bits):  # type: ignore[no-untyped-def]
    if vnode_bits == 0:
        return np.int64(0)
    return np.int64(np.uint64(hash_) >> np.uint64(64 - vnode_bits))


@njit(cache=True, nogil=True)
def _home(hash_, bits):  # type: ignore[no-untyped-def]
    # Low bits, for rows come sorted by hash: with the top bits a small region would fill up from one end, quadratically.
    return np.int64(hash_) & ((np.int64(1) << bits) - 1)


@njit(cache=True, nogil=True)
def _length(heap, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(heap[at]) | np.int64(heap[at + 1]) << 8 | np.int64(heap[at + 2]) << 16 | np.int64(heap[at + 3]) << 24
    )


@njit(cache=True, nogil=True)
def _find(slots, heap, base, bits, home, hash_, by_bytes, offsets, data, r):  # type: ignore[no-untyped-def]
    # The row's place, or -1 - (the free place where it belongs). A region is never full, see `put`.
    mask = (np.int64(1) << bits) - 1
    p = home
    while True:
        i = base + p
        if slots[i, USED] == 0:
            return -1 - i
        if slots[i, HASH] == hash_:
            if not by_bytes:
                return i
            at = slots[i, KEY]
            length = offsets[r + 1] - offsets[r]
            if _length(heap, at) == length:
                q = 0
                while q < length and heap[at + 4 + q] == data[offsets[r] + q]:
                    q += 1
                if q == length:
                    return i
        p = (p + 1) & mask


@njit(cache=True, nogil=True)
def put(  # type: ignore[no-untyped-def]
    slots,
    heap,
    counts,
    key_bytes,
    heap_end,
    vnode_bits,
    bits,
    by_bytes,
    order,
    hashes,
    keys,
    offsets,
    data,
    n,
    cells,
    absent,
    start,
):
    """Upsert rows order[start:]: (next position, DONE | TABLE_FULL | HEAP_FULL).

    `counts`, `key_bytes` int64[V] and `heap_end` int64[1] lie in the file's header. With `absent`, a row that is there
    already is kept. A region is full at 7/10.
    """
    limit = (np.int64(1) << bits) * 7 // 10
    for o in range(start, order.size):
        r = order[o]
        h = np.int64(hashes[r])
        v = _vnode(h, vnode_bits)
        found = _find(slots, heap, v << bits, bits, _home(h, bits), h, by_bytes, offsets, data, r)
        if found >= 0:
            if not absent:
                slots[found, COUNT] = n[r]
                for c in range(cells.shape[1]):
                    slots[found, CELLS + c] = cells[r, c]
            continue
        if counts[v] >= limit:
            return o, TABLE_FULL
        i = -1 - found
        key = np.int64(0)
        if by_bytes:
            key = heap_end[0]
            begin = offsets[r]
            length = offsets[r + 1] - begin
            if key + 4 + length > heap.size:
                return o, HEAP_FULL
            for b in range(4):
                heap[key + b] = np.uint8((length >> (8 * b)) & 255)
            for q in range(length):
                heap[key + 4 + q] = data[begin + q]
            heap_end[0] = key + 4 + length
            key_bytes[v] += 4 + length
        else:
            key = keys[r]
        for c in range(cells.shape[1]):
            slots[i, CELLS + c] = cells[r, c]
        slots[i, COUNT] = n[r]
        slots[i, KEY] = key
        slots[i, HASH] = h
        slots[i, USED] = 1
        counts[v] += 1
    return order.size, DONE


@njit(cache=True, nogil=True)
def _above(x, y):  # type: ignore[no-untyped-def]
    return x > y or (x != x and y == y)


@njit(cache=True, nogil=True)
def _merge(into, finto, i, source, fsource, j, codes):  # type: ignore[no-untyped-def]
    for c in range(codes.size):
        code = codes[c]
        d = CELLS + c
        if code == 0:
            into[i, d] += source[j, d]
        elif code == 1:
            finto[i, d] = fsource[j, d] + finto[i, d]
        elif code == 2:
            into[i, d] = min(into[i, d], source[j, d])
        elif code == 3:
            if _above(finto[i, d], fsource[j, d]):
                finto[i, d] = fsource[j, d]
        elif code == 4:
            into[i, d] = max(into[i, d], source[j, d])
        elif code == 5:
            if _above(fsource[j, d], finto[i, d]):
                finto[i, d] = fsource[j, d]
        elif code >= 6:
            if code >= 8:
                more = _above(fsource[j, d], finto[i, d])
                less = _above(finto[i, d], fsource[j, d])
            else:
                more = source[j, d] > into[i, d]
                less = source[j, d] < into[i, d]
            if not more and not less:
                if code & 1:
                    more = _above(fsource[j, d + 1], finto[i, d + 1])
                else:
                    more = source[j, d + 1] > into[i, d + 1]
            if more:
                into[i, d] = source[j, d]
                into[i, d + 1] = source[j, d + 1]


@njit(cache=True, nogil=True)
def merge_stored(  # type: ignore[no-untyped-def]
    slots, fslots, heap, vnode_bits, bits, by_bytes, order, rows, frows, offsets, data, codes
):
    """Add what the table holds for rows order[...] to `rows` (layout as in grouping: word 1 hash, 3 n, 4.. cells)."""
    for o in range(order.size):
        r = order[o]
        h = rows[r, HASH]
        base = _vnode(h, vnode_bits) << bits
        found = _find(slots, heap, base, bits, _home(h, bits), h, by_bytes, offsets, data, r)
        if found >= 0:
            rows[r, COUNT] += slots[found, COUNT]
            _merge(rows, frows, r, slots, fslots, found, codes)


@njit(cache=True, nogil=True)
def scan(slots, heap, counts, bits, by_bytes, vnodes, at_vnode, at_row, rows_max, bytes_max):  # type: ignore[no-untyped-def]
    """Places of the used rows of these regions from (at_vnode, at_row) on: (places, next at_vnode, next at_row).

    Stops after rows_max rows, or when the keys found take bytes_max bytes.
    """
    out = np.empty(rows_max, np.int64)
    found = 0
    taken = np.int64(0)
    capacity = np.int64(1) << bits
    while at_vnode < vnodes.size:
        v = vnodes[at_vnode]
        if counts[v] > 0:
            while at_row < capacity:
                i = (v << bits) + at_row
                if slots[i, USED] != 0:
                    if found == rows_max or taken >= bytes_max:
                        return out[:found], at_vnode, at_row
                    out[found] = i
                    found += 1
                    if by_bytes:
                        taken += _length(heap, slots[i, KEY])
                at_row += 1
        at_vnode += 1
        at_row = 0
    return out[:found], at_vnode, at_row


@njit(cache=True, nogil=True)
def rehash(slots, counts, bits, into, into_bits):  # type: ignore[no-untyped-def]
    """Copy every row of a table into an empty, larger one."""
    mask = (np.int64(1) << into_bits) - 1
    for v in range(counts.size):
        if counts[v] == 0:
            continue
        for i in range(v << bits, (v + 1) << bits):
            if slots[i, USED] == 0:
                continue
            p = _home(slots[i, HASH], into_bits)
            while into[(v << into_bits) + p, USED] != 0:
                p = (p + 1) & mask
            into[(v << into_bits) + p, :] = slots[i, :]


@njit(cache=True, nogil=True)
def recount(slots, heap, counts, key_bytes, bits, by_bytes):  # type: ignore[no-untyped-def]
    """Set counts and key_bytes from the rows themselves, after a put that was torn."""
    for v in range(counts.size):
        rows = 0
        taken = np.int64(0)
        for i in range(v << bits, (v + 1) << bits):
            if slots[i, USED] != 0:
                rows += 1
                if by_bytes:
                    taken += 4 + _length(heap, slots[i, KEY])
        counts[v] = rows
        key_bytes[v] = taken
