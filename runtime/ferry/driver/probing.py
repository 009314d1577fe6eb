"""Probes fired rows: tasks pass the rows through the user's functions before a sink, and drop the results.

For few rows, the driver calls these functions itself, and a crash kills the driver. So a driver that repeats the sinks of
an unfinished epoch runs the functions in tasks first: tasks die without the driver, and the poison record is searched as
in an ingest. Must never write anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import Batches, MapBatches, Output
from ferry.api.user_batches import code_of
from ferry.contract.ingest_runs import Shares
from ferry.contract.notes import Receipt
from ferry.driver.failures import has_died
from ferry.driver.poison import Poison
from ferry.spark import emit
from ferry.spark.attempts import deaths, died_before
from ferry.spark.feeds import rows_frame
from ferry.spark.tasks.reading import read


@dataclass(frozen=True, slots=True)
class Probing:
    """Probes rows before sinks behind operators; `schemas`: of the rows that each operator fires."""

    spark: SparkSession
    poison: Poison
    schemas: Mapping[int, pa.Schema]

    def of(self, operator: int, output: Output, splits: Sequence[dict[str, Any]]) -> None:
        """Have tasks pass these rows on. Raises Final with the row that kills tasks, and any error of a function."""
        code = code_of([output.input], {})
        if not code or not splits:
            return
        share = [(f"@{operator}", json.dumps(split)) for split in splits]

        def attempt(share: Shares) -> list[Receipt] | None:
            return self._attempt(share, operator, output)

        if attempt(share) is None:
            self.poison.search([share], attempt, f"a task before sink {output.sink!r}", code)
            self.poison.over()

    def _attempt(self, share: Shares, operator: int, output: Output) -> list[Receipt] | None:
        functions = [step.function for step in output.input.steps if isinstance(step, MapBatches)]
        splits = [json.loads(split) for name, split in share if name]
        if len(functions) == len(output.input.steps):
            with deaths(self.spark.sparkContext, 1):
                job = self.spark.sparkContext.parallelize([splits], 1).mapPartitions(_passing(functions))
                died = any(job.collect())
            return None if died else [Receipt()]
        before, _ = emit.before_sql(output.input.steps)
        frame = emit.result(
            self.spark, output, None, lambda: rows_frame(self.spark, splits, self.schemas[operator], before)
        )
        assert isinstance(frame, DataFrame)
        try:
            with deaths(self.spark.sparkContext, 1):
                frame.write.format("noop").mode("append").save()
        except Exception as error:
            if not has_died(error):
                raise
            return None
        return [Receipt()]


def _passing(functions: Sequence[Batches]) -> Any:
    def task(shares: Iterable[list[dict[str, Any]]]) -> Iterator[bool]:
        """Whether an earlier attempt of the task has died."""
        if died_before():
            yield True
            return
        for splits in shares:
            for split in splits:
                for _ in emit.mapped(functions, read("", None, split, None)):
                    pass
        yield False

    return task
