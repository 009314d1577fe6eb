"""Fired rows on their way to the sinks: fetched by the driver when they are few, read by Spark tasks when they are many."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ferry.spark.ingest import Reader
from ferry.spark.stream import MapBatches, Output, Transform


def fetch(pool: ThreadPoolExecutor, splits: list[dict[str, Any]], secret: str, schema: pa.Schema) -> pa.Table:
    """All rows of an epoch as one table. Raises a Flight error when an instance does not have them."""
    reader = Reader(secret)
    parts = pool.map(lambda split: list(reader.read(split)), splits)
    return pa.Table.from_batches([b for part in parts for b in part], schema=schema)


def result(
    spark: SparkSession, output: Output, table: pa.Table | None, frame: Callable[[], DataFrame]
) -> pa.Table | DataFrame:
    """The steps between an operator and its sink, applied to all rows of the epoch."""
    steps = output.input.steps
    if table is not None and all(isinstance(s, MapBatches) for s in steps):
        for step in steps:
            table = pa.Table.from_batches([_batch(step.function(b)) for b in table.to_batches()])
        if not getattr(output.sink, "needs_frame", False):
            return table
        return spark.createDataFrame(table)
    made = spark.createDataFrame(table) if table is not None else frame()
    for step in steps:
        if isinstance(step, Transform):
            made = step.function(made)
        else:
            made = map_frame(made, step)
    return made


def map_frame(frame: DataFrame, step: MapBatches) -> DataFrame:
    """A batch function on a DataFrame."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    empty = pa.RecordBatch.from_pylist([], schema=to_arrow_schema(frame.schema))
    function = step.function

    def task(batches: Any) -> Any:
        for batch in batches:
            yield _batch(function(batch))

    return frame.mapInArrow(task, from_arrow_schema(function(empty).schema))


def _batch(made: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    from ferry.spark.ingest import one_batch

    return one_batch(made) if isinstance(made, pa.Table) else made
