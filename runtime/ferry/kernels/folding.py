"""Merging of groups: of one row into another one, and of records into a table of groups.

The loop over records is compiled for the merge codes of its operator where these are few and of one word each: to look
the codes up for each record takes longer than to merge it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numba import njit

from ferry.kernels.ahead import prefetch
from ferry.kernels.grouping import CARRY_BITS, CELLS, COUNT, FLAGS, HASH, KEY, OVERFLOWED, SIGN, SLICE, Ints

DONE, ROWS_FULL, HEAP_FULL = 0, 1, 2

_CARRY = 1 << CARRY_BITS
_CARRIES_MAX = (1 << (62 - CARRY_BITS)) - 1

PLAIN = frozenset((0, 1, 2, 3, 4, 5, FLAGS))
"""Merge codes of one word that do not depend on another column."""

PLAIN_MAX = 8
"""Largest number of columns that a loop is compiled for."""

AHEAD = 16
"""Records between the hint for a place of the index and its use; the row of the group is hinted half as far ahead."""


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
def _add(into, finto, i, source, fsource, j, codes):  # type: ignore[no-untyped-def]
    into[i, COUNT] += source[j, COUNT]
    _merge(into, finto, i, source, fsource, j, CELLS, codes)


@njit(cache=True, nogil=True)
def slide(rows, bounds, window, first, last, codes, out, group, number):  # type: ignore[no-untyped-def]
    """The windows of groups, row by row of `out`: (rows written, group and number of the window to go on with).

    Group g is rows[bounds[g]:bounds[g + 1]], in order of their slices. `window`: size, slide and pane in milliseconds;
    window w starts at w * slide, and is written if it has rows and first <= w <= last. Each row is merged at most twice,
    and each result once: two stacks, as in Tangwongsan and others, "General incremental sliding-window aggregation".
    """
    (size, step, pane), used, longest = window, 0, np.diff(bounds).max()
    suffixes, recent = np.empty((longest, rows.shape[1]), np.int64), np.empty((1, rows.shape[1]), np.int64)
    frows, fsuffixes, frecent = rows.view(np.float64), suffixes.view(np.float64), recent.view(np.float64)
    fout = out.view(np.float64)
    for g in range(group, bounds.size - 1):
        begin, end = bounds[g], bounds[g + 1]
        w = max(number if g == group else first, first, -((size - pane - rows[begin, SLICE]) // step))
        low = middle = high = begin  # `suffixes` has rows low to middle - 1, `recent` rows middle to high - 1
        while w <= last:
            while low < end and rows[low, SLICE] < w * step:
                low += 1
            if low == end:
                break
            if rows[low, SLICE] >= w * step + size:
                w = -((size - pane - rows[low, SLICE]) // step)
                continue
            if used == out.shape[0]:
                return used, g, w
            while high < end and rows[high, SLICE] < w * step + size:
                if high == middle:
                    recent[0] = rows[high]
                else:
                    _add(recent, frecent, 0, rows, frows, high, codes)
                high += 1
            if low >= middle:
                for r in range(high - 1, low - 1, -1):
                    suffixes[r - begin] = rows[r]
                    if r < high - 1:
                        _add(suffixes, fsuffixes, r - begin, suffixes, fsuffixes, r - begin + 1, codes)
                middle = high
            out[used] = suffixes[low - begin]
            if high > middle:
                _add(out, fout, used, recent, frecent, 0, codes)
            out[used, SLICE] = w * step
            used += 1
            w += 1
    return used, bounds.size - 1, first


@njit(cache=True, nogil=True)
def merge_found(rows, order, places, stored, codes):  # type: ignore[no-untyped-def]
    """Merge the stored row found[o], of the same layout, into group rows[order[o]]; -1: there is none."""
    frows, fstored = rows.view(np.float64), stored.view(np.float64)
    for o in range(order.size):
        if o + AHEAD < order.size:
            prefetch(stored, max(0, places[o + AHEAD]) * stored.shape[1] + COUNT)
        if places[o] >= 0:
            rows[order[o], COUNT] += stored[places[o], COUNT]
            _merge(rows, frows, order[o], stored, fstored, places[o], CELLS, codes)


@njit(cache=True, nogil=True)
def _home(slice_start, salted, mask, seed):  # type: ignore[no-untyped-def]
    """The first place of a group in an index; `salted`: its hash, changed by its salt if its key is bytes."""
    x = np.uint64(salted) * np.uint64(seed)
    x = (x ^ x >> np.uint64(32)) + np.uint64(slice_start) * np.uint64(0x9E3779B97F4A7C15)
    x *= np.uint64(0x94D049BB133111EB)
    return np.int64((x ^ x >> np.uint64(32)) & np.uint64(mask))


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


@njit(nogil=True, forceinline=True)
def _cell(code, into, finto, i, source, fsource, j, c, flags):  # type: ignore[no-untyped-def]
    # `merge` for one column, whose code is a constant. `flags`: the column of flags, or -1.
    d = CELLS + c
    if code == 0:
        before, added = into[i, d], source[j, c]
        total = before + added
        if flags >= 0 and (before ^ total) & (added ^ total) < 0:
            into[i, CELLS + flags] |= np.int64(1) << (OVERFLOWED + c)
        into[i, d] = total
    elif code == FLAGS:
        into[i, d] |= source[j, c]
    elif code == 1:
        finto[i, d] += fsource[j, c]
    elif code == 2:
        into[i, d] = min(into[i, d], source[j, c])
    elif code == 3:
        if _above(finto[i, d], fsource[j, c]):
            finto[i, d] = fsource[j, c]
    elif code == 4:
        into[i, d] = max(into[i, d], source[j, c])
    elif code == 5:
        if _above(fsource[j, c], finto[i, d]):
            finto[i, d] = fsource[j, c]


Fold = Callable[..., tuple[int, int, int, int]]


def fold_for(codes: Ints) -> Fold:
    """The loop for these merge codes."""
    plain = codes.size <= PLAIN_MAX and PLAIN.issuperset(codes.tolist())
    return _fold(tuple(codes.tolist()) if plain else None)


@lru_cache(64)
def _fold(codes: tuple[int, ...] | None) -> Fold:
    if codes is None:
        return _compiled(-1, -1, *(FLAGS,) * PLAIN_MAX)
    flags = len(codes) - 1 if codes and codes[-1] == FLAGS else -1
    return _compiled(len(codes), flags, *codes, *(FLAGS,) * (PLAIN_MAX - len(codes)))


def _compiled(k: int, flags: int, c0: int, c1: int, c2: int, c3: int, c4: int, c5: int, c6: int, c7: int) -> Fold:
    # Numba keeps the loop of each set of constants in its cache on disk. k = -1: any codes.
    @njit(cache=True, nogil=True)
    def fold(table, batch, codes, by_bytes, seed, start, groups, heap_end):  # type: ignore[no-untyped-def]
        """Merge rows start.. into the table: (next row, groups, heap_end, DONE | ROWS_FULL | HEAP_FULL).

        `table`: index int32[2**m] of group + 1, at most half of which is used, rows, heap, salts of groups. `batch`: slices,
        hashes, keys, offsets, data, salts, n, cells; an empty n means one record per row. Salts: if keys are bytes.
        """
        index, rows, heap, row_salts = table
        slices, hashes, keys, offsets, data, salts, n, cells = batch
        frows, fcells = rows.view(np.float64), cells.view(np.float64)
        mask = index.size - 1
        one_each = n.size == 0
        width = rows.shape[1]
        homes = np.empty(AHEAD, np.int64)  # of the next records, by their number modulo AHEAD
        for r in range(start - AHEAD, hashes.size):
            p = homes[r % AHEAD]
            if r + AHEAD < hashes.size:
                salted = np.int64(hashes[r + AHEAD])
                if by_bytes:
                    salted ^= salts[r + AHEAD]
                homes[r % AHEAD] = home = _home(slices[r + AHEAD], salted, mask, seed)
                prefetch(index, home)
            if r < start:
                continue
            half = r + AHEAD // 2
            if half < hashes.size:
                soon = np.int64(index[homes[half % AHEAD]]) - 1
                if soon >= 0:
                    prefetch(rows, soon * width)
            s = slices[r]
            h = np.int64(hashes[r])
            while True:
                g = np.int64(index[p]) - 1
                if g < 0:
                    break
                if (
                    rows[g, HASH] == h
                    and rows[g, SLICE] == s
                    and (
                        _same(heap, rows[g, KEY], data, offsets[r], offsets[r + 1])
                        if by_bytes
                        else rows[g, KEY] == keys[r]
                    )
                ):
                    break
                p = (p + 1) & mask
            count = 1 if one_each else n[r]
            if g >= 0:
                rows[g, COUNT] += count
                if k < 0:
                    _merge(rows, frows, g, cells, fcells, r, 0, codes)
                if k > 0:
                    _cell(c0, rows, frows, g, cells, fcells, r, 0, flags)
                if k > 1:
                    _cell(c1, rows, frows, g, cells, fcells, r, 1, flags)
                if k > 2:
                    _cell(c2, rows, frows, g, cells, fcells, r, 2, flags)
                if k > 3:
                    _cell(c3, rows, frows, g, cells, fcells, r, 3, flags)
                if k > 4:
                    _cell(c4, rows, frows, g, cells, fcells, r, 4, flags)
                if k > 5:
                    _cell(c5, rows, frows, g, cells, fcells, r, 5, flags)
                if k > 6:
                    _cell(c6, rows, frows, g, cells, fcells, r, 6, flags)
                if k > 7:
                    _cell(c7, rows, frows, g, cells, fcells, r, 7, flags)
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
                row_salts[groups] = salts[r]
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

    result: Fold = fold
    return result


@njit(cache=True, nogil=True)
def reindex(index, rows, row_salts, groups, seed):  # type: ignore[no-untyped-def]
    """Fill an index anew. `row_salts`: if keys are bytes."""
    mask = index.size - 1
    for g in range(groups):
        salted = rows[g, HASH] ^ row_salts[g] if row_salts.size else rows[g, HASH]
        p = _home(rows[g, SLICE], salted, mask, seed)
        while index[p] != 0:
            p = (p + 1) & mask
        index[p] = g + 1
