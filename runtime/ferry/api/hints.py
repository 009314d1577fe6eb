"""Suggestions for unknown names in a pipeline: names of Spark, pandas and Flink, misplaced steps, misspelt names."""

from __future__ import annotations

import difflib
from typing import Any

from ferry.api.keyed import KeyedStream
from ferry.api.stream import Stream
from ferry.api.windowed import RowStream, SessionStream, WindowedStream
from ferry.contract.descriptors import Aggregate

STEPS = {
    '.key_by("column", ...)': ("group_by", "groupBy", "groupby", "keyBy", "partition_by", "partitionBy"),
    '.event_time("column", delay="3s")': ("withWatermark", "with_watermark", "assign_timestamps_and_watermarks"),
    ".map_batches(function), which gets and returns Arrow batches": (
        "map", "flat_map", "flatMap", "apply", "mapInArrow", "mapInPandas", "mapPartitions", "withColumn", "with_column",
    ),
    ".map_batches(ferry.filter(pyarrow.compute.field(...) > 0))": ("filter", "where"),
    '.map_batches(ferry.select("column", ...))': ("select", "drop", "rename", "withColumnRenamed"),
    '.distinct("column", within="10 minutes")': (
        "dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "deduplicate", "unique",
    ),
    '.top_n(name, 3, by="column"), behind .key_by(...).window(ferry.tumbling(...))': (
        "top_n", "topN", "top", "nlargest", "nsmallest", "limit", "rank", "row_number",
    ),
    ".transform(function), which gets and returns a DataFrame of Spark": ("sql", "selectExpr"),
    ".aggregate(name, n=ferry.count(), ...), behind .key_by(...)": ("agg", "reduce", "count", "sum", "groupByKey"),
    ".sink(ferry.parquet(directory)), or another sink": (
        "write", "writeStream", "write_stream", "to", "add_sink", "addSink", "sink_to", "save", "print", "show",
    ),
}  # fmt: skip
"""By step of Ferry: its names in other libraries."""

STAGES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Stream,), "a step before .key_by(...)"),
    ((KeyedStream,), "a step behind .key_by(...)"),
    ((WindowedStream, SessionStream, RowStream), "a step behind .key_by(...).window(...)"),
)
"""Kinds of streams, and the place of their steps."""

_SUBSCRIPTED = {f"'{kind.__name__}' object is not subscriptable" for kinds, _ in STAGES for kind in kinds}

_IN_BRACKETS = (
    "; a stream has no columns in brackets: .map_batches(ferry.filter(pyarrow.compute.field(...) > 0)) keeps records, "
    '.map_batches(ferry.select("column", ...)) keeps columns'
)


def hint(error: BaseException) -> str:
    """The suggestion for an unknown name in a pipeline, after a semicolon. Empty without a suggestion.

    Example:
        >>> try: [].apend(1)
        ... except AttributeError as error: hint(error)
        "; did you mean 'append'?"
    """
    if isinstance(error, TypeError):
        return _IN_BRACKETS if str(error) in _SUBSCRIPTED else ""
    if not isinstance(error, AttributeError) or not isinstance(error.name, str):
        return ""
    if isinstance(error.obj, Aggregate):
        return (
            f"; an aggregate has the name of its column from .aggregate(name, column=ferry.{error.obj.function}(...))"
        )
    return _of_stream(error.obj, error.name) or _nearly(error.obj, error.name)


def _of_stream(thing: Any, name: str) -> str:
    if isinstance(thing, dict) and all(isinstance(stream, Stream) for stream in thing.values()):
        there = ", ".join(f'streams["{source}"]' for source in thing)
        return f"; streams stand in a dict by the names of their sources: {there}"
    if not isinstance(thing, tuple(kind for kinds, _ in STAGES for kind in kinds)):
        return ""
    for kinds, where in STAGES:
        if any(hasattr(kind, name) for kind in kinds) and not isinstance(thing, kinds):
            return f"; it is {where}"
    return next((f"; here it is {step}" for step, names in STEPS.items() if name in names), "")


def _nearly(thing: Any, name: str) -> str:
    close = difflib.get_close_matches(name, [known for known in dir(thing) if not known.startswith("_")], 1)
    return f"; did you mean {close[0]!r}?" if close else ""
