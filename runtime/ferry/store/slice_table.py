"""One slice of an aggregate: a table file with regions for each virtual node, and a heap file when keys are bytes.

`SliceFiles` maps its files. However few virtual nodes there are, each is cut into parts with a region of its own, so
that no region is large when it has to grow. Unneeded space (abandoned regions, keys of dropped virtual nodes) goes back to
the file system later: `tidy`, in pieces.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ferry.contract.errors import StateUnavailable
from ferry.kernels import folding, table
from ferry.kernels.grouping import NO_INTS, Bytes, Hashes, Ints
from ferry.kernels.parts import rows_of_parts
from ferry.kernels.salting import key_salts
from ferry.store import mapped, slice_files
from ferry.store.dropped_vnodes import DroppedVnodes
from ferry.store.hole_punching import HolePuncher
from ferry.store.slice_files import SliceFiles
from ferry.store.table_header import (
    DIRTY,
    DROPS,
    DROPS_AGAIN,
    HEAP_BEGIN,
    require_whole,
)

GRANT_BYTES = 1024 * 1024
"""Room for new regions is reserved in steps of this size."""
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


class RowArrays(NamedTuple):
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
        self.slice_start = slice_start
        self.by_bytes = by_bytes
        self._drops = drops
        self.virtual_nodes = drops.at.size
        self.cold = False
        files = self.files = SliceFiles(directory, slice_start, width, by_bytes, self.virtual_nodes, drops.last)
        self._part_bits = files.parts.bit_length() - 1
        self._each = files.parts // self.virtual_nodes
        self._garbage = HolePuncher()
        self._expected: Ints | None = None
        """rows of each part that a new table will have"""
        self._moving: tuple[int, int] | None = None
        """(part, mark): keys before the mark are being moved; parts before this one are done"""
        if verify:
            require_whole(files.path, files.heap_path if by_bytes else None, width, self.virtual_nodes, drops.last)
        files.open()
        if verify:
            self._require_whole_rows()
        if self.files.header[DIRTY]:
            table.recount(*self._arrays, by_bytes)
            self.files.header[DIRTY] = 0
        self._measure()

    @property
    def _arrays(self) -> tuple[Ints, Bytes, Ints, Ints, Ints, Ints]:
        return (
            self.files.slots,
            self.files.heap,
            self.files.places,
            self.files.counts,
            self.files.key_bytes,
            self.files.sums,
        )

    def _require_whole_rows(self) -> None:
        ends = int(self.files.end[0]), int(self.files.heap_end[0])
        part = table.verify(self._arrays, *ends, self._part_bits, self.by_bytes, bool(self.files.header[DIRTY]))
        if part >= 0:
            raise StateUnavailable(f"{self.files.path}: rows of virtual node {part // self._each} are damaged")

    def _parts_of(self, vnodes: Ints) -> Ints:
        return (vnodes[:, None] * self._each + np.arange(self._each)).ravel()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row without its key bytes."""
        return self.files.row_bytes

    @property
    def heap(self) -> Bytes:
        """The bytes of keys."""
        return self.files.heap

    @property
    def slots(self) -> Ints:
        """All rows: (place, words)."""
        return self.files.slots

    @property
    def places(self) -> Ints:
        """The region of each part."""
        return self.files.places

    def bytes_of(self, counts: Ints, key_bytes: Ints) -> Ints:
        """Bytes in use by this many rows and keys."""
        return counts * self.files.row_bytes + key_bytes

    def totals(self) -> tuple[Ints, Ints]:
        """Present rows and bytes of each virtual node; without dropped ones, even if it is not yet `settle`d."""
        counts, key_bytes = self.counts, self.files.key_bytes.reshape(-1, self._each).sum(1)
        gone = self._drops.gone(int(self.files.header[DROPS]) + 1)
        if gone is not None:
            counts[gone] = key_bytes[gone] = 0
        return counts, self.bytes_of(counts, key_bytes)

    @property
    def counts(self) -> Ints:
        """Rows of each virtual node."""
        counts: Ints = self.files.counts.reshape(-1, self._each).sum(1)
        return counts

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the regions in use and of the heap: they may take memory."""
        return self._region_bytes + int(self.files.heap_end[0] - self.files.header[HEAP_BEGIN])

    def _measure(self) -> None:
        used = self.files.places[self.files.places != 0] & 63
        self._region_bytes = self.files.header_bytes + int((1 << used).sum()) * self.files.row_bytes

    def room_for(self, rows: int) -> int:
        """Upper bound of the disk space of this many new rows in the present regions: each on pages of its own."""
        return min(rows * (mapped.PAGE_BYTES + self.files.row_bytes), int(self.files.end[0]) * self.files.row_bytes)

    # -- changing ---------------------------------------------------------------------------------------------------

    def expect(self, earlier: SliceTable) -> None:
        """This new table will have about as many rows as one of an earlier slice: its regions begin with room for them."""
        if earlier.files.parts == self.files.parts:
            self._expected = earlier.files.counts.copy()

    def put(self, rows: RowArrays, order: Ints, absent: bool, hints: Ints | None = None) -> None:
        """Upsert rows[order]; regions grow as needed. Raises Exhausted before any write without room.

        `hints`: positions in `slots` at which rows may be, int64 for each row of `rows`; -1: nowhere.
        """
        self.cold = False
        if hints is not None:
            order = self._put_hinted(rows, order, hints)
            if not order.size:
                return
        before, end = self.files.places.copy(), int(self.files.end[0])
        salts = self._salts(rows.offsets, rows.data, order)
        expected = rows_of_parts(order, rows.hashes, self.files.parts, self._part_bits)
        if self._expected is not None:
            expected = np.where(expected > 0, np.maximum(expected, self._expected), 0)
        step = min(GRANT_BYTES // self.files.row_bytes, order.size << table.BITS_MIN)
        granted = start = 0
        while True:
            self.files.header[DIRTY] = 1
            ends = self.files.end, self.files.heap_end
            start, need = table.put(
                self._arrays,
                ends,
                granted,
                expected,
                self._part_bits,
                self.by_bytes,
                order,
                tuple(rows),
                salts,
                self.files.seed,
                absent,
                start,
            )
            self.files.header[DIRTY] = 0
            if need == table.DONE:
                break
            if need == table.HEAP_FULL:
                row = order[start]
                self.files.extend_heap(4 + int(rows.offsets[row + 1] - rows.offsets[row]))
            else:
                granted = self.files.grant(max(step, need))
        if self.files.end[0] > end:  # otherwise no region has moved
            self._left(before)

    def _put_hinted(self, rows: RowArrays, order: Ints, hints: Ints) -> Ints:
        """Write the rows that are still where the hints say; returns the other ones."""
        f = self.files
        f.header[DIRTY] = 1
        others: Ints = table.put_hinted(
            f.slots, f.heap, f.places, f.sums, self._part_bits, self.by_bytes, order, tuple(rows), hints
        )
        f.header[DIRTY] = 0
        return others

    def _salts(self, offsets: Ints, data: Bytes, order: Ints) -> Ints:
        """Salts of the keys of rows `order`; none for integer keys, whose hashes are distinct."""
        salted = self.by_bytes and self.files.seed != 0
        return key_salts(offsets, data, order, self.files.seed) if salted else NO_INTS

    def _left(self, before: Ints) -> None:
        """Regions that were abandoned since `before` are garbage."""
        left = before[(before != self.files.places) & (before != 0)]
        self._garbage.add(self.files.bytes_of_rows(int(p >> table.PLACE_BITS), 1 << int(p & 63)) for p in np.sort(left))
        self._measure()

    def remove(self, vnodes: Ints, newest: int, until: int, changed: int, epoch: int) -> None:
        """Remove rows of these virtual nodes, as the kernel decides; parts with few rows left get a smaller region."""
        parts = self._parts_of(vnodes)
        parts = parts[self.files.counts[parts] > 0]
        self.files.header[DIRTY] = 1
        table.remove(self._arrays, self.by_bytes, self.files.seed, parts, newest, until, changed, epoch)
        bits = np.maximum(np.frexp(SPARE_TIMES * self.files.counts[parts])[1], table.BITS_MIN)
        now = self.files.places[parts] & 63
        few = (bits + SHRINK_BITS <= now) & (self.files.row_bytes << now >= SHRINK_BYTES)
        rows = int((np.int64(1) << bits[few]).sum())
        if rows and mapped.has_room(self.files.directory, rows * self.files.row_bytes):
            self.files.grant(rows)
            before = self.files.places.copy()
            files = self.files
            table.shrink(files.slots, files.places, files.end, parts[few], bits[few], files.seed)
            self._left(before)
        self.files.header[DIRTY] = 0

    def settle(self) -> None:
        """Forget dropped virtual nodes. After an interruption, repeat it."""
        gone = self._drops.gone(int(self.files.header[DROPS]) + 1)
        if gone is None:
            return
        gone = np.repeat(gone, self._each)
        before = self.files.places.copy()
        self.files.header[DIRTY] = 1
        self.files.places[gone] = 0
        self.files.counts[gone] = 0
        self.files.key_bytes[gone] = 0
        self.files.sums[gone] = 0
        self.files.header[[DROPS, DROPS_AGAIN]] = self._drops.last
        self.files.header[DIRTY] = 0
        self._left(before)

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def find_garbage(self) -> None:
        """Find garbage of earlier processes, too: all space outside the regions and the keys."""
        used = np.sort(self.files.places[self.files.places != 0])
        at = 0
        for place in used.tolist():
            first = place >> table.PLACE_BITS
            if first > at:
                self._garbage.add([self.files.bytes_of_rows(at, first - at)])
            at = first + (1 << (place & 63))
        if self.files.end[0] > at:
            self._garbage.add([self.files.bytes_of_rows(at, int(self.files.end[0]) - at)])
        if self.files.header[HEAP_BEGIN]:
            self._garbage.add([(self.files.heap_path, 0, int(self.files.header[HEAP_BEGIN]))])

    def tidy(self) -> bool:
        """Free a little of the unneeded space; False when there is none, or it is too soon."""
        return self._garbage.give_back() or (self.by_bytes and self._move_keys())

    @property
    def is_littered(self) -> bool:
        """Whether space is left to free: after this object is closed, `find_garbage` has to find it again."""
        return self._garbage.is_left

    def _move_keys(self) -> bool:
        """Once most of the heap is dead, the live keys are copied behind it, some regions at a time."""
        begin, end = int(self.files.header[HEAP_BEGIN]), int(self.files.heap_end[0])
        if self._moving is None:
            if end - begin < max(DEAD_TIMES * KEYS_BYTES, 2 * int(self.files.key_bytes.sum())):
                return False
            self._moving = 0, end
        part, mark = self._moving
        moved = 0
        while part < self.files.parts and moved < KEYS_BYTES:
            need = int(self.files.key_bytes[part])
            if need:
                if not mapped.has_room(self.files.directory, need + slice_files.HEAP_GRANT_BYTES):
                    self._moving = None
                    return False
                if int(self.files.heap_end[0]) + need > self.files.heap.size:
                    self.files.extend_heap(need)
                table.move_keys(self.files.slots, self.files.heap, self.files.places[part], self.files.heap_end, mark)
            moved += need
            part += 1
        self._moving = part, mark
        if part == self.files.parts:
            self._moving = None
            self.files.header[HEAP_BEGIN] = mark
            # With the page that contains `begin`, whose first half is dead, too: only whole pages are freed.
            self._garbage.add([(self.files.heap_path, begin - begin % mapped.PAGE_BYTES, mark)])
        return True

    def page_out(self) -> None:
        """Let the system take the memory back; the table stays usable."""
        if not self.cold:
            self.files.page_out()
            self.cold = True

    def shrink(self) -> bool:
        """Free a piece of an expired slice, which is never read again. Returns False once the files are deleted."""
        return self.files.shrink()

    # -- reading ----------------------------------------------------------------------------------------------------

    def merge_stored(self, rows: Ints, order: Ints, found: Ints, codes: Ints) -> None:
        """Add the stored rows `found` (positions in `slots`) to the groups `rows[order]` in place (kernels.grouping)."""
        folding.merge_found(rows, order, found, self.files.slots, codes)

    def find(self, rows: Ints, order: Ints, offsets: Ints, data: Bytes) -> Ints:
        """Positions in `slots` of the keys of `rows[order]`, whose words 1 and 2 are hash and key; -1: absent."""
        self.cold = False
        f = self.files
        salts = self._salts(offsets, data, order)
        positions: Ints = table.find(
            f.slots, f.heap, f.places, self._part_bits, self.by_bytes, order, rows, offsets, data, salts, f.seed
        )
        return positions

    def scan(self, vnodes: Ints, at: Place, rows_max: int, bytes_max: int) -> tuple[Ints, Place | None]:
        """Copies of at most this many rows of these virtual nodes from `at` on; and where to continue, or None."""
        parts = self._parts_of(vnodes)
        found, part, row, place = table.scan(
            self.files.slots, self.files.heap, self.files.places, self.by_bytes, parts, *at, rows_max, bytes_max
        )
        return self.files.slots[found], None if part >= parts.size else (int(part), int(row), int(place))

    def regions(self, vnodes: Ints) -> Ints:
        """Places of the regions of these virtual nodes: while they are equal, the rows have not moved."""
        return self.files.places[self._parts_of(vnodes)]
