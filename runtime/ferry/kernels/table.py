"""The table of one slice: one region for each part, open addressing inside a region, rows of 8-byte words.

A part is a virtual node, or a piece of one, by the first `part_bits` bits of the hash. A row is (used, hash, key or
heap offset, n, cells...); the used word of a key of bytes has its salt, too. A row's place in its region depends on the
table's seed (`ferry.kernels.salting`). `places[v]` is the position of part v's region: its first row times 64, plus the
logarithm of its capacity; 0: no region yet. A full region moves to a new one of twice its size, alone: regions fill up at
different counts, so that a put pays for its own rows and not for the whole table.

A removed row is marked in its used word: searches continue past it, and a new row may take its place. No row moves.

A row is written values first, then key and hash, then the used word, so that a torn put can be repeated; a region is
written first, and then its place. Rows from `end` on were never used, and an abandoned region is never reused. Cells
are only moved here; ferry.kernels.grouping defines their meaning.

Every part has a sum over its rows, updated as rows are written, with which an opened table is checked for damaged rows
(`verify`). One flipped bit changes the sum. A torn put invalidates the sum, which is then recounted.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ferry.kernels.ahead import AHEAD, prefetch

USED, HASH, KEY, COUNT, CELLS = 0, 1, 2, 3, 4
FREE, HELD, REMOVED = 0, 1, 2
STATE_BITS, STATE = 2, 3
"""Values of the used word in its first bits, and the mask of these; the salt of a key of bytes is above them."""
DONE, HEAP_FULL = 0, -1
BITS_MIN = 3
"""Logarithm of the smallest number of rows of a region."""
PLACE_BITS = 6
_ODD = np.int64(-7046029254386353131)
"""2**64 divided by the golden ratio: no multiple of an odd number by less than 2**64 is 0."""


@njit(cache=True, nogil=True)
def _length(heap, at):  # type: ignore[no-untyped-def]
    return (
        np.int64(heap[at]) | np.int64(heap[at + 1]) << 8 | np.int64(heap[at + 2]) << 16 | np.int64(heap[at + 3]) << 24
    )


@njit(cache=True, nogil=True)
def _sum_of(slots, heap, i, by_bytes):  # type: ignore[no-untyped-def]
    # A row's contribution to the sum of its part: with the bytes of its key, because their place may change.
    total = (slots[i, USED] >> STATE_BITS) * _ODD
    if by_bytes:
        at = slots[i, KEY]
        for q in range(4 + _length(heap, at)):
            total += np.int64(heap[at + q]) * (np.int64(2 * (CELLS + slots.shape[1] + q) + 1) * _ODD)
    else:
        total += slots[i, KEY] * (np.int64(2 * KEY + 1) * _ODD)
    for c in range(COUNT, slots.shape[1]):
        total += slots[i, c] * (np.int64(2 * c + 1) * _ODD)
    return (slots[i, HASH] | np.int64(1)) * total + slots[i, HASH] * _ODD


@njit(cache=True, nogil=True)
def _part(hash_, part_bits):  # type: ignore[no-untyped-def]
    return np.int64(np.uint64(hash_) >> np.uint64(64 - part_bits)) if part_bits else np.int64(0)


@njit(cache=True, nogil=True)
def _home(hash_, salt, bits, seed):  # type: ignore[no-untyped-def]
    # Multiplied twice, because searches continue at the next place: one product leaves equal distances equal.
    if seed == 0:
        return np.int64(hash_) & ((np.int64(1) << bits) - 1)
    x = np.uint64(hash_ ^ salt) * np.uint64(seed)
    return np.int64((x ^ x >> np.uint64(32)) * np.uint64(0x94D049BB133111EB) >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _limit(v, bits):  # type: ignore[no-untyped-def]
    # Between a half and 7/10 of the capacity, by part.
    spread = (np.int64(v) * 0x9E3779B1 >> 12) % 52
    return (np.int64(1) << bits) * (128 + spread) >> 8


@njit(cache=True, nogil=True, forceinline=True)
def _has_key(slots, heap, i, key, by_bytes, offsets, data, r):  # type: ignore[no-untyped-def]
    # Whether row i has this key, or the bytes of row r.
    if not by_bytes:
        return slots[i, KEY] == key
    at, begin, length = slots[i, KEY] + 4, offsets[r], offsets[r + 1] - offsets[r]
    if _length(heap, at - 4) != length:
        return False
    # Slices without early exit, so that they compile to moves of many bytes: 14 ns instead of 190 for 224 bytes.
    x, y = heap[at : at + length], data[begin : begin + length]
    differs = np.uint8(0)
    for q in range(length):
        differs |= x[q] ^ y[q]
    return differs == 0


@njit(cache=True, nogil=True)
def _find(slots, heap, base, bits, home, hash_, key, by_bytes, offsets, data, r):  # type: ignore[no-untyped-def]
    # The row's place, or -1 - (its insert place). A region is never full of rows, see `put`: a search ends at a free
    # place, or after a full round at the first removed row.
    mask = (np.int64(1) << bits) - 1
    p, removed = home, np.int64(-1)
    while True:
        i = base + p
        state = slots[i, USED] & STATE
        if state == FREE:
            return -1 - (i if removed < 0 else removed)
        if state == REMOVED:
            if removed == i:
                return -1 - removed
            if removed < 0:
                removed = i
        elif slots[i, HASH] == hash_ and _has_key(slots, heap, i, key, by_bytes, offsets, data, r):
            return i
        p = (p + 1) & mask


@njit(cache=True, nogil=True)
def _move(slots, places, end, v, bits, seed):  # type: ignore[no-untyped-def]
    # Move the region of v, if it has one, to a new one of 2**bits rows.
    base, mask = end[0], (np.int64(1) << bits) - 1
    end[0] = base + mask + 1
    if places[v] != 0:
        old = places[v] >> PLACE_BITS
        for i in range(old, old + (np.int64(1) << (places[v] & 63))):
            if slots[i, USED] & STATE != HELD:
                continue
            p = _home(slots[i, HASH], slots[i, USED] >> STATE_BITS, bits, seed)
            while slots[base + p, USED] != FREE:
                p = (p + 1) & mask
            for c in range(slots.shape[1]):
                slots[base + p, c] = slots[i, c]
    places[v] = base << PLACE_BITS | bits


@njit(cache=True, nogil=True, forceinline=True)
def _hint(slots, places, part_bits, hash_, salt, seed):  # type: ignore[no-untyped-def]
    # The row of this hash is needed soon.
    place = places[_part(hash_, part_bits)]
    if place != 0:
        prefetch(slots, ((place >> PLACE_BITS) + _home(hash_, salt, place & 63, seed)) * slots.shape[1])


@njit(cache=True, nogil=True, forceinline=True)
def _overwrite(slots, i, hash_, n, cells, r):  # type: ignore[no-untyped-def]
    # Returns the change of `_sum_of`.
    more = (n[r] - slots[i, COUNT]) * (np.int64(2 * COUNT + 1) * _ODD)
    slots[i, COUNT] = n[r]
    for c in range(cells.shape[1]):
        more += (cells[r, c] - slots[i, CELLS + c]) * (np.int64(2 * (CELLS + c) + 1) * _ODD)
        slots[i, CELLS + c] = cells[r, c]
    return (hash_ | np.int64(1)) * more


@njit(cache=True, nogil=True)
def put(  # type: ignore[no-untyped-def]
    arrays, ends, granted, expected, part_bits, by_bytes, order, rows, salts, seed, absent, start
):
    """Upsert rows order[start:]: (next position, DONE | HEAP_FULL | rows that a region needs beyond the granted).

    `arrays`: slots, heap, and of each part places, counts, key_bytes and sums; `ends`: `end` and `heap_end`, int64[1];
    `rows`: hashes, keys, offsets, data, n, cells; `salts`: of rows `order`, if keys are bytes. Regions may extend to row
    `granted`; the first region of a part has room for `expected` int64[parts] rows, because a chunk of a snapshot has all
    rows of a few parts. With `absent`, an existing row is kept.
    """
    slots, heap, places, counts, key_bytes, sums = arrays
    (end, heap_end), (hashes, keys, offsets, data, n, cells) = ends, rows
    for o in range(start, order.size):
        if o + AHEAD < order.size:
            a = o + AHEAD
            _hint(slots, places, part_bits, np.int64(hashes[order[a]]), salts[a] if salts.size else 0, seed)
        r = order[o]
        h = np.int64(hashes[r])
        salt = salts[o] if salts.size else 0
        key = np.int64(0) if by_bytes else keys[r]
        v = _part(h, part_bits)
        if places[v] == 0:
            bits = np.int64(BITS_MIN)
            while _limit(v, bits) < expected[v]:
                bits += 1
            need = np.int64(1) << bits
            if end[0] + need > granted:
                return o, need
            _move(slots, places, end, v, bits, seed)
        base, bits = places[v] >> PLACE_BITS, places[v] & 63
        at_row = _find(slots, heap, base, bits, _home(h, salt, bits, seed), h, key, by_bytes, offsets, data, r)
        if at_row >= 0:
            if not absent:
                sums[v] += _overwrite(slots, at_row, h, n, cells, r)
            continue
        if by_bytes and heap_end[0] + 4 + offsets[r + 1] - offsets[r] > heap.size:
            return o, HEAP_FULL
        if counts[v] >= _limit(v, bits):
            need = np.int64(2) << bits
            if end[0] + need > granted:
                return o, need
            bits += 1
            _move(slots, places, end, v, bits, seed)
            base = places[v] >> PLACE_BITS
            at_row = _find(slots, heap, base, bits, _home(h, salt, bits, seed), h, key, by_bytes, offsets, data, r)
        i = -1 - at_row
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
        slots[i, USED] = HELD | salt << STATE_BITS
        counts[v] += 1
        sums[v] += _sum_of(slots, heap, i, by_bytes)
    return order.size, DONE


@njit(cache=True, nogil=True)
def put_hinted(slots, heap, places, sums, part_bits, by_bytes, order, rows, hints):  # type: ignore[no-untyped-def]
    """Overwrite rows order[...] that are at hints[...], int64 for each row; returns the other ones, in order.

    A row is there when its part's region has the position, and the position holds its hash and its key.
    """
    hashes, keys, offsets, data, n, cells = rows
    others, left = np.empty(order.size, np.int64), 0
    for o in range(order.size):
        if o + AHEAD < order.size:
            prefetch(slots, hints[order[o + AHEAD]] * slots.shape[1])
        r = order[o]
        i, h = hints[r], np.int64(hashes[r])
        v = _part(h, part_bits)
        base, size = places[v] >> PLACE_BITS, np.int64(1) << (places[v] & 63)
        there = (
            places[v] != 0 and base <= i and i < base + size and slots[i, USED] & STATE == HELD and slots[i, HASH] == h
        )
        if there and by_bytes:  # Two branches: with a single call for both, a row takes twice the time.
            there = _has_key(slots, heap, i, 0, True, offsets, data, r)
        elif there:
            there = slots[i, KEY] == keys[r]
        if there:
            sums[v] += _overwrite(slots, i, h, n, cells, r)
        else:
            others[left] = r
            left += 1
    return others[:left]


@njit(cache=True, nogil=True)
def find(slots, heap, places, part_bits, by_bytes, order, rows, offsets, data, salts, seed):  # type: ignore[no-untyped-def]
    """Positions of the groups rows[order] in the table, int64; -1: absent. A group has hash and key in the words of a row.
    `salts`: of these groups, if keys are bytes."""
    out = np.full(order.size, np.int64(-1))
    for o in range(order.size):
        if o + AHEAD < order.size:
            a = o + AHEAD
            _hint(slots, places, part_bits, rows[order[a], HASH], salts[a] if salts.size else 0, seed)
        h, key = rows[order[o], HASH], rows[order[o], KEY]
        place = places[_part(h, part_bits)]
        if place != 0:
            bits = place & 63
            base, home = place >> PLACE_BITS, _home(h, salts[o] if salts.size else 0, bits, seed)
            out[o] = max(-1, _find(slots, heap, base, bits, home, h, key, by_bytes, offsets, data, order[o]))
    return out


@njit(cache=True, nogil=True)
def scan(slots, heap, places, by_bytes, parts, at_part, at_row, at_place, rows_max, bytes_max):  # type: ignore[no-untyped-def]
    """Used rows of these regions from (at_part, at_row, at_place) on: (their numbers, next of all three).

    A region that has moved from `at_place` begins again: its rows are in another order. Stops after rows_max rows, or
    when the keys of these rows take bytes_max bytes.
    """
    out = np.empty(rows_max, np.int64)
    used = 0
    taken = np.int64(0)
    while at_part < parts.size:
        place = places[parts[at_part]]
        if place != at_place:
            at_row = 0
        if place != 0:
            base, capacity = place >> PLACE_BITS, np.int64(1) << (place & 63)
            while at_row < capacity:
                i = base + at_row
                if slots[i, USED] & STATE == HELD:
                    if used == rows_max or taken >= bytes_max:
                        return out[:used], at_part, at_row, place
                    out[used] = i
                    used += 1
                    if by_bytes:
                        taken += _length(heap, slots[i, KEY])
                at_row += 1
        at_part += 1
        at_row = 0
        at_place = np.int64(0)
    return out[:used], at_part, at_row, at_place


@njit(cache=True, nogil=True)
def remove(arrays, by_bytes, seed, parts, newest, until, changed, epoch):  # type: ignore[no-untyped-def]
    """Remove rows of these regions with a `newest` word of at most `until` and a `changed` word of at most `epoch`."""
    slots, heap, places, counts, key_bytes, sums = arrays
    for v in parts:
        base, bits = places[v] >> PLACE_BITS, places[v] & 63
        capacity = np.int64(1) << bits
        for i in range(base, base + capacity):
            if slots[i, USED] & STATE == HELD and slots[i, newest] <= until and slots[i, changed] <= epoch:
                counts[v] -= 1
                sums[v] -= _sum_of(slots, heap, i, by_bytes)
                slots[i, USED] = REMOVED
                if by_bytes:
                    key_bytes[v] -= 4 + _length(heap, slots[i, KEY])
        # A place becomes free if no search for a row after it passes by. Searches wrap around: the region counts twice,
        # and `home` is the first place at which a search for one of the rows from q on begins.
        home = 2 * capacity
        for q in range(2 * capacity - 1, -1, -1):
            i = base + (q & (capacity - 1))
            if slots[i, USED] & STATE == HELD:
                begin = _home(slots[i, HASH], slots[i, USED] >> STATE_BITS, bits, seed)
                home = min(home, q - ((q - begin) & (capacity - 1)))
            elif slots[i, USED] == REMOVED and q < capacity and q < home:
                slots[i, USED] = FREE


@njit(cache=True, nogil=True)
def shrink(slots, places, end, parts, bits, seed):  # type: ignore[no-untyped-def]
    """Move these regions to smaller ones, which may be allocated and hold all their rows."""
    for j in range(parts.size):
        _move(slots, places, end, parts[j], bits[j], seed)


@njit(cache=True, nogil=True)
def move_keys(slots, heap, place, heap_end, mark):  # type: ignore[no-untyped-def]
    """Copy the keys of one region that lie before `mark` to the end of the heap, which has room for them."""
    base = place >> PLACE_BITS
    for i in range(base, base + (np.int64(1) << (place & 63))):
        if slots[i, USED] & STATE != HELD or slots[i, KEY] >= mark:
            continue
        at, to = slots[i, KEY], heap_end[0]
        size = 4 + _length(heap, at)
        into, text = heap[to : to + size], heap[at : at + size]
        for q in range(size):
            into[q] = text[q]
        heap_end[0] = to + size
        slots[i, KEY] = to


@njit(cache=True, nogil=True)
def _held(slots, heap, place, by_bytes):  # type: ignore[no-untyped-def]
    # Rows, bytes of keys and the sum of a region; 0: no region.
    rows = taken = total = np.int64(0)
    base = place >> PLACE_BITS
    for i in range(base, base + (np.int64(1) << (place & 63)) if place else base):
        if slots[i, USED] & STATE == HELD:
            rows += 1
            total += _sum_of(slots, heap, i, by_bytes)
            if by_bytes:
                taken += 4 + _length(heap, slots[i, KEY])
    return rows, taken, total


@njit(cache=True, nogil=True)
def recount(slots, heap, places, counts, key_bytes, sums, by_bytes):  # type: ignore[no-untyped-def]
    """Set counts, key_bytes and sums from the rows, after a torn put."""
    for v in range(counts.size):
        counts[v], key_bytes[v], sums[v] = _held(slots, heap, places[v], by_bytes)


@njit(cache=True, nogil=True)
def verify(arrays, end, heap_end, part_bits, by_bytes, torn):  # type: ignore[no-untyped-def]
    """The first part with a damaged row or header entry; -1: none.

    `torn`: after a torn put the sum of the rows is unknown, and only their content is checked.
    """
    slots, heap, places, counts, key_bytes, sums = arrays
    for v in range(places.size):
        base, rows = places[v] >> PLACE_BITS, np.int64(1) << (places[v] & 63) if places[v] else np.int64(0)
        if base < 0 or places[v] & 63 > 48 or base + rows > min(end, slots.shape[0]):
            return v
        for i in range(base, base + rows):
            used = slots[i, USED]
            if used == FREE or used == REMOVED:
                continue
            if used & STATE != HELD or _part(slots[i, HASH], part_bits) != v:
                return v
            if by_bytes:
                at = slots[i, KEY]
                if at < 0 or at + 4 > heap_end or _length(heap, at) < 0 or at + 4 + _length(heap, at) > heap_end:
                    return v
        if not torn and (counts[v], key_bytes[v], sums[v]) != _held(slots, heap, places[v], by_bytes):
            return v
    return -1
