"""The table of one slice: one region for each part, open addressing inside a region, rows of 8-byte words.

A part is a virtual node, or a piece of one: what the first `part_bits` bits of the hash say. A row is (used, hash, key or
heap offset, n, cells...). `places[v]` says where the region of part v is: its first row times 64, plus the logarithm of its
capacity; 0: it has none yet. A region that is full moves to a new one of twice its size, alone: regions fill up at different
counts, so that a put pays for its own rows and not for the whole table.

A row that is removed says so in its used word: searches go on behind it, and a new row may take its place. Nothing moves.

A row is written values first, then key and hash, then the used word, so that a put that was torn can be done again; a region
is written first, and then its place. Rows from `end` on were never used, and a region that was left is never used again.
Cells are only moved here; what they mean is in ferry.kernels.grouping.

Every part has a sum over its rows, which is kept while rows are written: whoever opens a table sees that each row is what
was written (`verify`). One bit that flips changes the sum. A torn put leaves a sum of nothing, and is recounted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

USED, HASH, KEY, COUNT, CELLS = 0, 1, 2, 3, 4
FREE, HELD, REMOVED = 0, 1, 2
"""What the used word says."""
DONE, HEAP_FULL = 0, -1
BITS_MIN = 3
"""Logarithm of the rows of a region, at least."""
PLACE_BITS = 6


_ODD = np.int64(-7046029254386353131)
"""2**64 by the golden ratio: no multiple of an odd number by less than 2**64 is 0."""


@njit(cache=True, nogil=True)
def _length(heap, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(heap[at]) | np.int64(heap[at + 1]) << 8 | np.int64(heap[at + 2]) << 16 | np.int64(heap[at + 3]) << 24
    )


@njit(cache=True, nogil=True)
def _sum_of(slots, heap, i, by_bytes):  # type: ignore[no-untyped-def]
    # What a row adds to the sum of its part: with the bytes of its key, for where these lie may change.
    total = np.int64(0)
    if by_bytes:
        at = slots[i, KEY]
        for q in range(4 + _length(heap, at)):
            total += np.int64(heap[at + q]) * (np.int64(2 * (CELLS + slots.shape[1] + q) + 1) * _ODD)
    else:
        total = slots[i, KEY] * (np.int64(2 * KEY + 1) * _ODD)
    for c in range(COUNT, slots.shape[1]):
        total += slots[i, c] * (np.int64(2 * c + 1) * _ODD)
    return (slots[i, HASH] | np.int64(1)) * total + slots[i, HASH] * _ODD


@njit(cache=True, nogil=True)
def _part(hash_, part_bits):  # type: ignore[no-untyped-def]
    if part_bits == 0:
        return np.int64(0)
    return np.int64(np.uint64(hash_) >> np.uint64(64 - part_bits))


@njit(cache=True, nogil=True)
def _home(hash_, bits):  # type: ignore[no-untyped-def]
    # Low bits, for rows come sorted by hash: with the top bits a small region would fill up from one end, quadratically.
    return np.int64(hash_) & ((np.int64(1) << bits) - 1)


@njit(cache=True, nogil=True)
def _limit(v, bits):  # type: ignore[no-untyped-def]
    # Between a half and 7/10 of the capacity, by part.
    spread = (np.int64(v) * 0x9E3779B1 >> 12) % 52
    return (np.int64(1) << bits) * (128 + spread) >> 8


@njit(cache=True, nogil=True)
def _same(x, y):  # type: ignore[no-untyped-def]
    # Slices, and no early end: so it is moves of many bytes. Of 224 bytes that takes 14 ns and not 190.
    differs = np.uint8(0)
    for q in range(x.size):
        differs |= x[q] ^ y[q]
    return differs == 0


@njit(cache=True, nogil=True)
def _find(slots, heap, base, bits, home, hash_, key, by_bytes, offsets, data, r):  # type: ignore[no-untyped-def]
    # The row's place, or -1 - (the place where it belongs). A region is never full of rows, see `put`: a search comes to a
    # free place, or round to the first one of a row that was removed.
    mask = (np.int64(1) << bits) - 1
    p, removed = home, np.int64(-1)
    while True:
        i = base + p
        if slots[i, USED] == FREE:
            return -1 - (i if removed < 0 else removed)
        if slots[i, USED] == REMOVED:
            if removed == i:
                return -1 - removed
            if removed < 0:
                removed = i
        elif slots[i, HASH] == hash_:
            at = slots[i, KEY]
            if not by_bytes:
                if at == key:
                    return i
                p = (p + 1) & mask
                continue
            length = offsets[r + 1] - offsets[r]
            if _length(heap, at) == length and _same(heap[at + 4 : at + 4 + length], data[offsets[r] : offsets[r + 1]]):
                return i
        p = (p + 1) & mask


@njit(cache=True, nogil=True)
def _move(slots, places, end, v, bits):  # type: ignore[no-untyped-def]
    # The region of v, if it has one, to a new one of 2**bits rows.
    base, mask = end[0], (np.int64(1) << bits) - 1
    end[0] = base + mask + 1
    if places[v] != 0:
        old = places[v] >> PLACE_BITS
        for i in range(old, old + (np.int64(1) << (places[v] & 63))):
            if slots[i, USED] != HELD:
                continue
            p = _home(slots[i, HASH], bits)
            while slots[base + p, USED] != FREE:
                p = (p + 1) & mask
            slots[base + p, :] = slots[i, :]
    places[v] = base << PLACE_BITS | bits


@njit(cache=True, nogil=True)
def rows_of_parts(order, hashes, parts, part_bits):  # type: ignore[no-untyped-def]
    """How many of rows `order` are of each part."""
    expected = np.zeros(parts, np.int64)
    for o in range(order.size):
        expected[_part(np.int64(hashes[order[o]]), part_bits)] += 1
    return expected


@njit(cache=True, nogil=True)
def put(  # type: ignore[no-untyped-def]
    slots,
    heap,
    places,
    counts,
    key_bytes,
    sums,
    end,
    heap_end,
    granted,
    expected,
    part_bits,
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
    """Upsert rows order[start:]: (next position, DONE | HEAP_FULL | how many rows more a region needs than are granted).

    `places`, `counts`, `key_bytes`, `sums` int64[parts], `end`, `heap_end` int64[1] lie in the file's header. Regions may be
    made up to row `granted`, the first one of a part with room for as many rows as `expected` int64[parts] says: a chunk of
    a snapshot has all rows of a few parts. With `absent`, a row that is there already is kept.
    """
    for o in range(start, order.size):
        r = order[o]
        h = np.int64(hashes[r])
        key = np.int64(0) if by_bytes else keys[r]
        v = _part(h, part_bits)
        if places[v] == 0:
            bits = np.int64(BITS_MIN)
            while _limit(v, bits) < expected[v]:
                bits += 1
            need = np.int64(1) << bits
            if end[0] + need > granted:
                return o, need
            _move(slots, places, end, v, bits)
        base, bits = places[v] >> PLACE_BITS, places[v] & 63
        found = _find(slots, heap, base, bits, _home(h, bits), h, key, by_bytes, offsets, data, r)
        if found >= 0:
            if not absent:
                # What `_sum_of` is afterwards less what it was, in the one pass that there is anyway.
                more = (n[r] - slots[found, COUNT]) * (np.int64(2 * COUNT + 1) * _ODD)
                slots[found, COUNT] = n[r]
                for c in range(cells.shape[1]):
                    more += (cells[r, c] - slots[found, CELLS + c]) * (np.int64(2 * (CELLS + c) + 1) * _ODD)
                    slots[found, CELLS + c] = cells[r, c]
                sums[v] += (h | np.int64(1)) * more
            continue
        if by_bytes and heap_end[0] + 4 + offsets[r + 1] - offsets[r] > heap.size:
            return o, HEAP_FULL
        if counts[v] >= _limit(v, bits):
            need = np.int64(2) << bits
            if end[0] + need > granted:
                return o, need
            bits += 1
            _move(slots, places, end, v, bits)
            base = places[v] >> PLACE_BITS
            found = _find(slots, heap, base, bits, _home(h, bits), h, key, by_bytes, offsets, data, r)
        i = -1 - found
        if by_bytes:
            key = heap_end[0]
            begin = offsets[r]
            length = offsets[r + 1] - begin
            for b in range(4):
                heap[key + b] = np.uint8((length >> (8 * b)) & 255)
            into, text = heap[key + 4 : key + 4 + length], data[begin : begin + length]
            for q in range(length):
                into[q] = text[q]
            heap_end[0] = key + 4 + length
            key_bytes[v] += 4 + length
        for c in range(cells.shape[1]):
            slots[i, CELLS + c] = cells[r, c]
        slots[i, COUNT] = n[r]
        slots[i, KEY] = key
        slots[i, HASH] = h
        slots[i, USED] = HELD
        counts[v] += 1
        sums[v] += _sum_of(slots, heap, i, by_bytes)
    return order.size, DONE


@njit(cache=True, nogil=True)
def find(slots, heap, places, part_bits, by_bytes, order, rows, offsets, data):  # type: ignore[no-untyped-def]
    """Where the table holds the groups rows[order], int64; -1: nowhere. A group has hash and key where a row has them."""
    out = np.full(order.size, np.int64(-1))
    for o in range(order.size):
        h, key = rows[order[o], HASH], rows[order[o], KEY]
        place = places[_part(h, part_bits)]
        if place != 0:
            bits = place & 63
            base = place >> PLACE_BITS
            out[o] = max(-1, _find(slots, heap, base, bits, _home(h, bits), h, key, by_bytes, offsets, data, order[o]))
    return out


@njit(cache=True, nogil=True)
def scan(slots, heap, places, by_bytes, parts, at_part, at_row, at_place, rows_max, bytes_max):  # type: ignore[no-untyped-def]
    """Used rows of these regions from (at_part, at_row, at_place) on: (their numbers, next of all three).

    A region that is not at `at_place` any more begins again: its rows are in another order. Stops after rows_max rows, or
    when the keys found take bytes_max bytes.
    """
    out = np.empty(rows_max, np.int64)
    found = 0
    taken = np.int64(0)
    while at_part < parts.size:
        place = places[parts[at_part]]
        if place != at_place:
            at_row = 0
        if place != 0:
            base, capacity = place >> PLACE_BITS, np.int64(1) << (place & 63)
            while at_row < capacity:
                i = base + at_row
                if slots[i, USED] == HELD:
                    if found == rows_max or taken >= bytes_max:
                        return out[:found], at_part, at_row, place
                    out[found] = i
                    found += 1
                    if by_bytes:
                        taken += _length(heap, slots[i, KEY])
                at_row += 1
        at_part += 1
        at_row = 0
        at_place = np.int64(0)
    return out[:found], at_part, at_row, at_place


@njit(cache=True, nogil=True)
def remove(slots, heap, places, counts, key_bytes, sums, by_bytes, parts, newest, until, changed, epoch):  # type: ignore[no-untyped-def]
    """Remove rows of these regions: those whose `newest` word is at most `until` and whose `changed` one at most `epoch`."""
    for v in parts:
        base, bits = places[v] >> PLACE_BITS, places[v] & 63
        capacity = np.int64(1) << bits
        for i in range(base, base + capacity):
            if slots[i, USED] == HELD and slots[i, newest] <= until and slots[i, changed] <= epoch:
                slots[i, USED] = REMOVED
                counts[v] -= 1
                sums[v] -= _sum_of(slots, heap, i, by_bytes)
                if by_bytes:
                    key_bytes[v] -= 4 + _length(heap, slots[i, KEY])
        # Free again is a place that no search for a row behind it comes by. Searches go round: the region counts twice, and
        # `home` is the first place at which a search for one of the rows from q on begins.
        home = 2 * capacity
        for q in range(2 * capacity - 1, -1, -1):
            i = base + (q & (capacity - 1))
            if slots[i, USED] == HELD:
                home = min(home, q - ((q - _home(slots[i, HASH], bits)) & (capacity - 1)))
            elif slots[i, USED] == REMOVED and q < capacity and q < home:
                slots[i, USED] = FREE


@njit(cache=True, nogil=True)
def shrink(slots, places, end, parts, bits):  # type: ignore[no-untyped-def]
    """Move these regions to smaller ones, which may be made and hold all their rows."""
    for j in range(parts.size):
        _move(slots, places, end, parts[j], bits[j])


@njit(cache=True, nogil=True)
def move_keys(slots, heap, place, heap_end, mark):  # type: ignore[no-untyped-def]
    """Copy the keys of one region that lie before `mark` to the end of the heap, which has room for them."""
    base = place >> PLACE_BITS
    for i in range(base, base + (np.int64(1) << (place & 63))):
        if slots[i, USED] != HELD or slots[i, KEY] >= mark:
            continue
        at, to = slots[i, KEY], heap_end[0]
        size = 4 + _length(heap, at)
        into, text = heap[to : to + size], heap[at : at + size]
        for q in range(size):
            into[q] = text[q]
        heap_end[0] = to + size
        slots[i, KEY] = to


@njit(cache=True, nogil=True)
def recount(slots, heap, places, counts, key_bytes, sums, by_bytes):  # type: ignore[no-untyped-def]
    """Set counts, key_bytes and sums from the rows themselves, after a put that was torn."""
    for v in range(counts.size):
        rows = 0
        taken = total = np.int64(0)
        if places[v] != 0:
            base = places[v] >> PLACE_BITS
            for i in range(base, base + (np.int64(1) << (places[v] & 63))):
                if slots[i, USED] == HELD:
                    rows += 1
                    total += _sum_of(slots, heap, i, by_bytes)
                    if by_bytes:
                        taken += 4 + _length(heap, slots[i, KEY])
        counts[v], key_bytes[v], sums[v] = rows, taken, total


@njit(cache=True, nogil=True)
def verify(  # type: ignore[no-untyped-def]
    slots, heap, places, counts, key_bytes, sums, end, heap_end, part_bits, by_bytes, torn
):
    """The first part of which a row, or what the header says, is not what was written; -1: there is none.

    `torn`: by a put; then what rows add up to is not known, and only what they are is looked at.
    """
    for v in range(places.size):
        rows = 0
        taken = total = np.int64(0)
        if places[v] != 0:
            base, bits = places[v] >> PLACE_BITS, places[v] & 63
            if base < 0 or bits > 48 or base + (np.int64(1) << bits) > min(end, slots.shape[0]):
                return v
            for i in range(base, base + (np.int64(1) << bits)):
                used = slots[i, USED]
                if used == HELD:
                    h = slots[i, HASH]
                    if _part(h, part_bits) != v:
                        return v
                    if by_bytes:
                        at = slots[i, KEY]
                        if at < 0 or at + 4 > heap_end:
                            return v
                        length = _length(heap, at)
                        if length < 0 or at + 4 + length > heap_end:
                            return v
                        taken += 4 + length
                    rows += 1
                    total += _sum_of(slots, heap, i, by_bytes)
                elif used != FREE and used != REMOVED:
                    return v
        if not torn and (counts[v] != rows or key_bytes[v] != taken or sums[v] != total):
            return v
    return -1
