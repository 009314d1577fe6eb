"""Arrow data as Spark's DataFrames have it: timestamps in microseconds, of UTC where they have a zone.

What has finer or coarser timestamps is made so on its way into Spark, which would refuse it. Finer ones are rounded down.
"""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ferry.contract.errors import SpecRefused

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of the batches that Spark gives out."""
    return to_arrow_schema(schema, timezone="UTC")


def for_spark(rows: Rows) -> Rows:
    """The rows with types that Spark takes; what is finer than its microseconds is rounded down."""
    wanted = arrow_schema(from_arrow_schema(rows.schema))
    if rows.schema.types == wanted.types:
        return rows
    columns = [_floored(column).cast(kind) for column, kind in zip(rows.columns, wanted.types, strict=True)]
    return type(rows).from_arrays(columns, names=rows.schema.names)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame, a timestamp without a zone as one."""
    return spark.createDataFrame(for_spark(table), from_arrow_schema(table.schema))


def require_types(schema: pa.Schema, what: str) -> None:
    """Refuse columns of types that no DataFrame has. Raises SpecRefused."""
    for field in schema:
        try:
            from_arrow_schema(pa.schema([field]))
        except PySparkTypeError:
            raise SpecRefused(
                f"{what}: column {field.name!r} is {field.type}, which Spark has not; cast it, or leave it out, in "
                ".map_batches(...) before the operator"
            ) from None


def _floored(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if column.type == pa.duration("ns"):
        nanoseconds = column.cast(pa.int64())
        down = pc.if_else(pc.less(nanoseconds, 0), pc.subtract(nanoseconds, 999), nanoseconds)
        return pc.divide(down, 1000).cast(pa.duration("us"))
    fine = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    return pc.floor_temporal(column, unit="microsecond") if fine else column
