"""Spark is taken back to an epoch of long ago: its own sources give out again what they have planned since. One session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ferry.driver.checkpoint import Checkpoint
from ferry.driver.session import OURS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.turns,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("one session of Spark"),
]

FILES = 25
"""One an epoch: more than Spark keeps offsets of, and the log of the source is compacted several times."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        **OURS,
        "spark.sql.streaming.fileSource.log.compactInterval": "4",
        "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


class Reading:
    """A query that reads files of lines, one an epoch."""

    def __init__(self, spark: SparkSession, base: Path) -> None:
        self.checkpoint = Checkpoint(base / "checkpoint")
        self.notes: dict[int, str] = {}
        self._spark = spark
        self._base = base
        (base / "in").mkdir()

    def add(self, name: int) -> None:
        file = self._base / "in" / f"{name}.txt"
        file.write_text(f"{name}\n")
        os.utime(file, (1_700_000_000 + name, 1_700_000_000 + name))

    def run(self) -> dict[int, list[int]]:
        """Read all that is there; the lines by epoch."""
        found: dict[int, list[int]] = {}

        def one_epoch(rows: Any, epoch: int) -> None:
            self.notes[epoch] = self.checkpoint.notes(epoch)
            found[epoch] = sorted(int(row[0]) for row in rows.collect())

        frame = self._spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(self._base / "in"))
        writer = frame.writeStream.foreachBatch(one_epoch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._base / "checkpoint")).start()
        query.awaitTermination()
        return found


@pytest.mark.parametrize("epoch", [FILES - 3, 4])
def test_files_of_spark_are_read_on_from_where_the_state_was(spark: SparkSession, tmp_path: Path, epoch: int) -> None:
    one = Reading(spark, tmp_path)
    for name in range(FILES):
        one.add(name)
    assert one.run() == {n: [n] for n in range(FILES)}
    logged = {p.name for p in (tmp_path / "checkpoint/sources/0").iterdir()}
    assert not {"0", "4", "8"} & logged and any(name.endswith(".compact") for name in logged)
    assert not (tmp_path / "checkpoint/offsets/4").exists()
    one.checkpoint.rewind(epoch, one.notes[epoch])
    assert one.checkpoint.ended() <= epoch
    assert one.checkpoint.settle(epoch, True, one.notes[epoch], ["in"]) is False
    one.add(FILES)
    again = one.run()
    assert min(again) == epoch + 1
    assert sorted(line for lines in again.values() for line in lines) == list(range(epoch + 1, FILES + 1))
