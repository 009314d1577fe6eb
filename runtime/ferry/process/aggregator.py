"""Aggregators: what is kept of a group of rows, and what is read from it; the functions of pipelines, and users' own.

An aggregator sees many groups at once: the rows of a group stand one after the other, and no group is empty. So each of
its three functions is a few calls of numpy or Arrow. Sessions, windows of rows and windows of time are built on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import Aggregate
from ferry.contract.errors import OVERFLOW, SpecRefused
from ferry.kernels.grouping import Ints
from ferry.process.api import batch_of
from ferry.process.groups import begins_of


class Aggregator(ABC):
    """An aggregate function of one's own: a dataclass whose fields are what JSON can hold.

    `begins` of its functions is int64[groups]: the first row of each group, which ends where the next one begins. That is
    what `numpy.add.reduceat` and its like take.

    Attributes:
        state: columns that are kept of a group.
        output: columns that are read from them.
    Example:
        >>> import dataclasses, numpy, pyarrow as pa
        >>> @dataclasses.dataclass
        ... class Product(ferry.Aggregator):
        ...     column: str
        ...     state = output = pa.schema([("product", pa.float64())])
        ...     def update(self, rows, begins):
        ...         factors = rows.column(self.column).to_numpy()
        ...         return {"product": numpy.multiply.reduceat(factors, begins)}
        ...     def merge(self, states, begins):
        ...         return {"product": numpy.multiply.reduceat(states.column("product").to_numpy(), begins)}
        ...     def result(self, states):
        ...         return states
        >>> rows = pa.record_batch({"price": [2.0, 3.0, 7.0]})
        >>> Product("price").update(rows, numpy.array([0, 2]))
        {'product': array([6., 7.])}
    """

    state: pa.Schema
    output: pa.Schema

    def open(self, rows: pa.Schema) -> None:  # noqa: B027
        """Look at the columns of the rows, and set what depends on them. Raises SpecRefused."""

    @abstractmethod
    def update(self, rows: pa.RecordBatch, begins: Ints) -> Any:
        """The state of each group of these rows, which are in order: a batch, or arrays by column."""

    @abstractmethod
    def merge(self, states: pa.RecordBatch, begins: Ints) -> Any:
        """One state of each group of states, of which the one of earlier rows comes first."""

    @abstractmethod
    def result(self, states: pa.RecordBatch) -> Any:
        """What is read from each state: columns of `output`."""


class _Function(NamedTuple):
    """One aggregate function: its state columns, and how they come about."""

    state: Callable[[pa.DataType], list[pa.DataType]]
    update: Callable[[pa.Array, Ints], list[Any]]
    merge: Callable[[Sequence[pa.Array], Ints], list[Any]]
    result: Callable[[Sequence[pa.Array]], pa.Array]
    output: Callable[[pa.DataType], pa.DataType]
    numbers: bool = False
    """Its column has to be a number."""


@dataclass
class Functions(Aggregator):
    """The aggregate functions of pipelines, one output column each: `{"n": ferry.count(), "s": ferry.sum("price")}`."""

    aggregates: dict[str, Aggregate]

    def open(self, rows: pa.Schema) -> None:
        """Types of states and results follow from those of the columns."""
        self._functions = {name: _function(name, a, rows) for name, a in self.aggregates.items()}
        state, output = [], []
        for name, a in self.aggregates.items():
            kind = rows.field(a.column).type if a.column is not None else pa.int64()
            found = self._functions[name]
            state += [(f"{name}_{i}", t) for i, t in enumerate(found.state(kind))]
            output.append((name, found.output(kind)))
        self.state = pa.schema(state)
        self.output = pa.schema(output)

    def update(self, rows: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """Each function by itself."""
        made: list[Any] = []
        for name, a in self.aggregates.items():
            column = _ones(rows.num_rows) if a.column is None else rows.column(a.column)
            made += self._functions[name].update(column, begins)
        return _batch(made, self.state)

    def merge(self, states: pa.RecordBatch, begins: Ints) -> pa.RecordBatch:
        """Each function by itself."""
        return _batch([m for f, columns in self._of_each(states) for m in f.merge(columns, begins)], self.state)

    def result(self, states: pa.RecordBatch) -> pa.RecordBatch:
        """Each function by itself."""
        return _batch([f.result(columns) for f, columns in self._of_each(states)], self.output)

    def _of_each(self, states: pa.RecordBatch) -> list[tuple[_Function, list[pa.Array]]]:
        found, at = [], 0
        for name, function in self._functions.items():
            width = sum(1 for column in self.state.names if column.rpartition("_")[0] == name)
            found.append((function, states.columns[at : at + width]))
            at += width
        return found


def taken_in(
    aggregator: Aggregator, kept: pa.RecordBatch, kept_group: Ints, rows: pa.RecordBatch, row_group: Ints
) -> pa.RecordBatch:
    """The state of each group, of kept states and of new rows in order; groups are numbered, and none is empty."""
    states, groups = kept.select(aggregator.state.names), kept_group
    if rows.num_rows:
        order = np.argsort(row_group, kind="stable")
        begins = begins_of(row_group[order])
        new = batch_of(aggregator.update(rows.take(pa.array(order)), begins), aggregator.state, "update")
        states = pa.concat_batches([states.cast(new.schema), new])
        groups = np.concatenate([kept_group, row_group[order][begins]])
    order = np.argsort(groups, kind="stable")
    return merged_states(aggregator, states.take(pa.array(order)), groups[order])


def merged_states(aggregator: Aggregator, states: pa.RecordBatch, group: Ints) -> pa.RecordBatch:
    """One state of each group; groups ascend."""
    begins = begins_of(group)
    if begins.size == group.size:
        return states
    return batch_of(aggregator.merge(states, begins), aggregator.state, "merge")


def results(
    aggregator: Aggregator, states: pa.RecordBatch, before: Sequence[pa.Array], output: pa.Schema
) -> pa.RecordBatch:
    """Rows of `output`: these columns, and what the aggregator reads from each state."""
    found = batch_of(aggregator.result(states), aggregator.output, "result")
    return pa.RecordBatch.from_arrays([*before, *found.columns], schema=output)


def group_numbers(begins: Ints, rows: int) -> Ints:
    """The number of each row's group."""
    return np.repeat(np.arange(begins.size), np.diff(begins, append=rows))


