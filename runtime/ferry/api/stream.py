"""A stream of records: the first steps of a pipeline, and its end, a sink.

Every call returns a new value; nothing runs here. A mistake is refused as soon as it can be seen, with the name of the thing
and a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from ferry.api.declare import BaseStream, changed, inputs_of, keyed_by, origin_of, require_column
from ferry.api.expressions import Filter, Select
from ferry.api.keyed import KeyedStream
from ferry.api.pipeline import Batches, Frames, MapBatches, Output, Transform, refuse_same
from ferry.api.processes import is_time
from ferry.api.user_batches import UserBatches, not_arrow
from ferry.connectors.sink import Sink, expecting
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import function_name, here, place_of, reason
from ferry.kernels.kinds import key_kind_of


@dataclass(frozen=True, slots=True, repr=False)
class Stream(BaseStream):
    """Records of a source, or rows that an operator fired: what `pipeline(streams, args)` gets, and each step returns.

    Example:
        >>> def pipeline(streams, args):
        ...     bids = streams["bids"].event_time("ts", delay="3s")
        ...     counts = bids.key_by("auction").window(ferry.tumbling("60s")).aggregate("counts", num=ferry.count())
        ...     return counts.sink(ferry.parquet("counts"))
    """

    def union(self, *others: Stream) -> Stream:
        """The records of several streams in one, before an operator. Each keeps its event time; the slowest holds it back.

        Parameters:
            others: streams of sources or operators, with columns of the same names and types in the same order. A column
                may be null in all of them when it may be in one.
        Returns: a stream of the records of all of them.
        Raises: SpecRefused, if columns differ.
        Example:
            >>> ids = [s.map_batches(lambda rows: rows.select(["id", "ts"])) for s in (people, auctions)]
            >>> seen = ids[0].union(ids[1]).event_time("ts").key_by("id")
        """
        schema = self.input.schema
        for other in others:
            theirs = other.input.schema
            if [(field.name, field.type) for field in theirs] != [(field.name, field.type) for field in schema]:
                raise SpecRefused(
                    f"union of {origin_of(self)} and {origin_of(other)}: the columns differ: {schema.remove_metadata()} and "
                    f"{theirs.remove_metadata()}"
                )
            pairs = zip(schema, theirs, strict=True)
            schema = pa.schema([mine.with_nullable(mine.nullable or field.nullable) for mine, field in pairs])
        inputs = [replace(one, schema=schema) for stream in (self, *others) for one in inputs_of(stream)]
        return replace(self, input=inputs[0], more=tuple(inputs[1:]))

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.input.schema)
        return f"<stream of {origin_of(self)}: {columns}>"

    @property
    def columns(self) -> list[str]:
        """Names of the columns.

        Example:
            >>> bids.columns
            ['seq', 'ts', 'auction', 'bidder', 'price']
        """
        return list(self.input.schema.names)

    def event_time(
        self,
        column: str,
        delay: Duration = 0,
        ahead: Duration | None = "1d",
        idle: Duration | None = None,
        flow: str | None = None,
    ) -> Stream:
        """`column` is the event time; the watermark is the greatest one seen minus `delay`, of the slowest flow.

        A source is one flow unless it names several: `parquet_files(..., flow=...)`, `json_files`, or a `FlowSplits`; or
        unless its records do, in the column `flow`.

        Parameters:
            column: int64 milliseconds or a timestamp.
            delay: how late records come at most; text such as "3s" or "3 seconds", or a timedelta.
            ahead: records whose time is more than this ahead of the worker's clock are malformed, for the watermark never
                goes back. None: the times are of another clock. Ferry's generators have one of their own.
            idle: a flow that has brought no record for so long, by the driver's clock, is idle: it does not hold the
                watermark back. Time in which the job was down counts; a flow whose records wait to be read is not idle.
                When it brings records again, they are judged by the watermark as it is then. None: it is waited for, for
                ever. If all flows of all inputs of an operator are idle, its watermark stays where it is.
            flow: a column that says of which flow a record is, such as "partition" of Spark's Kafka source. Nobody lists
                these flows: they are waited for from their first record on, and idle also when more waits to be read.
        Returns: the same records, with an event time.
        Raises: SpecRefused, if there is no such column, it holds no times, or a duration is none; if `idle` or `flow` is
            given for rows that an operator fired, which bring its watermark; or if the source has named its flows already.
        Example:
            >>> timed = bids.event_time("ts", delay="3s", idle="30s")
        """
        require_column(self, column, "event_time")
        kind = self.input.schema.field(column).type
        if not is_time(kind):
            raise SpecRefused(f"event_time: column {column!r} is {kind}; int64 milliseconds or a timestamp is needed")
        ahead_ms = None if ahead is None else milliseconds(ahead, "ahead")
        delay_ms, idle_ms = milliseconds(delay, "delay"), self._idle(idle)
        if flow is not None:
            self._refuse_fired("flow")
            require_column(self, flow, "event_time")
            if key_kind_of(kind := self.input.schema.field(flow).type) is None:
                raise SpecRefused(
                    f"event_time: column {flow!r} is {kind}, which names no flow; use an integer or a text"
                )
        change = partial(replace, time=column, delay_ms=delay_ms, ahead_ms=ahead_ms, idle_ms=idle_ms, flow=flow)
        return changed(self, change)

    def created_at(self, column: str) -> Stream:
        """`column` says when each record was created: how long it took from then to the sink is in the metrics.

        Each record counts once, where its source is read first, and whatever becomes of it: its time ends when the sinks
        have the rows of its epoch. It holds for the source, also where that is read elsewhere. A source may say so itself,
        by an attribute `creation_time` that is the name of a column; Ferry's paced workloads do.

        Parameters:
            column: int64 milliseconds since 1970, or a timestamp, by the clock of whoever creates records: as that differs
                from the driver's, latencies are wrong. Nulls are not counted.
        Returns: the same records.
        Raises: SpecRefused, if there is no such column, it holds no times, or the stream is not as its source gives it.
        Example:
            >>> clocked = bids.created_at("ts").event_time("ts", delay="3s")
        """
        for one in inputs_of(self):
            if not isinstance(one.origin, str) or one.steps:
                raise SpecRefused(
                    f"created_at on {origin_of(self)}: say it straight behind the source, before any step"
                )
        require_column(self, column, "created_at")
        if not is_time(kind := self.input.schema.field(column).type):
            raise SpecRefused(f"created_at: column {column!r} is {kind}; int64 milliseconds or a timestamp is needed")
        self.build.created.update({str(one.origin): column for one in inputs_of(self)})
        return self

    def _refuse_fired(self, given: str) -> None:
        if any(isinstance(one.origin, int) for one in inputs_of(self)):
            raise SpecRefused(
                f"event_time on {origin_of(self)}: rows that it fires bring its watermark; give {given}= to its inputs"
            )

    def _idle(self, idle: Duration | None) -> int | None:
        if idle is None:
            return None
        self._refuse_fired("idle")
        if (idle_ms := milliseconds(idle, "idle")) == 0:
            raise SpecRefused(f"event_time on {origin_of(self)}: idle={idle!r} is no time at all; a flow needs some")
        return idle_ms

    def transform(self, function: Frames) -> Stream:
        """Stateless Spark SQL before an operator; after one, `function` sees all rows that the epoch fired.

        Before an operator it is planned once, and run in every epoch, unless the plan holds something that another epoch has
        otherwise: a table that is read or joined, a shuffle, the time, a number that is drawn.

        Parameters:
            function: DataFrame in, DataFrame out. It is tried once on an empty one, for its columns; how often it is called
                later is not said.
        Returns: the stream of what it returns.
        Raises: SpecRefused, if the function fails, returns no DataFrame, or needs state of Spark's before an operator.
        Example:
            >>> dear = bids.transform(lambda rows: rows.where("price > 10000"))
        """
        self._callable(function, "transform")
        where = f"transform on {origin_of(self)}"
        schema = self.build.schema_after(function, self.input.schema, origin_of(self))
        refuse_same(schema, f"{where}: {function_name(function)} gives")
        step = Transform(function, where, schema)
        return changed(self, lambda one: replace(one, steps=(*one.steps, step), schema=schema))

    def map_batches(self, function: Batches) -> Stream:
        """Arrow batches in and out, inside the task; keeps the records out of the JVM.

        Parameters:
            function: RecordBatch in, RecordBatch or Table out; it is tried once on an empty one, for its columns. Or what
                `ferry.filter` and `ferry.select` give: then the source reads the columns that are needed, and no others.
        Returns: the stream of what it returns.
        Raises: SpecRefused, if the function fails on an empty batch.
        Example:
            >>> bids.map_batches(lambda batch: batch.select(["ts", "auction"])).columns
            ['ts', 'auction']
        """
        self._callable(function, "map_batches")
        empty = pa.RecordBatch.from_pylist([], schema=self.input.schema)
        if own := isinstance(function, Filter | Select):
            function = function.bound(self.input.schema)
        called = f"map_batches on {origin_of(self)}: {function_name(function)}"
        try:
            made = function(empty)
        except BaseException as error:
            raise SpecRefused(
                f"{called} fails on an empty batch with columns {self.input.schema.names}: {reason(error)}"
            ) from error
        if not isinstance(made, pa.RecordBatch | pa.Table):
            at = place_of(function)
            raise SpecRefused(f"{called} ({at}) must return a RecordBatch or a Table, it returned {not_arrow(made)}")
        schema = made.schema
        refuse_same(schema, f"{called} gives")
        step = MapBatches(
            function if own else UserBatches(function, f"map_batches on {origin_of(self)}", empty.schema, schema)
        )
        return changed(self, lambda one: replace(one, steps=(*one.steps, step), schema=schema))

    def _callable(self, function: object, what: str) -> None:
        if not callable(function):
            raise SpecRefused(f"{what} on {origin_of(self)}: {type(function).__name__} is no function")

    def key_by(self, *columns: str) -> KeyedStream[Stream]:
        """Partition by one or more columns. Keys are told from each other as SQL groups them.

        A null is a value of its own, and -0.0 is 0.0, and NaN one value; but in a join a null equals nothing, and its
        records have no pairs.

        Parameters:
            columns: integers, strings, booleans, dates, timestamps, bytes, decimals of up to 38 digits, or floats. Rows that
                are fired have the columns with their types (timestamps also with their unit and time zone), but for these:
                integers of every width become 64 bits, and an unsigned one beyond that makes its record malformed; texts
                and bytes of every layout become `string` and `binary`.
        Returns: a keyed stream, which takes a window.
        Raises: SpecRefused, if none is named, one is not there, or its type cannot be a key (lists, structs and maps).
        Example:
            >>> per_auction = bids.event_time("ts").key_by("auction")
        """
        return KeyedStream(keyed_by(self, columns))

    def distinct(
        self,
        *columns: str,
        within: Duration,
        name: str | None = None,
        order: str | None = None,
        late: Sink | None = None,
    ) -> Stream:
        """The first record of each key within some event time goes on, and its repeats are dropped: `key_by(...).distinct`.

        Parameters:
            columns: the key.
            within: how far apart two records of a key are that both go on: "10 minutes".
            name: of the operator; its state belongs to this name. None: "distinct_" and the columns of the key.
            order: an integer or timestamp column: of records of one time the least goes on. None: any of them.
            late: a sink for the records that come too late to say whether they are repeats.
        Returns: a stream of the same columns, with the same event time.
        Raises: SpecRefused, as `KeyedStream.distinct`.
        Example:
            >>> bids.event_time("ts", delay="3s").distinct("auction", "bidder", within="10 minutes").columns
            ['seq', 'ts', 'auction', 'bidder', 'price']
        """
        return self.key_by(*columns).distinct(within=within, name=name, order=order, late=late)

    def sink(self, sink: Sink) -> Output:
        """End of the pipeline, behind an operator or straight behind a source. A stream may have several.

        Parameters:
            sink: where the rows go: `ferry.parquet(...)`, `ferry.postgres(...)`, `ferry.console()` ... or one of yours.
        Returns: what `pipeline(streams, args)` returns, alone or in a list.
        Raises: SpecRefused, if streams were united before it, and no operator is between; if the sink cannot take a column.
        Example:
            >>> counts = per_auction.aggregate("counts", num=ferry.count())
            >>> output = counts.sink(ferry.parquet("counts"))
        """
        if not isinstance(sink, Sink):
            given = function_name(sink) if callable(sink) else type(sink).__name__
            raise SpecRefused(
                f"sink on {origin_of(self)}: {given} is no sink; use ferry.parquet(...), ferry.console(), "
                "ferry.foreach_epoch(function) or an object of a class of ferry.Sink"
            )
        if self.more:
            raise SpecRefused(f"sink on {origin_of(self)}, which is united with others: give each a sink of its own")
        expecting(sink, self.input.schema, f"sink on {origin_of(self)}")
        return Output(self.input, sink, here())
