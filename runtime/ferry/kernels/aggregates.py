"""The aggregate functions: for each one what it keeps of a group, what a record contributes, and what is read from it.

One entry below is all that a function is: kernels, schemas, `import ferry` and the checks of a pipeline derive from it. It
is made of what `ferry.kernels.kept` has; what cannot be made of that needs a new merge in `ferry.kernels.grouping`.

A function may leave out records in which a column of it is null, as in SQL. Then its result is null for a group that has
none left, which bit c of the state's last column says, c being the first state column of the function.
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
"""State columns of an operator: one word of flags has two bits for each."""

STATE_BYTES_MAX = 1024
"""Of one group: a million new ones in an epoch, the default bound of its records, fit into one message each way."""

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
    """Of its state columns and the numbers of records, for many groups at once; null where it is not defined. Raises
    values.Beyond when a value does not fit into the type of the result."""
    type: Callable[[ValueType], pa.DataType]
    """Of the result, by that of its column."""
    takes: tuple[str, ...] = ()
    """Families of values that its column may be of."""
    nullable: bool = True
    """Without a value there is no result; False: there is one always."""
    gathers: bool = False
    """It keeps all distinct values of its column, in no words of a fixed number: a process does."""


@dataclass(frozen=True, slots=True)
class PlacedAggregate:
    """One aggregate of an operator, and where its state columns are."""

    aggregate: Aggregate
    function: Function
    columns: tuple[StateColumn, ...]
    first: int
    """Number of its first state column; until one has several words it is that of the column's word, too."""
    word: int
    """Where its words begin."""

    @property
    def state(self) -> slice:
        """Its state columns among those of the operator."""
        return slice(self.first, self.first + len(self.columns))

    def check(self, flags: Ints) -> None:
        """Of the last state column. Raises values.Beyond when a sum has left its bits."""
        if self.function.nullable and (beyond := flags & (1 << OVERFLOWED + self.first) != 0).any():
            wide = self.columns[0].merge == SUM_WIDE
            raise values.Beyond("beyond 128 bits" if wide else "beyond 64-bit integers", int(beyond.argmax()))

    def results(self, state: Sequence[pa.Array], records: pa.Array, flags: Ints) -> pa.Array:
        """Its output column, of its state columns, the numbers of records and the last one. Raises values.Beyond."""
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
    """The aggregates of an operator, in order. State columns of several words come after those of one: these have flags."""
    each = [FUNCTIONS[a.function].keeps(a) for a in descriptor.aggregates]
    found = dict[int, PlacedAggregate]()
    first = word = 0
    for i in sorted(range(len(each)), key=lambda i: any(column.words > 1 for column in each[i])):
        aggregate = descriptor.aggregates[i]
        found[i] = PlacedAggregate(aggregate, FUNCTIONS[aggregate.function], each[i], first, word)
        first, word = first + len(each[i]), word + words_of(each[i])
    return tuple(found[i] for i in range(len(each)))


def words_of(columns: Sequence[StateColumn]) -> int:
    """How many words state columns have together."""
    return int(np.sum([column.words for column in columns], dtype=np.int64))


def flagged(descriptor: OperatorDescriptor) -> bool:
    """True when the last state column says of the others whether they hold a value, and whether it is true."""
    return any(place.function.nullable for place in places(descriptor))


@lru_cache(256)
def value_columns(descriptor: OperatorDescriptor) -> tuple[StateColumn, ...]:
    """The state columns of an operator's aggregates: its first ones."""
    placed = sorted(places(descriptor), key=lambda place: place.first)
    return tuple(column for place in placed for column in place.columns)


@lru_cache(256)
def state_columns(descriptor: OperatorDescriptor) -> tuple[StateColumn, ...]:
    """The state columns s0, s1, ... of an operator: values, the newest event time if keys are forgotten, the epoch of the
    last change if these are emitted, flags."""
    columns = value_columns(descriptor)
    if descriptor.ttl_ms is not None:
        columns = (*columns, StateColumn("int", GREATEST["int"], "time"))
    if descriptor.emit == "changes":
        columns = (*columns, StateColumn("int", GREATEST["int"], "zero"))
    return (*columns, StateColumn("int", FLAGS, "zero")) if flagged(descriptor) else columns


def merge_codes(descriptor: OperatorDescriptor) -> Ints:
    """How each word of state is merged, int64[k]; see `ferry.kernels.grouping`."""
    return np.array([column.merge for column in state_columns(descriptor) for _ in range(column.words)], np.int64)


def result_type(aggregate: Aggregate) -> pa.DataType:
    """Type of an aggregate's output column."""
    return FUNCTIONS[aggregate.function].type(aggregate.number)


def reads_times(aggregate: Aggregate) -> bool:
    """True when its result depends on the event time of records."""
    return _takes(aggregate, "time", "-time")


def reads_values(aggregate: Aggregate) -> bool:
    """True when values of its columns are kept: they must be of a type that it takes then."""
    return _takes(aggregate, "column", "-column", "by")


