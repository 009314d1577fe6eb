"""The query of a job: the driver's own query, or a Spark streaming query if the job has Spark's own sources."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ferry.connectors.splits import WHOLE, Splits
from ferry.contract.programs import program_at
from ferry.driver import inputs
from ferry.driver.life import Life
from ferry.driver.patience import ReportedPatience, UserCodeTries
from ferry.driver.query import OwnQuery
from ferry.spark.shares import Batch
from ferry.spark.source import QueryBatch, splits_source
from ferry.spark.split_reader import SplitsReader

Run = Callable[[Batch, int], None]
"""The work of an epoch: the input of the epoch, and its number."""


class Query(Protocol):
    """Plans epochs and has them run."""

    @property
    def isActive(self) -> bool:
        """Whether further epochs may come."""

    def exception(self) -> Exception | None:
        """The error that ended the query."""


def query_of(life: Life, ticks: Callable[[], int]) -> Callable[[Run], Query]:
    """A function that starts the query of a job. `ticks`: a number that grows with every tick."""
    sources = life.program.plan.sources
    frames = {name: source for name, source in sources.items() if isinstance(source, DataFrame)}
    return _sparks_query(life, life.splits, frames) if frames else _own_query(life, life.splits, ticks)


def _own_query(life: Life, splits: dict[str, Splits], ticks: Callable[[], int]) -> Callable[[Run], Query]:
    settings, metrics, loop, spark = life.settings, life.metrics, life.loop, life.program.spark
    rows, interval = settings.epoch_max_rows, settings.epoch_interval_ms
    first = dict.fromkeys(life.program.plan.first, rows)
    reader = SplitsReader(splits, rows, settings.cores, settings.path, True, first, ticks, metrics.problems.running)
    patience = ReportedPatience(loop, metrics, inputs.SOURCE_FAILING, inputs.SOURCE_QUIET_SECONDS)
    life.readers.append(reader)
    waiting = patience, metrics.lags.update, partial(inputs.notice, metrics), UserCodeTries(loop, metrics)

    def switched(epoch: int) -> bool:
        at = program_at(loop.machine.table.programs, epoch)
        return at.number > 1 and at.since == epoch

    def start(run: Run) -> OwnQuery:
        return OwnQuery(spark, reader, life.checkpoint, interval / 1000, run, *waiting, switched).start()

    return start


def _sparks_query(life: Life, splits: dict[str, Splits], frames: dict[str, DataFrame]) -> Callable[[Run], Query]:
    settings, spark = life.settings, life.program.spark
    rows, interval = settings.epoch_max_rows, settings.epoch_interval_ms
    # Spark's own sources do not wait for other sources, so the first epoch reads initial states completely.
    first = dict.fromkeys(life.program.plan.first, WHOLE)
    spark.dataSource.register(splits_source(splits, rows, settings.cores, settings.path, first, settings.slow_ms))
    raw = spark.readStream.format("ferry").load()
    for name, frame in frames.items():
        tagged = frame.select(F.lit(name).alias("source"), F.struct("*").alias(f"s_{name}"))
        raw = raw.unionByName(tagged, allowMissingColumns=True)

    def start(run: Run) -> Query:
        return (
            raw.writeStream.foreachBatch(lambda frame, epoch: run(QueryBatch(frame), epoch))
            .option("checkpointLocation", str(settings.path / "checkpoint"))
            .trigger(processingTime=f"{interval} milliseconds")
            .start()
        )

    return start
