"""Streams that are keyed and cut into windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from ferry.api.aggregations import AggregateInput, aggregate_descriptor, chosen_aggregator, outputs_of, read_by
from ferry.api.bounds import MILLISECONDS, with_bounds
from ferry.api.declare import Keyed, StreamT, declare, declare_process, key_of, other_of, require_time, with_late
from ferry.api.joins import join_of, kept, window_join_of
from ferry.api.top import top_rows
from ferry.api.windows import LastRows, SessionGap
from ferry.connectors.sink import Sink
from ferry.contract.descriptors import Aggregate, Window
from ferry.kernels.declared import needs_process
from ferry.process.aggregator import Aggregator
from ferry.process.row_windows import RowWindows
from ferry.process.sessions import SessionAggregate, SessionJoin
from ferry.process.window_join import WindowJoin
from ferry.process.windowed import WindowAggregate


@dataclass(frozen=True, slots=True)
class WindowedStream(Generic[StreamT]):
    """A keyed stream with a window, which is aggregated or joined.

    Example:
        >>> bids.event_time("ts").key_by("auction").window(ferry.tumbling("60s"))
        <stream of source 'bids': ...> by auction in Window(size_ms=60000, slide_ms=60000)
    """

    keyed: Keyed[StreamT]
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
    ) -> StreamT:
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
            fired = declare_process(keyed, name, process, columns=[read_by(keyed, made)])
        else:
            read = AggregateInput(keyed.stream.input.schema, key_of(keyed, name))
            place = len(keyed.stream.build.operators)
            fired = declare(keyed, aggregate_descriptor(name, place, read, window, aggregates))
        return with_bounds(with_late(fired, window, (late,)), self.bounds)

    def join(
        self,
        name: str,
        other: Keyed[StreamT],
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        how: str = "inner",
        late: tuple[Sink | None, Sink | None] | None = None,
    ) -> StreamT:
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
        keyed, other = self.keyed, other_of(f"join {name!r}", other)
        require_time(other.stream, "window")
        if how != "inner":
            outer = WindowJoin(self.window.size_ms, self.window.slide_ms, kept(left), kept(right), how)
            return with_bounds(with_late(join_of(keyed, name, other, outer), self.window, late), self.bounds)
        fired = window_join_of(keyed, name, other, self.window, left, right)
        return with_bounds(with_late(fired, self.window, late), self.bounds)

    def top_n(
        self,
        name: str,
        n: int,
        by: str | Sequence[str],
        columns: dict[str, str] | Sequence[str] | None = None,
        descending: bool = True,
        rank: str | None = "rank",
        late: Sink | None = None,
    ) -> StreamT:
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
        fired = top_rows(self.keyed, self.window, name, n, by, chosen, descending, rank)
        return with_bounds(with_late(fired, self.window, (late,)), self.bounds)


@dataclass(frozen=True, slots=True)
class SessionStream(Generic[StreamT]):
    """A keyed stream, cut into sessions."""

    keyed: Keyed[StreamT]
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
    ) -> StreamT:
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
        fired = declare_process(self.keyed, name, sessions, columns=[read_by(self.keyed, made)])
        return with_bounds(with_late(fired, self.window.alone, (late,)), self.bounds)

    def join(
        self,
        name: str,
        other: Keyed[StreamT],
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        how: str = "inner",
        late: tuple[Sink | None, Sink | None] | None = None,
    ) -> StreamT:
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
        other = other_of(f"join {name!r}", other)
        sessions = SessionJoin(self.window.gap_ms, kept(left), kept(right), how)
        joined = join_of(self.keyed, name, other, sessions)
        return with_bounds(with_late(joined, self.window.alone, late), self.bounds)


@dataclass(frozen=True, slots=True)
class RowStream(Generic[StreamT]):
    """A keyed stream, cut into windows of rows."""

    keyed: Keyed[StreamT]
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
    ) -> StreamT:
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
        return declare_process(
            self.keyed, name, window, columns=[read_by(self.keyed, made, [*kept(columns).values(), *by])]
        )
