"""State of one windowed aggregate in one instance, for all its virtual nodes.

One table per slice (`Slices`). State changes by `apply` (and `apply_absent`, `release`, `drop`); `delta` only computes the
changes. Iterators read the state again at every step, so deltas may be applied between two `next()`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import OVERFLOW, DataRefused
from ferry.kernels import aggregates, columns, grouping, keys, panes, schemas, values
from ferry.kernels.folding import slide
from ferry.kernels.grouping import CELLS, COUNT, KEY, NO_BYTES, NO_INTS, SLICE, Ints, heap_keys
from ferry.kernels.groups import Groups, by_key, merged
from ferry.store.expiry import PriorSlices, PriorState, require_not_expired
from ferry.store.slice_files import PARTS_MIN
from ferry.store.slice_table import BEGIN, Place, RowArrays, SliceTable
from ferry.store.slices import Slices

FIRED_ROWS_MAX = 65536
FIRED_BYTES_MAX = 64 * 1024 * 1024

SLIDE_MIN, SLIDE_TIMES = 3, 4
"""Windows that overlap and end in one epoch are read together, if there are at least SLIDE_MIN: at a time SLIDE_TIMES as
many as overlap."""
SLID_ROWS = 1 << 18
"""Rows of whole virtual nodes that are read together: each slice is opened once for them."""

COUNT_SLICES_MAX = 256
"""Largest number of slices that are read, and maybe opened, to count fired rows; more slices are sampled."""

SLICES_A_CHUNK = 256
"""Largest number of slices that one step reads."""


class AggregateState:
    """Windowed aggregates by (slice, key), in mapped files below `directory`."""

    def __init__(
        self, descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path, memory_bytes: int = 1 << 40
    ) -> None:
        """Open the state in `directory`, or an empty one; files of unfinished growth are removed."""
        assert descriptor.kind == "aggregate", descriptor.kind
        assert virtual_nodes & (virtual_nodes - 1) == 0 and virtual_nodes <= limits.VIRTUAL_NODES_MAX, virtual_nodes
        self.descriptor = descriptor
        self.virtual_nodes = virtual_nodes
        self.directory = directory
        self.memory_bytes = memory_bytes
        self._codes = aggregates.merge_codes(descriptor)
        self._by_bytes = not descriptor.int_key
        self.expired = limits.WATERMARK_NONE
        self.hints = NO_INTS
        """of each row of the last delta: its position in its table, -1: none"""
        directory.mkdir(parents=True, exist_ok=True)
        width = CELLS + self._codes.size
        self._slices = Slices(directory, virtual_nodes, width, self._by_bytes, memory_bytes)

    # -- merging ----------------------------------------------------------------------------------------------------

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Merge partials by (slice, key). The result is sorted by virtual node. Reads no state."""
        groups = self._grouped([columns.to_partials(self.descriptor, b) for b in batches if b.num_rows])
        return self._batch(groups)

    def _grouped(self, partials: list[columns.PartialArrays]) -> tuple[Ints, grouping.Bytes]:
        bits = max(self.virtual_nodes, PARTS_MIN).bit_length() - 1
        return merged(partials, self._by_bytes, bits, self._codes)

    def _batch(self, groups: tuple[Ints, grouping.Bytes]) -> pa.RecordBatch:
        return columns.from_groups(self.descriptor, *groups)

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """After-images of these partials, sorted by virtual node, and the number of late records, which are dropped.

        A slice is late when its last window had ended at the watermark before the epoch. The state is not changed; the
        partials must belong to virtual nodes that this instance leads.
        """
        late, timely = 0, []
        for batch in parts:
            if batch.num_rows == 0:
                continue
            slices = batch.column("slice").to_numpy(zero_copy_only=True)
            is_late = panes.last_ends(self.descriptor.window, slices) <= times.low
            if is_late.any():
                late += int(batch.column("n").to_numpy()[is_late].sum())
                batch = batch.filter(pa.array(~is_late))
            timely.append(columns.to_partials(self.descriptor, batch))
        rows, heap = self._grouped(timely)
        offsets, data = heap_keys(heap, np.ascontiguousarray(rows[:, KEY])) if self._by_bytes else (NO_INTS, NO_BYTES)
        distinct, bounds, order = columns.slice_groups(
            np.ascontiguousarray(rows[:, SLICE]), self.descriptor.window.pane_ms
        )
        self.hints = np.full(rows.shape[0], -1, np.int64)
        for i, slice_start in enumerate(distinct.tolist()):
            if self._slices.has(slice_start):
                chosen, table = order[bounds[i] : bounds[i + 1]], self._slices.table(slice_start)
                self.hints[chosen] = positions = table.find(rows, chosen, offsets, data)
                table.merge_stored(rows, chosen, self._valid(table, positions, times), self._codes)
        return self._batch((rows, heap)), late

    def _valid(self, table: SliceTable, rows: Ints, times: EpochTimes) -> Ints:
        """Places of rows in the table that are valid in this epoch; -1 otherwise."""
        return rows

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, delta: pa.RecordBatch, epoch: int = 0, source: str = "", hints: Ints | None = None) -> None:
        """Set these entries; idempotent. Raises Exhausted before a write without room.

        `hints`: int64 for each row, of a delta that was computed here (`self.hints`). They save the search for a row that
        is still there.
        """
        self._apply(delta, absent=False, hints=hints)

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Set the entries that are missing here: a snapshot never overwrites a delta that was applied before it."""
        self._apply(chunk, absent=True)

    def _apply(self, batch: pa.RecordBatch, absent: bool, hints: Ints | None = None) -> None:
        if batch.num_rows == 0:
            return
        p = columns.to_partials(self.descriptor, batch)
        distinct, bounds, order = columns.slice_groups(p.slices, self.descriptor.window.pane_ms)
        rows = RowArrays(p.hashes, p.keys, p.offsets, p.data, p.n, p.cells)
        # Expired slices stay expired, also when an old delta is applied again.
        live = [
            (s, order[bounds[i] : bounds[i + 1]])
            for i, s in enumerate(distinct.tolist())
            if self.descriptor.window.last_end(s) > self.expired
        ]
        for s, chosen in live:
            self._slices.put(s, rows, chosen, absent, hints)
        self._slices.trim_memory(len(live))

    def release(self, epoch: int, watermark: int) -> None:
        """Forget the slices whose last window has ended at this watermark; they never come back."""
        self.expired = max(self.expired, watermark)
        starts = self._slices.starts
        self._slices.expire(bisect_left(starts, True, key=lambda s: self.descriptor.window.last_end(s) > self.expired))

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes. After an interruption, repeat it."""
        self._slices.drop(np.asarray(vnodes, np.int64))

    def work(self) -> bool:
        """Free a little of the unneeded space; False when there was none, or not yet (`is_tidy`)."""
        return self._slices.work()

    @property
    def is_tidy(self) -> bool:
        """Whether no space is left to give back, now or later."""
        return self._slices.is_tidy

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, times: EpochTimes, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Results of the windows with low < window_end <= high for these virtual nodes (schemas.fired_schema), lazily.

        Raises RowsGone when slices of these windows expired, before or between two batches.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        require_not_expired(self.descriptor.name, times.low, self.expired)
        slices, window = np.array(self._slices.starts, np.int64), self.descriptor.window
        starts, froms, tos = panes.windows_between(window, slices, times.low, times.high)
        overlap = window.size_ms // window.slide_ms
        if overlap > 1 and starts.size >= SLIDE_MIN:
            step = max(SLIDE_MIN, SLIDE_TIMES * overlap)
            for a in range(0, starts.size, step):
                last = min(a + step, starts.size) - 1
                yield from self._slid(starts[[a, last]], slices[froms[a] : tos[last]], times, vnodes, max_rows)
            return
        for start, a, b in zip(starts.tolist(), froms.tolist(), tos.tolist(), strict=True):
            for mine, batch_rows in self._chunks(slices[a:b], times, vnodes, max_rows, max_rows):
                rows, heap = self._window_rows(slices[a:b].tolist(), mine)
                for at in range(0, rows.shape[0], batch_rows):
                    some = rows[at : at + batch_rows]
                    yield self._results(some, heap, np.full(some.shape[0], start))

    def _chunks(
        self, pane_starts: Ints, times: EpochTimes, vnodes: Ints, rows_max: int, max_rows: int
    ) -> Iterator[tuple[Ints, int]]:
        """Cut virtual nodes so that these slices have few rows and bytes of each piece: (piece, rows for a batch).

        The rows of a piece are to be copied at once, so that changes between two batches do not affect them.
        """
        totals = np.zeros((2, vnodes.size), np.int64)
        for s in pane_starts.tolist():
            totals += np.stack(self._slices.table(s).totals())[:, vnodes]
        begin = 0
        while begin < vnodes.size:
            require_not_expired(self.descriptor.name, times.low, self.expired)
            counts, size = np.cumsum(totals[:, begin:], axis=1)
            end = int(min(np.searchsorted(counts, rows_max, "right"), np.searchsorted(size, FIRED_BYTES_MAX, "right")))
            end = max(1, end)
            if counts[end - 1]:
                batch_rows = int(counts[end - 1]) * FIRED_BYTES_MAX // max(1, int(size[end - 1]))
                yield vnodes[begin : begin + end], max(1, min(max_rows, batch_rows))
            begin += end

    def _slid(
        self, bounds: Ints, pane_starts: Ints, times: EpochTimes, vnodes: Ints, max_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Many windows that overlap, from the first start to the last: each row of a slice is merged twice, and not once for
        each of its windows."""
        window = self.descriptor.window
        first, last = (bounds // window.slide_ms).tolist()
        for mine, batch_rows in self._chunks(pane_starts, times, vnodes, max(max_rows, SLID_ROWS), max_rows):
            partials = [self._pane(s, mine, s) for s in pane_starts.tolist()]
            bits = PARTS_MIN.bit_length() - 1
            rows, heap, keys_at = by_key([p for p in partials if p.n.size], self._by_bytes, bits, self._codes.size)
            group, number = 0, first
            while group < keys_at.size - 1:
                out = np.empty((batch_rows, rows.shape[1]), np.int64)
                times_of = window.size_ms, window.slide_ms, window.pane_ms
                used, group, number = slide(rows, keys_at, times_of, first, last, self._codes, out, group, number)
                if used:
                    yield self._results(out[:used], heap, out[:used, SLICE])

    def _pane(self, start: int, vnodes: Ints, slice_start: int) -> columns.PartialArrays:
        """The rows of a slice, with this number as their slice."""
        table = self._slices.table(start)
        rows, _ = table.scan(vnodes, BEGIN, int(table.counts[vnodes].sum()), 1 << 62)
        offsets, data = NO_INTS, NO_BYTES
        if self._by_bytes:
            offsets, data = heap_keys(table.heap, np.ascontiguousarray(rows[:, KEY]))
        hashes = np.ascontiguousarray(rows[:, grouping.HASH]).view(np.uint64)
        ints, n = np.ascontiguousarray(rows[:, KEY]), np.ascontiguousarray(rows[:, COUNT])
        slices = np.full(n.size, slice_start, np.int64)
        return columns.PartialArrays(slices, hashes, ints, offsets, data, n, np.ascontiguousarray(rows[:, CELLS:]))

    def _window_rows(self, pane_starts: list[int], vnodes: Ints) -> tuple[Ints, grouping.Bytes]:
        if len(pane_starts) == 1:
            table = self._slices.table(pane_starts[0])
            rows, _ = table.scan(vnodes, BEGIN, int(table.counts[vnodes].sum()), 1 << 62)
            return rows, table.heap
        groups = Groups(self._codes, self._by_bytes)
        for p in (self._pane(s, vnodes, 0) for s in pane_starts):
            groups.add(p.slices, p.hashes, p.keys, p.offsets, p.data, p.n, p.cells)
        return groups.rows(), groups.heap

    def _results(self, rows: Ints, heap: grouping.Bytes, starts: Ints) -> pa.RecordBatch:
        hashes = np.ascontiguousarray(rows[:, grouping.HASH]).view(np.uint64)
        out = keys.fired(self.descriptor, hashes, rows[:, KEY], heap)
        bounds = (starts, starts + self.descriptor.window.size_ms) if self.descriptor.windowed else ()
        out += [pa.array(np.ascontiguousarray(bound)) for bound in bounds]
        cells = columns.cell_arrays(self.descriptor, rows[:, CELLS:])
        records = pa.array(np.ascontiguousarray(rows[:, COUNT]))
        for place in aggregates.places(self.descriptor):
            try:
                out.append(place.results(cells[place.state], records, rows[:, -1]))
            except values.Beyond as beyond:
                window = f" in the window from {starts[beyond.row]}" if self.descriptor.windowed else ""
                a, key = place.aggregate, keys.text_of(out[: len(self.descriptor.key)], beyond.row)
                what = f"operator {self.descriptor.name}, {a.name}={a.function}({a.column!r}): the sum of a key{window}"
                raise DataRefused(f"{OVERFLOW}{what} is {beyond}: key {key}; {values.way_on(a)}") from beyond
        return pa.RecordBatch.from_arrays(out, schema=schemas.fired_schema(self.descriptor))

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """Approximate number of rows that `fired` will yield once this delta of these virtual nodes is applied."""
        return self.fired_count(times, vnodes) + delta.num_rows * panes.ends_of_a_row(self.descriptor.window, times)

    def fired_count(self, times: EpochTimes, vnodes: Ints) -> int:
        """Upper bound of the rows of `fired`, exact for tumbling windows; of many slices an estimate, never 0."""
        slices = np.array(self._slices.starts, np.int64)
        _, froms, tos = panes.windows_between(self.descriptor.window, slices, times.low, times.high)
        begun, ended = (np.bincount(positions, minlength=slices.size + 1) for positions in (froms, tos))
        fires = np.flatnonzero(np.cumsum(begun - ended))
        sample = fires[:: max(1, -(-fires.size // COUNT_SLICES_MAX))]
        rows = np.zeros(slices.size, np.int64)
        for position in sample.tolist():
            rows[position] = self._slices.table(int(slices[position])).counts[vnodes].sum()
        before = np.append(0, np.cumsum(rows))
        counted = int((before[tos] - before[froms]).sum())
        return counted if sample.size == fires.size else max(1, counted * fires.size // sample.size)

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """Fuzzy scan: yields every entry that exists from begin to end at least once, with a value that it had during
        the scan.

        Chunks are of approximately `chunk_bytes` and have the schema of partials, in no order.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        pending: list[pa.RecordBatch] = []
        room = chunk_bytes
        for number, slice_start in enumerate(list(self._slices.starts)):
            if number % SLICES_A_CHUNK == SLICES_A_CHUNK - 1:
                # Yielded even without rows of these virtual nodes: the caller has other work between chunks.
                yield pa.concat_batches(pending) if pending else columns.empty(schemas.partials_schema(self.descriptor))
                pending, room = [], chunk_bytes
            at: Place | None = BEGIN
            while at is not None and self._slices.has(slice_start):
                table = self._slices.table(slice_start)
                rows, at = table.scan(vnodes, at, max(1, room // (table.row_bytes + 8 * self._by_bytes)), max(1, room))
                if rows.shape[0]:
                    rows[:, SLICE] = slice_start  # In a table this word is `used`; in a group it is the slice.
                    pending.append(columns.from_groups(self.descriptor, rows, table.heap))
                    room -= pending[-1].nbytes
                if room <= 0 or at is not None:
                    yield pa.concat_batches(pending)
                    pending, room = [], chunk_bytes
        if pending:
            yield pa.concat_batches(pending)

    def prior_state(self, vnodes: Ints) -> PriorState:
        """The present state of these virtual nodes: all windows up to the last one of their last slice."""
        held = reversed(self._slices.starts if self._slices.entries[vnodes].any() else ())
        newest = next((s for s in held if self._slices.table(s).counts[vnodes].any()), None)
        return PriorSlices(self.descriptor.window, newest, lambda: self.expired)

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries` int64 per virtual node (of `vnodes`, or all), `slices`."""
        chosen = slice(None) if vnodes is None else vnodes
        return {
            "entries": self._slices.entries[chosen],
            "bytes": self._slices.bytes[chosen],
            "slices": len(self._slices.starts),
        }
