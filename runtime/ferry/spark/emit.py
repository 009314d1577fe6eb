"""Emits fired rows to the sinks: the driver fetches few rows itself, Spark tasks read many rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import reduce
from itertools import chain, takewhile
from threading import Event, Lock
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import Batches, MapBatches, Output, Transform
from ferry.connectors.sink import Part, RowParts
from ferry.connectors.splits import Splits
from ferry.kernels.frame_types import for_frame
from ferry.spark.frames import arrow_schema, frame_of, spark_schema
from ferry.spark.tasks import flight, reading
from ferry.spark.tasks.ingest import batches_of
from ferry.spark.transforms import transformed

LOOK_SECONDS = 0.05


def fetch(
    pool: ThreadPoolExecutor,
    splits: list[dict[str, Any]],
    schema: pa.Schema,
    gone: Event,
    rows_max: int,
    bytes_max: int,
    connections: flight.Connections | None = None,
) -> pa.Table | None:
    """All rows of an epoch as one table; None when they exceed `rows_max` or `bytes_max`.

    Raises a Flight error when an instance does not have its rows, or when `gone` is set because an instance was lost.
    """
    lock, room = Lock(), {"rows": rows_max, "bytes": bytes_max}

    def read(split: dict[str, Any]) -> list[pa.RecordBatch]:
        batches = []
        for batch in flight.read_rows(split, connections):
            with lock:
                room["rows"] -= batch.num_rows
                room["bytes"] -= batch.nbytes
            if min(room.values()) < 0:
                return []
            batches.append(batch)
        return batches

    parts = [pool.submit(read, split) for split in splits]
    while wait(parts, LOOK_SECONDS, FIRST_EXCEPTION).not_done:
        if gone.is_set():
            raise fl.FlightUnavailableError("an instance that has the rows was lost")
        if any(part.done() and part.exception() for part in parts):
            break
    batches = [b for part in parts for b in part.result()]
    return pa.Table.from_batches(batches, schema=schema) if min(room.values()) >= 0 else None


def is_direct(output: Output) -> bool:
    """Whether rows go from the operator to the sink without Spark."""
    batches_only = all(isinstance(step, MapBatches) for step in output.input.steps)
    return batches_only and not getattr(output.sink, "needs_frame", False)


def is_parted(output: Output) -> bool:
    """Whether tasks may read and write the rows when they are too many for the driver."""
    return is_direct(output) and output.sink.takes_parts


def parts(spark: SparkSession, output: Output, splits: list[dict[str, Any]]) -> FiredParts:
    """An operator's rows, which tasks read and pass through the functions of an output."""
    return FiredParts(spark, tuple(splits), functions_of(output))


def functions_of(output: Output) -> tuple[Batches, ...]:
    """The batch functions before a sink that needs no Spark."""
    return tuple(step.function for step in output.input.steps if isinstance(step, MapBatches))


@dataclass(frozen=True, slots=True)
class FiredParts(RowParts):
    """Fired rows on their instances: one task per instance reads its rows, which pass through no other process."""

    spark: SparkSession
    splits: tuple[dict[str, Any], ...]
    functions: tuple[Batches, ...]

    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Part]]) -> list[Part]:
        """The results of `write` for the rows of each task."""
        functions = self.functions

        def task(splits: Iterable[dict[str, Any]]) -> Iterator[Part]:
            for split in splits:
                yield from write(mapped(functions, flight.read_rows(split)))

        written: list[Part] = (
            self.spark.sparkContext.parallelize(self.splits, len(self.splits)).mapPartitions(task).collect()
        )
        return written


@dataclass(frozen=True, slots=True)
class ReadParts(RowParts):
    """Records of a source for a sink: tasks read their shares. The ingest that counts records sets malformed ones aside."""

    spark: SparkSession
    shares: tuple[tuple[str, ...], ...]
    """splits as JSON, of each task"""
    functions: tuple[Batches, ...]
    name: str
    source: Splits

    def each(self, write: Callable[[Iterable[pa.RecordBatch]], Iterable[Part]]) -> list[Part]:
        """The results of `write` for the records of each task."""
        return self._collected(write)

    def table(self, bytes_max: int) -> pa.Table | None:
        """All records, in the order of the shares; None when a task has more than `bytes_max`."""

        def taken(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
            held, size = [], 0
            for batch in batches:
                size += batch.nbytes
                if size > bytes_max:
                    yield None
                    return
                held.append(batch)
            yield from held

        batches = self._collected(taken)
        if any(batch is None for batch in batches):
            return None
        return pa.Table.from_batches(batches) if batches else pa.table({})

    def _collected(self, function: Callable[[Iterable[pa.RecordBatch]], Iterable[Any]]) -> list[Any]:
        name, source, functions = self.name, self.source, self.functions

        def task(shares: Iterable[tuple[str, ...]]) -> Iterator[Any]:
            for share in shares:
                read = chain.from_iterable(reading.read(name, source, json.loads(split), None) for split in share)
                batches = (records for records in read if isinstance(records, pa.RecordBatch))
                yield from function(mapped(functions, batches))

        return list(self.spark.sparkContext.parallelize(self.shares, len(self.shares)).mapPartitions(task).collect())


def before_sql(steps: Sequence[Transform | MapBatches]) -> tuple[list[Batches], Sequence[Transform | MapBatches]]:
    """The batch functions before the first step in Spark SQL, and the remaining steps."""
    functions = [step.function for step in takewhile(lambda step: isinstance(step, MapBatches), steps)]
    return functions, steps[len(functions) :]


def mapped(functions: Sequence[Batches], batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Batches after all functions, applied in turn."""
    for function in functions:
        batches = chain.from_iterable(map(batches_of, map(function, batches)))
    return batches


def schema_after(functions: Sequence[Batches], schema: pa.Schema) -> pa.Schema:
    """The schema of batches after the functions."""
    for function in functions:
        schema = function(pa.RecordBatch.from_pylist([], schema=schema)).schema
    return schema


def result(
    spark: SparkSession, output: Output, table: pa.Table | None, frame: Callable[[], DataFrame]
) -> pa.Table | DataFrame:
    """All rows of the epoch after the steps between operator and sink; `frame` has the steps `before_sql` already."""
    functions, steps = before_sql(output.input.steps)
    if table is not None and functions:
        table = pa.Table.from_batches(mapped(functions, table.to_batches()))
    if table is not None and is_direct(output):
        return table
    rows = frame_of(spark, table) if table is not None else frame()
    for step in steps:
        if isinstance(step, Transform):
            rows = transformed(step, rows)
        else:
            rows = map_frame(rows, step.function)
    return rows


def united(spark: SparkSession, results: Sequence[pa.Table | DataFrame]) -> pa.Table | DataFrame:
    """The rows of several operators, with equal columns."""
    tables = [rows for rows in results if isinstance(rows, pa.Table)]
    if len(tables) == len(results):
        return pa.concat_tables(tables)
    frames = [frame_of(spark, rows) if isinstance(rows, pa.Table) else rows for rows in results]
    return reduce(DataFrame.unionByName, frames)


def map_frame(frame: DataFrame, function: Batches) -> DataFrame:
    """Apply a batch function to a DataFrame."""
    empty = pa.RecordBatch.from_pylist([], schema=arrow_schema(frame.schema))

    def task(batches: Any) -> Any:
        for batch in batches:
            yield from map(for_frame, batches_of(function(batch)))

    return frame.mapInArrow(task, spark_schema(function(empty).schema))