def hashes_values(aggregate: Aggregate) -> bool:
    """True when values of its column are told from each other (`ferry.kernels.columns.hashable`)."""
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
    """Enter the function that a word of pipelines means."""

    def enter(word: Word) -> Word:
        FUNCTIONS[word.__name__] = Function(keeps, result, kind, takes, **more)
        word.__doc__ = f"{inspect.getdoc(word)}\n{_TAKEN}"  # without the indentation of the source, as of Python 3.13
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
    """Number of records, or of those in which `column` is not null.

    Parameters: `column` of any type; None: all records.
    >>> counts = per_auction.aggregate("counts", num=ferry.count())
    """
    return Aggregate("", "count", None) if column is None else _of("count", column)


@_keeps(kept.summed, kept.sum_of, kept.sum_type, ADDED)
def sum(column: str) -> Aggregate:
    """Sum of integers, floats, decimals or durations; null when there is no value.

    Of decimal(p, s) it is exact, and a decimal(p + 10, s) as in Spark, of 38 digits at most; of integers it has 64 bits. A
    sum beyond that stops the job. Floats are added in no certain order: their last digits may differ.

    Parameters: `column` of integers, floats, decimals or durations.
    >>> turnover = per_auction.aggregate("turnover", cents=ferry.sum("price"))
    """
    return _of("sum", column)


@_keeps(kept.least, kept.least_of, values.arrow_type, ORDERED)
def min(column: str) -> Aggregate:
    """Least value.

    Strings are ordered by their bytes in UTF-8, as in Spark. An operator that keeps values of strings or bytes is slower:
    every record goes to the instance of its key, instead of what a task has made of many.

    Parameters: `column` of numbers, booleans, times, strings or bytes; the result has its type, with 64 bits of integers
    and floats.
    >>> lowest = per_auction.aggregate("lowest", price=ferry.min("price"))
    """
    return _of("min", column)


@_keeps(kept.greatest, kept.value_of, values.arrow_type, ORDERED)
def max(column: str) -> Aggregate:
    """Greatest value.

    Parameters: `column` as of `min`.
    >>> highest = per_auction.aggregate("highest", price=ferry.max("price"))
    """
    return _of("max", column)


@_keeps(kept.sum_and_count, kept.mean_of, kept.mean_type, NUMBERS)
def mean(column: str) -> Aggregate:
    """Mean in double precision of the exact sum and count; of decimal(p, s) a decimal(p + 4, s + 4) as in Spark.

    That is rounded once, half away from zero; a mean of decimals that does not fit into 38 digits stops the job. That of
    integers always fits: a sum beyond 64 bits is kept with its carries, and one beyond 86 bits as a double.

    Parameters: `column` of integers, floats or decimals.
    >>> usual = per_auction.aggregate("usual", price=ferry.mean("price"))
    """
    return _of("mean", column)


@_keeps(kept.where_greatest("by"), kept.value_of, values.arrow_type, ORDERED)
def arg_max(column: str, by: str) -> Aggregate:
    """The value of `column` where `by` is kept.greatest, of the records that have both; ties go to the greater value.

    Parameters: `column` and `by`, each as of `min`.
    >>> winners = per_auction.aggregate("winners", bidder=ferry.arg_max("bidder", by="price"))
    """
    return _of("arg_max", column, by)


@_keeps(kept.where_greatest("-time"), kept.value_of, values.arrow_type, ORDERED)
def first(column: str) -> Aggregate:
    """The value of the earliest record by event time that has one; of records of one time the greatest value.

    Parameters: `column` as of `min`.
    >>> opening = per_auction.aggregate("opening", price=ferry.first("price"))
    """
    return _of("first", column)


@_keeps(kept.where_greatest("time"), kept.value_of, values.arrow_type, ORDERED)
def last(column: str) -> Aggregate:
    """The value of the latest record by event time that has one; of records of one time the greatest value.

    Parameters: `column` as of `min`.
    >>> closing = per_auction.aggregate("closing", price=ferry.last("price"))
    """
    return _of("last", column)


@_keeps(kept.moments, kept.variance_of, kept.float_type, NUMBERS)
def variance(column: str) -> Aggregate:
    """Variance of a sample (n - 1), in double precision; null of less than two values.

    Values are taken in no certain order: the last digits may differ, as of `sum`.

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
    """About how many distinct values `column` has: numbers, booleans, strings, bytes, dates, times and timestamps.

    The standard error is 4.6 %, less for small counts; the same values give the same number, in whatever order. -0.0 is
    0.0, and NaN one value. It keeps 344 bytes for each key and slice (`ferry.kernels.sketch`), where `count` keeps 8.

    Parameters: `column` of these types.
    >>> audience = per_auction.aggregate("audience", bidders=ferry.approx_count_distinct("bidder"))
    """
    return _of("approx_count_distinct", column)


@_keeps(lambda _: (), kept.distinct_of, kept.int_type, nullable=False, gathers=True)
def count_distinct(column: str) -> Aggregate:
    """How many distinct values `column` has, exactly; 0 where all are null. -0.0 is 0.0, and NaN one value.

    State grows with the values: it keeps each of them (8 bytes of a number or time, 16 of a decimal, a text and 4 bytes) by
    key and slice, 16 MiB at most, and an epoch that adds some writes them all. Every record goes to the instance of its key.
    Where about right will do, use `approx_count_distinct`.

    Parameters: `column` as of `approx_count_distinct`.
    >>> audience = per_auction.aggregate("audience", bidders=ferry.count_distinct("bidder"))
    """
    return _of("count_distinct", column)
