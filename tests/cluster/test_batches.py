"""What an epoch hands to Spark: a partition for each share, and a task for each partition of each input."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from ferry.driver.comparison import Compared, Comparison
from ferry.driver.session import OURS
from ferry.spark.frames import frame_of
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


def test_rows_that_tasks_read_are_compared_with_rows_in_the_driver(spark: SparkSession) -> None:
    """A large result of one program and a small one of the other have equal rows."""
    at = datetime.datetime(2026, 11, 28, 1, 2, 3, 456789, tzinfo=datetime.UTC)
    rows = pa.table(
        {
            "k": pa.array([1, 2, None], pa.int64()), "s": ["ä", None, ""], "f": [0.1, None, 1e300], "b": [b"\xff", b"", None],
            "t": pa.array([at, None, at], pa.timestamp("us", "UTC")), "y": [True, None, False],
            "d": pa.array([Decimal("1.20"), None, Decimal("0")], pa.decimal128(12, 2)), "l": [[1, None], [], None],
        }
    )  # fmt: skip
    comparison = Comparison(9)
    Compared(comparison, 0, "out", False).write(1, 1, rows)
    Compared(comparison, 0, "out", True).write(1, 1, frame_of(spark, rows))
    comparison.ended()
    assert (comparison.rows, comparison.missing, comparison.more) == (3, 0, 0), comparison.listed()
