"""From the user's module to a plan: sources, operators, outputs; everything wrong is refused here, before any epoch runs.

The module declares `sources(spark, args) -> {name: Splits | streaming DataFrame}` and
`pipeline(streams, args) -> Output` (or a list of them).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from ferry.contract.errors import SpecRefused
from ferry.spark import graph, sinks
from ferry.spark.arguments import Arguments, refuse_unbounded
from ferry.spark.files import JsonSplits
from ferry.spark.splits import Splits
from ferry.spark.stream import Build, Frames, Input, Operator, Output, Stream, Transform, name_of

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


@dataclass(frozen=True, slots=True)
class Plan:
    """One version of a pipeline, ready to run."""

    sources: dict[str, Splits | DataFrame]
    operators: tuple[Operator, ...]
    outputs: tuple[Output, ...]


def load(module: str | None, file: str | None) -> ModuleType:
    """Import the user's module; a file is loaded under a name that contains its content's hash."""
    try:
        if module is not None:
            return importlib.import_module(module)
        assert file is not None
        path = Path(file)
        if not path.is_file():
            raise SpecRefused(f"spec.pipeline.file: no file {file}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        name = f"ferry_pipeline_{path.stem}_{digest}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[name] = made
        spec.loader.exec_module(made)
        cloudpickle.register_pickle_by_value(made)
        return made
    except SpecRefused:
        raise
    except Exception as error:
        raise SpecRefused(
            f"spec.pipeline: {module or file} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def build(
    spark: SparkSession, module: ModuleType, given: dict[str, Any], output: str | None = None, events: int | None = None
) -> Plan:
    """Call the module's functions and check what they declare; `output` replaces the directory of file sinks.

    `events` is one more argument, which `sources` has to heed.
    """
    args = Arguments(given, events)
    sources = _call(module, "sources", spark, args)
    if not isinstance(sources, dict) or not sources:
        raise SpecRefused(f"{module.__name__}.sources must return a dict of named sources, it returned {sources!r}")
    refuse_unbounded(args, sources)
    schemas = {name: _source_schema(name, source) for name, source in sources.items()}
    building = Build(lambda function, schema, where: _schema_after(spark, function, schema, where))
    streams = {n: Stream(building, Input(n, (), schema, None, 0)) for n, schema in schemas.items()}
    made = _call(module, "pipeline", _Streams(streams), args)
    graph.refuse_but_chains(sources, building.operators)
    _refuse_uncounted(sources, building.operators)
    outputs = tuple(made) if isinstance(made, list | tuple) else (made,)
    for one in outputs:
        if not isinstance(one, Output):
            raise SpecRefused(
                f"{module.__name__}.pipeline must return what .sink(...) returns (or a list of them), not {one!r}"
            )
        if one.input.origin != len(building.operators) - 1:
            name = building.operators[one.input.origin].descriptor.name  # type: ignore[index]
            raise SpecRefused(f"a sink reads operator {name!r}; only the last operator of a pipeline can have sinks")
    sinks.place((one.sink for one in outputs), output)
    return Plan(sources, tuple(building.operators), outputs)


def _refuse_uncounted(sources: dict[str, Any], operators: list[Operator]) -> None:
    """Malformed records are set aside by the ingest task; behind Spark's SQL nobody would see them."""
    for source in (i for operator in operators for i in operator.inputs):
        made = sources.get(source.origin) if isinstance(source.origin, str) else None
        if isinstance(made, JsonSplits) and any(isinstance(step, Transform) for step in source.steps):
            raise SpecRefused(
                f"transform on source {source.origin!r}: malformed records of json_files could not be set aside behind it; "
                "use .map_batches(...), or read the files with spark.readStream"
            )


class _Streams(dict[str, Stream]):
    """Streams by name; an unknown name is refused with the ones there are."""

    def __missing__(self, name: str) -> Stream:
        raise SpecRefused(f"pipeline: no source {name!r}; there are {', '.join(self)}")


def _call(module: ModuleType, name: str, *args: Any) -> Any:
    function = getattr(module, name, None)
    if function is None:
        raise SpecRefused(f"{module.__name__} has no function {name}(...)")
    try:
        inspect.signature(function).bind(*args)
    except TypeError as error:
        raise SpecRefused(f"{module.__name__}.{name} must take {len(args)} arguments: {error}") from error
    try:
        return function(*args)
    except SpecRefused:
        raise
    except Exception as error:
        raise SpecRefused(f"{module.__name__}.{name} failed: {type(error).__name__}: {error}") from error


def _source_schema(name: str, source: Any) -> pa.Schema:
    if isinstance(source, DataFrame):
        if not source.isStreaming:
            raise SpecRefused(f"source {name!r}: a batch DataFrame; use spark.readStream, or one of Ferry's splits")
        refuse_stateful(source, f"source {name!r}")
        return to_arrow_schema(source.schema)
    if isinstance(source, Splits):
        return source.schema()
    raise SpecRefused(f"source {name!r}: {type(source).__name__} is neither a streaming DataFrame nor Ferry's splits")


def _schema_after(spark: SparkSession, function: Frames, schema: pa.Schema, where: str) -> pa.Schema:
    empty = spark.createDataFrame([], from_arrow_schema(schema)).alias(RECORDS)
    try:
        made = function(empty)
    except Exception as error:
        raise SpecRefused(
            f"transform on {where}: {name_of(function)} fails: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, DataFrame):
        raise SpecRefused(f"transform on {where}: {name_of(function)} must return a DataFrame, it returned {made!r}")
    if where.startswith("source"):
        refuse_stateful(made, f"transform on {where}")
    return to_arrow_schema(made.schema)


def refuse_stateful(frame: DataFrame, where: str) -> None:
    """Refuse Spark operators whose result depends on more than one record; tables beside the stream may have any."""
    inline = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False)
    _streams(inline.apply(frame._jdf.queryExecution().analyzed()), where)


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
