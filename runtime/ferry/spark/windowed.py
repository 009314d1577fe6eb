"""Streams that are keyed and cut into windows: what makes operators of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.declared import needs_process
from ferry.kernels.kinds import plain_type
from ferry.kernels.values import named_type
from ferry.process.aggregator import Aggregator, Functions
from ferry.process.distinct_values import functions_of
from ferry.process.interval import IntervalJoin
from ferry.process.joins import refuse_turned
from ferry.process.row_windows import RowWindows
from ferry.process.sessions import SessionAggregate, SessionJoin
from ferry.process.window_join import WindowJoin
from ferry.process.windowed import WindowAggregate
from ferry.spark.aggregations import AggregateInput, aggregate_descriptor
from ferry.spark.bounds import MILLISECONDS, with_bounds
from ferry.spark.frames import require_types
from ferry.spark.pipeline import LateOutput
from ferry.spark.sinks import Sink
from ferry.spark.top import top_rows
from ferry.spark.user_functions import expecting
from ferry.spark.words import Duration, LastRows, SessionGap, milliseconds

if TYPE_CHECKING:
    from ferry.spark.keyed import KeyedStream
    from ferry.spark.stream import Stream


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """A keyed stream with a window, which is aggregated or joined.

    Example:
        >>> bids.event_time("ts").key_by("auction").window(ferry.tumbling("60s"))
        <stream of source 'bids': ...> by auction in Window(size_ms=60000, slide_ms=60000)
    """

    keyed: KeyedStream
    window: Window
    bounds: pa.DataType = MILLISECONDS
    """Type of the bounds."""

    def __repr__(self) -> str:
        return f"{self.keyed!r} in {self.window}"

    def aggregate(
        self,
        name: str,
        /,
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        late: Sink | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """One row for each key and window, when the watermark has passed the window's end.

        Parameters:
            name: of the operator; its state belongs to this name.
            aggregator: one of your own, instead of `aggregates`; or a dict of these, for names such as "late".
            late: a sink for the records that come too late for all their windows, which are otherwise left out: they are
                counted, and go there as they came, with all columns, when they come.
            aggregates: names of output columns, and the functions that make them.
        Returns: a stream of the key columns, window_start, window_end, and then the aggregates.
        Raises: SpecRefused, if there is none, a column is missing or of a wrong type, or a name is taken.
        Example:
            >>> per_auction.aggregate("hot", bids=ferry.count(), top=ferry.max("price")).columns
            ['auction', 'window_start', 'window_end', 'bids', 'top']
        """
        keyed, window = self.keyed, self.window
        aggregator, aggregates = outputs_of(name, aggregator, aggregates)
        if aggregator is not None or needs_process(aggregates, keyed.stream.input.schema):
            made = chosen_aggregator(name, aggregator, aggregates)
            process = WindowAggregate(window.size_ms, window.slide_ms, made)
            fired = keyed._processed(name, process, columns=[read_by(keyed, made)])
        else:
            read = AggregateInput(keyed.stream.input.schema, keyed._key(name))
            place = len(keyed.stream.build.operators)
            fired = keyed._declare(aggregate_descriptor(name, place, read, window, aggregates))
        return with_bounds(with_late(fired, window, (late,)), self.bounds)

    def join(
        self,
        name: str,
        other: KeyedStream,
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        how: str = "inner",
        late: tuple[Sink | None, Sink | None] | None = None,
    ) -> Stream:
        """Pairs of records of both streams with the same key in the same window, when the watermark has passed its end.

        Parameters:
            name: of the operator; its state belongs to this name.
            other: the other stream, with a key and without a window: it gets this one's.
            left: which columns of this stream are kept: names, or {output name: column}.
            right: which of the other.
            how: "inner", or "left", "right" or "full": of which streams records without a partner are there, with nulls.
            late: a pair of sinks, for records of the left and of the right stream that come too late, as for aggregates.
                None in it: those of that stream are only counted.
        Returns: a stream of window_start, window_end, the left columns, and the right columns.
        Raises: SpecRefused, if the keys differ in type, a column is missing, or an output column is there twice.
        Example:
            >>> sellers = auctions.event_time("ts").key_by("seller")
            >>> new = people.event_time("ts").key_by("id").window(ferry.tumbling("12h"))
            >>> new.join("new_sellers", sellers, left={"person": "id"}, right={"auction": "id"}).columns
            ['window_start', 'window_end', 'person', 'auction']
        """
        keyed, other = self.keyed, self.keyed._other(f"join {name!r}", other)
        other.window(self.window)
        if how != "inner":
            outer = WindowJoin(self.window.size_ms, self.window.slide_ms, kept(left), kept(right), how)
            return with_bounds(with_late(join_of(keyed, name, other, outer), self.window, late), self.bounds)
        key, theirs = keyed._key(name), other._key(name)
        if [t for _, t in key] != [t for _, t in theirs]:
            raise SpecRefused(
                f"join {name!r}: keys differ in type: {dict(key)} and {dict(theirs)}; cast those of one stream in "
                ".map_batches(...)"
            )
        sides = _side(name, keyed.stream.input.schema, left), _side(name, other.stream.input.schema, right)
        names = ["window_start", "window_end", *(n for s in sides for n, _, _ in s.columns)]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise SpecRefused(
                f"join {name!r}: output columns {twice} would appear twice; rename with {{output: column}}"
            )
        descriptor = OperatorDescriptor(name, len(keyed.stream.build.operators), "join", key, self.window, (), *sides)
        return with_bounds(with_late(keyed._declare(descriptor, other), self.window, late), self.bounds)

    def top_n(
        self,
        name: str,
        n: int,
        by: str | Sequence[str],
        columns: dict[str, str] | Sequence[str] | None = None,
        descending: bool = True,
        rank: str | None = "rank",
        late: Sink | None = None,
    ) -> Stream:
        """The `n` greatest rows of each key and window, a row each, when the watermark has passed the window's end.

        Rows with equal `by` are in the order of their event times, and then of what is kept of them, so that the same
        records give the same rows, however they come. A row in which `by` is null is left out; NaN is the greatest.

        Parameters:
            name: of the operator; its state belongs to this name. It keeps `n` rows of each key and slice.
            n: how many, 1000 at most. Windows with fewer records have fewer.
            by: the column that orders rows, or several, of which the first counts most.
            columns: which columns there are: names, or {output name: column}. None: all but the key's and bounds of
                windows.
            descending: False: the least rows.
            rank: name of the column for the row's place, from 1 on, as SQL's ROW_NUMBER; None: there is none.
            late: a sink for the records that come too late, as of `aggregate`.
        Returns: a stream of the key columns, window_start, window_end, the rank, and the columns.
        Raises: SpecRefused, if a column is missing or cannot be kept, a name is there twice, or `n` is no such number.
        Example:
            >>> per_auction.top_n("dearest", 3, by="price", columns=["bidder", "price"]).columns
            ['auction', 'window_start', 'window_end', 'rank', 'bidder', 'price']
        """
        chosen = None if columns is None else kept(columns)
        fired = top_rows(self, name, n, by, chosen, descending, rank)
        return with_bounds(with_late(fired, self.window, (late,)), self.bounds)


@dataclass(frozen=True, slots=True)
class SessionStream:
    """A keyed stream, cut into sessions."""

    keyed: KeyedStream
    window: SessionGap
    bounds: pa.DataType = MILLISECONDS
    """Type of the bounds."""

    def aggregate(
        self,
        name: str,
        /,
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        late: Sink | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """One row for each session, when the watermark has passed its end.

        Parameters:
            name: of the operator; its state belongs to this name.
            aggregator: one of your own, instead of `aggregates`; or a dict of these, for names such as "late".
            late: a sink for the records that come too late, as for windows.
            aggregates: names of output columns, and the functions that make them.
        Returns: a stream of the key columns, window_start (the first record's time), window_end, and then the aggregates.
        Raises: SpecRefused, if there is none, a column is missing or of a wrong type, or a name is taken.
        Example:
            >>> visits = bids.event_time("ts").key_by("bidder").window(ferry.session("10s"))
            >>> visits.aggregate("visits", num=ferry.count(), most=ferry.max("price")).columns
            ['bidder', 'window_start', 'window_end', 'num', 'most']
        """
        made = chosen_aggregator(name, *outputs_of(name, aggregator, aggregates))
        sessions = SessionAggregate(self.window.gap_ms, made)
        fired = self.keyed._processed(name, sessions, columns=[read_by(self.keyed, made)])
        return with_bounds(with_late(fired, self.window.alone, (late,)), self.bounds)

    def join(
        self,
        name: str,
        other: KeyedStream,
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        how: str = "inner",
        late: tuple[Sink | None, Sink | None] | None = None,
    ) -> Stream:
        """Pairs of records of both streams with the same key in one session, which is made of the records of both.

        Parameters:
            name: of the operator; its state belongs to this name.
            other: the other stream, with a key and without a window: it gets this one's.
            left: which columns of this stream are kept: names, or {output name: column}.
            right: which of the other.
            how: "inner", or "left", "right" or "full": of which streams records without a partner are there, with nulls.
            late: a pair of sinks, for records of the left and of the right stream that come too late, as for aggregates.
                None in it: those of that stream are only counted.
        Returns: a stream of window_start, window_end, the left columns, and the right columns.
        Raises: SpecRefused, if the keys differ in type, a column is missing, or an output column is there twice.
        Example:
            >>> offers = bids.event_time("ts").key_by("bidder")
            >>> active = people.event_time("ts").key_by("id").window(ferry.session("10s"))
            >>> active.join("active", offers, left={"person": "id"}, right={"bid": "seq"}).columns
            ['window_start', 'window_end', 'person', 'bid']
        """
        other = self.keyed._other(f"join {name!r}", other)
        sessions = SessionJoin(self.window.gap_ms, kept(left), kept(right), how)
        joined = join_of(self.keyed, name, other, sessions)
        return with_bounds(with_late(joined, self.window.alone, late), self.bounds)


@dataclass(frozen=True, slots=True)
class RowStream:
    """A keyed stream, cut into windows of rows."""

    keyed: KeyedStream
    window: LastRows

    def aggregate(
        self,
        name: str,
        /,
        columns: dict[str, str] | Sequence[str],
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        order: str | Sequence[str] = (),
        number: str | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """One row for each record that ends a window, at once: nothing is late.

        Parameters:
            name: of the operator; its state belongs to this name.
            columns: which columns of the record itself are there: names, or {output name: column}.
            aggregator: one of your own, instead of `aggregates`; or a dict of these, for names such as "order".
            order: columns that say in which order an epoch's records of a key are taken; none: that of event time.
            number: name of an output column for the record's number among those of its key, from 1 on.
            aggregates: names of output columns, and the functions that make them.
        Returns: a stream of the number, if it has a name, the columns, and then the aggregates. Call `.event_time(column)`
            before another operator.
        Raises: SpecRefused, if there is none, a column is missing or of a wrong type, or a name is taken.
        Example:
            >>> last5 = bids.event_time("ts").key_by("auction").window(ferry.rows(5))
            >>> last5.aggregate("last5", ["seq", "ts"], order="seq", n=ferry.count(), total=ferry.sum("price")).columns
            ['seq', 'ts', 'n', 'total']
        """
        made = chosen_aggregator(name, *outputs_of(name, aggregator, aggregates))
        by = [order] if isinstance(order, str) else list(order)
        window = RowWindows(self.window.size, made, kept(columns), self.window.slide, by, number)
        return self.keyed._processed(name, window, columns=[read_by(self.keyed, made, [*kept(columns).values(), *by])])


def with_late(fired: Stream, window: Window, late: Sequence[Sink | None] | None) -> Stream:
    """The stream; late records of each side of its operator go to these sinks. Raises SpecRefused."""
    operator = fired.build.operators[-1]
    descriptor, sides = operator.descriptor, operator.descriptor.inputs
    given = late if isinstance(late, tuple | list) else () if late is None else (late,)
    if wrong := [one for one in given if not isinstance(one, Sink | None)]:
        raise SpecRefused(
            f"operator {descriptor.name!r}: late={wrong[0]!r} is not a sink; late= is where late records go, such as "
            "ferry.parquet(...): an output column needs another name, or a dict: "
            'aggregator={"late": ferry.max("column")}'
        )
    if given and len(given) != sides:
        raise SpecRefused(f"operator {descriptor.name!r}: late= of a join is a pair of sinks, (left, right)")
    for side, sink in enumerate(given):
        if sink is not None:
            inputs = tuple(one for one in operator.inputs if one.side == side)
            for one in inputs:
                require_types(one.schema, f"operator {descriptor.name!r}: late=")
                expecting(sink, one.schema, f"operator {descriptor.name!r}: late=")
            fired.build.late.append(LateOutput(descriptor.index, inputs, window, sink))
    return fired


def outputs_of(
    name: str, aggregator: Aggregator | Mapping[str, Aggregate] | None, aggregates: Mapping[str, Aggregate]
) -> tuple[Aggregator | None, dict[str, Aggregate]]:
    """A user's own aggregator, and functions by output column, which may be in a dict in its place. Raises SpecRefused."""
    if not isinstance(aggregator, Mapping):
        return aggregator, dict(aggregates)
    if odd := [out for out in aggregator if not isinstance(out, str) or not out or out in aggregates]:
        raise SpecRefused(f"aggregate {name!r}: {odd[0]!r} is no name of an output column, or the name of two")
    return None, {**aggregator, **aggregates}


def chosen_aggregator(name: str, aggregator: Aggregator | None, aggregates: Mapping[str, Aggregate]) -> Aggregator:
    """A user's own, or the one of these functions. Raises SpecRefused."""
    if aggregator is not None and not isinstance(aggregator, Aggregator):
        if isinstance(aggregator, Aggregate):
            raise SpecRefused(
                f"aggregate {name!r}: {aggregator.function} has no name; write n=ferry.{aggregator.function}(...)"
            )
        raise SpecRefused(f"aggregate {name!r}: {aggregator!r} is not a ferry.Aggregator")
    if (aggregator is None) == (not aggregates):
        raise SpecRefused(
            f"aggregate {name!r}: name at least one, e.g. n=count(), or give a ferry.Aggregator, not both"
        )
    for out, one in aggregates.items():
        if not isinstance(one, Aggregate):
            given = f"the function {one.__name__}" if inspect.isfunction(one) else repr(one)
            raise SpecRefused(f"aggregate {name!r}: {out}={given} is not an aggregate; use count(), sum(column), ...")
    return aggregator if aggregator is not None else functions_of(aggregates)


def read_by(keyed: KeyedStream, aggregator: Aggregator, more: Sequence[str] = ()) -> list[str] | None:
    """The columns that an aggregator needs, and others; None: it may need all."""
    if not isinstance(aggregator, Functions):
        return None
    read = [c for a in aggregator.aggregates.values() for c in (a.column, a.by) if c is not None]
    return list(dict.fromkeys([*read, *more])) or [keyed.stream.input.key[0]]  # rows without columns have no number


def kept(columns: dict[str, str] | Sequence[str]) -> dict[str, str]:
    """Columns by output name."""
    return dict(columns) if isinstance(columns, dict) else {column: column for column in columns}


def bounds_of(within: Duration | tuple[Duration, Duration] | None) -> tuple[int | None, int | None]:
    """Bounds of an interval join in milliseconds, the second one excluded."""
    if within is None:
        return None, None
    lower, upper = within if isinstance(within, tuple) else (0, within)
    if lower is None or upper is None:
        raise SpecRefused(f"within={within!r}: both bounds are needed, such as ('-10s', '10s'), or none")
    return _signed(lower), _signed(upper)


def _signed(value: Duration) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    text = str(value).strip()
    if text.startswith("-"):
        return -milliseconds(text[1:], "within")
    return milliseconds(value, "within")


def join_of(keyed: KeyedStream, name: str, other: KeyedStream, join: IntervalJoin | SessionJoin | WindowJoin) -> Stream:
    """A join that is a process: it sees the columns that it keeps."""
    for side, one in ((join.left, keyed), (join.right, other)):
        refuse_turned(name, one.stream.input.schema, side.items())
    columns = [[*dict.fromkeys(side.values())] for side in (join.left, join.right)]
    read = [some or [one.stream.input.key[0]] for some, one in zip(columns, (keyed, other), strict=True)]
    return keyed._processed(name, join, other, columns=read)


def _side(name: str, schema: pa.Schema, columns: dict[str, str] | Sequence[str]) -> Side:
    pairs = list(columns.items()) if isinstance(columns, dict) else [(c, c) for c in columns]
    refuse_turned(name, schema, pairs)
    out = []
    for output, column in pairs:
        if column not in schema.names:
            raise SpecRefused(f"join {name!r}: no column {column!r}; there are {', '.join(schema.names)}")
        kind = plain_type(schema.field(column).type)
        try:
            named_type(str(kind))
        except ValueError:
            raise SpecRefused(
                f"join {name!r}: column {column!r} is {kind}, which a join cannot keep; leave it out, or make it a "
                "string before the operator"
            ) from None
        out.append((output, column, str(kind)))
    return Side(tuple(out))
