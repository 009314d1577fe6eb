"""The aggregate functions: the state that each keeps of a group, the contribution of a record, and the result.

One entry below defines a function completely: kernels, schemas, `import ferry` and the checks of a pipeline derive from
it. It is composed from `ferry.kernels.kept`; anything else needs a new merge in `ferry.kernels.grouping`.

A function may leave out records in which a column of it is null, as in SQL. Its result is null for a group without
other records: bit c of the state's last column records this, c being the first state column of the function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ferry.contract import limits
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, ValueType
from ferry.contract.texts import require_name
from ferry.kernels import kept, values
from ferry.kernels.grouping import FLAGS, GREATEST, OVERFLOWED, SUM_AND_COUNT, SUM_WIDE, Ints
from ferry.kernels.kept import Keeps, Result, Source, StateColumn
from ferry.kernels.means import plain_sums

__all__ = [
    "approx_count_distinct", "arg_max", "count", "count_distinct", "first", "last", "max", "mean", "min", "stddev", "sum",
    "variance",
]  # fmt: skip

NUMBERS = ("integers", "floats", "decimals")
ADDED = (*NUMBERS, "durations")
ORDERED = (*ADDED, "booleans", "dates", "times", "timestamps", "strings", "bytes")
"""Families of values (`ferry.kernels.values`) that a function may take."""

COLUMNS_MAX = 31
"""State columns of an operator: the flags are one word with two bits per column."""

KEPT = limits.WATERMARK_END
"""In place of the newest event time of a key: it is kept until it has another record."""

STATE_BYTES_MAX = 1024
"""Bytes of one group: a million new groups in an epoch, the default bound of its records, fit into one message each
way."""

Word = TypeVar("Word", bound=Callable[..., Aggregate])

_TAKEN = """
Returns: what `.aggregate("name", ...)` takes, under the name of the output column.
Raises: SpecRefused, if the column is no text; by `.aggregate`, if there is no such column, or its type is not taken.
"""


@dataclass(frozen=True, slots=True)
class Function:
    """One aggregate function."""

    keeps: Keeps
    result: Result
    """From its state columns and the numbers of records, for many groups at once; null where it is undefined. Raises
    values.Beyond when a value does not fit into the type of the result."""
    type: Callable[[ValueType], pa.DataType]
    """Type of the result, from the type of its column."""
    takes: tuple[str, ...] = ()
    """Families of values that its column may have."""
    nullable: bool = True
    """Without a value the result is null; False: there is always a result."""
    gathers: bool = False
    """It keeps all distinct values of its column, which have no fixed number of words: a process keeps them."""


@dataclass(frozen=True, slots=True)
class PlacedAggregate:
    """One aggregate of an operator, and the position of its state columns."""

    aggregate: Aggregate
    function: Function
    columns: tuple[StateColumn, ...]
    first: int
    """Number of its first state column; equal to the number of the column's word until a column has several words."""
    word: int
    """Its first word."""

    @property
    def state(self) -> slice:
        """The range of its state columns in the operator's."""
        return slice(self.first, self.first + len(self.columns))

    def check(self, flags: Ints) -> None:
        """For the last state column. Raises values.Beyond when a sum has overflowed."""
        if self.function.nullable and (beyond := flags & (1 << OVERFLOWED + self.first) != 0).any():
            wide = self.columns[0].merge == SUM_WIDE
            raise values.Beyond("beyond 128 bits" if wide else "beyond 64-bit integers", int(beyond.argmax()))

    def results(self, state: Sequence[pa.Array], records: pa.Array, flags: Ints) -> pa.Array:
        """Its output column, from its state columns, the numbers of records and the flags. Raises values.Beyond."""
        self.check(flags)
        if self.columns and self.columns[0].merge == SUM_AND_COUNT:
            state = plain_sums(state, flags & (1 << OVERFLOWED + 1 + self.first) != 0)
        found = self.function.result(self.aggregate, state, records)
        if not self.function.nullable:
            return found
        return pc.if_else(pa.array(flags & (1 << self.first) != 0), found, pa.scalar(None, found.type))


FUNCTIONS: dict[str, Function] = {}


@lru_cache(256)
def places(descriptor: OperatorDescriptor) -> tuple[PlacedAggregate, ...]:
    """The aggregates of an operator, in order. State columns of several words come last, because flags belong to the
    others."""
    each = [FUNCTIONS[a.function].keeps(a) for a in descriptor.aggregates]
    placed = dict[int, PlacedAggregate]()
    first = word = 0
    for i in sorted(range(len(each)), key=lambda i: any(column.words > 1 for column in each[i])):
        aggregate = descriptor.aggregates[i]
        placed[i] = PlacedAggregate(aggregate, FUNCTIONS[aggregate.function], each[i], first, word)
        first, word = first + len(each[i]), word + words_of(each[i])
    return tuple(placed[i] for i in range(len(each)))


