"""From files: each system counts the keys in a directory to which files are added at the pace of the clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.parts.latency import ferry_case, flink_case, spark_case
from bench.parts.latency.case import Bench, Measured
from bench.parts.latency.feed import KEYS
from bench.parts.latency.feed_files import numbers_in, write
from bench.parts.latency.kafka_case import BEFORE
from bench.shared.ferry_job import ROOT, RunFailed, environment
from bench.shared.ferry_paced import Step
from bench.shared.spark_batches import aged, batches


class GrowingFolder:
    """A directory, and whoever adds files to it. Use as a context: nothing of it is left at the end."""

    def __init__(self, directory: Path, kind: str, rate: int) -> None:
        self.directory, self.kind, self.rate = directory, kind, rate
        self.begin = 0.0
        """when the first record is due"""
        self._feed: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GrowingFolder:
        self.directory.mkdir(parents=True)
        # A record of each key comes first: when the system has taken them it is up.
        write(self.directory, self.kind, range(-KEYS, 0), self.rate, time.time())
        return self

    def __exit__(self, *_: object) -> None:
        if self._feed is not None:
            self._feed.kill()
            self._feed.wait()
        shutil.rmtree(self.directory)

    def feed(self) -> float:
        """Begin to write; when the first record is due."""
        self.begin = time.time() + BEFORE
        arguments = [str(self.directory), self.kind, str(self.rate), str(self.begin)]
        self._feed = subprocess.Popen(
            [sys.executable, "-m", "bench.parts.latency.feed_files", *arguments], cwd=ROOT, env=environment()
        )
        return self.begin

    def check(self) -> None:
        """Raise RunFailed if nobody writes any more."""
        if self._feed is not None and self._feed.poll() is not None:
            raise RunFailed(f"whoever writes the files ended (exit code {self._feed.returncode})")


def measure(bench: Bench, query: str, rate: int, *, system: str) -> list[Measured]:
    """Run it."""
    with GrowingFolder(bench.work / "files", "csv" if system == "flink" else "parquet", rate) as folder:
        found = SYSTEMS[system](bench, query, rate, folder)
        folder.check()
    return found


def ferry(bench: Bench, query: str, rate: int, folder: GrowingFolder, *, mode: str) -> list[Measured]:
    """A job of Ferry."""
    pipeline = {"module": "bench.parts.latency.files_job", "args": {"directory": str(folder.directory)}}
    return ferry_case.measure_job(bench, query, rate, pipeline, mode=mode, start=folder.feed)


def spark(bench: Bench, query: str, rate: int, folder: GrowingFolder) -> list[Measured]:
    """A query of Spark."""
    conf = {"input": str(folder.directory)}
    steps = partial(spark_steps, folder)
    return spark_case.measure_program(bench, query, rate, "spark_files", conf, steps, up="0", start=folder.feed)


def spark_steps(folder: GrowingFolder, checkpoint: Path) -> Iterator[Step]:
    """Each batch that has ended, and how long the records of its files took: the source's log says which these are."""
    logs = [log for log in (checkpoint / "sources" / "0").iterdir() if log.name[0] != "."]
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    names: dict[int, set[str]] = {}
    for entry in entries:  # what is in a compacted log may be in others, too
        names.setdefault(entry["batchId"], set()).add(entry["path"])
    before = -1
    for end, offset in batches(checkpoint):
        taken = [numbers_in(name) for n in range(before + 1, offset["logOffset"] + 1) for name in names.get(n, ())]
        before = offset["logOffset"]
        numbers = np.concatenate([*taken, np.zeros(0)])
        yield end, aged(folder.begin + numbers / folder.rate, end)


def flink(bench: Bench, query: str, rate: int, folder: GrowingFolder) -> list[Measured]:
    """A job of Flink."""
    return flink_case.measure(bench, query, rate, str(folder.directory), start=folder.feed)


SYSTEMS: dict[str, Callable[[Bench, str, int, GrowingFolder], list[Measured]]] = {
    "continuous": partial(ferry, mode="continuous"),
    "micro-batch": partial(ferry, mode="micro-batch"),
    "spark": spark,
    "flink": flink,
}
"""By the names of the command line."""
