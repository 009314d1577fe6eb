"""Converts schemas and rows between Arrow and Spark's DataFrames: timestamps in microseconds, in UTC if they have a zone."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from ferry.kernels.frame_types import for_frame, frame_schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark's batches."""
    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema) -> StructType:
    """The schema of a DataFrame of such rows. Raises SpecRefused for a type without a Spark counterpart."""
    return from_arrow_schema(frame_schema(schema))


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    """The table as a DataFrame."""
    return spark.createDataFrame(for_frame(table), spark_schema(table.schema))
