"""`transform`: functions of users from DataFrame to DataFrame, and the plans of Spark that Ferry refuses for them."""

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
"""Classes of Spark's plan nodes that would keep or need state across records upstream of Ferry's operators."""

UNIONS = ("SequentialStreamingUnion", "Union")
"""The only ones that may take in more than one stream: they look at no record."""

KEEP = {True: ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"), False: ("Inner", "Cross", "RightOuter")}
"""Joins that keep no row of the table beside the stream for its own sake; True: the stream is on the left."""

RECORDS = "__ferry_records"
"""Alias of what a transform is tried with, by which its plan shows what comes from the stream."""


def transformed(step: Transform, frame: DataFrame) -> DataFrame:
    """The result of a step. Raises UserCodeFailed, also for columns that differ from those of the pipeline's build."""
    with calling(f"{function_name(step.function)} in {step.where}", step.function):
        result = step.function(frame)
        if not isinstance(result, DataFrame):
            raise TypeError(f"it returned {type(result).__name__}; a DataFrame is needed")
        if (now := _in_spark(arrow_schema(result.schema))) != (declared := _in_spark(step.schema)):
            raise TypeError(f"it returned columns ({now}), and ({declared}) where the pipeline was built")
        return result


def _in_spark(schema: pa.Schema) -> str:
    """Columns and types; nullability does not count."""
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
    """Refuse Spark operators whose result depends on more than one record; tables beside the stream may have any."""
    _streams(private.inlined_plan(frame), where)


def _repeats(node: Any, name: str, found: list[bool]) -> bool:
    """Whether rows come out that no record of the stream has asked for; `found`: which inputs have records of it."""
    beside = node.children().size()
    if name in UNIONS or not any(found[:beside]):
        return not all(found[:beside])
    return name == "Join" and found[0] != found[1] and node.joinType().toString() not in KEEP[found[0]]


def _streams(node: Any, where: str) -> bool:
    """Whether records of the stream come out of this plan node; refuses it when they would need state in it."""
    inputs = [some.apply(i) for some in (node.children(), node.subqueries()) for i in range(some.size())]
    found = [_streams(one, where) for one in inputs]
    streams, name = found.count(True), node.getClass().getSimpleName()
    if streams and _repeats(node, name, found):
        raise SpecRefused(
            f"{where}: Spark's {name} would give rows of the table beside the stream anew in every epoch; "
            "keep only the side of the stream, or do it behind the operator"
        )
    if streams > 1 and name not in (*STATEFUL, *UNIONS):
        name = f"{name} of two streams"
    elif not streams or name not in STATEFUL:
        return streams > 0 or node.isStreaming() or (name == "SubqueryAlias" and node.alias() == RECORDS)
    raise SpecRefused(
        f"{where}: Spark's {name} is stateful and would be applied to each epoch apart; "
        "use Ferry's .window(...).aggregate(...) or .join(...), or move it behind the operator"
    )
