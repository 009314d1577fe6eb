"""What a pipeline is written in: streams of records, keyed, windowed, aggregated or joined, and given to sinks.

Every call returns a new value; nothing runs here. Mistakes are refused as soon as they can be seen, with the name of the
thing and what to do. Must never import pyspark at run time: schemas of DataFrames come in from `ferry.spark.compile`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ferry.contract.descriptors import Aggregate, KeyType, Number, OperatorDescriptor, Side, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import COLUMNS_MAX, places, reads_values, state_types
from ferry.kernels.schemas import fired_schema
from ferry.spark.words import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ferry.spark.sinks import Sink

Batches = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]
Frames = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True)
class Transform:
    """A step in Spark: DataFrame in, DataFrame out."""

    function: Frames


@dataclass(frozen=True, slots=True)
class MapBatches:
    """A step inside the ingest task: record batch in, record batch (or table) out."""

    function: Batches


@dataclass(slots=True)
class Build:
    """Operators of one pipeline in the order in which they were declared, and how to find out schemas of transforms."""

    schema_after: Callable[[Frames, pa.Schema, str], pa.Schema]
    operators: list[Operator] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Input:
    """How one input of an operator (or a sink) comes about: records of `origin`, then `steps`."""

    origin: str | int
    """Name of a source, or index of the operator whose fired rows these are."""
    steps: tuple[Transform | MapBatches, ...]
    schema: pa.Schema
    time: str | None
    delay_ms: int
    key: tuple[str, ...] = ()
    ahead_ms: int | None = None
    """How far ahead of the clock an event time may be; None: as far as it likes."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A stateful operator with its inputs: one for an aggregate, two for a join."""

    descriptor: OperatorDescriptor
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """Rows that go to a sink."""

    input: Input
    sink: Sink


