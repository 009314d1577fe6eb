"""Ingest jobs through Spark's SQL that are planned once, and run in every epoch.

    the first run: shares -> the user's DataFrames -> receipts, planned by Spark --> kept, if it is the same in every epoch
    each run: what its tasks read, and what they are told of it, are local properties of the job --> the same plan again

To plan anew costs an epoch twice what running it does. Must never keep a plan that holds anything of an epoch: results of a
shuffle, a table that was read, a time or a number drawn when it was planned.
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
"""Plans of an operator: one for each number of shares."""

NOW = re.compile(r"\b(current_timestamp|current_date|current_time|localtimestamp|now)\(", re.IGNORECASE)
"""Functions that Spark computes when it plans."""

Build = Callable[[DataFrame], DataFrame]
"""Receipts of what a DataFrame of (source, split) has."""


class PlannedOnce:
    """The plans of one operator. `build` makes the ingest job; its tasks ask `current_run` which run it is."""

    def __init__(self, spark: SparkSession, build: Build) -> None:
        self._spark = spark
        self._build = build
        self._frames: dict[int, DataFrame] = {}
        self._lasts: bool | None = None

    def receipts(self, run: IngestRun, shares: Sequence[Shares]) -> list[str] | None:
        """Run it: the receipt of every task. None, if the job has to be planned anew in every epoch."""
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
    """In a task: the run that it is of."""
    return IngestRun.load(_local_property(RUN))


def shares_leaf(spark: SparkSession, shares: int) -> DataFrame:
    """A DataFrame of (source, split) with a partition for each share that its job is told of."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        mine = json.loads(_local_property(SHARES))
        for batch in [] if died_before() else batches:
            yield from (rows_of(mine[i]) for i in batch.column(0).to_pylist())

    return spark.range(0, shares, 1, shares).mapInArrow(read, SCHEMA)


def is_the_same_again(frame: DataFrame) -> bool:
    """Whether to run the plan of a DataFrame again is as good as to plan it again."""
    execution = private.execution(frame)
    if not execution.analyzed().deterministic() or NOW.search(execution.analyzed().toString()):
        return False
    nodes = [execution.executedPlan()]
    for node in nodes:
        children = _items(node.children())
        # Exchanges keep what they have, and leaves are tables, but for the range that shares are counted with.
        if "Exchange" in node.nodeName() or _items(node.subqueries()) or not (children or node.nodeName() == "Range"):
            return False
        nodes += children
    return True


def _items(found: Any) -> list[Any]:
    return [found.apply(i) for i in range(found.size())]


def _local_property(name: str) -> str:
    context = TaskContext.get()
    assert context is not None
    value = context.getLocalProperty(name)
    assert value is not None, name
    return value
