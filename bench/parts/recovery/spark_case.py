"""Vanilla Spark's side of the recovery benchmark: kill -9 of its driver, and a new one without any local file."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from bench.parts.recovery.case import PAYLOAD, STORE, Bench, Recovery
from bench.shared.spark_job import SparkJob
from bench.shared.store import Store

FILL_ROWS = 250_000
PACKAGES = "org.apache.hadoop:hadoop-aws:3.5.0"
"""What Spark needs for S3, of the version of its own Hadoop: Ivy fetches it from Maven Central, once."""

LOAD = "rocksdbLoadLatencyMs"


class SparkCase:
    """One loss after another at one size; all state is in the store, as with Spark it always is."""

    def __init__(self, bench: Bench, gigabytes: float) -> None:
        a, store = bench.a, bench.store()
        self.a, self.bench, self.gigabytes, self.keys = a, bench, gigabytes, int(gigabytes * 1e9 / PAYLOAD)
        self.work = bench.work / f"spark-{gigabytes:g}"
        conf: dict[str, Any] = {
            "tuned_files": False, "keys": self.keys, "rows": a.rows, "cores": a.cores, "partitions": a.workers,
            "interval": f"{a.interval.removesuffix('ms')} milliseconds", "checkpoint": f"{store.location}/spark",
            "spark": {f"spark.sql.streaming.{k}": "10" for k in ("minBatchesToRetain", "stateStore.minDeltasForSnapshot")},
        }  # fmt: skip
        if store.endpoint:
            conf |= of_s3(store, conf["spark"])
        self.spark = SparkJob(conf, self.work)

    def measure(self) -> None:
        """Fill, then loss after loss."""
        with self.spark:
            self._fill()
            for repeat in range(self.a.repeats):
                self._lose(repeat)

    def _fill(self) -> None:
        spark, rows = self.spark, min(self.keys, FILL_ROWS)
        with self.bench.console.status(f"Spark: filling {self.gigabytes:g} GB ({self.keys:,} keys)"):
            spark.ask("start", rows=rows, interval="0 seconds")
            spark.wait_commit(-(-self.keys // rows) - 1, 1800)
            spark.ask("stop")
            spark.ask("start", rows=self.a.rows, interval=self.spark.conf["interval"])
            self._settle()

    def _settle(self) -> None:
        spark, first = self.spark, self.spark.last_commit()[0]
        spark.wait_commit(first + self.a.settle)
        # Without a snapshot a restart would replay the whole changelog: wait for one of each partition.
        state = Path(spark.commits_in).parent / "state" / "0"
        deadline = time.monotonic() + 120
        while len({f.parent for f in state.glob("*/*.zip")}) < self.a.workers and time.monotonic() < deadline:
            time.sleep(0.2)

    def _lose(self, repeat: int) -> None:
        spark, begin = self.spark, time.time()
        with self.bench.console.status(f"Spark: {self.gigabytes:g} GB from the store"):
            spark.kill()
            shutil.rmtree(self.work / "local", ignore_errors=True)
            last = spark.last_commit()
            spark.launch()
            spark.answer()
            started = spark.ask("start")["t"]
            first = spark.wait_commit(last[0])
            time.sleep(0.5)
            metrics = spark.ask("progress").get("first", {})
        # It tells a sum over partitions, which load as many at a time as there are cores; fetching is in it.
        load = metrics.get(LOAD)
        loading = None if load is None else float(load) / 1000 / self.a.cores
        found = Recovery(first[1] - begin, started - begin, None, loading)
        self.bench.add("Spark", STORE, self.gigabytes, repeat, found)
        self._settle()


def of_s3(store: Store, settings: dict[str, str]) -> dict[str, Any]:
    """Settings of a job whose checkpoint is there."""
    fs = {
        "endpoint": f"http://{store.endpoint}", "endpoint.region": "us-east-1", "path.style.access": "true",
        "connection.ssl.enabled": "false", "access.key": os.environ["AWS_ACCESS_KEY_ID"],
        "secret.key": os.environ["AWS_SECRET_ACCESS_KEY"],
    }  # fmt: skip
    more = {f"spark.hadoop.fs.s3a.{key}": value for key, value in fs.items()}
    return {
        "checkpoint": "s3a://checkpoints/jobs/spark", "commits": str(store.files / "spark" / "commits"),
        "spark": {**settings, **more, "spark.jars.packages": PACKAGES},
    }  # fmt: skip
