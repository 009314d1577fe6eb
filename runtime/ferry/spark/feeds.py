"""Builds the ingest job of an epoch from an operator's inputs.

Fast path: without a transform upstream, tasks get shares of splits and read them. Otherwise Spark reads and transforms
each input, and feeds the records to the same task function as struct columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ferry.api.expressions import Need, planned
from ferry.api.graph import first_readers
from ferry.api.pipeline import Batches, Input, MapBatches, Operator, Output, Transform
from ferry.connectors.files.parquet_files import ParquetSplits
from ferry.connectors.splits import Flow, Malformed, Splits, sets_aside
from ferry.connectors.users import source_code
from ferry.contract.errors import SpecRefused
from ferry.contract.ingest_runs import IngestRun, Shares
from ferry.kernels.frame_types import for_frame
from ferry.kernels.schemas import fired_schema
from ferry.spark.attempts import deaths, refuse_dead
from ferry.spark.compile import CompiledPipeline
from ferry.spark.emit import ReadParts, before_sql, functions_of, map_frame, mapped, schema_after
from ferry.spark.frames import spark_schema
from ferry.spark.planned import PlannedOnce, current_run
from ferry.spark.shares import Batch
from ferry.spark.tasks import reading
from ferry.spark.tasks.ingest import NO_SIDE, RECEIPT, Feed, IngestWork, ingest, ingest_shares
from ferry.spark.tasks.process_rows import condensing
from ferry.spark.transforms import transformed

_CONTROL = ("",)
"""The source name of ticks and the flush."""

Rows = dict[int, list[dict[str, Any]]]
"""The fired rows of an epoch by operator: one split per instance."""


def feeds_of(operator: Operator, plan: CompiledPipeline) -> dict[str, tuple[Feed, ...]]:
    """The feeds of tasks, by the source or operator that they read."""
    feeds: dict[str, list[Feed]] = {}
    readers = first_readers(plan.sources, plan.operators, plan.silent)
    uncounted = [name for name, reader in readers.items() if reader == operator.descriptor.index]
    for number, source in enumerate(operator.inputs):
        name = name_of(source)
        origin = plan.sources.get(name)
        splits = origin if isinstance(origin, Splits) else None
        key = name
        if in_spark(source):
            key, splits = f"{name}#{number}", None
        # Fired rows come from records that were judged before; generators do not follow the clock.
        free = origin is None or getattr(origin, "own_clock", False)
        counted = name in uncounted and not (in_spark(source) and sets_aside(origin))
        created = plan.created.get(name) if counted else None
        maps, columns, words = _planned(operator, source)
        if columns is not None and created is not None:
            columns = tuple(dict.fromkeys((*columns, created)))
        if words and isinstance(splits, ParquetSplits):
            splits = splits.encoded(words)
        feeds.setdefault(key, []).append(
            Feed(
                source.side,
                maps,
                source.key,
                source.time,
                splits,
                columns,
                None if free else source.ahead_ms,
                counted,
                number,
                source.initial,
                source.flow,
                created,
                source.span,
            )
        )
        if counted:
            uncounted.remove(name)
    for name in uncounted:
        feeds[name] = [_counts_only(name, plan.sources[name], plan.created.get(name))]
    return {n: tuple(f) for n, f in feeds.items()}


def name_of(source: Input) -> str:
    """The name of an input in tasks: the name of a source, or the number of an operator."""
    return source.origin if isinstance(source.origin, str) else f"@{source.origin}"


def _counts_only(name: str, origin: Splits | DataFrame, created: str | None) -> Feed:
    """A feed that only counts the records of a source, and sets malformed ones aside."""
    splits = origin if isinstance(origin, Splits) else None
    columns = (created or schema_of(name, splits).names[0],) if splits else None
    return Feed(NO_SIDE, (), (), None, splits, columns, None, True, created=created)


def schema_of(name: str, source: Splits) -> pa.Schema:
    """Columns of a source. Raises UserCodeFailed when a user's source fails."""
    with source_code(f"schema() of source {name!r}", source):
        return source.schema()