def _batch(columns: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(c) if isinstance(c, np.ndarray) else c for c in columns]
    return pa.RecordBatch.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)


def _ones(rows: int) -> pa.Array:
    return pa.array(np.ones(rows, np.int64))


def _function(name: str, aggregate: Aggregate, rows: pa.Schema) -> _Function:
    if aggregate.function not in FUNCTIONS:
        raise SpecRefused(
            f"{name}={aggregate.function}(...): sessions, windows of rows and processes have "
            f"{', '.join(sorted(FUNCTIONS))}; write a ferry.Aggregator for others"
        )
    if aggregate.column is not None and aggregate.column not in rows.names:
        raise SpecRefused(f"{name} needs column {aggregate.column!r}; there are {', '.join(rows.names)}")
    found = FUNCTIONS[aggregate.function]
    kind = pa.int64() if aggregate.column is None else rows.field(aggregate.column).type
    if found.numbers and not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise SpecRefused(f"{name}: column {aggregate.column!r} is {kind}; an integer or a float is needed")
    if found.numbers and kind == pa.uint64():
        raise SpecRefused(
            f"{name}: column {aggregate.column!r} is uint64; make it an int64 or a double before the operator"
        )
    return found


def _number(kind: pa.DataType) -> pa.DataType:
    return pa.float64() if pa.types.is_floating(kind) else pa.int64()


def _valid(column: pa.Array) -> Ints:
    return column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)


def _values(column: pa.Array) -> npt.NDArray[Any]:
    """Numbers, 0 for null: int64 or float64."""
    kind = _number(column.type)
    return column.cast(kind).fill_null(pa.scalar(0, kind)).to_numpy(zero_copy_only=False)


def _total(values: npt.NDArray[Any], begins: Ints) -> npt.NDArray[Any]:
    """Sums of groups; refuses those of integers that leave 64 bits."""
    sums = np.add.reduceat(values, begins)
    if values.dtype == np.int64 and (np.abs(np.add.reduceat(values.astype(np.float64), begins) - sums) > 2.0**62).any():
        raise SpecRefused(f"{OVERFLOW}a sum is beyond 64-bit integers; make the column a double before the operator")
    return sums


def _sum_update(column: pa.Array, begins: Ints) -> list[Any]:
    return [_total(_values(column), begins), np.add.reduceat(_valid(column), begins)]


def _sum_merge(states: Sequence[pa.Array], begins: Ints) -> list[Any]:
    return [_total(_values(state), begins) for state in states]


def _unless_none(states: Sequence[pa.Array]) -> pa.Array:
    return pc.if_else(pc.greater(states[1], 0), states[0], pa.scalar(None, states[0].type))


def _picked(column: pa.Array, begins: Ints, greatest: bool) -> pa.Array:
    """The least or the greatest value of each group, by Arrow's order (NaN is the greatest); null where all are null."""
    rank = pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    if greatest and column.null_count:
        rank[_valid(column) == 0] = 0
    order = np.lexsort((rank, group_numbers(begins, len(column))))
    return column.take(pa.array(order[np.append(begins[1:], len(column)) - 1 if greatest else begins]))


def _mean(states: Sequence[pa.Array]) -> pa.Array:
    some = pc.if_else(pc.greater(states[1], 0), states[1], pa.scalar(None, pa.int64()))
    return pc.divide(states[0].cast(pa.float64(), safe=False), some.cast(pa.float64()))


def _extreme(greatest: bool) -> _Function:
    return _Function(
        state=lambda kind: [kind],
        update=lambda column, begins: [_picked(column, begins, greatest)],
        merge=lambda states, begins: [_picked(states[0], begins, greatest)],
        result=lambda states: states[0],
        output=lambda kind: kind,
    )


FUNCTIONS: dict[str, _Function] = {
    "count": _Function(
        state=lambda kind: [pa.int64()],
        update=lambda column, begins: [np.add.reduceat(_valid(column), begins)],
        merge=_sum_merge,
        result=lambda states: states[0],
        output=lambda kind: pa.int64(),
    ),
    "sum": _Function(
        state=lambda kind: [_number(kind), pa.int64()],
        update=_sum_update,
        merge=_sum_merge,
        result=_unless_none,
        output=_number,
        numbers=True,
    ),
    "mean": _Function(
        state=lambda kind: [_number(kind), pa.int64()],
        update=_sum_update,
        merge=_sum_merge,
        result=_mean,
        output=lambda kind: pa.float64(),
        numbers=True,
    ),
    "min": _extreme(greatest=False),
    "max": _extreme(greatest=True),
}
"""By the word of pipelines."""
