"""Partial aggregation by (slice, key): a table of groups in ordinary memory, and groups of batches of partials.

The table is used by the task (one record = one row with n = 1), and when panes are combined into a window. Slash (paper
003) calls this the helper's partial state, and the merge of batches its late merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ferry.kernels.columns import PartialArrays
from ferry.kernels.folding import DONE, ROWS_FULL, fold_for, merge_found, reindex
from ferry.kernels.grouping import CELLS, NO_BYTES, NO_INTS, SLICE, Bytes, Hashes, Ints
from ferry.kernels.parts import count_parts, same_groups, scatter
from ferry.kernels.salting import SEED, key_salts


class Groups:
    """A growing table of groups; at most `rows_max` of them and `heap_max` bytes of keys, then `add` stops early."""

    def __init__(self, codes: Ints, by_bytes: bool, rows_max: int = 1 << 31, heap_max: int = 1 << 31) -> None:
        self.codes = codes
        self._fold = fold_for(codes)
        self.by_bytes = by_bytes
        self.rows_max = rows_max
        self.heap_max = heap_max
        self.count = 0
        self.heap_end = 0
        self._allocate(min(1024, rows_max), 16 * 1024 if by_bytes else 0)

    def _allocate(self, capacity: int, heap_bytes: int) -> None:
        self._index = np.zeros(2 * (1 << (capacity - 1).bit_length()), np.int32)
        self._rows = np.empty((capacity, CELLS + self.codes.size), np.int64)
        self._salts = np.empty(capacity if self.by_bytes else 0, np.int64)
        self.heap = np.empty(heap_bytes, np.uint8)

    def add(
        self, slices: Ints, hashes: Hashes, keys: Ints, offsets: Ints, data: Bytes, n: Ints, cells: Ints, start: int = 0
    ) -> int:
        """Merge rows from `start` on; returns the row at which a bound was reached, or the number of rows when all are
        merged."""
        salts = key_salts(offsets, data, np.arange(hashes.size), SEED) if self.by_bytes else NO_INTS
        batch = slices, hashes, keys, offsets, data, salts, n, cells
        while True:
            table = self._index, self._rows, self.heap, self._salts
            start, self.count, self.heap_end, why = self._fold(
                table, batch, self.codes, self.by_bytes, SEED, start, self.count, self.heap_end
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
        self._salts = np.resize(self._salts, capacity if self.by_bytes else 0)
        size = 2 * (1 << (capacity - 1).bit_length())
        if size > self._index.size:
            self._index = np.zeros(size, np.int32)
            reindex(self._index, rows, self._salts, self.count, SEED)

    def rows(self) -> Ints:
        """All groups so far, int64[count, 4 + k]: slice, hash, key or heap offset, n, cells."""
        return self._rows[: self.count]

    def clear(self) -> None:
        """Forget the groups, keep the memory."""
        self._index[:] = 0
        self.count = self.heap_end = 0


def merged(partials: Sequence[PartialArrays], by_bytes: bool, bits: int, codes: Ints) -> tuple[Ints, Bytes]:
    """Distinct groups of these batches: (rows int64[groups, 4 + k] in the order of parts, heap of keys)."""
    s = _scattered(partials, by_bytes, bits, codes.size)
    later, first = same_groups(s.rows, s.heap, s.salts, by_bytes, s.bounds, SEED)
    if not later.size:
        return s.rows, s.heap
    merge_found(s.rows, first, later, s.rows, codes)
    keep = np.ones(s.rows.shape[0], np.bool_)
    keep[later] = False
    return s.rows[keep], s.heap


def by_key(partials: Sequence[PartialArrays], by_bytes: bool, bits: int, cells: int) -> tuple[Ints, Bytes, Ints]:
    """Rows of these batches key by key, each key's in the order of the batches: (rows int64[n, 4 + k], heap of keys, bounds
    of the keys int64[keys + 1])."""
    s = _scattered(partials, by_bytes, bits, cells)
    slices = s.rows[:, SLICE].copy()
    s.rows[:, SLICE] = 0
    later, first = same_groups(s.rows, s.heap, s.salts, by_bytes, s.bounds, SEED)
    s.rows[:, SLICE] = slices
    group = np.arange(slices.size)
    group[later] = first
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    return s.rows[order], s.heap, np.append(begins, slices.size)


class _Scattered(NamedTuple):
    """Rows of batches in the order of parts, and in a part in the order of the batches."""

    rows: Ints
    heap: Bytes
    salts: Ints
    bounds: Ints
    """of the parts"""


def _scattered(partials: Sequence[PartialArrays], by_bytes: bool, bits: int, cells: int) -> _Scattered:
    bounds = np.zeros((1 << bits) + 1, np.int64)
    for p in partials:
        count_parts(p.hashes, bits, bounds)
    np.cumsum(bounds, out=bounds)
    count, heap, heap_end = int(bounds[-1]), NO_BYTES, 0
    rows, at = np.empty((count, CELLS + cells), np.int64), bounds[:-1].copy()
    salts = np.empty(count if by_bytes else 0, np.int64)
    if by_bytes:
        heap = np.empty(4 * count + sum(int(p.offsets[-1] - p.offsets[0]) for p in partials), np.uint8)
    for p in partials:
        own = key_salts(p.offsets, p.data, np.arange(p.hashes.size), SEED) if by_bytes else NO_INTS
        keys = p.slices, p.hashes, p.keys, p.offsets, p.data, own
        heap_end = scatter(rows, salts, at, bits, by_bytes, heap, heap_end, *keys, p.n, p.cells)
    return _Scattered(rows, heap, salts, bounds)
