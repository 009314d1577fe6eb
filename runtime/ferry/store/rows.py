"""State of one windowed join in one instance, for all its virtual nodes.

Rows are only added (`put`, once per label) and forgotten (`expire`, `drop`), so the state is a set of immutable segments,
merged in tiers. Rows of a join are joined when their window fires, while they are read: a merge join over the hash order,
in pieces, because one hot key may make more pairs than memory holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.contract import limits
from ferry.contract.errors import RowsGone
from ferry.contract.shapes import Shape
from ferry.kernels import columns, panes, schemas
from ferry.kernels.grouping import NO_BYTES, NO_INTS, Hashes, Ints, order_by_hash
from ferry.kernels.pairs import count_pairs, join_pairs
from ferry.store import segments
from ferry.store.segments import Segment

TIER = 16
"""Segments of one level that are merged into one of the next."""

MERGE_BYTES_MAX = 256 * 1024 * 1024
"""Segments that would together be larger stay as they are: merging holds them in memory."""

READ_ROWS_MAX = 1 << 20
"""Rows of both sides that are joined at a time, unless one virtual node alone has more."""

FIRED_ROWS_MAX = 65536


class RowState:
    """Rows of a windowed join in segment files below `directory`."""

    def __init__(self, shape: Shape, virtual_nodes: int, directory: Path) -> None:
        """Open the state that is in `directory`, or an empty one."""
        assert shape.kind == "join" and virtual_nodes & (virtual_nodes - 1) == 0, (shape.kind, virtual_nodes)
        self.shape, self.virtual_nodes, self.directory = shape, virtual_nodes, directory
        self._schema = schemas.rows_schema(shape)
        self.expired = limits.WATERMARK_NONE
        directory.mkdir(parents=True, exist_ok=True)
        self._segments = segments.read_all(directory, virtual_nodes)
        self._sequence = max((s.sequence for s in self._segments), default=0)
        self._labels = {label for s in self._segments for label in s.labels}

    # -- merging ----------------------------------------------------------------------------------------------------

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """All rows, sorted by hash, hence by virtual node. Reads no state."""
        batches = [b for b in batches if b.num_rows]
        if not batches:
            return columns.empty(self._schema)
        whole = pa.concat_batches(batches)
        hashes = _hashes(whole)
        if bool(np.all(hashes[:-1] <= hashes[1:])):
            return whole
        return whole.take(pa.array(order_by_hash(hashes)))

    def delta(self, parts: list[pa.RecordBatch], watermark: int) -> tuple[pa.RecordBatch, int]:
        """The rows to append, sorted by hash, and the number of late ones, which are dropped (see AggregateState.delta)."""
        late, timely = 0, []
        for batch in parts:
            kept = self._living(batch, watermark)
            late += batch.num_rows - kept.num_rows
            timely.append(kept)
        return self.combine(timely), late

    def _living(self, batch: pa.RecordBatch, watermark: int) -> pa.RecordBatch:
        slices = batch.column("slice").to_numpy(zero_copy_only=True)
        living = panes.last_ends(self.shape.window, slices) > watermark
        return batch if living.all() else batch.filter(pa.array(living))

    # -- changing ---------------------------------------------------------------------------------------------------

    def put(self, rows: pa.RecordBatch, label: str) -> None:
        """Append rows, once per label: the same label again changes nothing. Raises Exhausted when the disk is full."""
        if label in self._labels:
            return
        rows = self.combine([self._living(rows, self.expired)])
        if rows.num_rows == 0:
            return
        self._add(rows, 0, [label], [])
        self._merge_tiers()

    def put_absent(self, chunk: pa.RecordBatch, label: str) -> None:
        """Append a chunk of a snapshot, once per label. A snapshot holds no row of a later delta, so none is there yet."""
        self.put(chunk, label)

    def _add(self, rows: pa.RecordBatch, level: int, labels: list[str], replaces: list[Segment]) -> None:
        self._sequence += 1
        lasts = [s.last_slice for s in replaces]
        if rows.num_rows:
            lasts.append(int(rows.column("slice").to_numpy(zero_copy_only=True).max()))
        path = segments.write(self.directory, self._sequence, level, rows, labels, replaces, max(lasts))
        gone = {s.path for s in replaces}
        self._segments = [s for s in self._segments if s.path not in gone]
        self._segments.append(segments.read(path, self.virtual_nodes))
        self._labels.update(labels)

    def _merge_tiers(self) -> None:
        level = 0
        while tier := [s for s in self._segments if s.level == level]:
            if len(tier) >= TIER and sum(s.batch.nbytes for s in tier) <= MERGE_BYTES_MAX:
                rows = self.combine([self._living(s.batch, self.expired) for s in tier])
                self._add(rows, level + 1, [label for s in tier for label in s.labels], tier)
            level += 1

    def expire(self, watermark: int) -> None:
        """Forget the slices whose last window has ended at this watermark; they never come back."""
        self.expired = max(self.expired, watermark)
        dead = [s for s in self._segments if self.shape.window.last_end(s.last_slice) <= self.expired]
        for segment in dead:
            segment.path.unlink(missing_ok=True)
            # Its labels are forgotten: putting one again would add rows of expired slices only, which `put` leaves out.
            self._labels.difference_update(segment.labels)
        if dead:
            gone = {s.path for s in dead}
            self._segments = [s for s in self._segments if s.path not in gone]

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes: segments with rows of them are written anew. When interrupted, do it again.

        The labels stay, also of a segment that becomes empty, so that putting one again brings nothing back.
        """
        dropped = np.zeros(self.virtual_nodes, np.bool_)
        dropped[vnodes] = True
        kept = np.flatnonzero(~dropped)
        for segment in list(self._segments):
            if np.diff(segment.offsets)[dropped].any():
                rows = columns.take_vnodes(segment.batch, segment.offsets, kept)
                self._add(rows, segment.level, list(segment.labels), [segment])

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, low: int, high: int, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Inner join by key of the windows with low < window_end <= high (schemas.fired_schema), lazily, in pieces.

        Raises RowsGone when slices of these windows were expired, before or between two batches.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        for start, chosen in self._groups(low, high, vnodes):
            self._require_not_expired(low)
            rows = self._window_rows(start, chosen)
            yield from self._joined(rows, start, max_rows)

    def fired_count(self, low: int, high: int, vnodes: Ints) -> int:
        """Rows that `fired` yields (an upper bound when byte keys collide); sorts keys, but reads no other column."""
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        total = 0
        for start, chosen in self._groups(low, high, vnodes):
            left, _, right, _ = _sides(self._window_rows(start, chosen, ["hash", "side"]))
            total += int(count_pairs(left, right))
        return total

    def _require_not_expired(self, low: int) -> None:
        if low < self.expired:
            raise RowsGone(
                f"operator {self.shape.name}: windows after {low} are wanted, but slices up to {self.expired} are expired"
            )

    def _groups(self, low: int, high: int, vnodes: Ints) -> Iterator[tuple[int, Ints]]:
        self._require_not_expired(low)
        slices = np.unique(np.concatenate([s.slices for s in self._segments] or [NO_INTS]))
        for start, members in panes.windows_between(self.shape.window, slices, low, high):
            first, last = slices[members[0]], slices[members[-1]]
            begin = 0
            while begin < vnodes.size:
                touched = [s for s in self._segments if s.slices.size and s.slices[0] <= last and s.slices[-1] >= first]
                if not touched:
                    break
                rest = vnodes[begin:]
                bounds = np.cumsum(np.sum([s.offsets[rest + 1] - s.offsets[rest] for s in touched], axis=0))
                end = begin + max(1, int(np.searchsorted(bounds, READ_ROWS_MAX, side="right")))
                yield start, vnodes[begin:end]
                begin = end

    def _window_rows(self, start: int, vnodes: Ints, names: list[str] | None = None) -> pa.RecordBatch:
        found = []
        for s in self._segments:
            if s.slices.size == 0 or s.slices[0] >= start + self.shape.window.size_ms or s.slices[-1] < start:
                continue
            indices = columns.range_indices(s.offsets, vnodes)
            slices = s.batch.column("slice").to_numpy(zero_copy_only=True)[indices]
            indices = indices[(slices >= start) & (slices < start + self.shape.window.size_ms)]
            if indices.size:
                found.append((s.batch.select(names) if names else s.batch).take(pa.array(indices)))
        if found:
            return pa.concat_batches(found)
        whole = columns.empty(self._schema)
        return whole.select(names) if names else whole

    def _joined(self, rows: pa.RecordBatch, start: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        left, left_row, right, right_row = _sides(rows)
        offsets, data = NO_INTS, NO_BYTES
        if not self.shape.int_key:
            offsets, data = columns.binary(rows.column("key"))
        place = (0, 0, 0)
        while place[0] < left.size:
            lefts, rights, *place = join_pairs(
                left, left_row, right, right_row, not self.shape.int_key, offsets, data, *place, max_rows
            )
            if lefts.size:
                yield self._output(rows, lefts, rights, start)

    def _output(self, rows: pa.RecordBatch, lefts: Ints, rights: Ints, start: int) -> pa.RecordBatch:
        out = [pa.array(np.full(lefts.size, start)), pa.array(np.full(lefts.size, start + self.shape.window.size_ms))]
        for field in rows.schema.names[4:]:
            out.append(rows.column(field).take(pa.array(lefts if field.startswith("l_") else rights)))
        return pa.RecordBatch.from_arrays(out, schema=schemas.fired_schema(self.shape))

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """All rows that are there now and not expired meanwhile, exactly once, in chunks; rows put later are not in it."""
        return self._chunks(list(self._segments), np.unique(np.asarray(vnodes, np.int64)), chunk_bytes)

    def _chunks(self, found: list[Segment], vnodes: Ints, chunk_bytes: int) -> Iterator[pa.RecordBatch]:
        for segment in found:
            indices = columns.range_indices(segment.offsets, vnodes)
            step = max(1, chunk_bytes // segment.row_bytes)
            for begin in range(0, indices.size, step):
                chunk = self._living(segment.batch.take(pa.array(indices[begin : begin + step])), self.expired)
                if chunk.num_rows:
                    yield chunk

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries` int64 per virtual node (of `vnodes`, or all), `segments`, `file_bytes`.

        Rows of expired slices count until their segment goes or is merged.
        """
        entries = np.zeros(self.virtual_nodes, np.int64)
        used = np.zeros(self.virtual_nodes, np.int64)
        for s in self._segments:
            rows = np.diff(s.offsets)
            entries += rows
            used += rows * s.row_bytes
        chosen = slice(None) if vnodes is None else vnodes
        file_bytes = sum(s.path.stat().st_size for s in self._segments)
        return {
            "entries": entries[chosen],
            "bytes": used[chosen],
            "segments": len(self._segments),
            "file_bytes": file_bytes,
        }


def _hashes(batch: pa.RecordBatch) -> Hashes:
    return np.require(batch.column("hash").to_numpy(zero_copy_only=True), np.uint64, ["C", "W"])


def _sides(rows: pa.RecordBatch) -> tuple[Hashes, Ints, Hashes, Ints]:
    """Hashes and row numbers of the left side, then of the right side, each sorted by hash."""
    hashes, side = _hashes(rows), rows.column("side").to_numpy(zero_copy_only=True)
    out: list[Any] = []
    for which in (0, 1):
        numbers = np.flatnonzero(side == which)
        numbers = numbers[order_by_hash(hashes[numbers])]
        out += [hashes[numbers], numbers]
    return tuple(out)
