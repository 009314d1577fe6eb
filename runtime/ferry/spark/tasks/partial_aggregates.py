"""Converts records of a task to partial aggregates by (slice, key), merged in the task.

Memory is bounded: a full table becomes an output batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import aggregates, columns
from ferry.kernels.contributions import contribute, records_at_once
from ferry.kernels.grouping import CELLS, NO_INTS
from ferry.kernels.groups import Groups
from ferry.spark.tasks.records import KeyedRecords

GROUPS_MAX = 1 << 18
"""Groups of one task before they become an output batch: 8 MiB for count()."""

GROUPS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of groups of one task before they become an output batch."""

KEY_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of keys of one task before they become an output batch."""


_unused: dict[tuple[bytes, bool, int], Groups] = {}
"""Empty tables of this process, by kind: each page of a new one costs a fault."""


class PartialAggregates:
    """Partial aggregates of the one input of an operator."""

    def __init__(self, descriptor: OperatorDescriptor, groups_max: int = GROUPS_MAX) -> None:
        self._descriptor = descriptor
        codes = aggregates.merge_codes(descriptor)
        rows_max = min(groups_max, GROUPS_BYTES_MAX // (8 * (CELLS + codes.size)))
        self._kind = codes.tobytes(), descriptor.int_key, rows_max
        spare = _unused.pop(self._kind) if self._kind in _unused else None
        self._groups = spare or Groups(codes, not descriptor.int_key, rows_max, KEY_BYTES_MAX)
        self._at_once = records_at_once(descriptor)
        self._full: list[pa.RecordBatch] = []
        self._drained = False

    @property
    def numbers(self) -> list[str]:
        """Columns whose values the state keeps."""
        kept = (a for a in self._descriptor.aggregates if aggregates.reads_values(a))
        return [c for a in kept for c in (a.column, a.by) if c is not None]

    def add(self, records: KeyedRecords) -> None:
        """Merge records into the groups."""
        assert not self._drained, "another object has its table"
        for begin in range(0, records.batch.num_rows, self._at_once):
            self._add(records.slice(begin, self._at_once))

    def _add(self, r: KeyedRecords) -> None:
        # Column by column, as Arrow has them.
        cells, start = np.empty((r.batch.num_rows, self._groups.codes.size), np.int64, order="F"), 0
        contribute(self._descriptor, r.batch, r.times, cells)
        while True:
            start = self._groups.add(r.slices, r.hashes, r.keys, r.offsets, r.data, NO_INTS, cells, start)
            if start == r.hashes.size:
                return
            self._flush()

    def take_full(self) -> list[pa.RecordBatch]:
        """Take the groups that became output."""
        full, self._full = self._full, []
        return full

    def drain(self) -> list[pa.RecordBatch]:
        """Take all remaining groups; nothing may be added afterwards."""
        if not self._drained:
            self._flush()
            self._drained = True
            _unused[self._kind] = self._groups
        return self.take_full()

    def _flush(self) -> None:
        if self._groups.count:
            self._full.append(columns.from_groups(self._descriptor, self._groups.rows(), self._groups.heap))
            self._groups.clear()
