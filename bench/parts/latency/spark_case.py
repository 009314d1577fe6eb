"""Vanilla Spark's side of the latency benchmark: micro-batches, as fast as they come, over the same paced stream.

Nothing in Spark counts latencies. But its checkpoint says which records each batch had, and when it had ended; when these
were created follows from their numbers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.parts.latency.case import Bench, Measured, Start
from bench.shared.ferry_job import ROOT, RunFailed, environment
from bench.shared.ferry_paced import QUERIES, Step
from bench.shared.spark_batches import BACKLOG_GONE, SPARK, aged, batches
from ferry_workloads.pacing import ArrivalPace


def measure(bench: Bench, query: str, rate: int) -> list[Measured]:
    """Run it."""
    conf = {
        "query": query, "arguments": {**QUERIES[query], "pace": rate}, "delay_ms": 0, "window_ms": 10_000,
        "ads_per_campaign": 10,
    }  # fmt: skip
    return measure_program(bench, query, rate, "spark_paced", conf, lambda checkpoint: steps_of(checkpoint, rate))


def measure_program(
    bench: Bench,
    query: str,
    rate: int,
    module: str,
    conf: dict[str, Any],
    steps_in: Callable[[Path], Iterable[Step]],
    *,
    up: str = BACKLOG_GONE,
    start: Start = time.time,
) -> list[Measured]:
    """Run a module beside this one, whose checkpoint tells the steps; the system is up at the end of that batch."""
    a, directory = bench.a, bench.work / f"spark-{query}-{rate}"
    directory.mkdir(parents=True)
    conf = {
        "directory": str(directory), "checkpoint": str(directory / "checkpoint"), "cores": a.cores,
        "partitions": a.cores, "tuned_files": True, "spark": SPARK, **conf,
    }  # fmt: skip
    file = directory / "conf.json"
    file.write_text(json.dumps(conf))
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"bench.parts.latency.{module}", str(file)], env=environment(), cwd=ROOT,
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        _until(process, directory, up)
        begin = start() + a.warm
        while time.time() < begin + a.minutes * 60:
            _alive(process, directory)
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    end = begin + a.minutes * 60
    steps = [step for step in steps_in(directory / "checkpoint") if begin <= step[0] <= end]
    return [Measured("Spark, micro-batch", query, rate, steps)]


def _until(process: subprocess.Popen[bytes], directory: Path, batch: str) -> None:
    """Wait for the end of this batch."""
    deadline = time.monotonic() + 180
    while not (directory / "checkpoint" / "commits" / batch).exists():
        _alive(process, directory)
        if time.monotonic() > deadline:
            log = (directory / "log").read_text(errors="replace")
            raise RunFailed(f"Spark: no batch {batch} within 180 s\n{log[-2000:]}")
        time.sleep(0.2)


def _alive(process: subprocess.Popen[bytes], directory: Path) -> None:
    if process.poll() is not None:
        raise RunFailed("Spark ended:\n" + (directory / "log").read_text(errors="replace")[-2000:])


def steps_of(checkpoint: Path, rate: int) -> Iterator[Step]:
    """Each batch that has ended, and how long its arrivals took."""
    pace = ArrivalPace.of(float(rate), ())
    before = 0
    for end, offset in batches(checkpoint):
        yield end, aged(offset["since"] / 1e6 + pace.seconds(np.arange(before, int(offset["read"]))), end)
        before = int(offset["read"])
