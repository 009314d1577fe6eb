"""State of one windowed join in one instance, for all its virtual nodes.

Rows are only added (`apply`, once per source of an epoch) and forgotten (`release`, `drop`), so the state is a set of
immutable segments, merged in tiers. Forgotten rows are left out at once, and leave the disk later: `work` merges,
cleans and removes in pieces, so that no step takes longer with more state. `joining` joins rows.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Bug, Exhausted
from ferry.kernels import columns, panes, schemas
from ferry.kernels.grouping import Ints
from ferry.store import mapped, segment_removal, segments
from ferry.store.dropped_vnodes import DroppedVnodes
from ferry.store.expiry import PriorSlices, PriorState
from ferry.store.inventory import Inventory
from ferry.store.joining import FIRED_ROWS_MAX, Join
from ferry.store.merging import Merge
from ferry.store.segment_removal import SegmentRemoval
from ferry.store.segments import About, Adoptions, Segment

log = logging.getLogger("ferry.store")

TIER = 16
"""Segments of one level that are merged into one of the next."""

MERGE_BYTES_MAX = 128 * 1024 * 1024
"""A merge needs as much free disk again, and a larger file takes longer to open and to remove."""

MERGE_MIN = 4
"""Fewer large segments are not merged."""

_FUEL = 4
"""Bytes merged per applied byte: every row is merged once a level, and levels grow by a factor of sixteen."""

_PARTS_A_DELTA = 2
"""Largest number of parts that `apply` merges, unless its delta is larger; `work` does the rest."""

_CLEAN_AT_ONCE = 64
"""Segments per step that are checked for dropped rows."""

IN_VAIN_MAX = 32
"""Pieces of a snapshot without rows before it yields an empty chunk."""

_ONE_NAME = (errno.EPERM, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system that cannot give a file another name."""

_CLEANING = -1
"""In place of a level: the rewrite of a single segment, most of which was dropped."""