def in_spark(source: Input) -> bool:
    """Whether the records of an input pass through Spark SQL."""
    return any(isinstance(s, Transform) for s in source.steps)


def _planned(operator: Operator, source: Input) -> tuple[tuple[Batches, ...], tuple[str, ...] | None, tuple[str, ...]]:
    """The functions that tasks apply to an input, the columns that they read, and the columns that may be dictionaries.

    None: all columns, because user code also reads them.
    """
    if in_spark(source):
        return (), None, ()
    fired = operator.descriptor.timed and not source.initial
    time, mine = source.time or ("window_end" if fired else None), operator.descriptor.columns(source.side)
    wanted = [column for column in (*source.key, time, source.flow, *mine) if column is not None]
    steps = [step.function for step in source.steps if isinstance(step, MapBatches)]
    return planned(steps, Need(tuple(dict.fromkeys(wanted)), plain=mine))


def planned_once(
    spark: SparkSession, plan: CompiledPipeline, works: Mapping[int, IngestWork]
) -> dict[int, PlannedOnce]:
    """The ingest jobs through Spark SQL, by operator; empty if the plan has Spark's own sources."""
    if any(isinstance(source, DataFrame) for source in plan.sources.values()):
        return {}

    def build(operator: Operator) -> PlannedOnce:
        work = works[operator.descriptor.index]
        return PlannedOnce(spark, lambda leaf: _frame(spark, leaf, operator, plan, work, current_run))

    operators = (operator for operator in plan.operators if any(map(in_spark, operator.inputs)))
    return {operator.descriptor.index: build(operator) for operator in operators}


def run_ingest(
    spark: SparkSession,
    batch: Batch,
    operator: Operator,
    plan: CompiledPipeline,
    work: IngestWork,
    run: IngestRun,
    rows: Rows,
    planned: Mapping[int, PlannedOnce],
    most: int | None = None,
) -> list[str]:
    """Run the ingest job. Returns the receipt of every task. After `most` deaths of a task, its receipt says so."""
    with deaths(spark.sparkContext, most):
        once = planned.get(operator.descriptor.index)
        shares = shares_of(batch, operator, plan, work, rows) if once or not through_spark(operator, plan, work) else []
        if once and shares and (receipts := once.receipts(run, shares)) is not None:
            return receipts
        if through_spark(operator, plan, work):
            frame = batch.frame.filter(F.col("source").isin(*_read(work, plan), *_CONTROL))
            job = _frame(spark, with_fired(spark, frame, rows), operator, plan, work, lambda: run)
            return [r[0] for r in job.collect()]
        return run_shares(spark, shares, work, run)


def run_shares(spark: SparkSession, shares: list[Shares], work: IngestWork, run: IngestRun) -> list[str]:
    """Receipts of shares, each read by one task. No record passes through Spark: Spark plans nothing, and no Python worker
    hands out splits."""
    if not shares:
        return []
    job = spark.sparkContext.parallelize(shares, len(shares)).mapPartitions(ingest_shares(work, run))
    return list(job.collect())


def counting(work: IngestWork, plan: CompiledPipeline, operator: Operator) -> IngestWork:
    """Work of tasks that only set records aside for an operator, from the sources that no earlier operator reads."""
    readers = first_readers(plan.sources, plan.operators, plan.silent)
    mine = [name for name, first in readers.items() if first == operator.descriptor.index]
    return replace(work, feeds={n: (replace(_counts_only(n, plan.sources[n], None), columns=None),) for n in mine})


def works_of(plan: CompiledPipeline, authority: str | None, dead_letter: str | None) -> dict[int, IngestWork]:
    """The work of tasks, by operator."""
    return {
        operator.descriptor.index: IngestWork(
            operator.descriptor, feeds_of(operator, plan), authority, dead_letter, condensing(operator.descriptor)
        )
        for operator in plan.operators
    }


