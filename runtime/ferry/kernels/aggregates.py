"""The aggregate functions: for each one what it keeps of a group, what a record contributes, and what is read from it.

One entry below is all that a function is: kernels, schemas, `import ferry` and the checks of a pipeline derive from it. It
is made of the merges that `ferry.kernels.grouping` has; what cannot be made of these needs a new one there.

A function may leave out records in which a column of it is null, as in SQL. Then its result is null for a group that has
none left, which bit c of the state's last column says, c being the first state column of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract.descriptors import Aggregate, Number, OperatorDescriptor
from ferry.kernels.grouping import BEST, FLAGS, GREATEST, LEAST, MOMENTS, REST, SUM, Ints

__all__ = ["arg_max", "count", "first", "last", "max", "mean", "min", "stddev", "sum", "variance"]

INT_MAX = 2**63 - 1

NUMBER_TYPES: dict[Number, pa.DataType] = {"int": pa.int64(), "float": pa.float64()}

COLUMNS_MAX = 31
"""State columns of an operator: one word of flags has two bits for each."""

Source = Literal["column", "by", "one", "zero", "time", "-time"]
Word = TypeVar("Word", bound=Callable[..., Aggregate])


@dataclass(frozen=True, slots=True)
class StateColumn:
    """One word of a group's state."""

    number: Number
    merge: int
    """of `ferry.kernels.grouping`, with its number"""
    source: Source
    """what a record contributes"""
    neutral: float = 0
    """what it contributes that is left out: it changes no other value"""

    @property
    def reads(self) -> bool:
        """True when a value of the record is kept."""
        return self.source in ("column", "by")


@dataclass(frozen=True, slots=True)
class Function:
    """One aggregate function."""

    keeps: Callable[[Aggregate], tuple[StateColumn, ...]]
    result: Callable[[Sequence[pa.Array], pa.Array], pa.Array]
    """Of its state columns and the numbers of records, for many groups at once; null where it is not defined."""
    number: Callable[[Aggregate], Number]
    """Type of the result."""
    nullable: bool = True
    """Without a value there is no result; False: there is one always."""


@dataclass(frozen=True, slots=True)
class PlacedAggregate:
    """One aggregate of an operator, and where its state columns are."""

    aggregate: Aggregate
    function: Function
    first: int
    columns: tuple[StateColumn, ...]

    @property
    def state(self) -> slice:
        """Its state columns among those of the operator."""
        return slice(self.first, self.first + len(self.columns))


FUNCTIONS: dict[str, Function] = {}


@lru_cache(256)
def places(descriptor: OperatorDescriptor) -> tuple[PlacedAggregate, ...]:
    """The aggregates of an operator, in order."""
    found, at = list[PlacedAggregate](), 0
    for aggregate in descriptor.aggregates:
        function = FUNCTIONS[aggregate.function]
        found.append(PlacedAggregate(aggregate, function, at, function.keeps(aggregate)))
        at += len(found[-1].columns)
    return tuple(found)


def flagged(descriptor: OperatorDescriptor) -> bool:
    """True when the last state column says of the others whether they hold a value, and whether it is true."""
    return any(place.function.nullable for place in places(descriptor))


def state_types(descriptor: OperatorDescriptor) -> tuple[Number, ...]:
    """Types of the state columns s0, s1, ... of an operator."""
    values: tuple[Number, ...] = tuple(column.number for place in places(descriptor) for column in place.columns)
    return (*values, "int") if flagged(descriptor) else values


def merge_codes(descriptor: OperatorDescriptor) -> Ints:
    """How each state column is merged, int64[k]; see `ferry.kernels.grouping`."""
    codes = [column.merge for place in places(descriptor) for column in place.columns]
    return np.array([*codes, FLAGS] if flagged(descriptor) else codes, np.int64)


def result_type(aggregate: Aggregate) -> pa.DataType:
    """Type of an aggregate's output column."""
    return NUMBER_TYPES[FUNCTIONS[aggregate.function].number(aggregate)]


def reads_values(aggregate: Aggregate) -> bool:
    """True when values of its columns are kept: they must be numbers then."""
    return any(column.reads for column in FUNCTIONS[aggregate.function].keeps(aggregate))


def _own(aggregate: Aggregate) -> Number:
    return aggregate.number


def _int(_: Aggregate) -> Number:
    return "int"


def _float(_: Aggregate) -> Number:
    return "float"


def _at(column: int) -> Callable[[Sequence[pa.Array], pa.Array], pa.Array]:
    return lambda state, _: state[column]