def words_of(columns: Sequence[StateColumn]) -> int:
    """Number of words of these state columns."""
    return int(np.sum([column.words for column in columns], dtype=np.int64))


def flagged(descriptor: OperatorDescriptor) -> bool:
    """True when the last state column has flags: for each other column, whether it holds a value, and whether it has
    overflowed."""
    return any(place.function.nullable for place in places(descriptor))


@lru_cache(256)
def value_columns(descriptor: OperatorDescriptor) -> tuple[StateColumn, ...]:
    """The state columns of an operator's aggregates: its first ones."""
    placed = sorted(places(descriptor), key=lambda place: place.first)
    return tuple(column for place in placed for column in place.columns)


@lru_cache(256)
def state_columns(descriptor: OperatorDescriptor) -> tuple[StateColumn, ...]:
    """The state columns s0, s1, ... of an operator: values, the newest event time if keys are forgotten, the epoch of
    the last change if changes are emitted, flags."""
    columns = value_columns(descriptor)
    if descriptor.ttl_ms is not None:
        columns = (*columns, StateColumn("int", GREATEST["int"], "time"))
    if descriptor.emit == "changes":
        columns = (*columns, StateColumn("int", GREATEST["int"], "zero"))
    return (*columns, StateColumn("int", FLAGS, "zero")) if flagged(descriptor) else columns


def merge_codes(descriptor: OperatorDescriptor) -> Ints:
    """Merge code of each word of state, int64[k]; see `ferry.kernels.grouping`."""
    return np.array([column.merge for column in state_columns(descriptor) for _ in range(column.words)], np.int64)


def result_type(aggregate: Aggregate) -> pa.DataType:
    """Type of an aggregate's output column."""
    return FUNCTIONS[aggregate.function].type(aggregate.number)


def reads_times(aggregate: Aggregate) -> bool:
    """True when its result depends on the event time of records."""
    return _takes(aggregate, "time", "-time")


def reads_values(aggregate: Aggregate) -> bool:
    """True when values of its columns are kept: their type must then be supported."""
    return _takes(aggregate, "column", "-column", "by")


def hashes_values(aggregate: Aggregate) -> bool:
    """True when values of its column are compared by hash (`ferry.kernels.columns.hashable`)."""
    return gathers(aggregate) or _takes(aggregate, "sketch")


def gathers(aggregate: Aggregate) -> bool:
    """True when it keeps all distinct values of its column."""
    return FUNCTIONS[aggregate.function].gathers


def _takes(aggregate: Aggregate, *sources: Source) -> bool:
    return any(column.source in sources for column in FUNCTIONS[aggregate.function].keeps(aggregate))


def _keeps(
    keeps: Keeps,
    result: Result,
    kind: Callable[[ValueType], pa.DataType],
    takes: tuple[str, ...] = (),
    **more: Any,
) -> Callable[[Word], Word]:
    """Register the function of a pipeline's word."""

    def enter(word: Word) -> Word:
        FUNCTIONS[word.__name__] = Function(keeps, result, kind, takes, **more)
        word.__doc__ = f"{inspect.getdoc(word)}\n{_TAKEN}"  # dedented, as Python 3.13 does
        return word

    return enter


def _of(function: str, *columns: str) -> Aggregate:
    return Aggregate("", function, *(require_name(column, f"{function}: column") for column in columns))


@_keeps(
    lambda a: () if a.column is None else (kept.counted(),),
    lambda a, state, records: state[0] if state else records,
    kept.int_type,
    nullable=False,
)
def count(column: str | None = None) -> Aggregate:
    """Number of records, or of records in which `column` is not null.

    Parameters: `column` of any type; None: all records.
    >>> counts = per_auction.aggregate("counts", num=ferry.count())
    """
    return Aggregate("", "count", None) if column is None else _of("count", column)


@_keeps(kept.summed, kept.sum_of, kept.sum_type, ADDED)
def sum(column: str) -> Aggregate:
    """Sum of integers, floats, decimals or durations; null when there is no value.

    For decimal(p, s) it is exact, and a decimal(p + 10, s) as in Spark, of 38 digits at most; for integers it has 64
    bits. A larger sum stops the job. Floats are added in no fixed order: their last digits may differ.

    Parameters: `column` of integers, floats, decimals or durations.
    >>> turnover = per_auction.aggregate("turnover", cents=ferry.sum("price"))
    """
    return _of("sum", column)