def why_planned(plan: CompiledPipeline, works: Mapping[int, IngestWork]) -> str:
    """The reason why Spark must plan epochs; empty: it need not."""
    foreign = [name for name, source in plan.sources.items() if isinstance(source, DataFrame)]
    if foreign:
        return f"source {foreign[0]!r} is Spark's own"
    planned = [op.descriptor.name for op in plan.operators if through_spark(op, plan, works[op.descriptor.index])]
    return f"operator {planned[0]!r} has .transform before it" if planned else ""


def through_spark(operator: Operator, plan: CompiledPipeline, work: IngestWork) -> bool:
    """Whether records pass through Spark before the operator, so that Spark must plan the epoch."""
    if any(in_spark(source) for source in operator.inputs):
        return True
    foreign = any(isinstance(source, DataFrame) for source in plan.sources.values())
    return foreign and (plan.is_leading(operator) or bool(_read(work, plan)))


def shares_of(batch: Batch, operator: Operator, plan: CompiledPipeline, work: IngestWork, rows: Rows) -> list[Shares]:
    """The shares of an epoch's tasks, for an operator whose records do not pass through Spark."""
    read = _read(work, plan)
    mine = _shares(batch, {*read, *_CONTROL}) if read or plan.is_leading(operator) else []
    return [*mine, *([share] for share in _shown(rows))]


def _read(work: IngestWork, plan: CompiledPipeline) -> list[str]:
    """The sources that an operator reads, or whose records it counts."""
    return [name for name in plan.sources if any(key.split("#")[0] == name for key in work.feeds)]


def _shown(rows: Rows) -> list[tuple[str, str]]:
    """Fired rows as entries of shares: (name of the input, split as JSON)."""
    return [(f"@{origin}", json.dumps(split)) for origin, splits in rows.items() for split in splits]


def read_parts(spark: SparkSession, batch: Batch, plan: CompiledPipeline, output: Output) -> ReadParts | None:
    """The records of an epoch for a sink directly behind a source. None: Spark planned the epoch for its own sources."""
    if any(isinstance(source, DataFrame) for source in plan.sources.values()):
        return None
    name = name_of(output.input)
    source = plan.sources[name]
    assert isinstance(source, Splits)
    splits = tuple(tuple(split for _, split in share) for share in _shares(batch, (name,)))
    return ReadParts(spark, splits, functions_of(output), name, source)


def with_fired(spark: SparkSession, batch: DataFrame, rows: Rows) -> DataFrame:
    """The batch of the driver's query, plus these fired rows."""
    if not (fired := _shown(rows)):
        return batch
    shown = spark.createDataFrame(fired, "source string, split string").repartition(len(fired))
    return batch.unionByName(shown, allowMissingColumns=True)


def _shares(batch: Batch, names: Collection[str]) -> list[Shares]:
    """The shares of an epoch's tasks, restricted to these sources."""
    mine = ([share for share in shares if share[0] in names] for shares in batch.shares())
    return [shares for shares in mine if shares]


def _frame(
    spark: SparkSession,
    batch: DataFrame,
    operator: Operator,
    plan: CompiledPipeline,
    work: IngestWork,
    run: Callable[[], IngestRun],
) -> DataFrame:
    """The DataFrame of an ingest job through Spark SQL: one receipt per task."""
    control = batch.filter("source = ''").select("source", "split")
    receipts = control.mapInArrow(ingest(work, run), RECEIPT)
    for name, feeds in work.feeds.items():
        if alone := tuple(f for f in feeds if f.side == NO_SIDE):
            counts = replace(work, feeds={name: alone})
            receipts = receipts.unionByName(raw_of(batch, name, plan).mapInArrow(ingest(counts, run), RECEIPT))
    for number, source in enumerate(operator.inputs):
        name = name_of(source)
        mine = raw_of(batch, name, plan)
        if not in_spark(source):
            single = replace(work, feeds={name: tuple(f for f in work.feeds[name] if f.number == number)})
            receipts = receipts.unionByName(mine.mapInArrow(ingest(single, run), RECEIPT))
            continue
        frame = _records(spark, mine, name, plan, source, sets_aside(plan.sources.get(name)))
        for step in before_sql(source.steps)[1]:
            frame = transformed(step, frame) if isinstance(step, Transform) else map_frame(frame, step.function)
        key = f"{name}#{number}"
        tagged = frame.select(F.lit(key).alias("source"), F.struct("*").alias(f"s_{key}"))
        receipts = receipts.unionByName(tagged.mapInArrow(ingest(work, run), RECEIPT))
    return receipts


