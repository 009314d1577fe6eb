"""State of one aggregate without a window: one table of all keys, some of which may be forgotten.

Its rows are fired at the end of a finite input, or after each epoch the rows that changed in it. Every member must be
able to find the changed rows, however it got them: each row has the epoch of its last change as a word of its state, in
deltas, snapshots and files. A member that has applied the deltas of an epoch also remembers their keys and reads only
these rows; a member that was opened since, or got rows of the epoch in a snapshot, reads all rows, in pieces.

With a time to live a key is forgotten once its newest event time, a word of its row, is that far behind the watermark
before an epoch. That watermark is committed, so all members and every repetition agree. From then on the row counts as
absent, and the next record of the key begins a new one. Forgotten rows leave the table some virtual nodes at a time,
when an epoch is final (`_forget`): each member does that on its own, because no reader sees the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import RowsGone
from ferry.kernels import columns
from ferry.kernels.aggregates import KEPT, value_columns, words_of
from ferry.kernels.grouping import CELLS, NO_BYTES, NO_INTS, Bytes, Ints
from ferry.store.aggregate import FIRED_BYTES_MAX, FIRED_ROWS_MAX, AggregateState
from ferry.store.expiry import require_not_expired
from ferry.store.slice_table import BEGIN, SliceTable

SLICE_START = 0
"""The only slice."""

FORGET_ROWS = 65536
"""Rows that an epoch scans for expired ones, at least."""

FORGET_TIMES = 4
"""Scan at least this many times the rows written, so expiry keeps up."""


@dataclass(frozen=True, slots=True)
class DeltaKeys:
    """The keys of one delta."""

    rows: Ints
    """int64[n, 3], in order of hash; words 1 and 2 are hash and key, as in a group"""
    offsets: Ints
    data: Bytes
    bounds: Ints
    """int64[V + 1]: first row of each virtual node"""


class UnboundedAggregateState(AggregateState):
    """Aggregates by key, in one mapped file (and one of keys) below `directory`."""

    def __init__(
        self, descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path, memory_bytes: int = 1 << 40
    ) -> None:
        """Open the state in `directory`, or an empty one."""
        super().__init__(descriptor, virtual_nodes, directory, memory_bytes)
        values = value_columns(descriptor)
        self._newest_word = CELLS + words_of(values)
        """of rows: the newest event time, if keys are forgotten"""
        self._epoch_column = 4 + len(values) + self._forgets
        """of deltas: the epoch of the last change, if changes are emitted"""
        self._epoch_word = self._newest_word + self._forgets
        """of rows"""
        self._released = -1
        self._applied = -1
        """the greatest epoch of a delta that was applied since the state was opened"""
        self._partly = -1
        """the greatest epoch whose rows may have come in another way"""
        self._changed: list[DeltaKeys] = []
        """of the epoch `_applied`"""
        self._written = 0
        """rows written since the last scan for expired ones"""
        self._looked = 0
        """the scan continues at this virtual node"""

    @property
    def _forgets(self) -> bool:
        return self.descriptor.ttl_ms is not None

    @property
    def _emits_changes(self) -> bool:
        return self.descriptor.emit == "changes"

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """After-images of these partials, of this epoch. No record is late."""
        delta, late = super().delta(parts, times, vnodes)
        at = self._epoch_column - 1
        if self._forgets and (kept := columns.integers(delta.column(at)) == KEPT).any():
            # Such a key is older than the time to live, which counts from this record on.
            own = columns.integers(self.combine(parts).column(at))
            newest = np.where(kept, own, columns.integers(delta.column(at)))
            delta = delta.set_column(at, delta.schema.field(at), pa.array(newest))
        if self._emits_changes:
            epochs = pa.array(np.full(delta.num_rows, times.epoch))
            delta = delta.set_column(self._epoch_column, delta.schema.field(self._epoch_column), epochs)
        elif self._forgets and self._ends(times):
            # Records of the last epoch are fired, however old they are.
            newest = pc.max_element_wise(delta.column(at), self._forgotten_until(times.low) + 1)
            delta = delta.set_column(at, delta.schema.field(at), newest)
        return delta, late

    def _valid(self, table: SliceTable, found: Ints, times: EpochTimes) -> Ints:
        if self._forgets:
            found[table.slots[found, self._newest_word] <= self._forgotten_until(times.low)] = -1
        return found

    def _forgotten_until(self, watermark: int) -> int:
        """The newest event time of keys that are forgotten at this watermark."""
        return watermark - (self.descriptor.ttl_ms or 0)

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, delta: pa.RecordBatch, epoch: int = 0, source: str = "", hints: Ints | None = None) -> None:
        """Set these entries, which changed in this epoch."""
        super().apply(delta, epoch, source, hints)
        self._written += delta.num_rows
        if not self._emits_changes:
            return
        if self._applied < 0:
            self._partly = max(
                self._partly, epoch
            )  # Part of the epoch may have been applied before the state was opened.
        if epoch > self._applied:
            self._applied = epoch
            self._changed.clear()
        if epoch == self._applied:
            self._changed.append(self._keys(delta))

    def _keys(self, delta: pa.RecordBatch) -> DeltaKeys:
        hashes = delta.column(1).to_numpy(zero_copy_only=True).view(np.int64)
        keys, offsets, data = hashes, NO_INTS, NO_BYTES
        if self.descriptor.int_key:
            keys = columns.integers(delta.column(2))
        else:
            offsets, data = columns.binary(delta.column(2))
        bounds = columns.split_by_vnode(delta, self.virtual_nodes)
        return DeltaKeys(np.stack((hashes, hashes, keys), axis=1), offsets, data, bounds)

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Set the entries that are missing here."""
        super().apply_absent(chunk)
        if self._emits_changes and chunk.num_rows:
            self._partly = max(self._partly, pc.max(chunk.column(self._epoch_column)).as_py())

    def release(self, epoch: int, watermark: int) -> None:
        """Forget which rows changed in this epoch; all rows once the input has ended."""
        super().release(epoch, watermark)
        self._released = max(self._released, epoch)
        if self._applied <= self._released:
            self._changed.clear()
        if self._forgets and self._slices.has(SLICE_START):
            self._forget(self._slices.table(SLICE_START))

    def _forget(self, table: SliceTable) -> None:
        """Remove expired rows of some virtual nodes. No reader exists: the last commit is final."""
        vnodes = np.flatnonzero(table.counts)
        vnodes = np.roll(vnodes, -int(np.searchsorted(vnodes, self._looked)))
        rows = max(FORGET_ROWS, FORGET_TIMES * self._written)
        scanned = vnodes[: 1 + int(np.searchsorted(np.cumsum(table.counts[vnodes]), rows))]
        until, before = self._forgotten_until(self.expired), table.totals()
        # Without emitted changes there is no such word: the other one suffices.
        changed = (self._epoch_word, self._released) if self._emits_changes else (self._newest_word, until)
        table.remove(scanned, self._newest_word, until, *changed)
        self._slices.count(before, -1)
        self._slices.count(table.totals(), 1)
        self._slices.may_be_tidied(SLICE_START)
        self._looked = int(scanned[-1]) + 1 if scanned.size else 0
        self._written = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, times: EpochTimes, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Results that changed in the epoch, or all at the end of the input; lazily. Some batches may be empty.

        Raises RowsGone when they were released, before or between two batches.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        self._require_held(times)
        if self._slices.has(SLICE_START) and (self._emits_changes or self._ends(times)):
            if self._emits_changes and times.epoch == self._applied > self._partly:
                yield from self._remembered(times, vnodes, max_rows)
            else:
                yield from self._found(times, vnodes, max_rows)

    def _ends(self, times: EpochTimes) -> bool:
        return times.low < limits.WATERMARK_END <= times.high

    def _require_held(self, times: EpochTimes) -> None:
        require_not_expired(self.descriptor.name, times.low, self.expired)
        if self._emits_changes and (times.epoch <= self._released or times.epoch < self._applied):
            held = max(self._released + 1, self._applied)
            raise RowsGone(
                f"operator {self.descriptor.name}: changes of epoch {times.epoch} are requested, but changes before epoch "
                f"{held} are forgotten"
            )

    def _remembered(self, times: EpochTimes, vnodes: Ints, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows with the applied keys, some virtual nodes at a time."""
        counts = np.cumsum(
            sum((np.diff(keys.bounds)[vnodes] for keys in self._changed), np.zeros(vnodes.size, np.int64))
        )
        begin = taken = 0
        while begin < vnodes.size:
            self._require_held(times)
            end = max(begin + 1, int(np.searchsorted(counts, taken + max_rows, "right")))
            table, piece = self._slices.table(SLICE_START), vnodes[begin:end]
            places = [
                table.find(keys.rows, columns.range_indices(keys.bounds, piece), keys.offsets, keys.data)
                for keys in self._changed
            ]
            # A delta that was applied twice has each key twice; keys of a dropped virtual node are absent: -1.
            place = np.sort(np.concatenate([NO_INTS, *places]))
            once = place[np.diff(place, prepend=-1) > 0]
            yield from self._batches(table.slots[once], table.heap, times, max_rows)
            begin, taken = end, int(counts[end - 1])

    def _found(self, times: EpochTimes, vnodes: Ints, max_rows: int) -> Iterator[pa.RecordBatch]:
        """All rows that fire, in order of the table."""
        regions, at = self._slices.table(SLICE_START).regions(vnodes), (BEGIN if vnodes.size else None)
        while at is not None:
            self._require_held(times)
            table = self._slices.table(SLICE_START)
            if not np.array_equal(table.regions(vnodes), regions):
                raise RowsGone(f"operator {self.descriptor.name}: rows that were being read have changed")
            rows, at = table.scan(vnodes, at, max_rows, FIRED_BYTES_MAX)
            yield from self._batches(rows, table.heap, times, max_rows)

    def _batches(self, rows: Ints, heap: Bytes, times: EpochTimes, max_rows: int) -> list[pa.RecordBatch]:
        if self._emits_changes:
            rows = rows[rows[:, self._epoch_word] == times.epoch]
        elif self._forgets:
            rows = rows[rows[:, self._newest_word] > self._forgotten_until(times.low)]
        bytes_each = 1 + int(self._slices.bytes.sum()) // max(1, int(self._slices.entries.sum()))
        step = max(1, min(max_rows, FIRED_BYTES_MAX // bytes_each))
        begins = range(0, max(1, rows.shape[0]), step)
        return [self._results(rows[a : a + step], heap, NO_INTS) for a in begins]

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """Approximate number of rows that `fired` will yield once this delta of these virtual nodes is applied."""
        if self._emits_changes:
            return delta.num_rows
        return delta.num_rows + int(self._slices.entries[vnodes].sum()) if self._ends(times) else 0
