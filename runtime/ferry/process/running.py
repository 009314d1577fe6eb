"""One row out for each record: aggregates of all records of its key so far, including itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from ferry.kernels.grouping import Ints
from ferry.process.aggregator import Aggregator, of_key, open_aggregator, ran, results, rows_of, updated
from ferry.process.api import Process, Work
from ferry.process.groups import at_once, distinct
from ferry.process.row_windows import chosen, in_order
from ferry.process.tables import StateTable

STATE = "state"
"""Table: the aggregator's state of each key."""

RECORDS_AT_ONCE = 1 << 18
"""Records per batch, each of which becomes a state."""


@dataclass
class RunningAggregate(Process):
    """Each record with aggregates of its key so far. Output: the columns, then the aggregates.

    Parameters:
        aggregator: computes the aggregates.
        columns: columns of the record itself: {output name: column}.
        order: columns that order an epoch's records of a key; none: the order of the pipeline.
    """

    aggregator: Aggregator
    columns: dict[str, str]
    order: list[str] = field(default_factory=list)

    def open(self, key: pa.Schema, inputs: Sequence[pa.Schema]) -> None:
        """One state a key is kept."""
        open_aggregator(self.aggregator, inputs[0])
        self.output = pa.schema([*chosen(self.columns, inputs[0]), *self.aggregator.output])
        chosen({column: column for column in self.order}, inputs[0])
        self.tables = {STATE: StateTable(self.aggregator.state)}

    def process(self, work: Work) -> None:
        """Process rows in order, a batch at a time."""
        rows, order = rows_of(self.aggregator, work), in_order(work, self.order)
        step = at_once(rows, RECORDS_AT_ONCE)
        for begin in range(0, order.size, step):
            numbers = order[begin : begin + step]
            self._take(work, rows.take(pa.array(numbers)), work.key_of()[numbers])

    def _take(self, work: Work, rows: pa.RecordBatch, key: Ints) -> None:
        """The state of each record, merged with all before it."""
        touched = distinct(key, work.count)
        kept = work.read(STATE, touched)
        each = updated(self.aggregator, rows, np.arange(rows.num_rows))
        keys = np.concatenate([kept.key, key])
        order = np.argsort(keys, kind="stable")
        states = pa.concat_batches([kept.values, each]).take(pa.array(order))
        spans = np.searchsorted(keys[order], np.arange(work.count + 1))
        with of_key(work, keys[order]):
            states = ran(self.aggregator, states, spans[keys[order]])
        new = states.filter(pa.array(order >= kept.key.size))
        columns = [rows.column(column) for column in self.columns.values()]
        with of_key(work, key):
            work.emit(key, results(self.aggregator, new, columns, self.output))
        work.put(STATE, touched, states.take(pa.array(spans[1:][touched] - 1)))
