"""One ingest run, by loops or by Spark jobs: reads all input of an operator in an epoch, or one share.

A share whose tasks died is returned to the caller. Must never decide what happens to such a share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import Operator
from ferry.api.user_batches import code_of
from ferry.contract.errors import Final
from ferry.contract.ingest_runs import IngestRun, Shares
from ferry.contract.notes import Receipt, RecordPlace
from ferry.driver.failures import has_died
from ferry.driver.loops import Loops
from ferry.spark.attempts import DEATHS_MAX
from ferry.spark.compile import CompiledPipeline
from ferry.spark.control_rows import TICK
from ferry.spark.cuts import aside_alone
from ferry.spark.feeds import Rows, counting, run_ingest, run_shares, shares_of, through_spark
from ferry.spark.planned import PlannedOnce
from ferry.spark.shares import Batch
from ferry.spark.tasks.ingest import IngestWork


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of one operator in one run."""

    spark: SparkSession
    plan: CompiledPipeline
    operator: Operator
    work: IngestWork
    run: IngestRun
    rows: Rows
    loops: Loops | None
    planned: Mapping[int, PlannedOnce]

    @property
    def _in_spark(self) -> bool:
        return through_spark(self.operator, self.plan, self.work)

    @property
    def _reads_sources(self) -> bool:
        """Whether a source feeds the operator, and not only fired rows of other operators."""
        named = (name.split("#")[0] for name in self.work.feeds)
        return self.plan.is_leading(self.operator) or any(name in self.plan.sources for name in named)

    def all(self, batch: Batch) -> tuple[list[Receipt], list[Shares]]:
        """(Receipts, shares whose tasks died)."""
        if self.loops is not None:
            return self.loops.ingest(self.run, shares_of(batch, self.operator, self.plan, self.work, self.rows))
        try:
            receipts = self._job(batch, self.rows, None if self._in_spark else DEATHS_MAX)
        except Exception as error:
            if not has_died(error):
                raise
            foreign = [name for name, source in self.plan.sources.items() if isinstance(source, DataFrame)]
            if foreign and self._reads_sources:
                raise Final(
                    f"tasks of operator {self.operator.descriptor.name!r} die repeatedly; the record is not known because "
                    f"source {foreign[0]!r} is Spark's own. {code_of(self.operator.inputs, self.plan.sources)}"
                ) from error
            return [], shares_of(batch, self.operator, self.plan, self.work, self.rows)
        if not any(receipt.died for receipt in receipts):
            return receipts, []
        shares = shares_of(batch, self.operator, self.plan, self.work, self.rows)
        pairs = list(zip(shares, receipts, strict=True))
        return [r for _, r in pairs if not r.died], [share for share, r in pairs if r.died]

    def one(self, share: Shares) -> list[Receipt] | None:
        """Receipts of one share; None: its task died."""
        if self.loops is not None:
            receipts, died = self.loops.ingest(self.run, [share], 1)
            return None if died else receipts
        fired = {int(name[1:]): [json.loads(split)] for name, split in share if name.startswith("@")}
        shares = [[("", TICK)]] if fired and self._in_spark else [] if fired else [share]
        receipts = self._job(Batch(self.spark, shares), fired, 1)
        return None if any(receipt.died for receipt in receipts) else receipts

    def left_out(self, aside: Iterable[RecordPlace]) -> list[Receipt]:
        """Receipts of records that are set aside, if records pass through Spark SQL, which does not count malformed ones."""
        if self.loops is not None or not self._in_spark:
            return []
        reads = {name for name, feeds in self.work.feeds.items() if any(feed.counted and feed.splits for feed in feeds)}
        shares: list[Shares] = [[(name, aside_alone(split, n))] for name, split, n in aside if name not in reads]
        work = counting(self.work, self.plan, self.operator)
        return [Receipt.load(receipt) for receipt in run_shares(self.spark, shares, work, self.run)]

    def _job(self, batch: Batch, rows: Rows, most: int | None) -> list[Receipt]:
        receipts = run_ingest(
            self.spark, batch, self.operator, self.plan, self.work, self.run, rows, self.planned, most
        )
        return [Receipt.load(receipt) for receipt in receipts]
