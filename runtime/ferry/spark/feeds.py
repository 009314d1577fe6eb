"""From an operator's inputs to the one ingest job of an epoch.

Fast path: no transform upstream, so the tasks get their shares of splits and expand them themselves. Otherwise each input
is expanded, transformed by Spark, and fed to the same task function as struct columns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from ferry.spark.compile import Plan
from ferry.spark.emit import map_frame
from ferry.spark.ingest import RECEIPT, Feed, Work, ingest, ingest_shares, read_rows
from ferry.spark.source import planned
from ferry.spark.splits import Malformed, Splits
from ferry.spark.stream import Input, MapBatches, Operator, Transform

ROWS = "@rows"
"""Name of the input that reads what the operator before has fired."""


def feeds_of(operator: Operator, plan: Plan, rows: bool) -> dict[str, tuple[Feed, ...]]:
    """Inputs by the source they read, as the tasks see them."""
    feeds: dict[str, list[Feed]] = {}
    for side, source in enumerate(operator.inputs):
        name = source.origin if isinstance(source.origin, str) else ROWS
        origin = plan.sources.get(name)
        splits = origin if isinstance(origin, Splits) else None
        maps = tuple(s.function for s in source.steps if isinstance(s, MapBatches))
        key = name
        if _in_spark(source):
            key, maps, splits = f"{name}#{side}", (), None
        # What an operator has fired was judged as records; generators do not follow the clock.
        free = name == ROWS or getattr(origin, "own_clock", False)
        columns = None if source.steps else _columns(operator, side)
        feeds.setdefault(key, []).append(
            Feed(side, maps, source.key, source.time, splits, columns, None if free else source.ahead_ms)
        )
    return {n: tuple(f) for n, f in feeds.items()}


def _in_spark(source: Input) -> bool:
    return any(isinstance(s, Transform) for s in source.steps)


def _columns(operator: Operator, side: int) -> tuple[str, ...]:
    """The columns an input needs, when nothing but the operator looks at them."""
    source, descriptor = operator.inputs[side], operator.descriptor
    wanted = [*source.key, source.time or "window_end"]
    if descriptor.kind == "aggregate":
        wanted += [c for a in descriptor.aggregates for c in (a.column, a.by) if c]
    else:
        kept = descriptor.left if side == 0 else descriptor.right
        wanted += [column for _, column, _ in kept.columns] if kept else []
    return tuple(dict.fromkeys(wanted))


def run_ingest(
    spark: SparkSession, batch: DataFrame, operator: Operator, plan: Plan, work: Work, rows: list[dict[str, Any]] | None
) -> list[str]:
    """Run the ingest job: the receipt of every task."""
    fired = None if rows is None else [[(ROWS, json.dumps(split))] for split in rows]
    if any(_in_spark(source) for source in operator.inputs):
        if fired is not None:
            shown = [share for shares in fired for share in shares]
            batch = spark.createDataFrame(shown, "source string, split string").repartition(len(shown))
        return [r[0] for r in _frame(spark, batch, operator, plan, work).collect()]
    if fired is None and any(isinstance(source, DataFrame) for source in plan.sources.values()):
        return [r[0] for r in batch.mapInArrow(ingest(work), RECEIPT).collect()]
    shares = planned(batch) if fired is None else fired
    # No record passes through Spark, so there is nothing to plan, and no Python worker is needed to hand out the splits.
    receipts: list[str] = (
        spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(ingest_shares(work)).collect()
    )
    return receipts


def _frame(spark: SparkSession, batch: DataFrame, operator: Operator, plan: Plan, work: Work) -> DataFrame:
    """The frame of an ingest job through Spark's own operators: one receipt a task."""
    control = batch.filter("source = ''").select("source", "split")
    receipts = control.mapInArrow(ingest(work), RECEIPT)
    for side, source in enumerate(operator.inputs):
        name = source.origin if isinstance(source.origin, str) else ROWS
        mine = batch.filter(F.col("source") == name)
        if not _in_spark(source):
            one = replace(work, feeds={name: tuple(f for f in work.feeds[name] if f.side == side)})
            receipts = receipts.unionByName(mine.mapInArrow(ingest(one), RECEIPT))
            continue
        frame = _records(spark, mine, name, plan, source)
        for step in source.steps:
            frame = step.function(frame) if isinstance(step, Transform) else map_frame(frame, step)
        key = f"{name}#{side}"
        tagged = frame.select(F.lit(key).alias("source"), F.struct("*").alias(f"s_{key}"))
        receipts = receipts.unionByName(tagged.mapInArrow(ingest(work), RECEIPT))
    return receipts


def _records(spark: SparkSession, mine: DataFrame, name: str, plan: Plan, source: Input) -> DataFrame:
    """The records of one input as a DataFrame."""
    origin = plan.sources.get(name)
    if isinstance(origin, DataFrame):
        return mine.select(f"s_{name}.*")
    schema = origin.schema() if isinstance(origin, Splits) else _fired(plan, source)
    splits = origin if isinstance(origin, Splits) else None

    def expand(batches: Any) -> Any:
        for batch in batches:
            for split in batch.column("split").to_pylist():
                doc = json.loads(split)
                for records in splits.read(doc, None) if splits else read_rows(doc):
                    if isinstance(records, Malformed):
                        # Rows alone go through Spark: nobody would count these, so they must not vanish.
                        raise ValueError(
                            f"source {name!r} before a transform: {records.count} malformed: {records.reason}"
                        )
                    yield records

    return mine.mapInArrow(expand, from_arrow_schema(schema))


def _fired(plan: Plan, source: Input) -> pa.Schema:
    from ferry.kernels.schemas import fired_schema

    assert isinstance(source.origin, int)
    return fired_schema(plan.operators[source.origin].descriptor)


def rows_frame(spark: SparkSession, splits: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    """Fired rows as a DataFrame whose partitions are read by tasks."""
    texts = [json.dumps(s) for s in splits]

    def read(batches: Any) -> Any:
        for batch in batches:
            for i in batch.column(0).to_pylist():
                yield from read_rows(json.loads(texts[i]))

    frame = spark.range(0, len(texts), 1, len(texts))
    return frame.mapInArrow(read, from_arrow_schema(schema))
