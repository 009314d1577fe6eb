"""State of one windowed aggregate in one instance, for all its virtual nodes.

One `SliceTable` per slice. State changes by `put` (and `put_absent`, `expire`, `drop`); `delta` only computes what a put
would change. Iterators look at the state anew at every step, so puts may happen between two `next()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import limits
from ferry.contract.errors import RowsGone
from ferry.contract.shapes import Shape
from ferry.kernels import columns, grouping, panes, schemas
from ferry.kernels.columns import split_by_vnode, take_vnodes
from ferry.kernels.grouping import CELLS, COUNT, KEY, NO_BYTES, NO_INTS, SLICE, Groups, Ints, heap_keys
from ferry.store import mapped
from ferry.store.slice_table import Rows, SliceTable

__all__ = ["AggregateState", "split_by_vnode", "take_vnodes"]

FIRED_ROWS_MAX = 65536


class AggregateState:
    """Windowed aggregates by (slice, key), in mapped files below `directory`."""

    def __init__(self, shape: Shape, virtual_nodes: int, directory: Path, memory_bytes: int = 1 << 40) -> None:
        """Open the state that is in `directory`, or an empty one; files of unfinished growth are removed."""
        assert shape.kind == "aggregate" and virtual_nodes & (virtual_nodes - 1) == 0, (shape.kind, virtual_nodes)
        assert virtual_nodes <= limits.VIRTUAL_NODES_MAX
        self.shape, self.virtual_nodes, self.directory, self.memory_bytes = (
            shape,
            virtual_nodes,
            directory,
            memory_bytes,
        )
        self._codes = grouping.merge_codes(shape)
        self._by_bytes = not shape.int_key
        self.expired = limits.WATERMARK_NONE
        self._tables: dict[int, SliceTable] = {}
        """by slice; least recently written first"""
        directory.mkdir(parents=True, exist_ok=True)
        self._reopen()

    def _reopen(self) -> None:
        found: dict[int, list[int]] = {}
        for path in self.directory.glob("*.table"):
            name, bits, _ = path.name.split(".")
            if SliceTable.is_complete(path):
                found.setdefault(int(name), []).append(int(bits))
            else:
                path.unlink()
        for slice_start in sorted(found):
            *older, newest = sorted(found[slice_start])
            self._tables[slice_start] = self._table(slice_start, newest)
            for superseded in older:
                (self.directory / f"{slice_start}.{superseded}.table").unlink()
        for path in self.directory.glob("*.heap"):
            if int(path.stem) not in self._tables:
                path.unlink()

    def _table(self, slice_start: int, bits: int) -> SliceTable:
        width = CELLS + self._codes.size
        return SliceTable(self.directory, slice_start, self.virtual_nodes, width, self._by_bytes, bits)

    # -- merging ----------------------------------------------------------------------------------------------------

    def combine(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        """Merge partials by (slice, key); the result is sorted by hash, hence by virtual node. Reads no state."""
        groups = self._grouped([columns.to_partials(self.shape, b) for b in batches if b.num_rows])
        return self._batch(groups)

    def _grouped(self, parts: list[columns.Partials]) -> tuple[Ints, grouping.Bytes]:
        groups = Groups(self._codes, self._by_bytes)
        for p in parts:
            taken = groups.add(p.slices, p.hashes, p.keys, p.offsets, p.data, p.n, p.cells)
            assert taken == p.hashes.size, "a batch of more keys than Arrow's offsets can count"
        rows = groups.rows()
        order = grouping.order_by_hash(np.ascontiguousarray(rows[:, grouping.HASH]).view(np.uint64))
        return rows[order], groups.heap

    def _batch(self, groups: tuple[Ints, grouping.Bytes]) -> pa.RecordBatch:
        return columns.from_groups(self.shape, *groups)

    def delta(self, parts: list[pa.RecordBatch], watermark: int) -> tuple[pa.RecordBatch, int]:
        """After-images of these partials, sorted by hash, and the number of late records, which are dropped.

        `watermark` is that of the epoch before: a slice is late when its last window had ended by then. The state is
        not touched; the partials must be those of virtual nodes that this instance leads.
        """
        late, timely = 0, []
        for batch in parts:
            if batch.num_rows == 0:
                continue
            slices = batch.column("slice").to_numpy(zero_copy_only=True)
            is_late = panes.last_ends(self.shape.window, slices) <= watermark
            if is_late.any():
                late += int(batch.column("n").to_numpy()[is_late].sum())
                batch = batch.filter(pa.array(~is_late))
            timely.append(columns.to_partials(self.shape, batch))
        rows, heap = self._grouped(timely)
        offsets, data = heap_keys(heap, np.ascontiguousarray(rows[:, KEY])) if self._by_bytes else (NO_INTS, NO_BYTES)
        distinct, bounds, order = columns.slice_groups(np.ascontiguousarray(rows[:, SLICE]), self.shape.window.pane_ms)
        for i, slice_start in enumerate(distinct.tolist()):
            table = self._tables.get(slice_start)
            if table is not None:
                table.merge_stored(rows, order[bounds[i] : bounds[i + 1]], offsets, data, self._codes)
        return self._batch((rows, heap)), late

    # -- changing ---------------------------------------------------------------------------------------------------

    def put(self, after_images: pa.RecordBatch, epoch: int = 0, source: str = "") -> None:
        """Set these entries; idempotent. Raises Exhausted before a write for which there is no room."""
        self._put(after_images, absent=False)

    def put_absent(self, chunk: pa.RecordBatch) -> None:
        """Set those of these entries that are not there: a snapshot never overwrites a delta that was put before it."""
        self._put(chunk, absent=True)

    def _put(self, batch: pa.RecordBatch, absent: bool) -> None:
        if batch.num_rows == 0:
            return
        p = columns.to_partials(self.shape, batch)
        distinct, bounds, order = columns.slice_groups(p.slices, self.shape.window.pane_ms)
        rows = Rows(p.hashes, p.keys, p.offsets, p.data, p.n, p.cells)
        # Slices that are over stay over, also when an old put is done again.
        live = [
            (s, order[bounds[i] : bounds[i + 1]])
            for i, s in enumerate(distinct.tolist())
            if self.shape.window.last_end(s) > self.expired
        ]
        key_bytes = p.data.size if live else 0
        for s, chosen in live:
            self._open_slice(s, chosen.size)
            self._tables[s] = self._tables.pop(s)
        mapped.require_room(self.directory, sum(self._tables[s].room_for(c.size, 0) for s, c in live) + key_bytes)
        for s, chosen in live:
            self._tables[s].put(rows, chosen, absent)
        self._trim_memory(len(live))

    def _open_slice(self, slice_start: int, rows: int) -> None:
        if slice_start not in self._tables:
            # Room for the fullest of the regions (mean and four deviations), so that no bulk load grows the table at once.
            mean = max(1024, rows) / self.virtual_nodes
            capacity = max(8, int((mean + 4 * mean**0.5) / 0.7))
            self._tables[slice_start] = self._table(slice_start, (capacity - 1).bit_length())

    def _trim_memory(self, hot: int) -> None:
        # Not the tables that were just written: the next epoch writes them again.
        excess = sum(t.mapped_bytes for t in self._tables.values()) - self.memory_bytes
        for table in list(self._tables.values())[: len(self._tables) - hot]:
            if excess <= 0:
                return
            table.page_out()
            excess -= table.mapped_bytes

    def expire(self, watermark: int) -> None:
        """Forget the slices whose last window has ended at this watermark; they never come back."""
        self.expired = max(self.expired, watermark)
        for slice_start in [s for s in self._tables if self.shape.window.last_end(s) <= self.expired]:
            self._tables.pop(slice_start).unlink()

    def drop(self, vnodes: Ints) -> None:
        """Forget these virtual nodes. When interrupted, do it again."""
        for table in self._tables.values():
            table.drop(np.asarray(vnodes, np.int64))

    def work(self) -> bool:
        """Upkeep in pieces; there is none to do."""
        return False

    # -- reading ----------------------------------------------------------------------------------------------------

    def fired(self, low: int, high: int, vnodes: Ints, max_rows: int = FIRED_ROWS_MAX) -> Iterator[pa.RecordBatch]:
        """Results of the windows with low < window_end <= high for these virtual nodes (schemas.fired_schema), lazily.

        Raises RowsGone when slices of these windows were expired, before or between two batches.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        self._require_not_expired(low)
        slices = np.array(sorted(self._tables), np.int64)
        for start, members in panes.windows_between(self.shape.window, slices, low, high):
            pane_starts = slices[members].tolist()
            begin = 0
            while begin < vnodes.size:
                self._require_not_expired(low)
                tables = [self._tables[s] for s in pane_starts]
                bounds = np.cumsum(np.sum([t.counts[vnodes[begin:]] for t in tables], axis=0))
                end = begin + max(1, int(np.searchsorted(bounds, max_rows, side="right")))
                rows, heap = self._window_rows(tables, vnodes[begin:end])
                begin = end
                # Copied before the first is handed out, so nothing that happens between two batches can change them.
                yield from [
                    self._results(rows[a : a + max_rows], heap, start) for a in range(0, rows.shape[0], max_rows)
                ]

    def _require_not_expired(self, low: int) -> None:
        if low < self.expired:
            raise RowsGone(
                f"operator {self.shape.name}: windows after {low} are wanted, but slices up to {self.expired} are expired"
            )

    def _window_rows(self, tables: list[SliceTable], vnodes: Ints) -> tuple[Ints, grouping.Bytes]:
        found = []
        for table in tables:
            most = int(table.counts[vnodes].sum())
            if most:
                found.append((table, table.scan(vnodes, (0, 0), most, 1 << 62)[0]))
        if not found:
            return np.empty((0, CELLS + self._codes.size), np.int64), NO_BYTES
        if len(found) == 1:
            return found[0][1], found[0][0].heap
        groups = Groups(self._codes, self._by_bytes)
        for table, rows in found:
            offsets, data = NO_INTS, NO_BYTES
            if self._by_bytes:
                offsets, data = heap_keys(table.heap, np.ascontiguousarray(rows[:, KEY]))
            hashes = np.ascontiguousarray(rows[:, grouping.HASH]).view(np.uint64)
            keys, n = np.ascontiguousarray(rows[:, KEY]), np.ascontiguousarray(rows[:, COUNT])
            same_slice = np.zeros(n.size, np.int64)
            groups.add(same_slice, hashes, keys, offsets, data, n, np.ascontiguousarray(rows[:, CELLS:]))
        return groups.rows(), groups.heap

    def _results(self, rows: Ints, heap: grouping.Bytes, start: int) -> pa.RecordBatch:
        key = columns.key_array(self.shape, rows[:, KEY], heap)
        if self.shape.int_key:
            out = [key]
        else:
            out = columns.decode_keys(*columns.binary(key), [kind for _, kind in self.shape.key])
        out.append(pa.array(np.full(rows.shape[0], start)))
        out.append(pa.array(np.full(rows.shape[0], start + self.shape.window.size_ms)))
        cells = columns.cell_arrays(self.shape, rows[:, CELLS:])
        at = 0
        for a in self.shape.aggregates:
            if a.function == "count":
                out.append(pa.array(np.ascontiguousarray(rows[:, COUNT])))
            elif a.function == "mean":
                out.append(
                    pc.divide(cells[at].cast(pa.float64(), safe=False), cells[at + 1].cast(pa.float64(), safe=False))
                )
            else:
                out.append(cells[at + (a.function == "arg_max")])
            at += len(a.state_types)
        return pa.RecordBatch.from_arrays(out, schema=schemas.fired_schema(self.shape))

    def fired_count(self, low: int, high: int, vnodes: Ints) -> int:
        """Upper bound of the rows that `fired` yields; exact for tumbling windows."""
        slices = np.array(sorted(self._tables), np.int64)
        windows = panes.windows_between(self.shape.window, slices, low, high)
        rows = np.zeros(slices.size, np.int64)
        for position in np.unique(np.concatenate([members for _, members in windows] or [NO_INTS])).tolist():
            rows[position] = self._tables[int(slices[position])].counts[vnodes].sum()
        return sum(int(rows[members].sum()) for _, members in windows)

    def snapshot(self, vnodes: Ints, chunk_bytes: int = limits.CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
        """Fuzzy scan: every entry that is there from begin to end comes out at least once, with a value it had meanwhile.

        Chunks are of about `chunk_bytes` and have the schema of partials, in no order.
        """
        vnodes = np.unique(np.asarray(vnodes, np.int64))
        pending: list[pa.RecordBatch] = []
        room = chunk_bytes
        for slice_start in sorted(self._tables):
            at, generation = (0, 0), -1
            while (table := self._tables.get(slice_start)) is not None:
                if table.generation != generation:
                    # The table grew: rows are in other places now, so its scan begins again.
                    at, generation = (0, 0), table.generation
                rows, at = table.scan(
                    vnodes, at, max(1, room // (table.row_bytes() + 8 * self._by_bytes)), max(1, room)
                )
                if rows.shape[0]:
                    rows[:, SLICE] = slice_start  # This word said `used`; in a group it is the slice.
                    pending.append(columns.from_groups(self.shape, rows, table.heap))
                    room -= pending[-1].nbytes
                finished = at[0] >= vnodes.size
                if room <= 0 or not finished:
                    yield pa.concat_batches(pending)
                    pending, room = [], chunk_bytes
                if finished:
                    break
        if pending:
            yield pa.concat_batches(pending)

    def statistics(self, vnodes: Ints | None = None) -> dict[str, Any]:
        """`bytes` and `entries` int64 per virtual node (of `vnodes`, or all), `slices`, `file_bytes` on disk."""
        zero: npt.NDArray[np.int64] = np.zeros(self.virtual_nodes, np.int64)
        entries = np.sum([t.counts for t in self._tables.values()] or [zero], axis=0)
        used = np.sum([t.vnode_bytes() for t in self._tables.values()] or [zero], axis=0)
        chosen = slice(None) if vnodes is None else vnodes
        return {
            "entries": entries[chosen],
            "bytes": used[chosen],
            "slices": len(self._tables),
            "file_bytes": sum(t.allocated_bytes() for t in self._tables.values()),
        }
