"""A stream of records: the first steps of a pipeline, and its end, a sink.

Every call returns a new value; nothing runs here. A call refuses a mistake at once. The message names the step and a remedy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ferry.api.declare import BaseStream, changed, inputs_of, keyed_by, origin_of, refuse_expected, require_column
from ferry.api.expectations import Holds, expected
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
    """Records of a source, or the rows that an operator has written. `pipeline(streams, args)` gets streams; each step
    returns a stream.

    Example:
        >>> def pipeline(streams, args):
        ...     bids = streams["bids"].event_time("ts", delay="3s")
        ...     counts = bids.key_by("auction").window(ferry.tumbling("60s")).aggregate("counts", num=ferry.count())
        ...     return counts.sink(ferry.parquet("counts"))
    """

    def union(self, *others: Stream) -> Stream:
        """Unite the records of several streams before an operator.

        Each stream keeps its event time. The operator's watermark is the minimum over all united streams.

        Parameters:
            others: streams of sources or operators, with columns of the same names and types in the same order. A column of
                the union is nullable if it is nullable in any of the streams.
        Returns: a stream of all their records.
        Raises: SpecRefused, if the columns differ.
        Example:
            >>> ids = [s.map_batches(lambda rows: rows.select(["id", "ts"])) for s in (people, auctions)]
            >>> seen = ids[0].union(ids[1]).event_time("ts").key_by("id")
        """
        schema = self.input.schema
        for stream in (self, *others):
            refuse_expected(stream)
        for other in others:
            theirs = other.input.schema
            if [(field.name, field.type) for field in theirs] != [(field.name, field.type) for field in schema]:
                raise SpecRefused(
                    f"union of {origin_of(self)} and {origin_of(other)}: the columns differ: {schema.remove_metadata()} and "
                    f"{theirs.remove_metadata()}"
                )
            pairs = zip(schema, theirs, strict=True)
            schema = pa.schema([mine.with_nullable(mine.nullable or field.nullable) for mine, field in pairs])
        inputs = [replace(source, schema=schema) for stream in (self, *others) for source in inputs_of(stream)]
        return replace(self, input=inputs[0], more=tuple(inputs[1:]))

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.input.schema)
        return f"<stream of {origin_of(self)}: {columns}>"

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order.

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
        """Declare the event time and the watermark.

        A flow is a part of a source with an order of its own, such as a partition. The watermark of a flow is its greatest
        event time minus `delay`. The watermark of the stream is the minimum over its flows. A source is a single flow unless
        it names its flows (`kafka`, `parquet_files(..., flow=...)`, a `FlowSplits`), or the column `flow` names them.

        Parameters:
            column: the event time, as int64 milliseconds since 1970 or as a timestamp.
            delay: the greatest expected lateness of a record: text such as "3s" or "3 seconds", or a timedelta.
            ahead: the greatest lead of an event time over the worker's clock: text or a timedelta. A record with a greater
                lead is malformed, because the watermark never goes back. None: no bound, for times of another clock. The
                bound does not apply to Ferry's generators, which make up their event times.
            idle: text or a timedelta. A flow without a record for this time, by the driver's clock, is idle and does not
                hold the watermark back. Downtime of the job counts. A flow with unread records is not idle. Records of a
                flow that was idle are compared with the current watermark. If all flows of all inputs of an operator are
                idle, the operator's watermark does not move. None: no flow is ever idle.
            flow: a column that names the flow of each record, such as "partition" of Spark's Kafka source. These flows are
                not known in advance: a flow holds the watermark back from its first record on. It may be idle while records
                of it are unread.
        Returns: the same records, with an event time.
        Raises: SpecRefused, if a column is missing or has a wrong type, or a duration is invalid; if `idle` or `flow` is
            used on fired rows of an operator, which have the operator's watermark; or if the source names its flows, too.
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
                    f"event_time: column {flow!r} is {kind}, which cannot name a flow; use an integer or a text"
                )
        change = partial(replace, time=column, delay_ms=delay_ms, ahead_ms=ahead_ms, idle_ms=idle_ms, flow=flow)
        return changed(self, change)

    def created_at(self, column: str) -> Stream:
        """Declare the creation time of records. The metrics then show the latency from creation to the sink.

        Each record counts once, at the first reader of its source, also if the pipeline drops the record. The latency of a
        record ends when the sinks have the rows of its epoch. The declaration applies to the source, in every place that
        reads it. A source can declare the column with an attribute `creation_time`, as Ferry's paced workloads do.

        Parameters:
            column: the creation time, as int64 milliseconds since 1970 or as a timestamp, by the producer's clock. An offset
                between the producer's clock and the driver's clock makes the latencies wrong by that offset. Nulls are not
                counted.
        Returns: the same records.
        Raises: SpecRefused, if the column is missing or is not a time, or if a step precedes this call.
        Example:
            >>> clocked = bids.created_at("ts").event_time("ts", delay="3s")
        """
        for source in inputs_of(self):
            if not isinstance(source.origin, str) or source.steps:
                raise SpecRefused(f"created_at on {origin_of(self)}: call it on the source itself, before any step")
        require_column(self, column, "created_at")
        if not is_time(kind := self.input.schema.field(column).type):
            raise SpecRefused(f"created_at: column {column!r} is {kind}; int64 milliseconds or a timestamp is needed")
        self.build.created.update({str(source.origin): column for source in inputs_of(self)})
        return self

    def _refuse_fired(self, parameter: str) -> None:
        """Refuse a parameter of `event_time` on fired rows of an operator."""
        if any(isinstance(source.origin, int) for source in inputs_of(self)):
            raise SpecRefused(
                f"event_time on {origin_of(self)}: fired rows have the operator's watermark; give {parameter}= to its inputs"
            )

    def _idle(self, idle: Duration | None) -> int | None:
        if idle is None:
            return None
        self._refuse_fired("idle")
        if (idle_ms := milliseconds(idle, "idle")) == 0:
            raise SpecRefused(f"event_time on {origin_of(self)}: idle={idle!r} must be positive")
        return idle_ms

    def transform(self, function: Frames) -> Stream:
        """Run stateless Spark SQL. After an operator, `function` gets all fired rows of the epoch.

        Before an operator, Spark plans the query once and reuses the plan in every epoch, unless the plan contains a table
        scan, a join, a shuffle, now() or rand().

        Parameters:
            function: DataFrame in, DataFrame out. It is called once with an empty DataFrame, to get its columns. The number
                of later calls is not defined.
        Returns: a stream of the rows of the function's result.
        Raises: SpecRefused, if the function fails, does not return a DataFrame, or needs Spark's state before an operator.
        Example:
            >>> dear = bids.transform(lambda rows: rows.where("price > 10000"))
        """
        self._callable(function, "transform")
        where = f"transform on {origin_of(self)}"
        schema = self.build.schema_after(function, self.input.schema, origin_of(self))
        refuse_same(schema, f"{where}: {function_name(function)} gives")
        step = Transform(function, where, schema)
        return changed(self, lambda source: replace(source, steps=(*source.steps, step), schema=schema))

    def map_batches(self, function: Batches) -> Stream:
        """Run a function of Arrow batches inside the task. The records do not pass through the JVM.

        Parameters:
            function: RecordBatch in, RecordBatch or Table out. It is called once with an empty batch, to get its columns. Or
                `ferry.filter(...)` or `ferry.select(...)`: then the source reads only the columns that the pipeline needs.
        Returns: a stream of the records of the function's result.
        Raises: SpecRefused, if the function fails on an empty batch, or does not return a RecordBatch or a Table.
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
            result = function(empty)
        except BaseException as error:
            raise SpecRefused(
                f"{called} fails on an empty batch with columns {self.input.schema.names}: {reason(error)}"
            ) from error
        if not isinstance(result, pa.RecordBatch | pa.Table):
            at = place_of(function)
            raise SpecRefused(f"{called} ({at}) must return a RecordBatch or a Table, it returned {not_arrow(result)}")
        schema = result.schema
        refuse_same(schema, f"{called} gives")
        step = MapBatches(
            function if own else UserBatches(function, f"map_batches on {origin_of(self)}", empty.schema, schema)
        )
        return changed(self, lambda source: replace(source, steps=(*source.steps, step), schema=schema))

    def _callable(self, function: object, step: str) -> None:
        if not callable(function):
            raise SpecRefused(f"{step} on {origin_of(self)}: {type(function).__name__} is not a function")

    def key_by(self, *columns: str) -> KeyedStream[Stream]:
        """Partition by one or more columns. Keys are equal as in SQL's GROUP BY.

        A null is a value of its own, -0.0 equals 0.0, and all NaNs are equal. In a join a null equals nothing: a record with
        a null in its key has no partner.

        Parameters:
            columns: integers, strings, booleans, dates, timestamps, bytes, decimals of up to 38 digits, or floats. Fired
                rows have the key columns with their types (timestamps with their unit and time zone), with two exceptions:
                integers of every width become int64, and a record with a greater unsigned integer is malformed; strings and
                bytes of every layout become `string` and `binary`.
        Returns: a keyed stream, for `.window(...)`, `.aggregate(...)` and the other stateful steps.
        Raises: SpecRefused, if no column is named, a column is missing, or its type cannot be a key (lists, structs, maps).
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
        """Drop repeated records of a key within a span of event time. Short for `key_by(...).distinct(...)`.

        Parameters:
            columns: the columns of the key.
            within: the span of event time, such as "10 minutes". A record is a repeat if a passed record of its key is less
                than `within` before or after it.
            name: name of the operator. The operator's state belongs to this name. None: "distinct_" and the key columns.
            order: an integer or timestamp column. Among records of equal key and event time the one with the least value
                passes. None: any of them passes.
            late: a sink for late records, which may repeat a record that the state has forgotten.
        Returns: a stream of the same columns, with the same event time.
        Raises: SpecRefused, for the same reasons as `KeyedStream.distinct`.
        Example:
            >>> bids.event_time("ts", delay="3s").distinct("auction", "bidder", within="10 minutes").columns
            ['seq', 'ts', 'auction', 'bidder', 'price']
        """
        return self.key_by(*columns).distinct(within=within, name=name, order=order, late=late)

    def expect(self, name: str, condition: pc.Expression | Holds) -> Stream:
        """Declare a condition that each row of a sink must meet. The rows stay as they are.

        A violation is counted in the metric `ferry_expectation_violations_total` and told in the status. During the
        probation of a deployed program (`ferry deploy --probation`), the job goes back to the program before.

        Parameters:
            name: the expectation in words, such as "cents are positive".
            condition: an Arrow expression (`pyarrow.compute.field`), or a function of a RecordBatch that returns one boolean
                per row. A null counts as false. It is called once with an empty batch.
        Returns: a stream of the same rows, for `.sink(...)` or another `.expect(...)`.
        Raises: SpecRefused, if the condition does not fit the columns, or the stream is a union.
        Example:
            >>> import pyarrow.compute as pc
            >>> counts = per_auction.aggregate("counts", num=ferry.count())
            >>> output = counts.expect("counts are positive", pc.field("num") > 0).sink(ferry.parquet("counts"))
        """
        if self.more:
            raise SpecRefused(f"expect on {origin_of(self)}, a union: give each of its streams a sink of its own")
        place = f"expect on {origin_of(self)}"
        expectations = *self.input.expectations, expected(name, condition, self.input.schema, place, here())
        return replace(self, input=replace(self.input, expectations=expectations))

    def sink(self, sink: Sink) -> Output:
        """Write the rows to a sink: the end of a pipeline, behind an operator or a source. A stream may have several sinks.

        Parameters:
            sink: the destination: `ferry.parquet(...)`, `ferry.postgres(...)`, `ferry.console()` ... or an object of your
                own subclass of `ferry.Sink`.
        Returns: an output. `pipeline(streams, args)` returns one output or a list of outputs.
        Raises: SpecRefused, if the stream is a union without an operator behind it, or the sink does not support a column.
        Example:
            >>> counts = per_auction.aggregate("counts", num=ferry.count())
            >>> output = counts.sink(ferry.parquet("counts"))
        """
        if not isinstance(sink, Sink):
            value = function_name(sink) if callable(sink) else type(sink).__name__
            raise SpecRefused(
                f"sink on {origin_of(self)}: {value} is not a sink; use ferry.parquet(...), ferry.console(), "
                "ferry.foreach_epoch(function) or an object of a subclass of ferry.Sink"
            )
        if self.more:
            raise SpecRefused(f"sink on {origin_of(self)}, a union: give each of its streams a sink of its own")
        expecting(sink, self.input.schema, f"sink on {origin_of(self)}")
        return Output(self.input, sink, here())