class RowState:
    """Rows of a windowed join in segment files below `directory`."""

    def __init__(self, descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path) -> None:
        """Open the state in `directory`, or an empty one."""
        assert descriptor.kind == "join" and virtual_nodes & (virtual_nodes - 1) == 0, (descriptor.kind, virtual_nodes)
        self.descriptor = descriptor
        self.virtual_nodes = virtual_nodes
        self.directory = directory
        self._schema = schemas.rows_schema(descriptor)
        self.expired = limits.WATERMARK_NONE
        self._join = Join(descriptor, virtual_nodes, self._held, lambda: self.expired)
        directory.mkdir(parents=True, exist_ok=True)
        self._drops = DroppedVnodes(directory / "drops", virtual_nodes)
        segment_removal.finish()
        self._inventory = Inventory(directory)
        noted = self._drops.notes
        self._adoptions = Adoptions(tuple((number, tuple(names)) for number, names in noted.get("adoptions", ())))
        self._segments = segments.read_all(directory, virtual_nodes, self._inventory, self._adoptions, self._schema)
        adopted = [number for number, _ in self._adoptions.each]
        self._sequence = max([self._drops.last, 0, *adopted, *(s.sequence for s in self._segments)])
        self._epoch = max([noted.get("epoch", -1), *(s.about.epoch for s in self._segments)])
        """of the last applied delta; earlier epochs are over"""
        self._sources = set(noted["sources"]) if noted.get("epoch") == self._epoch else set()
        """sources whose delta of that epoch was applied"""
        self._sources.update(x for s in self._segments if s.about.epoch == self._epoch for x in s.about.sources)
        self._merges: dict[int, Merge] = {}
        """under way, by level"""
        self._fuel = 0
        self._removals = SegmentRemoval()
        self._unclean = deque(s.sequence for s in self._segments)
        """Segments that may have dropped rows. Numbers, because the last reference to a removed segment frees its
        bytes."""
        self._entries = np.zeros(virtual_nodes, np.int64)
        self._bytes = np.zeros(virtual_nodes, np.int64)
        for segment in self._segments:
            self._count(segment, 1)

    # -- merging of batches -----------------------------------------------------------------------------------------

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows, sorted by hash, hence by virtual node. Reads no state."""
        batches = [b for b in batches if b.num_rows]
        return columns.sorted_by_hash(batches) if batches else columns.empty(self._schema)

    def delta(
        self, parts: list[pa.RecordBatch], times: EpochTimes, vnodes: Ints | None = None
    ) -> tuple[pa.RecordBatch, int]:
        """The rows to append, sorted by hash, and the number of late ones, which are dropped (see
        AggregateState.delta)."""
        late, timely = 0, []
        for batch in parts:
            kept = self._living(batch, times.low)
            late += batch.num_rows - kept.num_rows
            timely.append(kept)
        return self.combine(timely), late

    def _living(self, batch: pa.RecordBatch, watermark: int) -> pa.RecordBatch:
        slices = batch.column("slice").to_numpy(zero_copy_only=True)
        living = panes.last_ends(self.descriptor.window, slices) > watermark
        return batch if living.all() else batch.filter(pa.array(living))

    # -- changing ---------------------------------------------------------------------------------------------------

    def apply(self, delta: pa.RecordBatch, epoch: int, source: str, hints: Ints | None = None) -> None:
        """Append rows, once per source of an epoch. Raises Exhausted when the disk is full.

        Epochs are applied in order, so only the sources of the last one are remembered: a restarted instance repeats
        its last epoch, and a learner's delta may come after the others.
        """
        if epoch < self._epoch:
            raise Bug(f"{self.directory}: rows of epoch {epoch} are applied after epoch {self._epoch}")
        if epoch == self._epoch and source in self._sources:
            return
        if self._append(delta, epoch, (source,)):
            self._sources = {*self._sources, source} if epoch == self._epoch else {source}
            self._epoch = epoch

    def apply_absent(self, chunk: pa.RecordBatch) -> None:
        """Append a chunk of a snapshot, which comes once. A snapshot holds no row of a later delta, so no row exists
        yet."""
        self._append(chunk, -1, ())

    def _append(self, rows: pa.RecordBatch, epoch: int, sources: tuple[str, ...]) -> bool:
        rows = self.combine([self._living(rows, self.expired)])
        if rows.num_rows == 0:
            return False
        last = int(rows.column("slice").to_numpy(zero_copy_only=True).max())
        writer = segments.Writer(
            self.directory, self._next(), 0, self._schema, About(epoch, sources, (), last), self.virtual_nodes
        )
        writer.add(rows)
        self._add(writer.finish())
        most = max(rows.nbytes, _PARTS_A_DELTA * segments.PART_BYTES)
        self._fuel = min(self._fuel, 0) + min(_FUEL * rows.nbytes, most)
        while self._fuel > 0 and self._merge():
            pass
        return True

    def _next(self) -> int:
        self._sequence += 1
        self._inventory.begins(self._sequence)
        return self._sequence

    def _add(self, segment: Segment | None) -> None:
        if segment is not None:
            self._inventory.add(segment.sequence, segment.digest)
            self._segments.append(segment)
            self._count(segment, 1)

    def _remove(self, gone: list[Segment]) -> None:
        numbers = {s.sequence for s in gone}
        self._inventory.remove(numbers)
        for segment in self._segments:
            if segment.sequence in numbers:
                self._count(segment, -1)
                self._removals.add(segment)
        self._segments = [s for s in self._segments if s.sequence not in numbers]

    def _count(self, segment: Segment, sign: int) -> None:
        counts = self._alive(segment)
        self._entries += sign * counts
        self._bytes += sign * counts * segment.row_bytes

    def _alive(self, segment: Segment) -> Ints:
        gone = self._drops.gone(segment.sequence)
        counts = segment.counts.astype(np.int64)
        if gone is not None:
            counts[gone] = 0
        return counts

    def release(self, epoch: int, watermark: int) -> None:
        """Forget the slices whose last window has ended at this watermark; they never come back."""
        self.expired = max(self.expired, watermark)
        # Also the record of their applied deltas: a repetition would add rows of expired slices only, which `apply`
        # leaves out.
        self._remove([s for s in self._segments if self.descriptor.window.last_end(s.about.last_slice) <= self.expired])

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes: their rows leave the disk later. After an interruption, repeat it.

        Applied deltas stay recorded, so that a repetition brings no row back.
        """
        vnodes = np.asarray(vnodes, np.int64)
        if not self._entries[vnodes].any():
            return
        self._drops.drop(vnodes, self._sequence, self._notes())
        self._entries[vnodes] = self._bytes[vnodes] = 0
        self._unclean = deque(s.sequence for s in self._segments)

    def _notes(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "sources": sorted(self._sources), "adoptions": self._adoptions.each}

    def adopt(self, before: RowState) -> bool:
        """Take over the rows of another join, and drop all rows of this one: each file of `before` gets a second name.

        Columns of both have the values of `before`, others are null. Its applied deltas count as applied. After an
        interruption, repeat it. False: this file system gives a file one name only, and the state is empty.
        Raises Exhausted without room.
        """
        base, names = self._sequence, tuple(name for name in self._schema.names if name in before._schema.names)
        last = base + before._sequence
        adoptions = Adoptions((*before._adoptions.shift(base).each, (last, names)))
        notes = {"epoch": before._epoch, "sources": sorted(before._sources), "adoptions": adoptions.each}
        # All segments of this join have numbers up to `base`: this write drops them.
        self._drops.replace(np.maximum(before._drops.at, 0) + base, notes)
        self._sequence, self._adoptions = last, adoptions
        self._epoch, self._sources = before._epoch, set(before._sources)
        self._entries[:] = self._bytes[:] = 0
        self._unclean = deque(s.sequence for s in self._segments)
        for segment in before._segments:
            number = base + segment.sequence
            path = segments.path_of(self.directory, number, segment.level)
            self._inventory.begins(number)
            try:
                path.hardlink_to(segment.path)
            except OSError as error:
                if error.errno not in _ONE_NAME:
                    raise Exhausted(f"{path}: could not be written: {error}") from error
                log.warning("%s: files of %s get no second name: %s", self.directory, before.directory, error)
                self.drop(np.arange(self.virtual_nodes))
                return False
            self._add(segment.adopted(path, number, self._schema, adoptions.names(number, self._schema)))
            self._unclean.append(number)
        return True

    # -- upkeep, in pieces --------------------------------------------------------------------------------------------

    def work(self) -> bool:
        """Merge, clean or remove a little; False when there was no work."""
        if self._removals.step({s.sequence for s in self._segments}) or self._merge() or self._clean_some():
            return True
        return self._removals.wait()

    def _clean_some(self) -> bool:
        there = {s.sequence: s for s in self._segments}
        for _ in range(min(_CLEAN_AT_ONCE, len(self._unclean))):
            segment = there.get(self._unclean.popleft())
            if segment is not None and self._clean(segment):
                return True
        return bool(self._unclean)

    def _clean(self, segment: Segment) -> bool:
        """Remove the segment when no row is left, rewrite it when less than half is. False: it stays."""
        alive = int(self._alive(segment).sum())
        if not alive:
            self._remove([segment])
        elif 2 * alive < segment.rows and mapped.has_room(self.directory, segment.bytes):
            self._begin(_CLEANING, segment.level, [segment])
        else:
            return False
        return True

    def _merge(self) -> bool:
        """One piece of the smallest pending merge."""
        merge = self._merges.get(level := self._busy())
        if merge is None:
            return False
        self._fuel -= max(1, merge.step(self._still_there))
        if merge.finished:
            del self._merges[level]
            self._add(merge.outcome)  # Before the removal: a process killed in between has one or the other.
            self._remove(list(merge.inputs))
            if merge.outcome is not None:
                self._unclean.append(merge.outcome.sequence)
        return True

    def _busy(self) -> int:
        """The lowest level with a merge under way, or begun now."""
        taken = {s.sequence for m in self._merges.values() for s in m.inputs}
        free: dict[int, list[Segment]] = {}
        for segment in self._segments:
            if segment.sequence not in taken:
                free.setdefault(segment.level, []).append(segment)
        for level in sorted({*free, *self._merges} - {_CLEANING}):
            if level not in self._merges and len(free[level]) >= TIER:
                smallest = sorted(free[level], key=lambda s: s.bytes)[:TIER]
                sizes = np.cumsum([s.bytes for s in smallest])
                count = int(np.searchsorted(sizes, MERGE_BYTES_MAX, side="right"))
                if count >= min(MERGE_MIN, TIER) and mapped.has_room(self.directory, int(sizes[count - 1])):
                    self._begin(level, level + 1, smallest[:count])
            if level in self._merges:
                return level
        return _CLEANING

    def _begin(self, slot: int, level: int, inputs: list[Segment]) -> None:
        self._merges[slot] = Merge(self.directory, self._next(), level, inputs, self._schema)

    def _still_there(self, segment: Segment, batch: pa.RecordBatch) -> pa.RecordBatch:
        gone = self._drops.gone(segment.sequence)
        if gone is not None:
            offsets = columns.split_by_vnode(batch, self.virtual_nodes)
            batch = columns.take_vnodes(batch, offsets, np.flatnonzero(~gone & (np.diff(offsets) > 0)))
        return self._living(batch, self.expired)

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, times: EpochTimes, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Inner join by key of the windows with low < window_end <= high (schemas.fired_schema), lazily, in pieces.

        A piece without joined rows yields an empty batch: changes that wait for the state need not wait for the next
        one. Raises RowsGone when slices of these windows expired, before or between two batches.
        """
        return self._join.fired(times.low, times.high, np.unique(np.asarray(vnodes, np.int64)), max_rows)

    def will_fire(self, delta: pa.RecordBatch, times: EpochTimes, vnodes: Ints) -> int:
        """Approximate number of rows that `fired` will yield once this delta of these virtual nodes is applied."""
        return self.fired_count(times, vnodes) + delta.num_rows * panes.ends_of_a_row(self.descriptor.window, times)

    def fired_count(self, times: EpochTimes, vnodes: Ints) -> int:
        """Approximate number of rows of `fired`, from a sample if it reads much (joining.COUNT_BYTES_MAX), never 0
        then.

        Otherwise the exact number (more when byte keys collide). Sorts keys, but reads no other column.
        """
        return self._join.count(times.low, times.high, np.unique(np.asarray(vnodes, np.int64)))

    def _held(self, vnodes: Ints) -> list[tuple[Segment, Ints]]:
        """The segments, each with these virtual nodes' part that it holds and that was not dropped since."""
        return [(s, vnodes[self._drops.at[vnodes] < s.sequence]) for s in self._segments]

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """All present rows that are not forgotten during the scan, exactly once, in chunks; later rows are left out.

        Some chunks have no rows, after many reads without a match: the caller has other work between chunks.
        """
        found = list(self._segments)
        chunks = self._chunks(found, np.unique(np.asarray(vnodes, np.int64)), chunk_bytes)
        self._removals.keep(found, chunks)
        return chunks

    def _chunks(self, found: list[Segment], vnodes: Ints, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        in_vain = 0
        for segment in found:
            step = max(1, chunk_bytes // segment.row_bytes)
            begins, lasts = segments.hash_ranges(vnodes[segment.counts[vnodes] > 0], self.virtual_nodes)
            for part in segment.parts_between(begins, lasts):
                rows, batch = part.rows_between(begins, lasts), segment.rows_of(part)
                for begin in range(0, max(1, rows.size), step):
                    chunk = self._still_there(segment, batch.take(pa.array(rows[begin : begin + step])))
                    in_vain = 0 if chunk.num_rows else in_vain + 1
                    if chunk.num_rows or in_vain % IN_VAIN_MAX == 0:
                        yield chunk

    def prior_state(self, vnodes: Ints) -> PriorState:
        """The present state of these virtual nodes: all windows up to the last one of their segments."""
        held = (s.about.last_slice for s in self._segments if self._alive(s)[vnodes].any())
        return PriorSlices(self.descriptor.window, max(held, default=None), lambda: self.expired)

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries` int64 per virtual node (of `vnodes`, or all), `segments`.

        Rows of expired slices count until their segment is removed or merged.
        """
        chosen = slice(None) if vnodes is None else vnodes
        return {"entries": self._entries[chosen], "bytes": self._bytes[chosen], "segments": len(self._segments)}
