"""Ingest jobs through Spark SQL that Spark plans once and runs in every epoch.

    the first run: shares -> the user's DataFrames -> receipts, planned by Spark --> kept, if it is the same in every epoch
    each run: the shares and the run are local properties of the job --> the same plan again

Planning costs an epoch twice as much as execution. Must never keep a plan with data of an epoch: results of a shuffle, a
table that was read, a time or a random number from the planning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from ferry.contract.ingest_runs import IngestRun, Shares
from ferry.spark import private
from ferry.spark.attempts import died_before
from ferry.spark.shares import SCHEMA, rows_of

RUN, SHARES = "ferry.run", "ferry.shares"
"""Local properties of a job: its run, and the share of each task."""

KEPT_MAX = 16
"""Maximum number of plans of an operator: one for each number of shares."""

NOW = re.compile(r"\b(current_timestamp|current_date|current_time|localtimestamp|now)\(", re.IGNORECASE)
"""Functions that Spark evaluates when it plans."""

Build = Callable[[DataFrame], DataFrame]
"""Builds the DataFrame of receipts from a DataFrame of (source, split)."""


class PlannedOnce:
    """The plans of one operator. `build` makes the ingest job; its tasks get their run from `current_run`."""

    def __init__(self, spark: SparkSession, build: Build) -> None:
        self._spark = spark
        self._build = build
        self._frames: dict[int, DataFrame] = {}
        self._lasts: bool | None = None

    def receipts(self, run: IngestRun, shares: Sequence[Shares]) -> list[str] | None:
        """Run the job. Returns the receipt of every task; None if every epoch must be planned anew."""
        if self._lasts is False:
            return None
        frame = self._frames.get(len(shares))
        if frame is None:
            frame = self._build(shares_leaf(self._spark, len(shares)))
            if self._lasts is None:
                self._lasts = is_the_same_again(frame)
                if not self._lasts:
                    return None
            if len(self._frames) == KEPT_MAX:
                self._frames.pop(next(iter(self._frames)))
            self._frames[len(shares)] = frame
        context = self._spark.sparkContext
        try:
            context.setLocalProperty(RUN, run.dump())
            context.setLocalProperty(SHARES, json.dumps(shares))
            return [row[0] for row in frame.collect()]
        finally:
            context.setLocalProperty(RUN, None)
            context.setLocalProperty(SHARES, None)


def current_run() -> IngestRun:
    """In a task: its run."""
    return IngestRun.load(_local_property(RUN))


def shares_leaf(spark: SparkSession, shares: int) -> DataFrame:
    """A DataFrame of (source, split) with a partition for each share; the shares are a property of the job."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = json.loads(_local_property(SHARES))
        for batch in [] if died_before() else batches:
            yield from (rows_of(mine[i]) for i in batch.column(0).to_pylist())

    return spark.range(0, shares, 1, shares).mapInArrow(read, SCHEMA)


def is_the_same_again(frame: DataFrame) -> bool:
    """Whether a rerun of a DataFrame's plan gives the same result as a new plan."""
    execution = private.execution(frame)
    if not execution.analyzed().deterministic() or NOW.search(execution.analyzed().toString()):
        return False
    nodes = [execution.executedPlan()]
    for node in nodes:
        children = _items(node.children())
        # Exchanges keep their results, and leaves are tables, except the range that numbers the shares.
        if "Exchange" in node.nodeName() or _items(node.subqueries()) or not (children or node.nodeName() == "Range"):
            return False
        nodes += children
    return True


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _local_property(name: str) -> str:
    context = TaskContext.get()
    assert context is not None
    value = context.getLocalProperty(name)
    assert value is not None, name
    return value
