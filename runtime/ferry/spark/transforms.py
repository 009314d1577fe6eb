"""`transform`: the user's functions from DataFrame to DataFrame, and the Spark plans that Ferry refuses for them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import Frames, Transform
from ferry.contract.errors import SpecRefused
from ferry.contract.user_code import calling, function_name, reason, shown
from ferry.kernels.frame_types import require_names, require_types
from ferry.spark import private
from ferry.spark.frames import arrow_schema, spark_schema

STATEFUL = (
    "Aggregate", "CoGroup", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Except", "FlatMapCoGroupsInArrow",
    "FlatMapCoGroupsInPandas", "FlatMapGroupsInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState", "GlobalLimit", "Intersect", "LocalLimit", "MapGroups", "Offset", "TransformWithState",
    "TransformWithStateInPySpark", "UpdateEventTimeWatermarkColumn", "Window",
)  # fmt: skip
"""Classes of Spark's plan nodes that keep or need state across records."""

UNIONS = ("SequentialStreamingUnion", "Union")
"""The only plan nodes that may read several streams: they do not inspect records."""

KEEP = {True: ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"), False: ("Inner", "Cross", "RightOuter")}
"""Joins that return no unmatched row of the table beside the stream; True: the stream is on the left."""

RECORDS = "__ferry_records"
"""Alias of the empty DataFrame that a transform is tried with: it marks the stream in the plan."""


def transformed(step: Transform, frame: DataFrame) -> DataFrame:
    """The result of a step. Raises UserCodeFailed, also for columns that differ from the build of the pipeline."""
    with calling(f"{function_name(step.function)} in {step.where}", step.function):
        result = step.function(frame)
        if not isinstance(result, DataFrame):
            raise TypeError(f"it returned {type(result).__name__}; a DataFrame is needed")
        if (now := _in_spark(arrow_schema(result.schema))) != (declared := _in_spark(step.schema)):
            raise TypeError(f"it returned columns ({now}), and ({declared}) where the pipeline was built")
        return result


def _in_spark(schema: pa.Schema) -> str:
    """Columns and types as text; nullability does not count."""
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in spark_schema(schema))


def schema_after(spark: SparkSession, function: Frames, schema: pa.Schema, where: str) -> pa.Schema:
    require_types(schema, f"transform on {where}")
    require_names(schema, f"transform on {where}")
    empty = spark.createDataFrame([], spark_schema(schema)).alias(RECORDS)
    try:
        result = function(empty)
    except BaseException as error:
        raise SpecRefused(f"transform on {where}: {function_name(function)} fails: {reason(error)}") from error
    if not isinstance(result, DataFrame):
        raise SpecRefused(
            f"transform on {where}: {function_name(function)} must return a DataFrame, it returned {shown(result)}"
        )
    if where.startswith("source"):
        refuse_stateful(result, f"transform on {where}")
    return arrow_schema(result.schema)


def refuse_stateful(frame: DataFrame, where: str) -> None:
    """Refuse Spark operators whose result depends on several records of a stream; tables beside it may use any operator."""
    _streams(private.inlined_plan(frame), where)


def _repeats(node: Any, name: str, streaming: list[bool]) -> bool:
    """Whether the node returns rows without a record of the stream; `streaming`: which inputs have its records."""
    beside = node.children().size()
    if name in UNIONS or not any(streaming[:beside]):
        return not all(streaming[:beside])
    return name == "Join" and streaming[0] != streaming[1] and node.joinType().toString() not in KEEP[streaming[0]]


def _streams(node: Any, where: str) -> bool:
    """Whether this plan node returns records of the stream; raises SpecRefused when they need state in it."""
    inputs = [nodes.apply(i) for nodes in (node.children(), node.subqueries()) for i in range(nodes.size())]
    streaming = [_streams(child, where) for child in inputs]
    streams, name = streaming.count(True), node.getClass().getSimpleName()
    if streams and _repeats(node, name, streaming):
        raise SpecRefused(
            f"{where}: Spark's {name} would return rows of the table beside the stream again in every epoch; "
            "keep only the side of the stream, or do it behind the operator"
        )
    if streams > 1 and name not in (*STATEFUL, *UNIONS):
        name = f"{name} of two streams"
    elif not streams or name not in STATEFUL:
        return streams > 0 or node.isStreaming() or (name == "SubqueryAlias" and node.alias() == RECORDS)
    raise SpecRefused(
        f"{where}: Spark's {name} is stateful and would be applied to each epoch separately; "
        "use Ferry's .window(...).aggregate(...) or .join(...), or move it behind the operator"
    )
