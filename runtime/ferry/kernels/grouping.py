"""Partial aggregation by (slice, key): an open-addressing table in ordinary memory.

Used by the task (one record = one row with n = 1), by the helper (merging fragments), by the leader (merging helpers)
and when panes are combined into a window. Slash (paper 003) calls this the helper's partial state and its late merge.

A state cell is 8 bytes; floats are kept as their bit pattern. The merge codes below say how the cells of a column are
merged. NaN is greater than every number, as in Spark. A sum of integers that overflows sets its flag permanently.
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
_CARRY = 1 << CARRY_BITS
_CARRIES_MAX = (1 << (62 - CARRY_BITS)) - 1

SIGN = np.int64(-(2**63))
"""Flipped in the low word of 128 bits, so that it orders as a signed word."""

DONE, ROWS_FULL, HEAP_FULL = 0, 1, 2
NO_BYTES: Bytes = np.empty(0, np.uint8)
NO_INTS: Ints = np.empty(0, np.int64)


@njit(cache=True, nogil=True)
def _above(x, y):  # type: ignore[no-untyped-def]
    return x > y or (x != x and y == y)


@njit(cache=True, nogil=True)
def _greater_ranks(x, y):  # type: ignore[no-untyped-def]
    # Every second number leaves room for a bit above each, from which the subtraction borrows if y's is greater.
    numbers, above = 0x7C1F07C1F07C1F, 0x80200802008020
    out = np.int64(0)
    for shift in (0, 5):
        a, b = x >> shift & numbers, y >> shift & numbers
        kept = ((a | above) - b) & above
        kept -= kept >> 5
        out |= (a & kept | b & ~kept) << shift
    return out


@njit(cache=True, nogil=True)
def _as_double(low, count, value, is_double):  # type: ignore[no-untyped-def]
    return value if is_double else (count >> CARRY_BITS) * 18446744073709551616.0 + low


@njit(cache=True, nogil=True)
def _add_and_count(into, finto, i, d, source, fsource, j, e, flags, theirs, bit):  # type: ignore[no-untyped-def]
    # Merge row j of the source into row i of groups; see ferry.kernels.means. `flags`, `theirs`: the columns of flags.
    mine_double, their_double = into[i, flags] & bit != 0, source[j, theirs] & bit != 0
    number = (into[i, d + 1] & (_CARRY - 1)) + (source[j, e + 1] & (_CARRY - 1))
    if not mine_double and not their_double:
        before, added = into[i, d], source[j, e]
        total = before + added
        carries = (into[i, d + 1] >> CARRY_BITS) + (source[j, e + 1] >> CARRY_BITS)
        if (before ^ total) & (added ^ total) < 0:
            carries += 1 if added > 0 else -1
        if number < _CARRY and abs(carries) <= _CARRIES_MAX:
            into[i, d], into[i, d + 1] = total, carries * _CARRY + number
            return
    mine = into[i, d + 1] if mine_double else into[i, d + 1] & (_CARRY - 1)
    other = source[j, e + 1] if their_double else source[j, e + 1] & (_CARRY - 1)
    finto[i, d] = _as_double(into[i, d], into[i, d + 1], finto[i, d], mine_double) + _as_double(
        source[j, e], source[j, e + 1], fsource[j, e], their_double
    )
    into[i, d + 1] = mine + other
    into[i, flags] |= bit


@njit(cache=True, nogil=True, forceinline=True)
def _merge(into, finto, i, source, fsource, j, skip, codes):  # type: ignore[no-untyped-def]
    # Merge row j of the source, whose cells begin after `skip` words, into row i of groups. Inlined, because a call
    # with four arrays costs more per record than the merge.
    for c in range(codes.size):
        code = codes[c]
        d = CELLS + c
        e = skip + c
        if code == 0:
            before, added = into[i, d], source[j, e]
            total = before + added
            if (before ^ total) & (added ^ total) < 0 and codes[codes.size - 1] == FLAGS:
                into[i, CELLS + codes.size - 1] |= np.int64(1) << (OVERFLOWED + c)
            into[i, d] = total
        elif code == FLAGS:
            into[i, d] |= source[j, e]
        elif code == 1:
            finto[i, d] += fsource[j, e]
        elif code == 2:
            into[i, d] = min(into[i, d], source[j, e])
        elif code == 3:
            if _above(finto[i, d], fsource[j, e]):
                finto[i, d] = fsource[j, e]
        elif code == 4:
            into[i, d] = max(into[i, d], source[j, e])
        elif code == 5:
            if _above(fsource[j, e], finto[i, d]):
                finto[i, d] = fsource[j, e]
        elif code == 6 or code == 7:
            q, more, less = 0, False, False
            while not more and not less and (q == 0 or codes[c + q] < FLAGS):
                if codes[c + q] == 7 or codes[c + q] == -4:
                    more = _above(fsource[j, e + q], finto[i, d + q])
                    less = _above(finto[i, d + q], fsource[j, e + q])
                else:
                    more = source[j, e + q] > into[i, d + q]
                    less = source[j, e + q] < into[i, d + q]
                q += 1
            if more:
                into[i, d] = source[j, e]
                q = 1
                while codes[c + q] < FLAGS:
                    into[i, d + q] = source[j, e + q]
                    q += 1
        elif code == 8:
            here, there = into[i, d], source[j, e]
            if here == 0:
                for q in range(3):
                    into[i, d + q] = source[j, e + q]
            elif there != 0:
                total = here + there
                apart = fsource[j, e + 1] - finto[i, d + 1]
                share = there / total
                finto[i, d + 1] += apart * share
                finto[i, d + 2] += fsource[j, e + 2] + apart * apart * here * share
                into[i, d] = total
        elif code == 9:
            if source[j, e] != 0:
                into[i, d] = _greater_ranks(into[i, d], source[j, e])
        elif code == 10:
            low = np.uint64(into[i, d + 1] ^ SIGN)
            total_low = low + np.uint64(source[j, e + 1] ^ SIGN)
            before, added = into[i, d], source[j, e]
            total = before + added + np.int64(total_low < low)
            if (before ^ total) & (added ^ total) < 0:
                into[i, CELLS + codes.size - 1] |= np.int64(1) << (OVERFLOWED + c)
            into[i, d] = total
            into[i, d + 1] = np.int64(total_low) ^ SIGN
        elif code == 11:
            last, bit = codes.size - 1, np.int64(1) << (OVERFLOWED + 1 + c)
            _add_and_count(into, finto, i, d, source, fsource, j, e, CELLS + last, skip + last, bit)


@njit(cache=True, nogil=True)
def merge_found(rows, frows, order, places, stored, fstored, codes):  # type: ignore[no-untyped-def]
    """Merge the stored row found[o], of the same layout, into group rows[order[o]]; -1: there is none."""
    for o in range(order.size):
        if places[o] >= 0:
            rows[order[o], COUNT] += stored[places[o], COUNT]
            _merge(rows, frows, order[o], stored, fstored, places[o], CELLS, codes)


@njit(cache=True, nogil=True)
def _home(slice_start, hash_, mask):  # type: ignore[no-untyped-def]
    # Low bits: rows often come sorted by hash, and with the top bits a small table would fill up from one end, in
    # quadratic time. The high half of the product spreads the slices of one key.
    spread = (np.uint64(slice_start) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
    return np.int64((np.uint64(hash_) ^ spread) & np.uint64(mask))


@njit(cache=True, nogil=True)
def _same(heap, at, data, begin, end):  # type: ignore[no-untyped-def]
    length = (
        np.int64(heap[at]) | np.int64(heap[at + 1]) << 8 | np.int64(heap[at + 2]) << 16 | np.int64(heap[at + 3]) << 24
    )
    if length != end - begin:
        return False
    # Slices without early exit, so that they compile to moves of many bytes: 14 ns instead of 190 for 224 bytes.
    x, y = heap[at + 4 : at + 4 + length], data[begin:end]
    differs = np.uint8(0)
    for q in range(length):
        differs |= x[q] ^ y[q]
    return differs == 0


@njit(cache=True, nogil=True)
def fold(  # type: ignore[no-untyped-def]
    index,
    rows,
    frows,
    heap,
    codes,
    by_bytes,
    slices,
    hashes,
    keys,
    offsets,
    data,
    n,
    cells,
    fcells,
    start,
    groups,
    heap_end,
):
    """Merge rows start.. into the table: (next row, groups, heap_end, DONE | ROWS_FULL | HEAP_FULL).

    `index` int32[2**m] holds group + 1; at most half of it is used. An empty `n` means one record per row.
    """
    mask = index.size - 1
    one_each = n.size == 0
    for r in range(start, hashes.size):
        s = slices[r]
        h = np.int64(hashes[r])
        p = _home(s, h, mask)
        while True:
            g = np.int64(index[p]) - 1
            if g < 0:
                break
            if (
                rows[g, HASH] == h
                and rows[g, SLICE] == s
                and (
                    _same(heap, rows[g, KEY], data, offsets[r], offsets[r + 1]) if by_bytes else rows[g, KEY] == keys[r]
                )
            ):
                break
            p = (p + 1) & mask
        count = 1 if one_each else n[r]
        if g >= 0:
            rows[g, COUNT] += count
            if codes.size:
                _merge(rows, frows, g, cells, fcells, r, 0, codes)
            continue
        if groups >= rows.shape[0]:
            return r, groups, heap_end, ROWS_FULL
        if by_bytes:
            begin = offsets[r]
            length = offsets[r + 1] - begin
            if heap_end + 4 + length > heap.size:
                return r, groups, heap_end, HEAP_FULL
            for b in range(4):
                heap[heap_end + b] = np.uint8((length >> (8 * b)) & 255)
            into, text = heap[heap_end + 4 : heap_end + 4 + length], data[begin : begin + length]
            for q in range(length):
                into[q] = text[q]
            rows[groups, KEY] = heap_end
            heap_end += 4 + length
        else:
            rows[groups, KEY] = keys[r]
        rows[groups, SLICE] = s
        rows[groups, HASH] = h
        rows[groups, COUNT] = count
        for c in range(codes.size):
            rows[groups, CELLS + c] = cells[r, c]
        groups += 1
        index[p] = groups
    return hashes.size, groups, heap_end, DONE


@njit(cache=True, nogil=True)
def _reindex(index, rows, groups):  # type: ignore[no-untyped-def]
    mask = index.size - 1
    for g in range(groups):
        p = _home(rows[g, SLICE], rows[g, HASH], mask)
        while index[p] != 0:
            p = (p + 1) & mask
        index[p] = g + 1


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


class Groups:
    """A growing table of groups; at most `rows_max` of them and `heap_max` bytes of keys, then `add` stops early."""

    def __init__(self, codes: Ints, by_bytes: bool, rows_max: int = 1 << 31, heap_max: int = 1 << 31) -> None:
        self.codes = codes
        self.by_bytes = by_bytes
        self.rows_max = rows_max
        self.heap_max = heap_max
        self.count = 0
        self.heap_end = 0
        self._allocate(min(1024, rows_max), 16 * 1024 if by_bytes else 0)

    def _allocate(self, capacity: int, heap_bytes: int) -> None:
        self._index = np.zeros(2 * (1 << (capacity - 1).bit_length()), np.int32)
        self._rows = np.empty((capacity, CELLS + self.codes.size), np.int64)
        self.heap = np.empty(heap_bytes, np.uint8)

    def add(
        self, slices: Ints, hashes: Hashes, keys: Ints, offsets: Ints, data: Bytes, n: Ints, cells: Ints, start: int = 0
    ) -> int:
        """Merge rows from `start` on; returns the row at which a bound was reached, or the number of rows when all are
        merged."""
        while True:
            start, self.count, self.heap_end, why = fold(
                self._index,
                self._rows,
                self._rows.view(np.float64),
                self.heap,
                self.codes,
                self.by_bytes,
                slices,
                hashes,
                keys,
                offsets,
                data,
                n,
                cells,
                cells.view(np.float64),
                start,
                self.count,
                self.heap_end,
            )
            if why == DONE:
                return hashes.size
            if why == ROWS_FULL:
                if self.count >= self.rows_max:
                    return int(start)
                self._grow_rows()
            else:
                # A single key may be longer than the bound: an empty table accepts it.
                if self.count and self.heap.size >= self.heap_max:
                    return int(start)
                need = self.heap_end + 4 + int(offsets[start + 1] - offsets[start])
                heap = np.empty(max(2 * self.heap.size, need), np.uint8)
                heap[: self.heap_end] = self.heap[: self.heap_end]
                self.heap = heap

    def _grow_rows(self) -> None:
        capacity = min(4 * self._rows.shape[0], self.rows_max)
        rows = np.empty((capacity, self._rows.shape[1]), np.int64)
        rows[: self.count] = self._rows[: self.count]
        self._rows = rows
        size = 2 * (1 << (capacity - 1).bit_length())
        if size > self._index.size:
            self._index = np.zeros(size, np.int32)
            _reindex(self._index, rows, self.count)

    def rows(self) -> Ints:
        """All groups so far, int64[count, 4 + k]: slice, hash, key or heap offset, n, cells."""
        return self._rows[: self.count]

    def clear(self) -> None:
        """Forget the groups, keep the memory."""
        self._index[:] = 0
        self.count = self.heap_end = 0
