"""Windows of rows: each record with aggregates of the last rows of its key, or of all rows so far.

Records of a key are numbered in processing order: the pipeline's order within an epoch, then by epoch. No record is
late, and no watermark is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.errors import SpecRefused
from ferry.kernels.columns import indices
from ferry.kernels.grouping import Ints
from ferry.process.aggregator import Aggregator, of_key, open_aggregator, results, rows_of, updated
from ferry.process.api import Process, Work
from ferry.process.groups import at_once
from ferry.process.tables import StateTable

ROWS_AT_ONCE = 1 << 20
"""Rows of all windows that are aggregated at a time."""

WINDOWS_AT_ONCE = 1 << 16

COUNT = "count"
"""Table: number of rows of each key so far."""


@dataclass
class RowWindows(Process):
    """Each record with aggregates of the last `size` rows of its key. Output: the columns, then the aggregates.

    Parameters:
        size: rows of a window; the first windows of a key are shorter.
        aggregator: computes the aggregates.
        columns: columns of the record itself: {output name: column}.
        slide: only every n-th record of a key ends a window, n = slide.
        order: columns that order an epoch's records of a key; none: the order of the pipeline.
        number: output column for the number of the record among its key's, from 1 on; None: there is none.
    """

    size: int
    aggregator: Aggregator
    columns: dict[str, str]
    slide: int = 1
    order: list[str] = field(default_factory=list)
    number: str | None = None

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """Whole rows are kept, `size` - 1 of them a key."""
        if self.size < 1 or self.slide < 1:
            raise SpecRefused(f"rows({self.size}, {self.slide}): a window has one row at least, and a slide, too")
        rows = inputs[0]
        kept = StateTable(open_aggregator(self.aggregator, rows), pa.int64())
        number = [] if self.number is None else [(self.number, pa.int64())]
        self.output = pa.schema([*pa.schema(number), *chosen(self.columns, rows), *self.aggregator.output])
        chosen({column: column for column in self.order}, rows)
        counted = StateTable(pa.schema([("n", pa.int64())]))
        self.tables = {COUNT: counted, "rows": kept}

    def process(self, work: Work) -> None:
        """Put the kept rows of each key before its new ones, and aggregate the window of each new one."""
        new = rows_of(self.aggregator, work)
        if not new.num_rows:
            return
        order = in_order(work, self.order)
        before = work.get(COUNT).column("n").fill_null(0).to_numpy(zero_copy_only=False)
        kept, key = work.read("rows"), work.key_of()
        rows = pa.concat_batches([kept.values, new.take(pa.array(order)).cast(kept.values.schema)])
        keys = np.concatenate([kept.key, key])
        at = np.argsort(keys, kind="stable")
        rows, keys, is_new = rows.take(pa.array(at)), keys[at], at >= kept.key.size
        spans = np.searchsorted(keys, np.arange(work.count + 1))
        sizes = np.diff(work.spans())
        number = np.arange(keys.size) - (spans[1:] - sizes - before)[keys] + 1
        self._emit(work, rows, keys, spans, number, np.flatnonzero(is_new & (number % self.slide == 0)))
        self._keep(work, rows, keys, spans, number, is_new)
        work.put(COUNT, np.arange(work.count), {"n": before + sizes})

    def _emit(self, work: Work, rows: pa.RecordBatch, keys: Ints, spans: Ints, number: Ints, ends: Ints) -> None:
        begins = np.maximum(spans[keys[ends]], ends - self.size + 1)
        step = max(1, min(at_once(rows, ROWS_AT_ONCE) // self.size, WINDOWS_AT_ONCE))
        for piece in range(0, ends.size, step):
            at = slice(piece, piece + step)
            last, first = ends[at], begins[at]
            members = indices(first, last + 1)
            groups = np.concatenate([[0], np.cumsum(last + 1 - first)[:-1]])
            with of_key(work, keys[last]):
                states = updated(self.aggregator, rows.take(pa.array(members)), groups)
            columns: list[Any] = [] if self.number is None else [pa.array(number[last])]
            columns += [rows.column(column).take(pa.array(last)) for column in self.columns.values()]
            with of_key(work, keys[last]):
                work.emit(keys[last], results(self.aggregator, states, columns, self.output))

    def _keep(self, work: Work, rows: pa.RecordBatch, keys: Ints, spans: Ints, number: Ints, is_new: Any) -> None:
        last = np.arange(keys.size) >= spans[1:][keys] - (self.size - 1)
        added, gone = np.flatnonzero(last & is_new), np.flatnonzero(~last & ~is_new)
        work.put("rows", keys[added], rows.take(pa.array(added)), number[added])
        work.remove("rows", keys[gone], pa.array(number[gone]))


def chosen(columns: Mapping[str, str], rows: pa.Schema) -> pa.Schema:
    """Columns of the record itself, by output name. Raises SpecRefused."""
    for column in columns.values():
        if column not in rows.names:
            raise SpecRefused(f"no column {column!r}; there are {', '.join(rows.names)}")
    return pa.schema([(name, rows.field(column).type) for name, column in columns.items()])


def in_order(work: Work, order: Sequence[str]) -> Ints:
    """Row numbers of an epoch, by key, and within a key by these columns, then in the present order."""
    columns = (pc.rank(work.rows().column(name), tiebreaker="dense") for name in reversed(order))
    return np.lexsort((*(column.to_numpy(zero_copy_only=False) for column in columns), work.key_of()))
