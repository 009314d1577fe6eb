"""Building blocks of the aggregate functions: state columns of a group, and results read from them.

`ferry.kernels.aggregates` has the functions; `ferry.kernels.grouping` merges the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import Aggregate, Number, ValueType
from ferry.kernels import grouping, sketch, values
from ferry.kernels.grouping import Ints
from ferry.kernels.values import INT_MAX

Source = Literal["column", "-column", "by", "one", "zero", "time", "-time", "sketch"]
Keeps = Callable[[Aggregate], "tuple[StateColumn, ...]"]
Result = Callable[[Aggregate, Sequence[pa.Array], pa.Array], pa.Array]
"""From an aggregate, its state columns and the numbers of records."""


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One word of a group's state, or several that are one value."""

    number: Number
    merge: int
    """merge code of `ferry.kernels.grouping`, with its number"""
    source: Source
    """the contribution of a record; -column has all bits flipped, so that the least value is the greatest"""
    neutral: float = 0
    """contribution of a left-out record: it changes no other value"""
    words: int = 1
    word: int = 0
    """for a value with several words, one per state column: which word"""

    @property
    def type(self) -> pa.DataType:
        """Type of its Arrow column."""
        return values.arrow_type(self.number) if self.words == 1 else pa.binary(8 * self.words)

    def array(self, cells: Ints) -> pa.Array:
        """Its Arrow column from cells int64[rows, words]."""
        if self.words == 1:
            column = np.ascontiguousarray(cells[:, 0])
            return pa.array(column.view(np.float64) if self.number == "float" else column)
        data = pa.py_buffer(np.ascontiguousarray(cells))
        return pa.Array.from_buffers(self.type, cells.shape[0], [None, data])

    def cells(self, column: pa.Array) -> Ints:
        """Inverse of `array`."""
        if self.words == 1:
            cells: Ints = column.to_numpy(zero_copy_only=True).view(np.int64)
            return cells[:, np.newaxis]
        rows, words = len(column), self.words
        found = np.frombuffer(column.buffers()[1], np.int64, rows * words, 8 * words * column.offset)
        return found.reshape(rows, words)


def int_type(_: ValueType) -> pa.DataType:
    """Type of counts."""
    return pa.int64()


def float_type(_: ValueType) -> pa.DataType:
    """Type of approximate results."""
    return pa.float64()


def sum_type(value: ValueType) -> pa.DataType:
    """Type of sums: a sum of decimals has ten digits more, as in Spark."""
    kind = values.arrow_type(value)
    return values.wider(kind, 10, 0) if pa.types.is_decimal(kind) else kind


def mean_type(value: ValueType) -> pa.DataType:
    """Type of means: a mean of decimals has four more digits after the point, as in Spark."""
    kind = values.arrow_type(value)
    return values.wider(kind, 4, 4) if pa.types.is_decimal(kind) else pa.float64()


def _least(number: Number) -> float:
    """A lower bound of all values."""
    return -INT_MAX - 1 if number == "int" else float("-inf")


def counted() -> StateColumn:
    """Number of values."""
    return StateColumn("int", grouping.SUM["int"], "one")


def summed(a: Aggregate) -> tuple[StateColumn, ...]:
    """Sum of the values."""
    first, *rest = values.words(a.number)
    if not rest:
        return (StateColumn(first, grouping.SUM[first], "column"),)
    low = StateColumn("int", grouping.REST, "column", _least("int"), word=1)
    return StateColumn("int", grouping.SUM_WIDE, "column"), low


def sum_and_count(a: Aggregate) -> tuple[StateColumn, ...]:
    """For a mean: the sum, and the number of values."""
    if a.number != "int":
        return (*summed(a), counted())
    return StateColumn("int", grouping.SUM_AND_COUNT, "column"), StateColumn("int", grouping.REST, "one")


def sum_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """The sum. Raises values.Beyond."""
    sums = values.array(a.number, state)
    return values.fitted(sums, sum_type(a.number)) if pa.types.is_decimal(sums.type) else sums


def _best(source: Source, value: ValueType, merges: dict[Number, int]) -> tuple[StateColumn, ...]:
    """The words of a value: the first one decides the merge, the others follow it."""
    return tuple(
        StateColumn(number, (grouping.THEN if word else merges)[number], source, _least(number), word=word)
        for word, number in enumerate(values.words(value))
    )


def where_greatest(source: Source) -> Keeps:
    """The value of the record with the greatest `source`; at a tie the greatest value."""
    return lambda a: (
        *_best(source, a.by_number if source == "by" else "int", grouping.BEST),
        *_best("column", a.number, grouping.THEN),
    )


def value_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """The value in the last columns."""
    return values.array(a.number, state[-len(values.words(a.number)) :])


def least(a: Aggregate) -> tuple[StateColumn, ...]:
    """The least value."""
    first, *rest = values.words(a.number)
    if rest:
        return _best("-column", a.number, grouping.BEST)
    return (StateColumn(first, grouping.LEAST[first], "column", INT_MAX if first == "int" else float("nan")),)


def greatest(a: Aggregate) -> tuple[StateColumn, ...]:
    """The greatest value."""
    return _best("column", a.number, grouping.BEST if len(values.words(a.number)) > 1 else grouping.GREATEST)


def least_of(a: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Inverse of `least`."""
    return value_of(a, state if len(state) == 1 else [pc.bit_wise_not(word) for word in state], records)


def moments(_: Aggregate) -> tuple[StateColumn, ...]:
    """Number of values, their mean, and the sum of squared differences from it."""
    return (
        StateColumn("int", grouping.MOMENTS, "one"),
        StateColumn("float", grouping.REST, "column"),
        StateColumn("float", grouping.REST, "zero"),
    )


SKETCH = StateColumn("int", grouping.RANKS, "sketch", words=sketch.WORDS)


def distinct_of(_: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Approximate number of values that a sketch has seen."""
    return pa.array(sketch.counts(SKETCH.cells(state[0])))


def mean_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """Sums divided by counts. Raises values.Beyond."""
    counts, kind = pc.max_element_wise(state[-1], 1), mean_type(a.number)
    if pa.types.is_decimal(kind):
        return values.quotients(values.array(a.number, state[:-1]), counts, kind)
    return pc.divide(state[0].cast(kind, safe=False), counts.cast(kind, safe=False))


def variance_of(a: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Variance from `moments`; NaN if a value is infinite, as in Spark."""
    counts, means, squares = state
    squares = pc.if_else(pc.is_finite(means), squares, pa.scalar(float("nan")))
    several = pc.greater(counts, 1)
    others = pc.if_else(several, pc.subtract(counts, 1), 1).cast(pa.float64())
    return pc.if_else(several, pc.divide(squares, others), pa.scalar(None, pa.float64()))


def stddev_of(a: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Standard deviation from `moments`."""
    return pc.sqrt(variance_of(a, state, records))
