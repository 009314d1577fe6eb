"""One slice of an aggregate: a table file with V regions, and a heap file when keys are bytes.

Files: `SLICE.BITS.table` (header page, then rows; BITS = log2 of a region's capacity) and `SLICE.heap`. The header's word
`complete` is written last, so a table that was being grown is recognised and removed; growing leaves the heap alone.
Layout and crash rules of the rows: ferry.kernels.table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ferry.contract.errors import Bug
from ferry.kernels import table
from ferry.kernels.grouping import NO_BYTES, Bytes, Floats, Ints
from ferry.store import mapped

MAGIC = 0x31454C4241545246
_MAGIC, _COMPLETE, _VNODES, _BITS, _WIDTH, _DIRTY, _HEAP_END = range(7)
_HEADER_WORDS = 16
_BITS_MIN = 3
_HEAP_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to put, as arrays over one batch; see kernels.columns.Partials."""

    hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]
    keys: Ints
    offsets: Ints
    data: Bytes
    n: Ints
    cells: Ints


class SliceTable:
    """The table of one slice; `generation` changes whenever rows may have changed places."""

    def __init__(
        self, directory: Path, slice_start: int, virtual_nodes: int, width: int, by_bytes: bool, bits: int
    ) -> None:
        """Open or create `SLICE.BITS.table`. `width` is words per row (4 and the state columns)."""
        self.directory, self.slice_start = directory, slice_start
        self.virtual_nodes, self.width, self.by_bytes = virtual_nodes, width, by_bytes
        self._vnode_bits = virtual_nodes.bit_length() - 1
        self.generation = 0
        self.cold = False
        self._heap_path = directory / f"{slice_start}.heap"
        self.heap: Bytes = NO_BYTES
        self._use(*self._map(bits))
        if by_bytes:
            self._map_heap(_HEAP_BYTES_MIN)
        if self._header[_DIRTY]:
            table.recount(self.slots, self.heap, self.counts, self._key_bytes, self.bits, by_bytes)
            self._header[_DIRTY] = 0
        self._header[_COMPLETE] = 1
        self.mapped_bytes = 0
        """of the regions in use and of the heap: what may take memory"""
        self._measure()

    @staticmethod
    def is_complete(path: Path) -> bool:
        """True for a table file that was finished."""
        with path.open("rb") as f:
            words = np.frombuffer(f.read(16), np.int64)
        return words.size == 2 and words[_MAGIC] == MAGIC and words[_COMPLETE] == 1

    def _header_bytes(self) -> int:
        size = 8 * (_HEADER_WORDS + 2 * self.virtual_nodes)
        return -(-size // mapped.PAGE_BYTES) * mapped.PAGE_BYTES

    def _path(self, bits: int) -> Path:
        return self.directory / f"{self.slice_start}.{bits}.table"

    def _map(self, bits: int) -> tuple[int, object, Ints]:
        path = self._path(bits)
        size = self._header_bytes() + 8 * self.width * (self.virtual_nodes << bits)
        mapping = mapped.open_mapped(path, size)
        words = np.frombuffer(mapping, np.int64)
        if words[_MAGIC] == 0:
            words[[_VNODES, _BITS, _WIDTH]] = self.virtual_nodes, bits, self.width
            words[_MAGIC] = MAGIC
        found = words[[_MAGIC, _VNODES, _BITS, _WIDTH]].tolist()
        if found != [MAGIC, self.virtual_nodes, bits, self.width]:
            raise Bug(f"{path}: header (magic, virtual nodes, bits, width) is {found}: it belongs to another shape")
        return bits, mapping, words

    def _use(self, bits: int, mapping: object, words: Ints) -> None:
        self.bits, self._mapping, self._header = bits, mapping, words[:_HEADER_WORDS]
        v = self.virtual_nodes
        self.counts = words[_HEADER_WORDS : _HEADER_WORDS + v]
        self._key_bytes = words[_HEADER_WORDS + v : _HEADER_WORDS + 2 * v]
        self._heap_end = words[_HEAP_END : _HEAP_END + 1]
        self.slots = words[self._header_bytes() // 8 :].reshape(-1, self.width)
        self.fslots: Floats = self.slots.view(np.float64)
        self.generation += 1

    def _map_heap(self, size: int) -> None:
        self._heap_mapping = mapped.open_mapped(self._heap_path, size)
        self.heap = np.frombuffer(self._heap_mapping, np.uint8)

    @property
    def entries(self) -> int:
        """Rows of all virtual nodes."""
        return int(self.counts.sum())

    def row_bytes(self) -> int:
        """Bytes of one row without its key bytes."""
        return 8 * self.width

    def vnode_bytes(self) -> Ints:
        """Bytes in use per virtual node, int64[V]."""
        return self.counts * self.row_bytes() + self._key_bytes

    def _measure(self) -> None:
        regions = int(np.count_nonzero(self.counts))
        self.mapped_bytes = self._header_bytes() + (regions << self.bits) * self.row_bytes() + int(self._heap_end[0])

    def allocated_bytes(self) -> int:
        """Bytes on disk."""
        return mapped.allocated_bytes(self._path(self.bits)) + mapped.allocated_bytes(self._heap_path)

    def room_for(self, rows: int, key_bytes: int) -> int:
        """Upper bound of the disk that this many new rows may take without growing: every row on a page of its own."""
        return min(rows * mapped.PAGE_BYTES, self.slots.nbytes) + key_bytes + 4 * rows

    def put(self, rows: Rows, order: Ints, absent: bool) -> None:
        """Upsert rows[order]; grows as needed. Raises Exhausted before anything is written that has no room."""
        self.cold = False
        start = 0
        while True:
            self._header[_DIRTY] = 1
            start, why = table.put(
                self.slots, self.heap, self.counts, self._key_bytes, self._heap_end, self._vnode_bits, self.bits,
                self.by_bytes, order, rows.hashes, rows.keys, rows.offsets, rows.data, rows.n, rows.cells, absent, start,
            )  # fmt: skip
            self._header[_DIRTY] = 0
            if why == table.DONE:
                self._measure()
                return
            if why == table.TABLE_FULL:
                self._grow()
            else:
                row = order[start]
                need = int(self._heap_end[0]) + 4 + int(rows.offsets[row + 1] - rows.offsets[row])
                size = max(2 * self.heap.size, need)
                mapped.require_room(self.directory, size - self.heap.size)
                self._map_heap(size)

    def _grow(self) -> None:
        bits = self.bits + 1
        regions = int(np.count_nonzero(self.counts))
        mapped.require_room(self.directory, (regions << bits) * self.row_bytes() + self._header_bytes())
        self._path(bits).unlink(missing_ok=True)
        old_path, old = self._path(self.bits), self.slots
        _, mapping, words = self._map(bits)
        fresh = words[self._header_bytes() // 8 :].reshape(-1, self.width)
        table.rehash(old, self.counts, self.bits, fresh, bits)
        words[_HEADER_WORDS : _HEADER_WORDS + 2 * self.virtual_nodes] = np.concatenate([self.counts, self._key_bytes])
        words[_HEAP_END] = self._heap_end[0]
        words[_COMPLETE] = 1
        self._use(bits, mapping, words)
        old_path.unlink(missing_ok=True)

    def merge_stored(self, rows: Ints, order: Ints, offsets: Ints, data: Bytes, codes: Ints) -> None:
        """Add the stored values to the groups `rows[order]` in place (layout of kernels.grouping)."""
        self.cold = False
        table.merge_stored(
            self.slots, self.fslots, self.heap, self._vnode_bits, self.bits, self.by_bytes,
            order, rows, rows.view(np.float64), offsets, data, codes,
        )  # fmt: skip

    def scan(self, vnodes: Ints, at: tuple[int, int], rows_max: int, bytes_max: int) -> tuple[Ints, tuple[int, int]]:
        """Rows (copied) of these virtual nodes from place `at` on, at most so many; and the place to go on from."""
        places, vnode, row = table.scan(
            self.slots, self.heap, self.counts, self.bits, self.by_bytes, vnodes, at[0], at[1], rows_max, bytes_max
        )
        return self.slots[places], (int(vnode), int(row))

    def drop(self, vnodes: Ints) -> None:
        """Clear these regions and give their disk back. The heap goes when no row is left."""
        vnodes = np.unique(vnodes[self.counts[vnodes] > 0])
        if vnodes.size == 0:
            return
        self._header[_DIRTY] = 1
        for run in np.split(vnodes, np.flatnonzero(np.diff(vnodes) > 1) + 1):
            first, last = int(run[0]) << self.bits, (int(run[-1]) + 1) << self.bits
            base = self._header_bytes()
            if not mapped.punch(self._path(self.bits), base + first * self.row_bytes(), base + last * self.row_bytes()):
                self.slots[first:last] = 0
        self.counts[vnodes] = 0
        self._key_bytes[vnodes] = 0
        if not self.counts.any():
            self._heap_end[0] = 0
        self._header[_DIRTY] = 0
        self.generation += 1
        self._measure()

    def page_out(self) -> None:
        """Let the system take the memory back; the table stays usable."""
        if not self.cold:
            mapped.page_out(self._mapping)  # type: ignore[arg-type]
            if self.by_bytes:
                mapped.page_out(self._heap_mapping)
            self.cold = True

    def unlink(self) -> None:
        """Remove the files; arrays that still look at them stay valid."""
        self._path(self.bits).unlink(missing_ok=True)
        self._heap_path.unlink(missing_ok=True)