def _keeps(
    keeps: Callable[[Aggregate], tuple[StateColumn, ...]],
    result: Callable[[Sequence[pa.Array], pa.Array], pa.Array],
    number: Callable[[Aggregate], Number],
    **more: Any,
) -> Callable[[Word], Word]:
    """Enter the function that a word of pipelines means."""

    def enter(word: Word) -> Word:
        FUNCTIONS[word.__name__] = Function(keeps, result, number, **more)
        return word

    return enter


def _greatest(number: Number) -> float:
    """Of all values the one that every other one is greater than, or as great as."""
    return -INT_MAX - 1 if number == "int" else float("-inf")


def _sum(a: Aggregate) -> StateColumn:
    return StateColumn(a.number, SUM[a.number], "column")


def _count() -> StateColumn:
    return StateColumn("int", SUM["int"], "one")


def _value_at(source: Source, number: Number, a: Aggregate) -> tuple[StateColumn, ...]:
    """The value of the record whose `source` is the greatest."""
    return (
        StateColumn(number, BEST[number, a.number], source, _greatest(number)),
        StateColumn(a.number, REST, "column", _greatest(a.number)),
    )


def _moments(_: Aggregate) -> tuple[StateColumn, ...]:
    """Number of values, their mean, and the sum of squared differences from it."""
    return (
        StateColumn("int", MOMENTS, "one"),
        StateColumn("float", REST, "column"),
        StateColumn("float", REST, "zero"),
    )


def _mean(state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    sums, values = (column.cast(pa.float64(), safe=False) for column in state)
    return pc.divide(sums, values)


def _variance(state: Sequence[pa.Array], _: pa.Array) -> pa.Array:
    values, _, squares = state
    several = pc.greater(values, 1)
    others = pc.if_else(several, pc.subtract(values, 1), 1).cast(pa.float64())
    return pc.if_else(several, pc.divide(squares, others), pa.scalar(None, pa.float64()))


def _stddev(state: Sequence[pa.Array], records: pa.Array) -> pa.Array:
    return pc.sqrt(_variance(state, records))


@_keeps(
    lambda a: () if a.column is None else (_count(),),
    lambda state, records: state[0] if state else records,
    _int,
    nullable=False,
)
def count(column: str | None = None) -> Aggregate:
    """Number of records, or of those in which `column` is not null."""
    return Aggregate("", "count", column)


@_keeps(lambda a: (_sum(a),), _at(0), _own)
def sum(column: str) -> Aggregate:
    """Sum of an integer or float column; null when it has no value.

    A sum of integers beyond 64 bits stops the job. Floats are added in no certain order: their last digits may differ.
    """
    return Aggregate("", "sum", column)


@_keeps(
    lambda a: (StateColumn(a.number, LEAST[a.number], "column", INT_MAX if a.number == "int" else float("nan")),),
    _at(0),
    _own,
)
def min(column: str) -> Aggregate:
    """Least value."""
    return Aggregate("", "min", column)


@_keeps(lambda a: (StateColumn(a.number, GREATEST[a.number], "column", _greatest(a.number)),), _at(0), _own)
def max(column: str) -> Aggregate:
    """Greatest value."""
    return Aggregate("", "max", column)


@_keeps(lambda a: (_sum(a), _count()), _mean, _float)
def mean(column: str) -> Aggregate:
    """Mean in double precision of the exact sum and count."""
    return Aggregate("", "mean", column)


@_keeps(lambda a: _value_at("by", a.by_number, a), _at(1), _own)
def arg_max(column: str, by: str) -> Aggregate:
    """The value of `column` where `by` is greatest, of the records that have both; ties go to the greater value."""
    return Aggregate("", "arg_max", column, by)


@_keeps(lambda a: _value_at("-time", "int", a), _at(1), _own)
def first(column: str) -> Aggregate:
    """The value of the earliest record by event time that has one; of records of one time the greatest value."""
    return Aggregate("", "first", column)


@_keeps(lambda a: _value_at("time", "int", a), _at(1), _own)
def last(column: str) -> Aggregate:
    """The value of the latest record by event time that has one; of records of one time the greatest value."""
    return Aggregate("", "last", column)


@_keeps(_moments, _variance, _float)
def variance(column: str) -> Aggregate:
    """Variance of a sample (n - 1), in double precision; null of less than two values.

    Values are taken in no certain order: the last digits may differ, as of `sum`.
    """
    return Aggregate("", "variance", column)


@_keeps(_moments, _stddev, _float)
def stddev(column: str) -> Aggregate:
    """Standard deviation of a sample: the square root of `variance`."""
    return Aggregate("", "stddev", column)
