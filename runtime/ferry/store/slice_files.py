"""The two files of a slice, mapped into memory: rows in regions, behind a header, and the bytes of keys.

Files: `SLICE.table` (header, then rows) and `SLICE.heap`. The header's magic is written last, so an unfinished table is
recognised. Layout and crash rules of the rows: ferry.kernels.table.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ferry.contract.errors import Bug
from ferry.kernels.grouping import NO_BYTES, Bytes
from ferry.kernels.salting import new_seed
from ferry.store import mapped
from ferry.store.hole_punching import Range
from ferry.store.table_header import (
    DROPS,
    DROPS_AGAIN,
    END,
    HEADER_WORDS,
    HEAP_END,
    MAGIC,
    MAGIC_NUMBER,
    MAGIC_NUMBERS,
    PARTS,
    PARTS_ARRAYS,
    SEED,
    SEED_AGAIN,
    WIDTH,
    header_bytes,
)

_ROWS_MIN = 256
_HEAP_BYTES_MIN = 4096
PARTS_MIN = 1024
"""Parts of all virtual nodes together. A region grows in one step: with 50 M rows in the table, by 50,000 of them."""
CUT_BYTES = 8 * 1024 * 1024
"""Bytes cut from the end of a file at a time: an access to them waits."""
HEAP_GRANT_BYTES = 32 * 1024 * 1024
"""A heap grows by at most this much at a time, and by at most its own size."""


class SliceFiles:
    """The mapped arrays of one slice. They are replaced when a file grows."""

    def __init__(
        self, directory: Path, slice_start: int, width: int, by_bytes: bool, virtual_nodes: int, drops_last: int
    ) -> None:
        """Paths only; `open` maps them. `width` is words per row; `drops_last` goes into the header of a new table."""
        self.directory = directory
        self.path = directory / f"{slice_start}.table"
        self.heap_path = directory / f"{slice_start}.heap"
        self.width = width
        self.by_bytes = by_bytes
        self.parts = self._count_parts(virtual_nodes)
        self._virtual_nodes = virtual_nodes
        self._drops_last = drops_last
        self.heap: Bytes = NO_BYTES
        """up to the end of the room reserved on disk"""
        self._heap_mapped: Bytes = NO_BYTES

    def open(self) -> None:
        """Open or create the files. Raises Bug if they belong to another operator."""
        self._map(_ROWS_MIN)
        if self.by_bytes:
            self._map_heap(max(_HEAP_BYTES_MIN, int(self.heap_end[0])))

    def _count_parts(self, virtual_nodes: int) -> int:
        """The number of parts of the existing file, if there is one."""
        if self.path.exists():
            words = np.frombuffer(mapped.open_mapped(self.path, 8 * HEADER_WORDS), np.int64, HEADER_WORDS)
            if words[MAGIC] in MAGIC_NUMBERS:
                return int(words[PARTS])
        return max(virtual_nodes, PARTS_MIN)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without its key bytes."""
        return 8 * self.width

    @property
    def header_bytes(self) -> int:
        """Bytes of the table file before its rows."""
        return header_bytes(self.parts)

    @property
    def used_bytes(self) -> int:
        """Used bytes of the table file: no byte was written behind them."""
        return self.bytes_of_rows(0, int(self.end[0]))[2]

    def _map(self, rows: int) -> None:
        mapping = mapped.open_growing(self.path, self.header_bytes + self.row_bytes * rows)
        words = np.frombuffer(mapping, np.int64)
        if words[MAGIC] == 0:
            words[[PARTS, WIDTH, DROPS, DROPS_AGAIN]] = self.parts, self.width, self._drops_last, self._drops_last
            words[[SEED, SEED_AGAIN]] = new_seed()
            words[MAGIC] = MAGIC_NUMBER
        magic, *shape = words[[MAGIC, PARTS, WIDTH]].tolist()
        if magic not in MAGIC_NUMBERS or shape != [self.parts, self.width] or self.parts < self._virtual_nodes:
            raise Bug(f"{self.path}: header (magic, parts, width) is {[magic, *shape]}: it belongs to another operator")
        self.seed = int(words[SEED])
        self._mapping, self.header = mapping, words[:HEADER_WORDS]
        parts = words[HEADER_WORDS : HEADER_WORDS + PARTS_ARRAYS * self.parts]
        self.places, self.counts, self.key_bytes, self.sums = parts.reshape(PARTS_ARRAYS, self.parts)
        self.end, self.heap_end = words[END : END + 1], words[HEAP_END : HEAP_END + 1]
        mapped.read_singly(mapping, self.used_bytes)
        rows = (words.size - self.header_bytes // 8) // self.width
        self.slots = words[self.header_bytes // 8 :][: rows * self.width].reshape(rows, self.width)

    def _map_heap(self, size: int) -> None:
        if size > self._heap_mapped.size:
            self._heap_mapping = mapped.open_growing(self.heap_path, size)
            mapped.read_singly(self._heap_mapping, int(self.heap_end[0]))
            self._heap_mapped = np.frombuffer(self._heap_mapping, np.uint8)
        self.heap = self._heap_mapped[:size]

    def grant(self, rows: int) -> int:
        """Reserve this many rows behind the last region; returns the end. Raises Exhausted."""
        mapped.require_room(self.directory, rows * self.row_bytes)
        granted = int(self.end[0]) + rows
        if granted > self.slots.shape[0]:
            self._map(max(granted, 2 * self.slots.shape[0]))
        return granted

    def extend_heap(self, need: int) -> None:
        """Reserve room for this many bytes of keys, at least. Raises Exhausted."""
        size = max(int(self.heap_end[0]) + need, self.heap.size + min(self.heap.size, HEAP_GRANT_BYTES))
        mapped.require_room(self.directory, size - self.heap.size)
        self._map_heap(size)

    def bytes_of_rows(self, first: int, rows: int) -> Range:
        """The place of rows in the table file."""
        begin = self.header_bytes + first * self.row_bytes
        return self.path, begin, begin + rows * self.row_bytes

    def page_out(self) -> None:
        """Let the system take the memory back; the arrays stay usable."""
        mapped.page_out(self._mapping, self.used_bytes)
        if self.by_bytes:
            mapped.page_out(self._heap_mapping, int(self.heap_end[0]))

    def shrink(self) -> bool:
        """Cut a piece from the end of a file, whose rows are never read again. Returns False once both are deleted."""
        ends = (self.used_bytes, int(self.heap_end[0]))
        for path, end in zip((self.path, self.heap_path), ends, strict=True):
            size = min(end, path.stat().st_size) if path.exists() else 0
            if size > CUT_BYTES:
                os.truncate(path, size - CUT_BYTES)
                return True
        self.path.unlink(missing_ok=True)
        self.heap_path.unlink(missing_ok=True)
        return False
