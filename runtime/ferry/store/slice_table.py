"""One slice of an aggregate: a table file with regions for each virtual node, and a heap file when keys are bytes.

Files: `SLICE.table` (header, then rows) and `SLICE.heap`. The header's magic is written last, so an unfinished table is
recognised. Layout and crash rules of the rows: ferry.kernels.table. However few virtual nodes there are, each is cut
into parts with a region of its own, so that no region is large when it has to grow. Unneeded space (abandoned regions,
keys of dropped virtual nodes) goes back to the file system later: `tidy`, in pieces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ferry.contract.errors import Bug, StateUnavailable
from ferry.kernels import grouping, table
from ferry.kernels.grouping import NO_BYTES, Bytes, Floats, Hashes, Ints
from ferry.store import mapped
from ferry.store.dropped_vnodes import DroppedVnodes
from ferry.store.hole_punching import HolePuncher, Range
from ferry.store.table_header import (
    DIRTY,
    DROPS,
    DROPS_AGAIN,
    END,
    HEADER_WORDS,
    HEAP_BEGIN,
    HEAP_END,
    MAGIC,
    MAGIC_NUMBER,
    PARTS,
    PARTS_ARRAYS,
    WIDTH,
    header_bytes,
    require_whole,
)

_ROWS_MIN = 256
_HEAP_BYTES_MIN = 4096
PARTS_MIN = 1024
"""Parts of all virtual nodes together. A region grows in one step: with 50 M rows in the table, by 50,000 of them."""
GRANT_BYTES = 1024 * 1024
"""Room for new regions is reserved in steps of this size."""
CUT_BYTES = 8 * 1024 * 1024
"""Bytes cut from the end of a file at a time: an access to them waits."""
HEAP_GRANT_BYTES = 32 * 1024 * 1024
"""A heap grows by at most this much at a time, and by at most its own size."""
SHRINK_BYTES = 16 * 1024
"""Smaller regions are not shrunk: only whole pages are freed."""
SHRINK_BITS = 2
"""A region is replaced by one of at most a quarter of its size, because an abandoned region is never reused."""
SPARE_TIMES = 3.0
"""Places per row in the smaller region, at least."""
KEYS_BYTES = 256 * 1024
"""Bytes of keys that are moved at a time, once this many times as many are dead (see the next constant):"""
DEAD_TIMES = 4

Place = tuple[int, int, int]
"""Where a scan continues: position in the parts of its virtual nodes, row of the region, place of the region."""
BEGIN: Place = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class RowArrays:
    """Rows to put, as arrays over one batch; see kernels.columns.Partials."""

    hashes: Hashes
    keys: Ints
    offsets: Ints
    data: Bytes
    n: Ints
    cells: Ints


class SliceTable:
    """The table of one slice. `drops` names its dropped virtual nodes."""

    def __init__(
        self, directory: Path, slice_start: int, width: int, by_bytes: bool, drops: DroppedVnodes, verify: bool = False
    ) -> None:
        """Open or create `SLICE.table`. `width` is words per row (4 and the state columns).

        `verify`: check all rows, which may have been damaged on disk. Raises StateUnavailable then.
        """
        self.directory = directory
        self.slice_start = slice_start
        self.width = width
        self.by_bytes = by_bytes
        self._drops = drops
        self.virtual_nodes = drops.at.size
        self.cold = False
        self.path = directory / f"{slice_start}.table"
        self.heap_path = directory / f"{slice_start}.heap"
        self._parts = self._count_parts()
        self._part_bits = self._parts.bit_length() - 1
        self._each = self._parts // self.virtual_nodes
        self.heap: Bytes = NO_BYTES
        """up to the end of the room reserved on disk"""
        self._heap_mapped: Bytes = NO_BYTES
        self._garbage = HolePuncher()
        self._moving: tuple[int, int] | None = None
        """(part, mark): keys before the mark are being moved; parts before this one are done"""
        if verify:
            require_whole(self.path, self.heap_path if by_bytes else None, width, self.virtual_nodes, drops.last)
        self._map(_ROWS_MIN)
        if by_bytes:
            self._map_heap(max(_HEAP_BYTES_MIN, int(self._heap_end[0])))
        if verify:
            self._require_whole_rows()
        if self._header[DIRTY]:
            table.recount(*self._arrays, by_bytes)
            self._header[DIRTY] = 0
        self._measure()

    def _count_parts(self) -> int:
        """The number of parts of the existing file, if there is one."""
        if self.path.exists():
            words = np.frombuffer(mapped.open_mapped(self.path, 8 * HEADER_WORDS), np.int64, HEADER_WORDS)
            if words[MAGIC] == MAGIC_NUMBER:
                return int(words[PARTS])
        return max(self.virtual_nodes, PARTS_MIN)

    @property
    def _arrays(self) -> tuple[Ints, Bytes, Ints, Ints, Ints, Ints]:
        return self.slots, self.heap, self.places, self._counts, self._key_bytes, self._sums

    def _require_whole_rows(self) -> None:
        ends = int(self._end[0]), int(self._heap_end[0])
        part = table.verify(*self._arrays, *ends, self._part_bits, self.by_bytes, bool(self._header[DIRTY]))
        if part >= 0:
            raise StateUnavailable(f"{self.path}: rows of virtual node {part // self._each} are damaged")

    def _parts_of(self, vnodes: Ints) -> Ints:
        return (vnodes[:, None] * self._each + np.arange(self._each)).ravel()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without its key bytes."""
        return 8 * self.width

    @property
    def _header_bytes(self) -> int:
        return header_bytes(self._parts)

    @property
    def _used_bytes(self) -> int:
        """Used bytes of the table file: no byte was written behind them."""
        return self._bytes_of_rows(0, int(self._end[0]))[2]

    def _map(self, rows: int) -> None:
        mapping = mapped.open_growing(self.path, self._header_bytes + self.row_bytes * rows)
        words = np.frombuffer(mapping, np.int64)
        if words[MAGIC] == 0:
            words[[PARTS, WIDTH, DROPS, DROPS_AGAIN]] = self._parts, self.width, self._drops.last, self._drops.last
            words[MAGIC] = MAGIC_NUMBER
        found = words[[MAGIC, PARTS, WIDTH]].tolist()
        if found != [MAGIC_NUMBER, self._parts, self.width] or not self._each:
            raise Bug(f"{self.path}: header (magic, parts, width) is {found}: it belongs to another operator")
        self._mapping, self._header = mapping, words[:HEADER_WORDS]
        parts = words[HEADER_WORDS : HEADER_WORDS + PARTS_ARRAYS * self._parts]
        self.places, self._counts, self._key_bytes, self._sums = parts.reshape(PARTS_ARRAYS, self._parts)
        self._end, self._heap_end = words[END : END + 1], words[HEAP_END : HEAP_END + 1]
        mapped.read_singly(mapping, self._used_bytes)
        rows = (words.size - self._header_bytes // 8) // self.width
        self.slots = words[self._header_bytes // 8 :][: rows * self.width].reshape(rows, self.width)
        self.fslots: Floats = self.slots.view(np.float64)

    def _map_heap(self, size: int) -> None:
        if size > self._heap_mapped.size:
            self._heap_mapping = mapped.open_growing(self.heap_path, size)
            mapped.read_singly(self._heap_mapping, int(self._heap_end[0]))
            self._heap_mapped = np.frombuffer(self._heap_mapping, np.uint8)
        self.heap = self._heap_mapped[:size]

    def bytes_of(self, counts: Ints, key_bytes: Ints) -> Ints:
        """Bytes in use by this many rows and keys."""
        return counts * self.row_bytes + key_bytes

    def totals(self) -> tuple[Ints, Ints]:
        """Present rows and bytes of each virtual node; without dropped ones, even if it is not yet `settle`d."""
        counts, key_bytes = self.counts, self._key_bytes.reshape(-1, self._each).sum(1)
        gone = self._drops.gone(int(self._header[DROPS]) + 1)
        if gone is not None:
            counts[gone] = key_bytes[gone] = 0
        return counts, self.bytes_of(counts, key_bytes)

    @property
    def counts(self) -> Ints:
        """Rows of each virtual node."""
        counts: Ints = self._counts.reshape(-1, self._each).sum(1)
        return counts

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the regions in use and of the heap: they may take memory."""
        return self._region_bytes + int(self._heap_end[0] - self._header[HEAP_BEGIN])

    def _measure(self) -> None:
        used = self.places[self.places != 0] & 63
        self._region_bytes = self._header_bytes + int((1 << used).sum()) * self.row_bytes

    def room_for(self, rows: int) -> int:
        """Upper bound of the disk space of this many new rows in the present regions: each on pages of its own."""
        return min(rows * (mapped.PAGE_BYTES + self.row_bytes), int(self._end[0]) * self.row_bytes)

    # -- changing ---------------------------------------------------------------------------------------------------

    def put(self, rows: RowArrays, order: Ints, absent: bool) -> None:
        """Upsert rows[order]; regions grow as needed. Raises Exhausted before any write without room."""
        self.cold = False
        before, end = self.places.copy(), int(self._end[0])
        expected = table.rows_of_parts(order, rows.hashes, self._parts, self._part_bits)
        step = min(GRANT_BYTES // self.row_bytes, order.size << table.BITS_MIN)
        granted = start = 0
        while True:
            self._header[DIRTY] = 1
            start, need = table.put(
                *self._arrays,
                self._end,
                self._heap_end,
                granted,
                expected,
                self._part_bits,
                self.by_bytes,
                order,
                rows.hashes,
                rows.keys,
                rows.offsets,
                rows.data,
                rows.n,
                rows.cells,
                absent,
                start,
            )
            self._header[DIRTY] = 0
            if need == table.DONE:
                break
            if need == table.HEAP_FULL:
                row = order[start]
                self._extend_heap(4 + int(rows.offsets[row + 1] - rows.offsets[row]))
            else:
                granted = self._grant(max(step, need))
        if self._end[0] > end:  # otherwise no region has moved
            self._left(before)

    def _grant(self, rows: int) -> int:
        mapped.require_room(self.directory, rows * self.row_bytes)
        granted = int(self._end[0]) + rows
        if granted > self.slots.shape[0]:
            self._map(max(granted, 2 * self.slots.shape[0]))
        return granted

    def _extend_heap(self, need: int) -> None:
        size = max(int(self._heap_end[0]) + need, self.heap.size + min(self.heap.size, HEAP_GRANT_BYTES))
        mapped.require_room(self.directory, size - self.heap.size)
        self._map_heap(size)

    def _left(self, before: Ints) -> None:
        """Regions that were abandoned since `before` are garbage."""
        left = before[(before != self.places) & (before != 0)]
        self._garbage.add(self._bytes_of_rows(int(p >> table.PLACE_BITS), 1 << int(p & 63)) for p in np.sort(left))
        self._measure()

    def _bytes_of_rows(self, first: int, rows: int) -> Range:
        begin = self._header_bytes + first * self.row_bytes
        return self.path, begin, begin + rows * self.row_bytes

    def remove(self, vnodes: Ints, newest: int, until: int, changed: int, epoch: int) -> None:
        """Remove rows of these virtual nodes, as the kernel decides; parts with few rows left get a smaller region."""
        parts = self._parts_of(vnodes)
        parts = parts[self._counts[parts] > 0]
        self._header[DIRTY] = 1
        table.remove(*self._arrays, self.by_bytes, parts, newest, until, changed, epoch)
        bits = np.maximum(np.frexp(SPARE_TIMES * self._counts[parts])[1], table.BITS_MIN)
        now = self.places[parts] & 63
        few = (bits + SHRINK_BITS <= now) & (self.row_bytes << now >= SHRINK_BYTES)
        rows = int((np.int64(1) << bits[few]).sum())
        if rows and mapped.has_room(self.directory, rows * self.row_bytes):
            self._grant(rows)
            before = self.places.copy()
            table.shrink(self.slots, self.places, self._end, parts[few], bits[few])
            self._left(before)
        self._header[DIRTY] = 0

    def settle(self) -> None:
        """Forget dropped virtual nodes. After an interruption, repeat it."""
        gone = self._drops.gone(int(self._header[DROPS]) + 1)
        if gone is None:
            return
        gone = np.repeat(gone, self._each)
        before = self.places.copy()
        self._header[DIRTY] = 1
        self.places[gone] = 0
        self._counts[gone] = 0
        self._key_bytes[gone] = 0
        self._sums[gone] = 0
        self._header[[DROPS, DROPS_AGAIN]] = self._drops.last
        self._header[DIRTY] = 0
        self._left(before)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def find_garbage(self) -> None:
        """Find garbage of earlier processes, too: all space outside the regions and the keys."""
        used = np.sort(self.places[self.places != 0])
        at = 0
        for place in used.tolist():
            first = place >> table.PLACE_BITS
            if first > at:
                self._garbage.add([self._bytes_of_rows(at, first - at)])
            at = first + (1 << (place & 63))
        if self._end[0] > at:
            self._garbage.add([self._bytes_of_rows(at, int(self._end[0]) - at)])
        if self._header[HEAP_BEGIN]:
            self._garbage.add([(self.heap_path, 0, int(self._header[HEAP_BEGIN]))])

    def tidy(self) -> bool:
        """Free a little of the unneeded space; False when there is none, or it is too soon."""
        return self._garbage.give_back() or (self.by_bytes and self._move_keys())

    @property
    def is_littered(self) -> bool:
        """Whether space is left to free: after this object is closed, `find_garbage` has to find it again."""
        return self._garbage.is_left

    def _move_keys(self) -> bool:
        """Once most of the heap is dead, the live keys are copied behind it, some regions at a time."""
        begin, end = int(self._header[HEAP_BEGIN]), int(self._heap_end[0])
        if self._moving is None:
            if end - begin < max(DEAD_TIMES * KEYS_BYTES, 2 * int(self._key_bytes.sum())):
                return False
            self._moving = 0, end
        part, mark = self._moving
        moved = 0
        while part < self._parts and moved < KEYS_BYTES:
            need = int(self._key_bytes[part])
            if need:
                if not mapped.has_room(self.directory, need + HEAP_GRANT_BYTES):
                    self._moving = None
                    return False
                if int(self._heap_end[0]) + need > self.heap.size:
                    self._extend_heap(need)
                table.move_keys(self.slots, self.heap, self.places[part], self._heap_end, mark)
            moved += need
            part += 1
        self._moving = part, mark
        if part == self._parts:
            self._moving = None
            self._header[HEAP_BEGIN] = mark
            # With the page that contains `begin`, whose first half is dead, too: only whole pages are freed.
            self._garbage.add([(self.heap_path, begin - begin % mapped.PAGE_BYTES, mark)])
        return True

    def page_out(self) -> None:
        """Let the system take the memory back; the table stays usable."""
        if not self.cold:
            mapped.page_out(self._mapping, self._used_bytes)
            if self.by_bytes:
                mapped.page_out(self._heap_mapping, int(self._heap_end[0]))
            self.cold = True

    def shrink(self) -> bool:
        """Free a piece of an expired slice, never read again; False when its files are deleted."""
        ends = (self._used_bytes, int(self._heap_end[0]))
        for path, end in zip((self.path, self.heap_path), ends, strict=True):
            size = min(end, path.stat().st_size) if path.exists() else 0
            if size > CUT_BYTES:
                os.truncate(path, size - CUT_BYTES)
                return True
        self.path.unlink(missing_ok=True)
        self.heap_path.unlink(missing_ok=True)
        return False

    # -- reading ----------------------------------------------------------------------------------------------------

    def merge_stored(self, rows: Ints, order: Ints, found: Ints, codes: Ints) -> None:
        """Add the stored rows `found` (positions in `slots`) to the groups `rows[order]` in place (kernels.grouping)."""
        grouping.merge_found(rows, rows.view(np.float64), order, found, self.slots, self.fslots, codes)

    def find(self, rows: Ints, order: Ints, offsets: Ints, data: Bytes) -> Ints:
        """Positions in `slots` of the keys of `rows[order]`, whose words 1 and 2 are hash and key; -1: absent."""
        self.cold = False
        found: Ints = table.find(
            self.slots, self.heap, self.places, self._part_bits, self.by_bytes, order, rows, offsets, data
        )
        return found

    def scan(self, vnodes: Ints, at: Place, rows_max: int, bytes_max: int) -> tuple[Ints, Place | None]:
        """Copies of at most this many rows of these virtual nodes from `at` on; and where to continue, or None."""
        parts = self._parts_of(vnodes)
        found, part, row, place = table.scan(
            self.slots, self.heap, self.places, self.by_bytes, parts, *at, rows_max, bytes_max
        )
        return self.slots[found], None if part >= parts.size else (int(part), int(row), int(place))

    def regions(self, vnodes: Ints) -> Ints:
        """Places of the regions of these virtual nodes: while they are equal, the rows have not moved."""
        return self.places[self._parts_of(vnodes)]
