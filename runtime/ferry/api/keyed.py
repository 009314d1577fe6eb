"""Streams that have a key: windows, aggregates, joins and processes. Nothing runs here."""

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
from ferry.api.windowed import RowStream, SessionStream, WindowedStream
from ferry.api.windows import EachRecord, LastRows, SessionGap
from ferry.connectors.sink import Sink
from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, Window
from ferry.contract.durations import Duration, milliseconds
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
    """A stream with a key, which is cut into windows, aggregated, joined or given to a process.

    Example:
        >>> bids.event_time("ts").key_by("auction")
        <stream of source 'bids': ...> by auction
    """

    def __repr__(self) -> str:
        return f"{self.stream!r} by {', '.join(self.stream.input.key)}"

    @overload
    def window(self, window: Window, bounds: pa.DataType | None = None) -> WindowedStream[StreamT]: ...

    @overload
    def window(self, window: SessionGap, bounds: pa.DataType | None = None) -> SessionStream[StreamT]: ...

    @overload
    def window(self, window: LastRows) -> RowStream[StreamT]: ...

    def window(
        self, window: Window | SessionGap | LastRows, bounds: pa.DataType | None = None
    ) -> WindowedStream[StreamT] | SessionStream[StreamT] | RowStream[StreamT]:
        """Cut the event time into windows.

        Parameters:
            window: `ferry.tumbling("60s")`, `ferry.sliding("60s", "10s")`, `ferry.session("10s")` or `ferry.rows(5)`.
            bounds: type of `window_start` and `window_end` in the rows: `pyarrow.int64()`, milliseconds since 1970, or a
                timestamp, such as `pyarrow.timestamp("us", "UTC")`. None: that of the event time, with its zone and unit (of
                seconds milliseconds, of nanoseconds microseconds); of a join that of this stream. State stays the same.
        Returns: a windowed stream, which is aggregated or joined.
        Raises: SpecRefused, if it is no window, the stream has no event time, or the bounds cannot have this type.
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
        match window:
            case SessionGap():
                return SessionStream(self, window, bounds_type(self.stream, bounds))
            case LastRows():
                if bounds is not None:
                    raise SpecRefused(f"window: {window!r} is of rows, which have no window_start; leave bounds= out")
                return RowStream(self, window)
            case _:
                return WindowedStream(self, window, bounds_type(self.stream, bounds))

    def aggregate(
        self,
        name: str,
        /,
        emit: Emit | EachRecord = "final",
        aggregator: Aggregator | Mapping[str, Aggregate] | None = None,
        ttl: Duration | None = None,
        **aggregates: Aggregate,
    ) -> StreamT:
        """One row for each key, of all its records: without a window nothing is late, without `ttl` nothing forgotten.

        Parameters:
            name: of the operator; its state belongs to this name.
            emit: `ferry.at_end()`, when a finite input has ended, or `ferry.changes()`, after each epoch what changed in it,
                or `ferry.records(...)`, a row for each record.
            aggregator: one of your own, instead of `aggregates`; or a dict of these, for names such as "emit" and "ttl".
            ttl: how long a key is kept after its newest event time: "1h" forgets it once the watermark, as it is when an
                epoch begins, has reached that time and an hour more. A record that comes then begins anew. Forgetting emits
                nothing, and what is forgotten is not among the rows at the end. Not with an aggregator of your own, with
                strings, bytes or distinct values that are kept, nor with `ferry.records`. None: keys are kept for ever.
            aggregates: names of output columns, and the functions that make them.
        Returns: a stream of the key columns, and then the aggregates; with `ferry.records` of the record's columns instead.
        Raises: SpecRefused, if there is none, a column is missing or of a wrong type, or a name is taken; or if there is a
            `ttl`, and the stream has no event time.
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
            made = chosen_aggregator(name, aggregator, aggregates)
            if sets := [out for out, a in aggregates.items() if gathers(a)]:
                raise SpecRefused(
                    f"aggregate {name!r}: {sets[0]}={aggregates[sets[0]].function}(...) would keep a set of values for each "
                    "record; emit ferry.changes(), or count in a window"
                )
            running = RunningAggregate(made, emit.columns, emit.order)
            return declare_process(self, name, running, columns=[read_by(self, made, [*emit.columns, *emit.order])])
        if isinstance(emit, Aggregate):
            raise SpecRefused(f"aggregate {name!r}: {emit.function} has no name; write n=ferry.{emit.function}(...)")
        if emit not in get_args(Emit):
            raise SpecRefused(
                f"aggregate {name!r}: emit={emit!r} is not possible; use ferry.at_end() or ferry.changes(), or "
                "ferry.records(...)"
            )
        for out, a in aggregates.items():
            if isinstance(a, Aggregate) and reads_times(a) and not all(one.time for one in inputs_of(self.stream)):
                raise SpecRefused(
                    f"aggregate {name!r}: {out}={a.function}({a.column!r}) goes by event time; call .event_time(column) "
                    "before key_by"
                )
        if aggregator is not None or processed:
            made = chosen_aggregator(name, aggregator, aggregates)
            process = KeyAggregate(made, "changes" if emit == "changes" else "end")
            return declare_process(self, name, process, columns=[read_by(self, made)], needs_time=False)
        place = len(self.stream.build.operators)
        read = AggregateInput(self.stream.input.schema, key_of(self, name))
        return declare(self, aggregate_descriptor(name, place, read, GLOBAL, aggregates, emit, ttl_ms))

    def _ttl(self, name: str, ttl: Duration, possible: bool) -> int:
        if not possible:
            raise SpecRefused(
                f"aggregate {name!r}: ttl= is for the aggregate functions of Ferry, emitted at_end() or as changes(), and "
                "not of strings or bytes, nor for count_distinct; otherwise write a process, which sets timers"
            )
        require_time(self.stream, f"aggregate {name!r} with ttl=")
        ttl_ms = milliseconds(ttl, f"aggregate {name!r}: ttl")
        if not 0 < ttl_ms <= WATERMARK_END:
            raise SpecRefused(f"aggregate {name!r}: ttl={ttl!r} is no time that a key could be kept for")
        return ttl_ms

    def distinct(
        self,
        *columns: str,
        within: Duration,
        name: str | None = None,
        order: str | None = None,
        late: Sink | None = None,
    ) -> StreamT:
        """The first record of each key within some event time goes on, at once; its repeats are dropped.

        A record is a repeat if a record of its key that went on is less than `within` before or after it. The records that
        an epoch has of a key are taken by event time. State is a time for each record that went on, until the watermark is
        twice `within` beyond it.

        Parameters:
            columns: more columns of the key, which tell records apart here.
            within: how far apart two records of a key are that both go on: "10 minutes".
            name: of the operator; its state belongs to this name. None: "distinct_" and the columns of the key.
            order: an integer or timestamp column: of records of one time the least goes on. None: any of them.
            late: a sink for the records that come when the watermark is `within` beyond them: what they would repeat may be
                forgotten. They are counted, do not go on, and go there as they came.
        Returns: a stream of the same columns, with the same event time.
        Raises: SpecRefused, if a column is missing or cannot be kept, the stream has no event time, `within` is no time, or
            the name is taken.
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
        """Keep state by key, set timers and emit rows, as a process says that you write.

        Parameters:
            name: the operator's name, to which its state belongs.
            process: an instance of a subclass of `ferry.Process` at the top level of the pipeline's file or module.
            other: a second keyed stream, with a key of the same types: the process's side 1.
            order: an integer or timestamp column of every input: the records that an epoch has of a key are taken in its
                order, otherwise in that of their event times. Without event times, all of them are 0, and timers of event
                time go off at the end of a finite input.
            columns: those that the process sees, of the inputs that have them; otherwise all.
        Returns: the rows that it emits. Those with a column `window_end` have the event time just before it; for others call
            `.event_time(column)` before an operator.
        Raises: SpecRefused, if the process, its inputs, their keys or the order do not fit.
        Example:
            >>> latest = bids.event_time("ts").key_by("auction").process("latest", Latest("price"), order="seq")
        """
        others = [] if other is None else [other_of(f"process {name!r}", other)]
        read = shared(name, [one.stream.input.schema for one in (self, *others)], columns)
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
        """Run a class that was written for PySpark's `transformWithState` or `transformWithStateInPandas`, as it is.

        Parameters:
            name: the operator's name, to which its state belongs.
            processor: an instance of a subclass of PySpark's `StatefulProcessor` at the top level of the pipeline's file or
                module. What its constructor was given has to be what JSON can hold, and is found in attributes of the same
                names, or in the fields of a dataclass.
            output: columns of the rows that it gives: a StructType, DDL text or an Arrow schema.
            time_mode: of its timers, as in Spark: "EventTime", "ProcessingTime" or "None".
            pandas: it takes and gives DataFrames of pandas, as with `transformWithStateInPandas`; otherwise Rows.
            order: a column in whose order an epoch's records of a key are taken, otherwise that of their event times.
            initial_state: a stream of finite files, or of another source of Ferry's that ends, with a key of the same types:
                its records go to `handleInitialState` before any other record of the job is read. It needs no event time.
            late: a sink for the records that are behind the watermark, which the processor does not see: they are counted,
                and go there as they came, with all columns.
        Returns: the rows that it gives; call `.event_time(column)` before another operator.
        Raises: SpecRefused, if instances could not make the processor anew, or its state has types that cannot be kept; or
            if the initial state has no end, is made by an operator, or is read as something else, too; or if `late` is
            given where nothing is, without an event time.
        Example:
            >>> per_auction = bids.event_time("ts").key_by("auction")
            >>> counts = per_auction.transform_with_state("counts", RunningCount(), "auction LONG, n LONG", time_mode="None")
            >>> counts.columns
            ['auction', 'n']
        """
        others = [] if initial_state is None else [_initial(name, initial_state)]
        made = hosted(name, processor, output, time_mode, pandas)
        columns = [None] * (1 + len(others))
        fired = declare_process(self, name, made, *others, order=order, columns=columns, needs_time=late is not None)
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
        """Pairs of records of both streams with the same key, emitted when the later one arrives.

        Parameters:
            name: of the operator; its state belongs to this name.
            other: the other stream, with a key and without a window.
            left: which columns of this stream are kept: names, or {output name: column}.
            right: which of the other.
            within: how long after the left record the right one may be, less than that: "12h", or a pair of bounds such as
                ("-10s", "10s"), of which the first one is still within. None: any time; then rows are kept for ever.
            where: further conditions on output columns, such as ("price", ">=", "reserve").
            late: a pair of sinks, for records of the left and of the right stream that come when nothing is kept any more
                that they could match, as for windows. Without `within` nothing is late.
            how: "inner", or "left", "right" or "full": of which streams records without a partner come, with nulls, when the
                watermark says that none can come any more. Not without `within`.
        Returns: a stream of the left columns, and the right columns. Call `.event_time(column, delay=...)` before another
            operator: a pair comes with its later record, a record without a partner when its time and `within` have passed.
        Raises: SpecRefused, if the keys differ in type, a column is missing, an output column is there twice, the bounds
            leave no time, or `late` or another `how` is given without any.
        Example:
            >>> sellers = auctions.event_time("ts").key_by("seller")
            >>> near = people.event_time("ts").key_by("id").join("near", sellers, ["name"], {"auction": "id"}, within="12h")
            >>> near.columns
            ['name', 'auction']
            >>> idle = people.event_time("ts").key_by("id").join("idle", sellers, ["name"], ["reserve"], "12h", how="left")
        """
        lower, upper = bounds_of(within)
        columns, conditions = (kept(left), kept(right)), [list(one) for one in where]
        join = IntervalJoin(*columns, lower, upper, conditions)
        if how != "inner":
            join = OuterIntervalJoin(*columns, lower, upper, conditions, how)
        fired = join_of(self, name, other_of(f"join {name!r}", other), join)
        if lower is None or upper is None:
            if late is not None:
                raise SpecRefused(f"join {name!r}: without within= nothing is late; leave late= out, or give bounds")
            return fired
        # Both sides are late alike: when the last one that matches a record is not kept any more.
        return with_late(fired, Window(upper - lower, 1), late)


def _initial(name: str, given: Keyed[StreamT]) -> Keyed[StreamT]:
    """The initial state of a processor: its records come before all others and have no event times."""
    initial = other_of(f"transform_with_state {name!r}: initial_state", given)
    for source in inputs_of(initial.stream):
        if not isinstance(source.origin, str):
            raise SpecRefused(
                f"transform_with_state {name!r}: initial_state comes from {origin_of(initial.stream, source.origin)}; it "
                "has to be there before any record is read: take a source"
            )
    change = partial(replace, time=None, delay_ms=0, ahead_ms=None, idle_ms=None, flow=None, initial=True)
    return KeyedStream(changed(initial.stream, change))
