"""What the aggregate functions are made of: columns of state that they keep of a group, and what is read from these.

`ferry.kernels.aggregates` has the functions; how cells are merged says `ferry.kernels.grouping`.
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
"""Of an aggregate, its state columns and the numbers of records"""


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One word of a group's state, or several that are one value."""

    number: Number
    merge: int
    """of `ferry.kernels.grouping`, with its number"""
    source: Source
    """what a record contributes; -column has all bits turned, so that the least value is the greatest"""
    neutral: float = 0
    """what it contributes that is left out: it changes no other value"""
    words: int = 1
    word: int = 0
    """of a value of a column that has several, one for each state column: which one"""

    @property
    def type(self) -> pa.DataType:
        """Of its Arrow column."""
        return values.arrow_type(self.number) if self.words == 1 else pa.binary(8 * self.words)

    def array(self, cells: Ints) -> pa.Array:
        """Its Arrow column of cells int64[rows, words]."""
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
    """Of counts."""
    return pa.int64()


def float_type(_: ValueType) -> pa.DataType:
    """Of what is only about right."""
    return pa.float64()


def sum_type(value: ValueType) -> pa.DataType:
    """Of sums: those of decimals have ten digits more, as in Spark."""
    kind = values.arrow_type(value)
    return values.wider(kind, 10, 0) if pa.types.is_decimal(kind) else kind


def mean_type(value: ValueType) -> pa.DataType:
    """Of means: those of decimals have four digits more behind the point, as in Spark."""
    kind = values.arrow_type(value)
    return values.wider(kind, 4, 4) if pa.types.is_decimal(kind) else pa.float64()


def _least(number: Number) -> float:
    """What no value is less than."""
    return -INT_MAX - 1 if number == "int" else float("-inf")


def counted() -> StateColumn:
    """How many values."""
    return StateColumn("int", grouping.SUM["int"], "one")


def summed(a: Aggregate) -> tuple[StateColumn, ...]:
    """Their sum."""
    first, *rest = values.words(a.number)
    if not rest:
        return (StateColumn(first, grouping.SUM[first], "column"),)
    low = StateColumn("int", grouping.REST, "column", _least("int"), word=1)
    return StateColumn("int", grouping.SUM_WIDE, "column"), low


def sum_and_count(a: Aggregate) -> tuple[StateColumn, ...]:
    """Of a mean: the sum, and how many values."""
    if a.number != "int":
        return (*summed(a), counted())
    return StateColumn("int", grouping.SUM_AND_COUNT, "column"), StateColumn("int", grouping.REST, "one")


def sum_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """Raises values.Beyond."""
    sums = values.array(a.number, state)
    return values.fitted(sums, sum_type(a.number)) if pa.types.is_decimal(sums.type) else sums


def _best(source: Source, value: ValueType, merges: dict[Number, int]) -> tuple[StateColumn, ...]:
    """The words of a value: the first one is merged so, the others come with it."""
    return tuple(
        StateColumn(number, (grouping.THEN if word else merges)[number], source, _least(number), word=word)
        for word, number in enumerate(values.words(value))
    )


def where_greatest(source: Source) -> Keeps:
    """The value of the record whose `source` is the greatest, of those where it is the greatest value."""
    return lambda a: (
        *_best(source, a.by_number if source == "by" else "int", grouping.BEST),
        *_best("column", a.number, grouping.THEN),
    )


def value_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """The value that is kept in the last columns."""
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
    """About how many values a sketch has seen."""
    return pa.array(sketch.counts(SKETCH.cells(state[0])))


def mean_of(a: Aggregate, state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    """Sums by counts. Raises values.Beyond."""
    counts, kind = pc.max_element_wise(state[-1], 1), mean_type(a.number)
    if pa.types.is_decimal(kind):
        return values.quotients(values.array(a.number, state[:-1]), counts, kind)
    return pc.divide(state[0].cast(kind, safe=False), counts.cast(kind, safe=False))


def variance_of(a: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Of `moments`; NaN where a value is infinite, as in Spark."""
    counts, means, squares = state
    squares = pc.if_else(pc.is_finite(means), squares, pa.scalar(float("nan")))
    several = pc.greater(counts, 1)
    others = pc.if_else(several, pc.subtract(counts, 1), 1).cast(pa.float64())
    return pc.if_else(several, pc.divide(squares, others), pa.scalar(None, pa.float64()))


def stddev_of(a: Aggregate, state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    """Of `moments`."""
    return pc.sqrt(variance_of(a, state, records))