@dataclass(frozen=True, slots=True)
class Stream:
    """Records of a source, or rows that an operator fired."""

    build: Build
    input: Input

    def event_time(self, column: str, delay: int | str = 0, ahead: int | str | None = "1d") -> Stream:
        """`column` (int64 milliseconds or a timestamp) is the event time; records come at most `delay` late.

        `delay`: milliseconds, or text such as "3s". The watermark is the greatest event time seen minus this.
        `ahead`: records whose time is more than this ahead of the worker's clock are malformed, for the watermark never goes
        back. None: the times are of another clock. Ferry's generators have their own, so it does not hold for them.
        """
        self._column(column, "event_time")
        kind = self.input.schema.field(column).type
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
            raise SpecRefused(f"event_time: column {column!r} is {kind}; int64 milliseconds or a timestamp is needed")
        ahead_ms = None if ahead is None else milliseconds(ahead, "ahead")
        timed = replace(self.input, time=column, delay_ms=milliseconds(delay, "delay"), ahead_ms=ahead_ms)
        return replace(self, input=timed)

    def transform(self, function: Frames) -> Stream:
        """Stateless Spark SQL before an operator; after one, `function` sees all rows that the epoch fired."""
        schema = self.build.schema_after(function, self.input.schema, self._where())
        return replace(self, input=replace(self.input, steps=(*self.input.steps, Transform(function)), schema=schema))

    def map_batches(self, function: Batches) -> Stream:
        """Arrow batches in and out, inside the task; keeps the records out of the JVM."""
        empty = pa.RecordBatch.from_pylist([], schema=self.input.schema)
        try:
            schema = function(empty).schema
        except Exception as error:
            raise SpecRefused(
                f"map_batches on {self._where()}: {name_of(function)} fails on an empty batch with columns "
                f"{self.input.schema.names}: {type(error).__name__}: {error}"
            ) from error
        return replace(self, input=replace(self.input, steps=(*self.input.steps, MapBatches(function)), schema=schema))

    def key_by(self, *columns: str) -> KeyedStream:
        """Partition by one or more columns: integers or strings."""
        if not columns:
            raise SpecRefused(f"key_by on {self._where()}: name at least one column")
        for column in columns:
            self._column(column, "key_by")
            key_type(self.input.schema.field(column), "key_by")
        return KeyedStream(self.build, replace(self.input, key=columns))

    def sink(self, sink: Sink) -> Output:
        """End of the pipeline."""
        if not isinstance(self.input.origin, int):
            raise SpecRefused(
                f"sink on {self._where()}: a pipeline without a stateful operator is an ordinary Spark query; "
                "add .key_by(...).window(...).aggregate(...) or use Spark alone"
            )
        return Output(self.input, sink)

    def _where(self) -> str:
        origin = self.input.origin
        return (
            f"source {origin!r}"
            if isinstance(origin, str)
            else f"operator {self.build.operators[origin].descriptor.name!r}"
        )

    def _column(self, column: str, what: str) -> None:
        if column not in self.input.schema.names:
            raise SpecRefused(
                f"{what} on {self._where()}: no column {column!r}; there are {', '.join(self.input.schema.names)}"
            )


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream with a key."""

    build: Build
    input: Input

    def window(self, window: Window) -> WindowedStream:
        """`tumbling("60s")` or `sliding("60s", "10s")`."""
        if not isinstance(window, Window):
            raise SpecRefused(f"window: {window!r} is not a window; use tumbling(size) or sliding(size, slide)")
        fired = isinstance(self.input.origin, int) and "window_end" in self.input.schema.names
        if self.input.time is None and not fired:
            where = Stream(self.build, self.input)._where()
            raise SpecRefused(f"window on {where}: no event time; call .event_time(column, delay=...) before key_by")
        return WindowedStream(self.build, self.input, window)


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """A keyed stream with a window."""

    build: Build
    input: Input
    window: Window

    def aggregate(self, name: str, **aggregates: Aggregate) -> Stream:
        """A windowed aggregate. Output: the key columns, window_start, window_end, then the aggregates by name."""
        if not aggregates:
            raise SpecRefused(f"aggregate {name!r}: name at least one, e.g. n=count()")
        made = tuple(self._aggregate(name, out, a) for out, a in aggregates.items())
        descriptor = OperatorDescriptor(
            name, len(self.build.operators), "aggregate", self._key(name), self.window, made
        )
        needed = len(state_types(descriptor))
        if needed > COLUMNS_MAX:
            each = ", ".join(f"{place.aggregate.name} {len(place.columns)}" for place in places(descriptor))
            raise SpecRefused(
                f"aggregate {name!r}: {len(made)} aggregates need {needed} columns of state, {COLUMNS_MAX} are "
                f"possible; declare less ({each})"
            )
        return self._declare(Operator(descriptor, (self.input,)))

    def join(
        self,
        name: str,
        other: KeyedStream,
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
    ) -> Stream:
        """Pairs of records of both streams with the same key in the same window.

        `left` and `right` say which columns are kept: names, or {output name: column}. Output: window_start,
        window_end, the left columns, the right columns.
        """
        if not isinstance(other, KeyedStream):
            raise SpecRefused(f"join {name!r}: the other stream needs .key_by(...) and nothing after it")
        other.window(self.window)
        key, theirs = self._key(name), WindowedStream(other.build, other.input, self.window)._key(name)
        if [t for _, t in key] != [t for _, t in theirs]:
            raise SpecRefused(f"join {name!r}: keys differ in type: {dict(key)} and {dict(theirs)}")
        sides = self._side(name, self.input, left), self._side(name, other.input, right)
        names = ["window_start", "window_end", *(n for s in sides for n, _, _ in s.columns)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise SpecRefused(
                f"join {name!r}: output columns {twice} would appear twice; rename with {{output: column}}"
            )
        descriptor = OperatorDescriptor(name, len(self.build.operators), "join", key, self.window, (), *sides)
        return self._declare(Operator(descriptor, (self.input, other.input)))

    def _declare(self, operator: Operator) -> Stream:
        name = operator.descriptor.name
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
            raise SpecRefused(f"operator name {name!r}: use lower-case letters, digits and _, starting with a letter")
        if any(o.descriptor.name == name for o in self.build.operators):
            raise SpecRefused(f"two operators are named {name!r}; names identify state and must differ")
        self.build.operators.append(operator)
        schema = fired_schema(operator.descriptor)
        return Stream(self.build, Input(operator.descriptor.index, (), schema, None, 0))

    def _key(self, name: str) -> tuple[tuple[str, KeyType], ...]:
        return tuple((c, key_type(self.input.schema.field(c), f"operator {name!r}")) for c in self.input.key)

    def _side(self, name: str, source: Input, columns: dict[str, str] | Sequence[str]) -> Side:
        pairs = list(columns.items()) if isinstance(columns, dict) else [(c, c) for c in columns]
        out = []
        for output, column in pairs:
            if column not in source.schema.names:
                raise SpecRefused(f"join {name!r}: no column {column!r}; there are {', '.join(source.schema.names)}")
            out.append((output, column, str(source.schema.field(column).type)))
        return Side(tuple(out))

    def _aggregate(self, name: str, out: str, aggregate: Aggregate) -> Aggregate:
        if not isinstance(aggregate, Aggregate):
            raise SpecRefused(
                f"aggregate {name!r}: {out}={aggregate!r} is not an aggregate; use count(), sum(column), ..."
            )
        if out in ("window_start", "window_end", *self.input.key):
            raise SpecRefused(f"aggregate {name!r}: {out!r} is already an output column; choose another name")
        numbers: list[Number] = ["int", "int"]
        for i, column in enumerate((aggregate.column, aggregate.by)):
            if column is not None:
                numbers[i] = self._number(name, out, column, not reads_values(aggregate))
        return replace(aggregate, name=out, number=numbers[0], by_number=numbers[1])

    def _number(self, name: str, out: str, column: str, any_type: bool) -> Number:
        if column not in self.input.schema.names:
            raise SpecRefused(
                f"aggregate {name!r}: {out} needs column {column!r}; there are {', '.join(self.input.schema.names)}"
            )
        kind = self.input.schema.field(column).type
        if any_type or pa.types.is_integer(kind):
            return "int"
        if pa.types.is_floating(kind):
            return "float"
        raise SpecRefused(f"aggregate {name!r}: column {column!r} is {kind}; an integer or a float is needed")


def key_type(column: pa.Field, what: str) -> KeyType:
    """Type of a key element."""
    if pa.types.is_integer(column.type):
        return "int"
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return "string"
    raise SpecRefused(f"{what}: key column {column.name!r} is {column.type}; integers and strings can be keys")


def name_of(function: Any) -> str:
    """How to call a user's function in a message."""
    return str(getattr(function, "__qualname__", function))
