"""Aggregate functions some of which keep all distinct values of a column: they are counted exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import Aggregate
from ferry.kernels.aggregates import gathers, result_type
from ferry.kernels.declared import typed
from ferry.kernels.grouping import Ints
from ferry.kernels.value_sets import TooManyValues, element_type, elements, sizes, united, values_of
from ferry.process.aggregator import Aggregator, Functions, TooGreat

WAY = "use approx_count_distinct, or a finer key"


@dataclass
class DistinctFunctions(Functions):
    """Functions of pipelines, some of which keep distinct values.

    A group has the state of the other functions, and a set of values for each of these.
    """

    def open(self, rows: pa.Schema) -> None:
        """Types of sets follow from the types of the columns."""
        set_aggregates = {out: typed(out, a, rows) for out, a in self.aggregates.items() if gathers(a)}
        self._others = Functions({out: a for out, a in self.aggregates.items() if out not in set_aggregates})
        self._others.open(rows)
        self.timed = self._others.timed
        names = [f"s{number}" for number, _ in enumerate(set_aggregates, len(self._others.state) - 1)]
        self._sets = dict(zip(names, set_aggregates.values(), strict=True))
        self._types = {name: element_type(rows.field(a.column).type) for name, a in self._sets.items()}
        self.state = pa.schema([*self._others.state, *((name, pa.binary()) for name in names)])
        types = {field.name: field.type for field in self._others.output} | {
            o: result_type(a) for o, a in set_aggregates.items()
        }
        self.output = pa.schema([(out, types[out]) for out in self.aggregates])

    def update(self, rows: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """Sets of the values of each group."""
        group = np.searchsorted(begins, np.arange(rows.num_rows), "right") - 1
        found = {name: (elements(rows.column(a.column)), group) for name, a in self._sets.items()}
        return self._with_sets(self._others.update(rows, begins), found, begins.size)

    def merge(self, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """Unions of sets."""
        group = np.searchsorted(begins, np.arange(states.num_rows), "right") - 1
        found = {}
        for name, kind in self._types.items():
            each, number = values_of(states.column(name), kind)
            found[name] = each, group[number]
        return self._with_sets(self._others.merge(states.select(self._others.state.names), begins), found, begins.size)

    def running(self, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """By merges: a set includes the earlier sets of its group."""
        return Aggregator.running(self, states, begins)

    def result(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """Sizes of sets."""
        words = self._others.result(states.select(self._others.state.names))
        found = dict(zip(words.schema.names, words.columns, strict=True))
        found |= {a.name: pa.array(sizes(states.column(name), self._types[name])) for name, a in self._sets.items()}
        return pa.RecordBatch.from_arrays([found[out] for out in self.output.names], schema=self.output)

    def _with_sets(
        self, others: pa.RecordBatch, found: Mapping[str, tuple[pa.Array, Ints]], groups: int
    ) -> pa.RecordBatch:
        sets = []
        for name, (each, group) in found.items():
            try:
                sets.append(united(each, group, groups))
            except TooManyValues as many:
                a = self._sets[name]
                raise TooGreat(f"{many}: {a.name}={a.function}({a.column!r})", WAY, many.row) from many
        return pa.RecordBatch.from_arrays([*others.columns, *sets], schema=self.state)


def functions_of(aggregates: Mapping[str, Aggregate]) -> Functions:
    """The aggregator of these functions."""
    made = DistinctFunctions if any(map(gathers, aggregates.values())) else Functions
    return made(dict(aggregates))
