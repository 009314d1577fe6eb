"""Keyed streams: windows, aggregates, joins and processes. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, get_args, overload

import pyarrow as pa

from ferry.api.aggregations import AggregateInput, aggregate_descriptor, chosen_aggregator, outputs_of, read_by
from ferry.api.bounds import bounds_type
from ferry.api.declare import (
    Keyed,
    StreamT,
    changed,
    declare,
    declare_process,
    inputs_of,
    key_of,
    keyed_by,
    origin_of,
    other_of,
    require_time,
    with_late,
)
from ferry.api.distinct import distinct
from ferry.api.joins import bounds_of, join_of, kept
from ferry.api.processes import EACH_TIME, shared
from ferry.api.spans import span_of, within
from ferry.api.windowed import RowStream, SessionStream, WindowedStream
from ferry.api.windows import EachRecord, LastRows, SessionGap
from ferry.connectors.sink import Sink
from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, Window
from ferry.contract.durations import Duration, Time, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END
from ferry.kernels.aggregates import gathers, reads_times
from ferry.kernels.declared import needs_process
from ferry.process.aggregator import Aggregator
from ferry.process.api import Process
from ferry.process.interval import IntervalJoin, OuterIntervalJoin
from ferry.process.running import RunningAggregate
from ferry.process.stateful_processor import hosted
from ferry.process.windowed import KeyAggregate

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class KeyedStream(Keyed[StreamT]):
    """A stream with a key, for windows, aggregates, joins and processes.

    Example:
        >>> bids.event_time("ts").key_by("auction")
        <stream of source 'bids': ...> by auction
    """

    def __repr__(self) -> str:
        return f"{self.stream!r} by {', '.join(self.stream.input.key)}"

    @overload
    def window(
        self,
        window: Window,
        bounds: pa.DataType | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> WindowedStream[StreamT]: ...

    @overload
    def window(self, window: SessionGap, bounds: pa.DataType | None = None) -> SessionStream[StreamT]: ...

    @overload
    def window(self, window: LastRows) -> RowStream[StreamT]: ...

    def window(
        self,
        window: Window | SessionGap | LastRows,
        bounds: pa.DataType | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> WindowedStream[StreamT] | SessionStream[StreamT] | RowStream[StreamT]:
        """Assign records to windows of event time, or to windows of rows.

        Parameters:
            window: `ferry.tumbling("60s")`, `ferry.sliding("60s", "10s")`, `ferry.session("10s")` or `ferry.rows(5)`.
            bounds: type of `window_start` and `window_end` in the rows: `pyarrow.int64()`, for milliseconds since 1970, or a
                timestamp, such as `pyarrow.timestamp("us", "UTC")`. None: the type of this stream's event time, with its
                zone and unit; seconds become milliseconds, nanoseconds become microseconds. The type does not change the
                operator's state.
            since: only windows that begin at this event time or later: a text such as "2026-12-01T00:00Z", a datetime with a
                zone, or milliseconds since 1970. It must be the start of a window. Earlier records still move the watermark.
                None: all windows.
            until: only windows that begin before this event time, as `since`. With both, the windows of one operator follow
                the windows of another one, such as longer ones (guide "Change a job").
        Returns: a windowed stream, for `.aggregate(...)`, `.join(...)` and `.top_n(...)`.
        Raises: SpecRefused, if `window` is not a window, the stream has no event time, `bounds` is of another type, or
            `since` or `until` is no start of a window; or for one of them with a session or a window of rows.
        Example:
            >>> minutes = bids.event_time("ts").key_by("auction").window(ferry.tumbling("60s"))
            >>> import pyarrow as pa
            >>> utc = pa.timestamp("ms", "UTC")
            >>> hours = bids.event_time("ts").key_by("auction").window(ferry.tumbling("1h"), bounds=utc)
            >>> hours.bounds
            TimestampType(timestamp[ms, tz=UTC])
        """
        if not isinstance(window, Window | SessionGap | LastRows):
            raise SpecRefused(
                f"window: {window!r} is not a window; use tumbling(size), sliding(size, slide), session(gap) or rows(size)"
            )
        require_time(self.stream, "window")
        if not isinstance(window, Window) and (since is not None or until is not None):
            raise SpecRefused(f"window: since= and until= are for tumbling and sliding windows, not for {window!r}")
        match window:
            case SessionGap():
                return SessionStream(self, window, bounds_type(self.stream, bounds))
            case LastRows():
                if bounds is not None:
                    raise SpecRefused(
                        f"window: {window!r} is a window of rows, without window_start; leave bounds= out"
                    )
                return RowStream(self, window)
            case _:
                span = span_of(window, since, until)
                return WindowedStream(within(self, span), window, bounds_type(self.stream, bounds), span)

    def aggregate(
        self,
        name: str,
        /,
        emit: Emit | EachRecord = "final",
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        ttl: Duration | None = None,
        **aggregates: Aggregate,
    ) -> StreamT:
        """Aggregate all records of each key. Without a window no record is late; without `ttl` no key is forgotten.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            emit: `ferry.at_end()` emits all rows when a finite input has ended; `ferry.changes()` emits the changed rows
                after each epoch; `ferry.records(...)` emits a row for each record.
            aggregator: your own `ferry.Aggregator` instead of `aggregates`; or a dict of aggregates, for column names such
                as "emit" and "ttl".
            ttl: how long a key is kept after its newest event time, such as "1h". A key is forgotten when the watermark at
                the beginning of an epoch has reached this time. A later record of the key begins a new row. Forgetting emits
                no row, and forgotten keys are not among the rows at the end. Not possible with your own aggregator, with
                strings, bytes or distinct values in the state, or with `ferry.records`. None: keys are kept for ever.
            aggregates: aggregate functions by output column, such as `n=ferry.count()`.
        Returns: a stream of the key columns and the aggregates; with `ferry.records`, the record's columns and the
            aggregates.
        Raises: SpecRefused, if there is no aggregate, a column is missing or has a wrong type, or a name is taken; or if
            `ttl` is used without an event time.
        Example:
            >>> totals = bids.key_by("auction").aggregate("totals", num=ferry.count(), emit=ferry.changes())
            >>> recent = bids.event_time("ts").key_by("auction")
            >>> counts = recent.aggregate("counts", num=ferry.count(), emit=ferry.changes(), ttl="1h")
        """
        aggregator, aggregates = outputs_of(name, aggregator, aggregates)
        processed = needs_process(aggregates, self.stream.input.schema)
        simple = aggregator is None and not processed and not isinstance(emit, EachRecord)
        ttl_ms = None if ttl is None else self._ttl(name, ttl, simple)
        if isinstance(emit, EachRecord):
            chosen = chosen_aggregator(name, aggregator, aggregates)
            if sets := [out for out, a in aggregates.items() if gathers(a)]:
                raise SpecRefused(
                    f"aggregate {name!r}: {sets[0]}={aggregates[sets[0]].function}(...) would keep a set of values for each "
                    "record; emit ferry.changes(), or count in a window"
                )
            running = RunningAggregate(chosen, emit.columns, emit.order)
            return declare_process(self, name, running, columns=[read_by(self, chosen, [*emit.columns, *emit.order])])
        if isinstance(emit, Aggregate):
            raise SpecRefused(f"aggregate {name!r}: {emit.function} has no name; write n=ferry.{emit.function}(...)")
        if emit not in get_args(Emit):
            raise SpecRefused(
                f"aggregate {name!r}: emit={emit!r} is not possible; use ferry.at_end() or ferry.changes(), or "
                "ferry.records(...)"
            )
        for out, a in aggregates.items():
            if (
                isinstance(a, Aggregate)
                and reads_times(a)
                and not all(source.time for source in inputs_of(self.stream))
            ):
                raise SpecRefused(
                    f"aggregate {name!r}: {out}={a.function}({a.column!r}) needs event times; call .event_time(column) "
                    "before key_by"
                )
        if aggregator is not None or processed:
            chosen = chosen_aggregator(name, aggregator, aggregates)
            process = KeyAggregate(chosen, "changes" if emit == "changes" else "end")
            return declare_process(self, name, process, columns=[read_by(self, chosen)], needs_time=False)
        place = len(self.stream.build.operators)
        read = AggregateInput(self.stream.input.schema, key_of(self, name))
        return declare(self, aggregate_descriptor(name, place, read, GLOBAL, aggregates, emit, ttl_ms))

    def _ttl(self, name: str, ttl: Duration, possible: bool) -> int:
        if not possible:
            raise SpecRefused(
                f"aggregate {name!r}: ttl= works with Ferry's aggregate functions, emitted at_end() or as changes(), but "
                "not with strings, bytes or count_distinct; for these write a process, which sets timers"
            )
        require_time(self.stream, f"aggregate {name!r} with ttl=")
        ttl_ms = milliseconds(ttl, f"aggregate {name!r}: ttl")
        if not 0 < ttl_ms <= WATERMARK_END:
            raise SpecRefused(f"aggregate {name!r}: ttl={ttl!r} is not a positive time to keep a key for")
        return ttl_ms

    def distinct(
        self,
        *columns: str,
        within: Duration,
        name: str | None = None,
        order: str | None = None,
        late: Sink | None = None,
    ) -> StreamT:
        """Drop repeated records of a key within a span of event time. The first record passes at once.

        A record is a repeat if a passed record of its key is less than `within` before or after it. Within an epoch, the
        records of a key are processed by event time. The state holds the event time of each passed record until the
        watermark is twice `within` past it.

        Parameters:
            columns: further columns of the key for this step.
            within: the span of event time, such as "10 minutes".
            name: name of the operator. The operator's state belongs to this name. None: "distinct_" and the key columns.
            order: an integer or timestamp column. Among records of equal key and event time the one with the least value
                passes. None: any of them passes.
            late: a sink for late records. A record is late if the watermark is at least `within` past it, because the state
                may have forgotten the record that it repeats. Late records are counted, do not pass, and go to the sink
                unchanged.
        Returns: a stream of the same columns, with the same event time.
        Raises: SpecRefused, if a column is missing or has an unsupported type, the stream has no event time, `within` is
            not a positive duration, or the name is taken.
        Example:
            >>> bids.event_time("ts").key_by("auction").distinct("bidder", within="10 minutes").columns
            ['seq', 'ts', 'auction', 'bidder', 'price']
        """
        stream = keyed_by(self.stream, (*self.stream.input.key, *columns)) if columns else self.stream
        return distinct(KeyedStream(stream), within, name, order, late)

    def process(
        self,
        name: str,
        process: Process,
        other: Keyed[StreamT] | None = None,
        order: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> StreamT:
        """Run your own process: it keeps state by key, sets timers and emits rows.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            process: an instance of a subclass of `ferry.Process` at the top level of the pipeline's file or module.
            other: a second keyed stream with a key of the same types: side 1 of the process.
            order: an integer or timestamp column of every input. Within an epoch, the records of a key are processed in the
                order of this column. None: in the order of their event times. Without event times every record has the event
                time 0, and event-time timers fire at the end of a finite input.
            columns: the columns that the process sees. Each column must be in at least one input. None: all columns.
        Returns: a stream of the emitted rows. Rows with a column `window_end` have the event time just before it; for other
            rows call `.event_time(column)` before the next operator.
        Raises: SpecRefused, if the process, its inputs, their keys or the order do not fit.
        Example:
            >>> latest = bids.event_time("ts").key_by("auction").process("latest", Latest("price"), order="seq")
        """
        others = [] if other is None else [other_of(f"process {name!r}", other)]
        read = shared(name, [side.stream.input.schema for side in (self, *others)], columns)
        return declare_process(self, name, process, *others, order=order, columns=read, needs_time=False)

    def transform_with_state(
        self,
        name: str,
        processor: StatefulProcessor,
        output: StructType | str | pa.Schema,
        time_mode: str = "EventTime",
        pandas: bool = False,
        order: str | None = None,
        initial_state: Keyed[StreamT] | None = None,
        late: Sink | None = None,
    ) -> StreamT:
        """Run a class for PySpark's `transformWithState` or `transformWithStateInPandas` unchanged.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            processor: an instance of a subclass of PySpark's `StatefulProcessor` at the top level of the pipeline's file or
                module. Its constructor's arguments must be JSON values, in attributes of the same names or in the fields of
                a dataclass.
            output: columns of the emitted rows: a StructType, DDL text or an Arrow schema.
            time_mode: the clock of its timers, as in Spark: "EventTime", "ProcessingTime" or "None".
            pandas: True: the processor takes and returns pandas DataFrames, as with `transformWithStateInPandas`. False: it
                takes and returns Rows.
            order: an integer or timestamp column. Within an epoch, the records of a key are processed in the order of this
                column. None: in the order of their event times.
            initial_state: a keyed stream of a finite source of Ferry, with a key of the same types. Its records go to
                `handleInitialState` before the job reads any other record. It needs no event time.
            late: a sink for records behind the watermark, which the processor does not see. They are counted, and go to the
                sink unchanged, with all columns.
        Returns: a stream of the emitted rows. Call `.event_time(column)` before the next operator.
        Raises: SpecRefused, if instances could not create the processor, or its state has unsupported types; if the initial
            state has no end, comes from an operator, or has another reader; or if `late` is used without an event time.
        Example:
            >>> per_auction = bids.event_time("ts").key_by("auction")
            >>> counts = per_auction.transform_with_state("counts", RunningCount(), "auction LONG, n LONG", time_mode="None")
            >>> counts.columns
            ['auction', 'n']
        """
        others = [] if initial_state is None else [_initial(name, initial_state)]
        process = hosted(name, processor, output, time_mode, pandas)
        columns = [None] * (1 + len(others))
        fired = declare_process(self, name, process, *others, order=order, columns=columns, needs_time=late is not None)
        return with_late(fired, EACH_TIME, (late, *(None for _ in others)))

    def join(
        self,
        name: str,
        other: Keyed[StreamT],
        left: dict[str, str] | Sequence[str],
        right: dict[str, str] | Sequence[str],
        within: Duration | tuple[Duration, Duration] | None = None,
        where: Sequence[tuple[str, str, str]] = (),
        late: tuple[Sink | None, Sink | None] | None = None,
        how: str = "inner",
    ) -> StreamT:
        """Join records of both streams with the same key. A pair is emitted when its later record arrives.

        Parameters:
            name: name of the operator. The operator's state belongs to this name.
            other: the right stream: keyed, without a window.
            left: the columns of this stream to keep: names, or {output name: column}.
            right: the columns of the other stream to keep: names, or {output name: column}.
            within: the time from the left record to the right record: "12h" means at least 0 and less than 12 hours; a pair
                such as ("-10s", "10s") has an inclusive lower and an exclusive upper bound. None: any time; then rows are
                kept for ever.
            where: further conditions on output columns, such as ("price", ">=", "reserve").
            late: a pair of sinks, for late records of the left and of the right stream. A record is late if the watermark
                has passed every record that it could match. Without `within` no record is late.
            how: "inner", "left", "right" or "full". An outer join also emits the records without a partner of the named
                side, with nulls, when the watermark has passed every possible partner. An outer join needs `within`.
        Returns: a stream of the left columns and the right columns. Call `.event_time(column, delay=...)` before the next
            operator. A pair is as late as its later record; a record without a partner is emitted `within` after its time.
        Raises: SpecRefused, if the keys differ in type, a column is missing, two output columns have the same name, the
            bounds are empty, or `late` or an outer join is used without `within`.
        Example:
            >>> sellers = auctions.event_time("ts").key_by("seller")
            >>> near = people.event_time("ts").key_by("id").join("near", sellers, ["name"], {"auction": "id"}, within="12h")
            >>> near.columns
            ['name', 'auction']
            >>> idle = people.event_time("ts").key_by("id").join("idle", sellers, ["name"], ["reserve"], "12h", how="left")
        """
        lower, upper = bounds_of(within)
        columns, conditions = (kept(left), kept(right)), [list(condition) for condition in where]
        join = IntervalJoin(*columns, lower, upper, conditions)
        if how != "inner":
            join = OuterIntervalJoin(*columns, lower, upper, conditions, how)
        fired = join_of(self, name, other_of(f"join {name!r}", other), join)
        if lower is None or upper is None:
            if late is not None:
                raise SpecRefused(f"join {name!r}: without within= nothing is late; leave late= out, or give bounds")
            return fired
        # The same window for both sides: a record is late when its last possible partner is no longer kept.
        return with_late(fired, Window(upper - lower, 1), late)


def _initial(name: str, stream: Keyed[StreamT]) -> Keyed[StreamT]:
    """The stream of a processor's initial state: read before all others, without event times. Raises SpecRefused."""
    initial = other_of(f"transform_with_state {name!r}: initial_state", stream)
    for source in inputs_of(initial.stream):
        if not isinstance(source.origin, str):
            raise SpecRefused(
                f"transform_with_state {name!r}: initial_state comes from {origin_of(initial.stream, source.origin)}; it "
                "must exist before any record is read: use a source"
            )
    change = partial(replace, time=None, delay_ms=0, ahead_ms=None, idle_ms=None, flow=None, initial=True)
    return KeyedStream(changed(initial.stream, change))
