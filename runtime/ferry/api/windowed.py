"""Windowed streams: keyed streams with a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from ferry.api.aggregations import AggregateInput, aggregate_descriptor, chosen_aggregator, outputs_of, read_by
from ferry.api.bounds import MILLISECONDS, with_bounds
from ferry.api.declare import Keyed, StreamT, declare, declare_process, key_of, other_of, require_time, with_late
from ferry.api.joins import join_of, kept, window_join_of
from ferry.api.spans import windows_within, within
from ferry.api.top import top_rows
from ferry.api.windows import LastRows, SessionGap
from ferry.connectors.sink import Sink
from ferry.contract.descriptors import Aggregate, Span, Window
from ferry.kernels.declared import needs_process
from ferry.process.aggregator import Aggregator
from ferry.process.row_windows import RowWindows
from ferry.process.sessions import SessionAggregate, SessionJoin
from ferry.process.window_join import WindowJoin
from ferry.process.windowed import WindowAggregate


@dataclass(frozen=True, slots=True)
class WindowedStream(Generic[StreamT]):
    """A keyed stream with tumbling or sliding windows, for aggregates and joins.

    Example:
        >>> bids.event_time("ts").key_by("auction").window(ferry.tumbling("60s"))
        <stream of source 'bids': ...> by auction in Window(size_ms=60000, slide_ms=60000)
    """

    keyed: Keyed[StreamT]
    window: Window
    bounds: pa.DataType = MILLISECONDS
    """Type of window_start and window_end."""
    span: Span | None = None
    """Event times of its windows."""

    def __repr__(self) -> str:
        return f"{self.keyed!r} in {self.window}"

    def _fired(self, rows: StreamT, late: Sequence[Sink | None] | None) -> StreamT:
        timely = windows_within(with_late(rows, self.window, late), self.window, self.span)
        return with_bounds(timely, self.bounds)

    def aggregate(
        self,
        name: str,
        /,
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        late: Sink | None = None,
        **aggregates: Aggregate,
    ) -> StreamT:
        """Aggregate each key and window. A row is emitted when the watermark has passed the window's end.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            aggregator: your own `ferry.Aggregator` instead of `aggregates`; or a dict of aggregates, for column names such
                as "late".
            late: a sink for late records. A record is late if the watermark has passed all its windows. Late records are
                counted, and go to the sink unchanged, with all columns. None: they are only counted.
            aggregates: aggregate functions by output column, such as `n=ferry.count()`.
        Returns: a stream of the key columns, window_start, window_end and the aggregates.
        Raises: SpecRefused, if there is no aggregate, a column is missing or has a wrong type, or a name is taken.
        Example:
            >>> per_auction.aggregate("hot", bids=ferry.count(), top=ferry.max("price")).columns
            ['auction', 'window_start', 'window_end', 'bids', 'top']
        """
        keyed, window = self.keyed, self.window
        aggregator, aggregates = outputs_of(name, aggregator, aggregates)
        if aggregator is not None or needs_process(aggregates, keyed.stream.input.schema):
            chosen = chosen_aggregator(name, aggregator, aggregates)
            process = WindowAggregate(window.size_ms, window.slide_ms, chosen)
            fired = declare_process(keyed, name, process, columns=[read_by(keyed, chosen)])
        else:
            read = AggregateInput(keyed.stream.input.schema, key_of(keyed, name))
            place = len(keyed.stream.build.operators)
            fired = declare(keyed, aggregate_descriptor(name, place, read, window, aggregates))
        return self._fired(fired, (late,))

    def join(
        self,
        name: str,
        other: Keyed[StreamT],
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        how: str = "inner",
        late: tuple[Sink | None, Sink | None] | None = None,
    ) -> StreamT:
        """Join records of both streams with the same key in the same window.

        The pairs of a window are emitted when the watermark has passed the window's end.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            other: the right stream: keyed, without a window. It gets this stream's window.
            left: the columns of this stream to keep: names, or {output name: column}.
            right: the columns of the other stream to keep: names, or {output name: column}.
            how: "inner", "left", "right" or "full". An outer join also emits the records without a partner of the named
                side, with nulls.
            late: a pair of sinks, for late records of the left and of the right stream, as in `aggregate`. None for a
                stream: its late records are only counted.
        Returns: a stream of window_start, window_end, the left columns and the right columns.
        Raises: SpecRefused, if the keys differ in type, a column is missing, or two output columns have the same name.
        Example:
            >>> sellers = auctions.event_time("ts").key_by("seller")
            >>> new = people.event_time("ts").key_by("id").window(ferry.tumbling("12h"))
            >>> new.join("new_sellers", sellers, left={"person": "id"}, right={"auction": "id"}).columns
            ['window_start', 'window_end', 'person', 'auction']
        """
        keyed, other = self.keyed, within(other_of(f"join {name!r}", other), self.span)
        require_time(other.stream, "window")
        if how != "inner":
            outer = WindowJoin(self.window.size_ms, self.window.slide_ms, kept(left), kept(right), how)
            return self._fired(join_of(keyed, name, other, outer), late)
        return self._fired(window_join_of(keyed, name, other, self.window, left, right), late)

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
        """Emit the `n` greatest rows of each key and window when the watermark has passed the window's end.

        Rows with equal `by` are ordered by event time, then by their kept columns. Therefore the same records give the same
        rows in every order of arrival. A row with a null in `by` is left out. NaN is the greatest value.

        Parameters:
            name: name of the operator. The operator's state belongs to this name: `n` rows for each key and slice.
            n: number of rows, from 1 to 1000. A window with fewer records emits fewer rows.
            by: the column that orders the rows, or several columns, the most significant first.
            columns: the columns to keep: names, or {output name: column}. None: all but the key and the window bounds.
            descending: True: the greatest rows. False: the least rows.
            rank: name of the output column for the row's rank, from 1 on, as SQL's ROW_NUMBER. None: no such column.
            late: a sink for late records, as in `aggregate`.
        Returns: a stream of the key columns, window_start, window_end, the rank and the columns.
        Raises: SpecRefused, if a column is missing or has an unsupported type, two output columns have the same name, or `n`
            is not a number from 1 to 1000.
        Example:
            >>> per_auction.top_n("dearest", 3, by="price", columns=["bidder", "price"]).columns
            ['auction', 'window_start', 'window_end', 'rank', 'bidder', 'price']
        """
        chosen = None if columns is None else kept(columns)
        return self._fired(top_rows(self.keyed, self.window, name, n, by, chosen, descending, rank), (late,))


@dataclass(frozen=True, slots=True)
class SessionStream(Generic[StreamT]):
    """A keyed stream with session windows."""

    keyed: Keyed[StreamT]
    window: SessionGap
    bounds: pa.DataType = MILLISECONDS
    """Type of window_start and window_end."""

    def aggregate(
        self,
        name: str,
        /,
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        late: Sink | None = None,
        **aggregates: Aggregate,
    ) -> StreamT:
        """Aggregate each session. A row is emitted when the watermark has passed the session's end.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            aggregator: your own `ferry.Aggregator` instead of `aggregates`; or a dict of aggregates, for column names such
                as "late".
            late: a sink for late records. A record is late if the watermark has passed the end of a session of this record
                alone. Late records are counted, and go to the sink unchanged, with all columns. None: they are only counted.
            aggregates: aggregate functions by output column, such as `n=ferry.count()`.
        Returns: a stream of the key columns, window_start (the event time of the first record), window_end (the gap after
            the last record) and the aggregates.
        Raises: SpecRefused, if there is no aggregate, a column is missing or has a wrong type, or a name is taken.
        Example:
            >>> visits = bids.event_time("ts").key_by("bidder").window(ferry.session("10s"))
            >>> visits.aggregate("visits", num=ferry.count(), most=ferry.max("price")).columns
            ['bidder', 'window_start', 'window_end', 'num', 'most']
        """
        chosen = chosen_aggregator(name, *outputs_of(name, aggregator, aggregates))
        sessions = SessionAggregate(self.window.gap_ms, chosen)
        fired = declare_process(self.keyed, name, sessions, columns=[read_by(self.keyed, chosen)])
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
        """Join records of both streams with the same key in the same session. Records of both streams form the sessions.

        The pairs of a session are emitted when the watermark has passed the session's end.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            other: the right stream: keyed, without a window. It gets this stream's window.
            left: the columns of this stream to keep: names, or {output name: column}.
            right: the columns of the other stream to keep: names, or {output name: column}.
            how: "inner", "left", "right" or "full". An outer join also emits the records without a partner of the named
                side, with nulls.
            late: a pair of sinks, for late records of the left and of the right stream, as in `aggregate`. None for a
                stream: its late records are only counted.
        Returns: a stream of window_start, window_end, the left columns and the right columns.
        Raises: SpecRefused, if the keys differ in type, a column is missing, or two output columns have the same name.
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
    """A keyed stream with windows of rows."""

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
        """Aggregate each window of rows. A row is emitted at once for each record that ends a window; no record is late.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            columns: the columns of the window's last record to keep: names, or {output name: column}.
            aggregator: your own `ferry.Aggregator` instead of `aggregates`; or a dict of aggregates, for column names such
                as "order".
            order: a column or columns. Within an epoch, the records of a key are processed in the order of these columns.
                Empty: in the order of their event times.
            number: name of an output column for the record's number within its key, from 1 on. None: no such column.
            aggregates: aggregate functions by output column, such as `n=ferry.count()`.
        Returns: a stream of the number (if named), the columns and the aggregates. Call `.event_time(column)` before the
            next operator.
        Raises: SpecRefused, if there is no aggregate, a column is missing or has a wrong type, or a name is taken.
        Example:
            >>> last5 = bids.event_time("ts").key_by("auction").window(ferry.rows(5))
            >>> last5.aggregate("last5", ["seq", "ts"], order="seq", n=ferry.count(), total=ferry.sum("price")).columns
            ['seq', 'ts', 'n', 'total']
        """
        chosen = chosen_aggregator(name, *outputs_of(name, aggregator, aggregates))
        by = [order] if isinstance(order, str) else list(order)
        window = RowWindows(self.window.size, chosen, kept(columns), self.window.slide, by, number)
        read = read_by(self.keyed, chosen, [*kept(columns).values(), *by])
        return declare_process(self.keyed, name, window, columns=[read])