def raw_of(batch: DataFrame, name: str, plan: CompiledPipeline) -> DataFrame:
    """The rows of the driver's query for one source, or for fired rows, in an epoch."""
    column = f"s_{name}" if isinstance(plan.sources.get(name), DataFrame) else "split"
    return batch.filter(F.col("source") == name).select("source", column)


def records_frame(spark: SparkSession, batch: DataFrame, plan: CompiledPipeline, source: Input) -> DataFrame:
    """The records of an input in an epoch, as a DataFrame, after its steps before Spark SQL.

    The ingest that counts the epoch has set malformed ones aside.
    """
    name = name_of(source)
    return _records(spark, raw_of(batch, name, plan), name, plan, source, judged=True)


def _records(
    spark: SparkSession, mine: DataFrame, name: str, plan: CompiledPipeline, source: Input, judged: bool
) -> DataFrame:
    """The records of one input as a DataFrame, after its steps before Spark SQL. `judged`: other tasks handle malformed."""
    origin, (functions, _) = plan.sources.get(name), before_sql(source.steps)
    if isinstance(origin, DataFrame):
        return reduce(map_frame, functions, mine.select(f"s_{name}.*"))
    schema = schema_of(name, origin) if isinstance(origin, Splits) else _fired(plan, source)
    splits = origin if isinstance(origin, Splits) else None

    def expand(batches: Any) -> Any:
        for records in read_shares(name, splits, batches):
            if not isinstance(records, Malformed):
                yield from map(for_frame, mapped(functions, [records]))
            elif not judged:
                # Only rows pass through Spark, so malformed records would vanish uncounted.
                raise SpecRefused(
                    f"source {name!r} before Spark's steps: {records.count} malformed: {records.reason}; a source with "
                    "malformed records needs an attribute `sets_aside` that is true"
                )

    return mine.mapInArrow(expand, spark_schema(schema_after(functions, schema)))


def read_shares(
    name: str, splits: Splits | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch | Malformed]:
    """The records of splits, in a task; `splits`: their source, None for fired rows."""
    for batch in batches:
        for split in batch.column("split").to_pylist():
            doc = json.loads(split)
            for records in reading.read(name, splits, doc, None):
                if not isinstance(records, Flow | reading.Aside):
                    yield records


def _fired(plan: CompiledPipeline, source: Input) -> pa.Schema:
    assert isinstance(source.origin, int)
    return fired_schema(plan.operators[source.origin].descriptor)


def rows_frame(
    spark: SparkSession, splits: list[dict[str, Any]], schema: pa.Schema, functions: Sequence[Batches] = ()
) -> DataFrame:
    """Fired rows after these functions, as a DataFrame whose partitions tasks read."""
    texts = [json.dumps(s) for s in splits]

    def read(batches: Any) -> Any:
        refuse_dead()
        for batch in batches:
            for i in batch.column(0).to_pylist():
                yield from map(for_frame, mapped(functions, reading.read("", None, json.loads(texts[i]), None)))

    frame = spark.range(0, len(texts), 1, len(texts))
    return frame.mapInArrow(read, spark_schema(schema_after(functions, schema)))
