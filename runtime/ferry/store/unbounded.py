"""State of one aggregate without a window: one table of all keys, which only grows.

Its rows are fired when a finite input ends, or those that changed in an epoch after it. What changed has to be found by
every member that may be asked, whatever it came through: each row has the epoch of its last change as a word of its state.
So it is in deltas and snapshots, and in the files. A member that has applied the deltas of an epoch also remembers their
keys, and looks at nothing else; one that was opened since, or that was given rows of the epoch in a snapshot, looks at
all rows, in pieces.
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
from ferry.kernels.aggregates import value_columns, words_of
from ferry.kernels.grouping import CELLS, NO_BYTES, NO_INTS, Bytes, Ints
from ferry.store.aggregate import FIRED_BYTES_MAX, FIRED_ROWS_MAX, AggregateState
from ferry.store.slice_table import BEGIN

SLICE_START = 0
"""The one slice there is."""


@dataclass(frozen=True, slots=True)
class DeltaKeys:
    """The keys of one delta."""

    rows: Ints
    """int64[n, 3], in order of hash; words 1 and 2 are hash and key, as in a group"""
    offsets: Ints
    data: Bytes
    bounds: Ints
    """int64[V + 1]: where those of a virtual node begin"""


class UnboundedAggregateState(AggregateState):
    """Aggregates by key, in one mapped file (and one of keys) below `directory`."""

    def __init__(
        self, descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path, memory_bytes: int = 1 << 40
    ) -> None:
        """Open the state that is in `directory`, or an empty one."""
        super().__init__(descriptor, virtual_nodes, directory, memory_bytes)
        values = value_columns(descriptor)
        self._epoch_column = 4 + len(values)
        """of deltas: the epoch of the last change, where changes are emitted"""
        self._epoch_word = CELLS + words_of(values)
        """of rows"""
        self._released = -1
        self._applied = -1
        """the greatest epoch of which a delta was applied since the state was opened"""
        self._partly = -1
        """the greatest epoch of which rows may have come in another way"""
        self._changed: list[DeltaKeys] = []
        """of the epoch `_applied`"""

    @property
    def _emits_changes(self) -> bool:
        return self.descriptor.emit == "changes"

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """After-images of these partials, of this epoch. Nothing is late."""
        delta, late = super().delta(parts, times, vnodes)
        if self._emits_changes:
            epochs = pa.array(np.full(delta.num_rows, times.epoch))
            delta = delta.set_column(self._epoch_column, delta.schema.field(self._epoch_column), epochs)
        return delta, late

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, delta: pa.RecordBatch, epoch: int = 0, source: str = "") -> None:
        """Set these entries, which have changed in this epoch."""
        super().apply(delta, epoch, source)
        if not self._emits_changes:
            return
        if self._applied < 0:
            self._partly = max(self._partly, epoch)  # A part of it may have been applied before the state was opened.
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
        """Set those of these entries that are not there."""
        super().apply_absent(chunk)
        if self._emits_changes and chunk.num_rows:
            self._partly = max(self._partly, pc.max(chunk.column(self._epoch_column)).as_py())

    def release(self, epoch: int, watermark: int) -> None:
        """Forget which rows changed in this epoch; all rows once the input has ended."""
        super().release(epoch, watermark)
        self._released = max(self._released, epoch)
        if self._applied <= self._released:
            self._changed.clear()

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, times: EpochTimes, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Results that changed in the epoch, or all at the end of the input; lazily. Some batches may be empty.

        Raises RowsGone when they were released, before or between two batches.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        self._require_held(times)
        if self._has(SLICE_START) and (self._emits_changes or self._ends(times)):
            if self._emits_changes and times.epoch == self._applied > self._partly:
                yield from self._remembered(times, vnodes, max_rows)
            else:
                yield from self._found(times, vnodes, max_rows)

    def _ends(self, times: EpochTimes) -> bool:
        return times.low < limits.WATERMARK_END <= times.high

    def _require_held(self, times: EpochTimes) -> None:
        self._require_not_expired(times.low)
        if self._emits_changes and (times.epoch <= self._released or times.epoch < self._applied):
            held = max(self._released + 1, self._applied)
            raise RowsGone(
                f"operator {self.descriptor.name}: changes of epoch {times.epoch} are wanted, but those before epoch {held} "
                "are forgotten"
            )

    def _remembered(self, times: EpochTimes, vnodes: Ints, max_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows with the keys that were applied, some virtual nodes at a time."""
        counts = np.cumsum(
            sum((np.diff(keys.bounds)[vnodes] for keys in self._changed), np.zeros(vnodes.size, np.int64))
        )
        begin = taken = 0
        while begin < vnodes.size:
            self._require_held(times)
            end = max(begin + 1, int(np.searchsorted(counts, taken + max_rows, "right")))
            table, piece = self._table(SLICE_START), vnodes[begin:end]
            places = [
                table.find(keys.rows, columns.range_indices(keys.bounds, piece), keys.offsets, keys.data)
                for keys in self._changed
            ]
            # Of a delta that was applied twice each key is there twice; of a virtual node that was dropped none is: -1.
            place = np.sort(np.concatenate([NO_INTS, *places]))
            once = place[np.diff(place, prepend=-1) > 0]
            yield from self._batches(table.slots[once], table.heap, times, max_rows)
            begin, taken = end, int(counts[end - 1])

    def _found(self, times: EpochTimes, vnodes: Ints, max_rows: int) -> Iterator[pa.RecordBatch]:
        """All rows that fire, one after the other."""
        places, at = self._table(SLICE_START).places[vnodes].copy(), BEGIN
        while at[0] < vnodes.size:
            self._require_held(times)
            table = self._table(SLICE_START)
            if not np.array_equal(table.places[vnodes], places):
                raise RowsGone(f"operator {self.descriptor.name}: rows that were being read have changed")
            rows, at = table.scan(vnodes, at, max_rows, FIRED_BYTES_MAX)
            yield from self._batches(rows, table.heap, times, max_rows)

    def _batches(self, rows: Ints, heap: Bytes, times: EpochTimes, max_rows: int) -> list[pa.RecordBatch]:
        if self._emits_changes:
            rows = rows[rows[:, self._epoch_word] == times.epoch]
        bytes_each = 1 + int(self._bytes.sum()) // max(1, int(self._entries.sum()))
        step = max(1, min(max_rows, FIRED_BYTES_MAX // bytes_each))
        begins = range(0, max(1, rows.shape[0]), step)
        return [self._results(rows[a : a + step], heap, SLICE_START) for a in begins]

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """About how many rows `fired` will yield once this delta of these virtual nodes is applied."""
        if self._emits_changes:
            return delta.num_rows
        return delta.num_rows + int(self._entries[vnodes].sum()) if self._ends(times) else 0
