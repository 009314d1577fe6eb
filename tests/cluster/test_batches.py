"""What an epoch hands to Spark: a partition for each share, and a task for each partition of each input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ferry.driver.session import OURS
from ferry.spark.shares import Batch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.xdist_group("one session of Spark")]

SHARES = [[("a", "1"), ("b", "2")], [("a", "3")], [("", "tick")]]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[1]")
    for key, value in OURS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def attempts(batches: Any) -> Iterator[pa.RecordBatch]:
    """Which task this is, as a fragment is named after it."""
    context = TaskContext.get()
    assert context is not None
    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"attempt": [context.taskAttemptId()]})


def test_each_share_is_a_partition(spark: SparkSession) -> None:
    frame = Batch(spark, SHARES).frame
    assert [tuple(row) for row in frame.collect()] == [row for share in SHARES for row in share]
    assert frame._jdf.rdd().getNumPartitions() == len(SHARES)


@pytest.mark.parametrize("shares", [SHARES[:1], SHARES])
def test_partitions_of_two_inputs_are_two_tasks(spark: SparkSession, shares: Any) -> None:
    frame = Batch(spark, shares).frame
    inputs = [frame.where(f"source = '{name}'").coalesce(1).mapInArrow(attempts, "attempt long") for name in "ab"]
    found = [row[0] for row in inputs[0].unionByName(inputs[1]).collect()]
    assert len(found) == len(set(found)) == 2
