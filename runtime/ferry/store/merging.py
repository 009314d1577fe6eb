"""Merges segments into one, in pieces: the cost of a step does not depend on their size.

The inputs are sorted by hash, so a piece is the rows of all inputs below some hash. The sequence number of the result
is taken when the merge begins: a virtual node that is dropped during the merge is dropped in the result, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from ferry.kernels.grouping import order_by_hash
from ferry.store import segments
from ferry.store.segments import Segment, SegmentPart, Writer

Living = Callable[[Segment, pa.RecordBatch], pa.RecordBatch]
"""The rows of a batch of a segment that are not dropped."""


class _Cursor:
    """Read position of one input. `share`: its rows per piece."""

    def __init__(self, segment: Segment, share: int) -> None:
        self.segment = segment
        self.share = share
        self._part = self._row = 0

    @property
    def _at(self) -> SegmentPart | None:
        return self.segment.parts[self._part] if self._part < len(self.segment.parts) else None

    def bound(self) -> np.uint64 | None:
        """The highest hash up to which this input may be taken in one piece; None: to the end."""
        part = self._at
        if part is None:
            return None
        row = self._row + self.share
        if row < part.hashes.size:
            return np.uint64(part.hashes[row])
        following = self._part + 1
        return np.uint64(self.segment.parts[following].hashes[0]) if following < len(self.segment.parts) else None

    def take(self, bound: np.uint64 | None, equal: bool) -> pa.RecordBatch | None:
        """Rows below the bound; with `equal` the rows at the bound, at most `share`."""
        part = self._at
        if part is None:
            return None
        end = part.hashes.size
        if bound is not None:
            end = int(np.searchsorted(part.hashes, bound, side="right" if equal else "left"))
        if equal:
            end = min(end, self._row + self.share)
        if end <= self._row:
            return None
        begin, self._row = self._row, end
        if end == part.hashes.size:
            self._part, self._row = self._part + 1, 0
        return self.segment.rows_of(part).slice(begin, end - begin)


class Merge:
    """One merge under way; call `step` until `outcome` is set."""

    def __init__(
        self, directory: Path, sequence: int, level: int, inputs: Sequence[Segment], schema: pa.Schema
    ) -> None:
        self.inputs = tuple(inputs)
        size, virtual_nodes = max(1, sum(s.bytes for s in inputs)), inputs[0].counts.size
        self._cursors = [_Cursor(s, max(1, s.rows * segments.PART_BYTES // size)) for s in inputs]
        self._writer = Writer(directory, sequence, level, schema, segments.joined_about(inputs), virtual_nodes)
        self.finished = False
        self.outcome: Segment | None = None
        """None also when no row of the inputs is left"""

    def step(self, living: Living) -> int:
        """Merge one piece; returns approximately the bytes read."""
        taken: list[tuple[Segment, pa.RecordBatch]] = []
        size = 0
        # Where the inputs do not overlap, they have few rows below one bound.
        while 2 * size < segments.PART_BYTES and (more := self._below_next_bound()):
            taken += more
            size += sum(found.nbytes for _, found in more)
        if not taken:
            self.outcome = self._writer.finish()
            self.finished = True
        batches = [batch for segment, found in taken if (batch := living(segment, found)).num_rows]
        if batches:
            whole = pa.concat_batches(batches)
            if len(batches) > 1:
                whole = whole.take(pa.array(order_by_hash(segments.hashes_of(whole))))
            self._writer.add(whole)
        return size

    def _below_next_bound(self) -> list[tuple[Segment, pa.RecordBatch]]:
        bounds = [bound for c in self._cursors if (bound := c.bound()) is not None]
        bound = min(bounds) if bounds else None
        return self._take(bound, equal=False) or self._take(bound, equal=True)

    def _take(self, bound: np.uint64 | None, equal: bool) -> list[tuple[Segment, pa.RecordBatch]]:
        return [(c.segment, found) for c in self._cursors if (found := c.take(bound, equal)) is not None]