@_keeps(kept.least, kept.least_of, values.arrow_type, ORDERED)
def min(column: str) -> Aggregate:
    """Least value.

    Strings are ordered by their bytes in UTF-8, as in Spark. For strings or bytes the operator is slower: tasks do not
    combine records, every record goes to the instance of its key.

    Parameters: `column` of numbers, booleans, times, strings or bytes; the result has its type, with 64 bits of integers
    and floats.
    >>> lowest = per_auction.aggregate("lowest", price=ferry.min("price"))
    """
    return _of("min", column)


@_keeps(kept.greatest, kept.value_of, values.arrow_type, ORDERED)
def max(column: str) -> Aggregate:
    """Greatest value.

    Parameters: `column` as for `min`.
    >>> highest = per_auction.aggregate("highest", price=ferry.max("price"))
    """
    return _of("max", column)


@_keeps(kept.sum_and_count, kept.mean_of, kept.mean_type, NUMBERS)
def mean(column: str) -> Aggregate:
    """Mean in double precision of the exact sum and count; of decimal(p, s) a decimal(p + 4, s + 4) as in Spark.

    A decimal mean is rounded once, half away from zero; one that does not fit into 38 digits stops the job. A mean of
    integers always fits: a sum beyond 64 bits is kept with its carries, and one beyond 86 bits as a double.

    Parameters: `column` of integers, floats or decimals.
    >>> usual = per_auction.aggregate("usual", price=ferry.mean("price"))
    """
    return _of("mean", column)


@_keeps(kept.where_greatest("by"), kept.value_of, values.arrow_type, ORDERED)
def arg_max(column: str, by: str) -> Aggregate:
    """The value of `column` where `by` is greatest, among records that have both; ties go to the greater value.

    Parameters: `column` and `by`, each as for `min`.
    >>> winners = per_auction.aggregate("winners", bidder=ferry.arg_max("bidder", by="price"))
    """
    return _of("arg_max", column, by)


@_keeps(kept.where_greatest("-time"), kept.value_of, values.arrow_type, ORDERED)
def first(column: str) -> Aggregate:
    """The value of the earliest record by event time that has one; at equal times the greatest value.

    Parameters: `column` as for `min`.
    >>> opening = per_auction.aggregate("opening", price=ferry.first("price"))
    """
    return _of("first", column)


@_keeps(kept.where_greatest("time"), kept.value_of, values.arrow_type, ORDERED)
def last(column: str) -> Aggregate:
    """The value of the latest record by event time that has one; at equal times the greatest value.

    Parameters: `column` as for `min`.
    >>> closing = per_auction.aggregate("closing", price=ferry.last("price"))
    """
    return _of("last", column)


@_keeps(kept.moments, kept.variance_of, kept.float_type, NUMBERS)
def variance(column: str) -> Aggregate:
    """Variance of a sample (n - 1), in double precision; null for fewer than two values.

    Values are taken in no fixed order: the last digits may differ, as with `sum`.

    Parameters: `column` of integers, floats or decimals.
    >>> spread = per_auction.aggregate("spread", price=ferry.variance("price"))
    """
    return _of("variance", column)


@_keeps(kept.moments, kept.stddev_of, kept.float_type, NUMBERS)
def stddev(column: str) -> Aggregate:
    """Standard deviation of a sample: the square root of `variance`.

    Parameters: `column` of integers, floats or decimals.
    >>> spread = per_auction.aggregate("spread", price=ferry.stddev("price"))
    """
    return _of("stddev", column)


@_keeps(lambda _: (kept.SKETCH,), kept.distinct_of, kept.int_type, nullable=False)
def approx_count_distinct(column: str) -> Aggregate:
    """Approximate number of distinct values of `column`: numbers, booleans, strings, bytes, dates, times and
    timestamps.

    The standard error is 4.6 %, less for small counts; the result does not depend on the order of values. -0.0 equals
    0.0, and NaN is one value. It keeps 344 bytes for each key and slice (`ferry.kernels.sketch`), while `count` keeps
    8.

    Parameters: `column` of these types.
    >>> audience = per_auction.aggregate("audience", bidders=ferry.approx_count_distinct("bidder"))
    """
    return _of("approx_count_distinct", column)


@_keeps(lambda _: (), kept.distinct_of, kept.int_type, nullable=False, gathers=True)
def count_distinct(column: str) -> Aggregate:
    """Exact number of distinct values of `column`; 0 if all are null. -0.0 equals 0.0, and NaN is one value.

    State grows with the values: it keeps each of them (8 bytes of a number or time, 16 of a decimal, a text and 4
    bytes) by key and slice, 16 MiB at most, and an epoch that adds some writes them all. Every record goes to the
    instance of its key. If an approximate number suffices, use `approx_count_distinct`.

    Parameters: `column` as of `approx_count_distinct`.
    >>> audience = per_auction.aggregate("audience", bidders=ferry.count_distinct("bidder"))
    """
    return _of("count_distinct", column)
