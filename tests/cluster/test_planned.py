"""Ingest jobs through Spark's SQL are planned once, unless a plan would hold something of an epoch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ferry.contract.ingest_runs import IngestRun
from ferry.contract.names import Step
from ferry.contract.tickets import Right
from ferry.driver.session import OURS
from ferry.spark.planned import PlannedOnce, current_run, is_the_same_again, shares_leaf

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for key, value in OURS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


LASTING: dict[str, Callable[[SparkSession, DataFrame], DataFrame]] = {
    "columns and conditions": lambda s, f: f.where("split > 'b'").withColumn("n", F.length("split")),
    "a function of Python's": lambda s, f: f.withColumn("n", F.udf(lambda text: len(text), "int")("split")),
    "union": lambda s, f: f.where("source = 'a'").unionByName(f.where("source = 'b'")),
    "explode": lambda s, f: f.select(F.explode(F.split("split", "")).alias("letter")),
    "a column that is called so": lambda s, f: f.withColumn("Exchange", F.lit(1)),
}

PASSING: dict[str, Callable[[SparkSession, DataFrame], DataFrame]] = {
    "the time": lambda s, f: f.withColumn("at", F.current_timestamp()),
    "the day": lambda s, f: f.where(F.current_date() > "2020-01-01"),
    "now": lambda s, f: f.withColumn("at", F.expr("now()")),
    "a number drawn": lambda s, f: f.where(F.rand() < 0.5),
    "a name drawn": lambda s, f: f.withColumn("id", F.expr("uuid()")),
    "a table": lambda s, f: f.join(s.createDataFrame([("a", 1)], "source string, n int"), "source"),
    "a table, broadcast": lambda s, f: f.join(F.broadcast(s.range(3).selectExpr("string(id) source")), "source"),
    "a shuffle": lambda s, f: f.repartition(3, "source"),
    "a subquery": lambda s, f: f.where(f"'a' = (SELECT max('a') FROM {SEEN})"),
}
"""What is not the same when the plan is run again."""

SEEN = "seen"


@pytest.mark.parametrize("name", [*LASTING, *PASSING])
def test_which_plans_may_be_run_again(spark: SparkSession, name: str) -> None:
    spark.range(3).createOrReplaceTempView(SEEN)
    assert is_the_same_again({**LASTING, **PASSING}[name](spark, shares_leaf(spark, 2))) == (name in LASTING)


def run(number: int) -> IngestRun:
    return IngestRun(Step(number, 0), 1, number, (), Right.root("s").narrowed({"number": number}), 0)


def receipts(told: DataFrame) -> DataFrame:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number, rows = current_run().run, [text for batch in batches for text in batch.column("split").to_pylist()]
        yield pa.RecordBatch.from_pydict({"receipt": [json.dumps([number, rows])]})

    return told.where("split <> 'left out'").mapInArrow(task, "receipt string")


def test_each_run_has_its_own_shares(spark: SparkSession) -> None:
    built: list[Any] = []

    def build(told: DataFrame) -> DataFrame:
        built.append(told)
        return receipts(told)

    once = PlannedOnce(spark, build)
    for number in range(1, 4):
        shares = [[("a", f"{number}-{i}"), ("b", "left out")] for i in range(number % 2 + 1)]
        found = [json.loads(text) for text in once.receipts(run(number), shares) or ()]
        assert found == [[number, [share[0][1]]] for share in shares]
    assert len(built) == 2, "one plan for each number of shares"
    assert spark.sparkContext.getLocalProperty("ferry.run") is None, "another job is not told of it"


def test_a_plan_that_would_hold_something_of_an_epoch_is_not_kept(spark: SparkSession) -> None:
    once = PlannedOnce(spark, lambda told: receipts(told.repartition(2)))
    assert once.receipts(run(1), [[("a", "1")]]) is None and once.receipts(run(2), [[("a", "1")]]) is None
