"""Joins the rows of a window while they are read: a merge join over the hash order.

In pieces of bounded bytes, because one hot key may make more pairs than memory holds, and because changes of the state
wait for a piece. A piece is some virtual nodes, or a range of the hashes of one. Must never change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import columns, panes, schemas
from ferry.kernels.grouping import NO_BYTES, NO_INTS, Hashes, Ints, order_by_hash
from ferry.kernels.pairs import count_pairs, join_pairs
from ferry.store import segments
from ferry.store.expiry import require_not_expired
from ferry.store.segments import Segment, hashes_of

READ_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the rows of both sides that are joined at a time, unless one key alone has more."""

COUNT_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a window's rows that are read to count its fired rows; beyond it some virtual nodes are a sample."""

COUNT_SAMPLES = 4
"""Virtual nodes of a sample, at most: each is in every segment."""

COUNT_MAX = 1 << 48
"""Larger counts need not be distinguished."""

DIVISIONS_MAX = 1024
"""Ranges of one virtual node's hashes; more do not help against one hot key."""

FIRED_ROWS_MAX = 65536

FIRED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one batch of joined rows, unless one row alone has more."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one window: all of these virtual nodes, or one hash range of a single one."""

    start: int
    vnodes: Ints
    division: int = 0
    divisions: int = 1

    def ranges(self, vnodes: Ints, virtual_nodes: int) -> tuple[Hashes, Hashes]:
        """First and last hashes of the piece's rows of these virtual nodes."""
        begins, lasts = segments.hash_ranges(vnodes, virtual_nodes)
        if self.divisions == 1 or vnodes.size == 0:
            return begins, lasts
        begin, size = int(begins[0]), int(lasts[0]) - int(begins[0]) + 1
        low, high = (begin + size * d // self.divisions for d in (self.division, self.division + 1))
        return np.array([low], np.uint64), np.array([high - 1], np.uint64)


class Join:
    """Reads for one state. `held` returns its segments, each with the virtual nodes that it still holds."""

    def __init__(
        self,
        descriptor: OperatorDescriptor,
        virtual_nodes: int,
        held: Callable[[Ints], list[tuple[Segment, Ints]]],
        expired: Callable[[], int],
    ) -> None:
        self._descriptor = descriptor
        self._virtual_nodes = virtual_nodes
        self._held = held
        self._expired = expired
        self._schema = schemas.rows_schema(descriptor)

    def fired(self, low: int, high: int, vnodes: Ints, max_rows: int) -> Iterator[pa.RecordBatch]:
        """The joined rows, in batches; for RowState."""
        for piece in self._pieces(low, high, vnodes):
            require_not_expired(self._descriptor.name, low, self._expired())
            found = False
            for batch in self._joined(self._rows(piece), piece.start, max_rows):
                found = True
                yield batch
            if not found:
                yield columns.empty(schemas.fired_schema(self._descriptor))

    def count(self, low: int, high: int, vnodes: Ints) -> int:
        """The number of joined rows; for RowState."""
        total = 0
        for start in self._starts(low, high, vnodes):
            total += self._counted(start, vnodes)
        return min(total, COUNT_MAX)

    def _counted(self, start: int, vnodes: Ints) -> int:
        weights = self._weights(start, vnodes)
        whole = int(weights.sum())
        if whole <= COUNT_BYTES_MAX:
            return self._pairs(_Piece(start, vnodes))
        there = np.flatnonzero(weights)
        sample = there[np.linspace(0, there.size - 1, min(COUNT_SAMPLES, there.size)).astype(np.int64)]
        counted = 0
        for at in sample.tolist():
            divisions = -(-int(weights[at]) * sample.size // COUNT_BYTES_MAX)
            counted += divisions * self._pairs(_Piece(start, vnodes[at : at + 1], divisions // 2, divisions))
        return max(1, counted * whole // int(weights[sample].sum()))

    def _pairs(self, piece: _Piece) -> int:
        left, _, right, _ = _sides(self._rows(piece, ["hash", "side"]))
        return int(count_pairs(left, right))

    def _starts(self, low: int, high: int, vnodes: Ints) -> list[int]:
        require_not_expired(self._descriptor.name, low, self._expired())
        slices = np.unique(np.concatenate([s.slices for s, _ in self._held(vnodes)] or [NO_INTS]))
        starts: list[int] = panes.windows_between(self._descriptor.window, slices, low, high).starts.tolist()
        return starts

    def _weights(self, start: int, vnodes: Ints) -> Ints:
        """Bytes of the segments that have rows of the window, by virtual node."""
        weights = np.zeros(vnodes.size, np.int64)
        for segment, mine in self._of_window(start, vnodes):
            weights[np.searchsorted(vnodes, mine)] += segment.counts[mine].astype(np.int64) * segment.row_bytes
        return weights

    def _pieces(self, low: int, high: int, vnodes: Ints) -> Iterator[_Piece]:
        for start in self._starts(low, high, vnodes):
            bounds = np.cumsum(self._weights(start, vnodes))
            begin = 0
            while begin < vnodes.size:
                before = int(bounds[begin - 1]) if begin else 0
                end = max(begin + 1, int(np.searchsorted(bounds, before + READ_BYTES_MAX, side="right")))
                divisions = min(DIVISIONS_MAX, -(-(int(bounds[end - 1]) - before) // READ_BYTES_MAX))
                for division in range(divisions):
                    yield _Piece(start, vnodes[begin:end], division, divisions)
                begin = end

    def _of_window(self, start: int, vnodes: Ints) -> Iterator[tuple[Segment, Ints]]:
        for segment, mine in self._held(vnodes):
            at = int(np.searchsorted(segment.slices, start))
            if at < segment.slices.size and segment.slices[at] < start + self._descriptor.window.size_ms:
                yield segment, mine

    def _rows(self, piece: _Piece, names: list[str] | None = None) -> pa.RecordBatch:
        batches = []
        end = piece.start + self._descriptor.window.size_ms
        for segment, mine in self._of_window(piece.start, piece.vnodes):
            begins, lasts = piece.ranges(mine, self._virtual_nodes)
            for part in segment.parts_between(begins, lasts):
                rows = part.rows_between(begins, lasts)
                batch = segment.rows_of(part)
                slices = batch.column("slice").to_numpy(zero_copy_only=True)[rows]
                rows = rows[(slices >= piece.start) & (slices < end)]
                if rows.size:
                    batches.append((batch.select(names) if names else batch).take(pa.array(rows)))
        if batches:
            return columns.concatenated(batches)
        whole = columns.empty(self._schema)
        return whole.select(names) if names else whole

    def _joined(self, rows: pa.RecordBatch, start: int, max_rows: int) -> Iterator[pa.RecordBatch]:
        left, left_row, right, right_row = _sides(rows)
        offsets, data = NO_INTS, NO_BYTES
        if not self._descriptor.int_key:
            offsets, data = columns.binary(rows.column("key"))
        widths = _widths(rows)
        place = (0, 0, 0)
        while place[0] < left.size:
            lefts, rights, *place = join_pairs(
                left, left_row, right, right_row, not self._descriptor.int_key, offsets, data, *place, max_rows
            )
            begin, ends = 0, np.cumsum(widths[lefts] + widths[rights])
            while begin < lefts.size:
                before = int(ends[begin - 1]) if begin else 0
                end = max(begin + 1, int(np.searchsorted(ends, before + FIRED_BYTES_MAX, side="right")))
                yield self._output(rows, lefts[begin:end], rights[begin:end], start)
                begin = end

    def _output(self, rows: pa.RecordBatch, lefts: Ints, rights: Ints, start: int) -> pa.RecordBatch:
        schema = schemas.fired_schema(self._descriptor)
        out = [pa.array(np.full(lefts.size, at)) for at in (start, start + self._descriptor.window.size_ms)]
        for name, field in zip(rows.schema.names[4:], list(schema)[2:], strict=True):
            taken = rows.column(name).take(pa.array(lefts if name.startswith("l_") else rights))
            out.append(taken.cast(field.type))
        return pa.RecordBatch.from_arrays(out, schema=schema)


def _widths(rows: pa.RecordBatch) -> Ints:
    """Bytes of each row's texts."""
    widths = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns[4:]:
        if columns.is_text(column.type):
            widths += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return widths


def _sides(rows: pa.RecordBatch) -> tuple[Hashes, Ints, Hashes, Ints]:
    """Hashes and row numbers of the left side, then of the right side, each sorted by hash."""
    hashes, side = hashes_of(rows), rows.column("side").to_numpy(zero_copy_only=True)
    out: list[Any] = []
    for which in (0, 1):
        numbers = np.flatnonzero(side == which)
        numbers = numbers[order_by_hash(hashes[numbers])]
        out += [hashes[numbers], numbers]
    return tuple(out)
