"""Spark's side of the handover benchmark: fill, repartition offline and back, lose the driver."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path

from bench.parts.handover.case import USUAL_GAPS, Bench
from bench.shared import bigstate
from bench.shared.spark_job import SparkJob


class SparkCase:
    """All acts of vanilla Spark at one size."""

    def __init__(self, bench: Bench, size: str) -> None:
        a = bench.a
        self.a, self.bench, self.size, self.keys = a, bench, size, bigstate.SIZES[size] // bigstate.STATE_BYTES
        self.partitions = a.cores
        conf = {
            "tuned_files": False,
            "keys": self.keys, "rows": a.rows, "cores": a.cores, "partitions": a.cores,
            "interval": spark_interval(a.interval),
            "spark": {f"spark.sql.streaming.{k}": "10" for k in ("minBatchesToRetain", "stateStore.minDeltasForSnapshot")},
        }  # fmt: skip
        self.spark = SparkJob(conf, bench.work / f"spark-{size}")

    def measure(self) -> None:
        """Fill, then act after act."""
        with self.spark:
            self._fill()
            for repeat in range(self.a.repeats):
                self._repartition(self.partitions * 2, repeat)
                self._repartition(self.partitions, repeat)
            for repeat in range(self.a.repeats):
                self._kill(repeat)

    def _fill(self) -> None:
        spark, rows = self.spark, min(self.keys, bigstate.FILL_ROWS)
        begin = time.time()
        with self.bench.console.status(f"Spark: filling {self.size} ({self.keys:,} keys)"):
            spark.ask("start", rows=rows, interval="0 seconds")
            spark.wait_commit(-(-self.keys // rows) - 2, 900)
            spark.ask("stop")
            spark.ask("start", rows=self.a.rows, interval=self.spark.conf["interval"])
            self._settle()
            # Without a snapshot a restart would replay the whole changelog: wait for one of each partition.
            state = Path(spark.conf["checkpoint"]) / "state" / "0"
            deadline = time.monotonic() + 90
            while len({f.parent for f in state.glob("*/*.zip")}) < self.partitions and time.monotonic() < deadline:
                time.sleep(0.2)
        self.bench.add("Spark", "fill", "seconds", time.time() - begin, "s", self.size)
        self.bench.add("Spark", "fill", "state files per copy", spark.ask("progress")["sst_bytes"], "bytes", self.size)

    def _settle(self) -> None:
        first = self.spark.last_commit()[0]
        self.spark.wait_commit(first + USUAL_GAPS // 2)

    def _usual(self) -> float:
        ends = [t for _, t in sorted(self.spark.commits().items())][-USUAL_GAPS // 2 :]
        return statistics.median(b - a for a, b in pairwise(ends))

    def _repartition(self, partitions: int, repeat: int) -> None:
        spark = self.spark
        self._settle()
        usual = self._usual()
        with self.bench.console.status(f"Spark: {self.size}: to {partitions} partitions"):
            spark.wait_commit(spark.last_commit()[0])  # between two batches, if there is a time between them
            spark.ask("stop")
            last = spark.last_commit()
            spark.ask("repartition", partitions=partitions)
            done = spark.last_commit()
            spark.ask("start")
            first = spark.wait_commit(max(done[0], last[0]))
        self._record("repartition", first[1] - last[1], usual, repeat)

    def _kill(self, repeat: int) -> None:
        spark = self.spark
        self._settle()
        usual = self._usual()
        with self.bench.console.status(f"Spark: {self.size}: kill -9 of the driver"):
            at = time.time()
            spark.kill()
            last = spark.last_commit()
            spark.launch()
            spark.answer()
            spark.ask("start")
            first = spark.wait_commit(last[0])
        self.bench.add("Spark", "kill driver", "to next epoch", first[1] - at, "s", self.size, repeat)
        self._record("kill driver", first[1] - last[1], usual, repeat)

    def _record(self, case: str, pause: float, usual: float, repeat: int) -> None:
        self.bench.add("Spark", case, "pause", pause, "s", self.size, repeat)
        self.bench.add("Spark", case, "usual", usual, "s", self.size, repeat)
        self.bench.add("Spark", case, "pause / usual", pause / usual, "x", self.size, repeat)
        self.bench.say("Spark", self.size, f"{case}: pause {pause:.2f} s, usual {usual:.3f} s")


def spark_interval(text: str) -> str:
    """'500ms' -> '500 milliseconds', '1s' -> '1000 milliseconds'."""
    number = float(text.removesuffix("ms")) if text.endswith("ms") else float(text.removesuffix("s")) * 1000
    return f"{number:g} milliseconds"
