"""The greatest or least rows of each key and window, as rows with a rank.

Rows are kept by pane, at most `n` of each, because a row outside the first `n` of its pane is outside the first `n` of
every window. Rows have a total order, so the output does not depend on the order of arrival: by the declared columns,
then event time, then all kept columns. Rows that are equal in all of it are equal in the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.columns import same_floats
from ferry.kernels.grouping import Ints
from ferry.kernels.panes import last_ends
from ferry.process.api import Process, Work
from ferry.process.groups import begins_of, distinct_pairs
from ferry.process.joins import TIME, kept_schemas
from ferry.process.tables import StateTable
from ferry.process.windowed import fired_windows, next_ends

ROWS = "rows"
"""Table of the rows of each key, by their pane and position in it."""

BOUNDS = ("window_start", "window_end")
PANE = "_pane"


@dataclass
class TopRows(Process):
    """The first `n` rows of each key and window. Output: the key, window_start, window_end, the rank, the columns.

    Parameters:
        size_ms, slide_ms: windows [start, start + size), whose starts are multiples of the slide, in milliseconds.
        n: how many rows.
        by: input columns that order rows; rows with a null in one of them are left out.
        columns: columns that are kept: {output name: column}.
        descending: the greatest rows come first, otherwise the least.
        rank: output column for the rank of the row, from 1 on; None: there is none.
    """

    size_ms: int
    slide_ms: int
    n: int
    by: list[str]
    columns: dict[str, str]
    descending: bool = True
    rank: str | None = "rank"

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Set the tables and the output from the kept columns."""
        ranks = [] if self.rank is None else [(self.rank, pa.int64())]
        self._ordering = [f"_by{number}" for number in range(len(self.by))]
        taken = (*key.names, *BOUNDS, *(name for name, _ in ranks), PANE, TIME, *self._ordering)
        (kept,) = kept_schemas((self.columns,), inputs, taken)
        for column in self.by:
            if column not in inputs[0].names:
                raise SpecRefused(f"no column {column!r} to order by; there are {', '.join(inputs[0].names)}")
        self.window = Window(self.size_ms, self.slide_ms)
        order = [(name, inputs[0].field(column).type) for name, column in zip(self._ordering, self.by, strict=True)]
        self._stored = pa.schema([(PANE, pa.int64()), (TIME, pa.int64()), *order, *kept])
        self.tables = {ROWS: StateTable(self._stored, pa.binary())}
        bounds = [(name, pa.int64()) for name in BOUNDS]
        self.output = pa.schema([*key, *pa.schema(bounds), *pa.schema(ranks), *kept])

    def process(self, work: Work) -> None:
        """Put rows into their panes, and emit the windows that are final now."""
        pane = self.window.pane_ms
        starts = work.times() // pane * pane
        timely = last_ends(self.window, starts) > work.low
        work.late(int(timely.size - timely.sum()))
        chosen = np.flatnonzero(timely & self._has_all(work.rows()))
        before = work.read(ROWS)
        new = self._rows(work, chosen, starts)
        key = np.concatenate([before.key, work.key_of()[chosen]])
        rows = pa.concat_batches([before.values, new])
        if not key.size:
            return
        order, place = self._placed(rows, key, ints(rows, PANE))
        first = order[place <= self.n]
        rows, key, place = rows.take(pa.array(first)), key[first], place[place <= self.n]
        self._emit(work, rows, key)
        self._keep(work, rows, key, place)

    def _has_all(self, rows: pa.RecordBatch) -> Ints:
        found: Ints = np.ones(rows.num_rows, np.bool_)
        for column in self.by:
            found &= rows.column(column).is_valid().to_numpy(zero_copy_only=False)
        return found

    def _rows(self, work: Work, chosen: Ints, starts: Ints) -> pa.RecordBatch:
        """New rows in stored form."""
        rows = work.rows().take(pa.array(chosen))
        columns = [pa.array(starts[chosen]), pa.array(work.times()[chosen])]
        columns += [rows.column(column) for column in (*self.by, *self.columns.values())]
        return pa.RecordBatch.from_arrays(columns, schema=self._stored)

    def _placed(self, rows: pa.RecordBatch, key: Ints, group: Ints) -> tuple[Ints, Ints]:
        """Rows in order, by key and group, and the rank of each in its group, from 1 on."""
        sign = -1 if self.descending else 1
        ordering = [sign * ranks(rows.column(name)) for name in self._ordering]
        rest = [ranks(rows.column(name)) for name in rows.schema.names[2 + len(self._ordering) :]]
        order = np.lexsort((*reversed([*ordering, ints(rows, TIME), *rest]), group, key))
        begins = begins_of(key[order], group[order])
        sizes = np.diff(np.append(begins, order.size))
        return order, np.arange(order.size) - np.repeat(begins, sizes) + 1

    def _emit(self, work: Work, rows: pa.RecordBatch, key: Ints) -> None:
        """Every window with low < end <= watermark."""
        member, ends = fired_windows(self.window, ints(rows, PANE), work.low, work.watermark)
        if not member.size:
            return
        rows, key = rows.take(pa.array(member)), key[member]
        order, place = self._placed(rows, key, ends)
        order, place = order[place <= self.n], place[place <= self.n]
        end = ends[order]
        columns = [*work.keys.take(pa.array(key[order])).columns, pa.array(end - self.size_ms), pa.array(end)]
        columns += [] if self.rank is None else [pa.array(place)]
        columns += rows.take(pa.array(order)).columns[-len(self.columns) :]
        work.emit(key[order], pa.RecordBatch.from_arrays(columns, schema=self.output))

    def _keep(self, work: Work, rows: pa.RecordBatch, key: Ints, place: Ints) -> None:
        """Keep rows of panes whose windows are not all final; remove the others."""
        panes = ints(rows, PANE)
        over = last_ends(self.window, panes) <= work.watermark
        entry = entries(panes, place)
        before = work.read(ROWS)
        assert before.entry is not None
        gone = last_ends(self.window, ints(before.values, PANE)) <= work.watermark
        work.remove(ROWS, before.key[gone], before.entry.filter(pa.array(gone)))
        stays = np.flatnonzero(~over)
        work.put(ROWS, key[stays], rows.take(pa.array(stays)), entry.take(pa.array(stays)))
        keys, starts, _ = distinct_pairs(key[stays], panes[stays])
        work.set_timer(keys, next_ends(self.window, starts, work.watermark))


def ints(rows: pa.RecordBatch, name: str) -> Ints:
    """A column of integers."""
    found: Ints = rows.column(name).to_numpy(zero_copy_only=False)
    return found


def entries(panes: Ints, place: Ints) -> pa.Array:
    """The entry under which a row of a pane is stored."""
    words = np.stack([panes.astype(">i8").view(np.int64), place.astype(">i8").view(np.int64)], axis=1)
    return pa.Array.from_buffers(pa.binary(16), panes.size, [None, pa.py_buffer(np.ascontiguousarray(words))]).cast(
        pa.binary()
    )


def ranks(column: pa.Array) -> Ints:
    """A number for each value, in their order: equal values have the same number, NaN is the greatest, and a null comes
    last."""
    if pa.types.is_floating(column.type):
        column = same_floats(column.cast(pa.float64()))
    codes = column.dictionary_encode()
    order = pc.sort_indices(codes.dictionary).to_numpy(zero_copy_only=False)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    found = codes.indices.fill_null(0).to_numpy(zero_copy_only=False)
    numbers = place[found] if order.size else np.zeros(len(column), np.int64)
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), numbers, order.size)
