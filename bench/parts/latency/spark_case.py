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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.parts.latency.case import QUERIES, Bench, Measured, Step
from bench.shared.ferry_job import ROOT, RunFailed, environment
from ferry.contract.latency import LatencyHistogram
from ferry.kernels.ages import ages
from ferry.workloads.pacing import ArrivalPace

SPARK = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""All batches stay in the checkpoint."""

BACKLOG_GONE = "8"
"""The first batch takes many seconds, and those after it have what came meanwhile."""


def measure(bench: Bench, query: str, rate: int) -> list[Measured]:
    """Run it."""
    a, directory = bench.a, bench.work / f"spark-{query}-{rate}"
    directory.mkdir(parents=True)
    conf = {
        "directory": str(directory), "checkpoint": str(directory / "checkpoint"), "query": query, "cores": a.cores,
        "partitions": a.cores, "tuned_files": True, "arguments": {**QUERIES[query], "pace": rate}, "delay_ms": 0,
        "window_ms": 10_000, "ads_per_campaign": 10, "spark": SPARK,
    }  # fmt: skip
    file = directory / "conf.json"
    file.write_text(json.dumps(conf))
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.parts.latency.spark_paced", str(file)], env=environment(), cwd=ROOT,
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    try:
        begin = _first(process, directory) + a.warm
        while time.time() < begin + a.minutes * 60:
            _alive(process, directory)
            time.sleep(0.2)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    end = begin + a.minutes * 60
    steps = [step for step in steps_of(directory / "checkpoint", rate) if begin <= step[0] <= end]
    return [Measured("Spark, micro-batch", query, rate, steps)]


def _first(process: subprocess.Popen[bytes], directory: Path) -> float:
    """When the batch had ended with which the backlog is gone that the start of the first ones has made."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if (file := directory / "checkpoint" / "commits" / BACKLOG_GONE).exists():
            return file.stat().st_mtime
        _alive(process, directory)
        time.sleep(0.2)
    raise RunFailed(
        f"Spark: no batch {BACKLOG_GONE} within 180 s\n" + (directory / "log").read_text(errors="replace")[-2000:]
    )


def _alive(process: subprocess.Popen[bytes], directory: Path) -> None:
    if process.poll() is not None:
        raise RunFailed("Spark ended:\n" + (directory / "log").read_text(errors="replace")[-2000:])


def steps_of(checkpoint: Path, rate: int) -> Iterator[Step]:
    """Each batch that has ended, and how long its arrivals took."""
    pace = ArrivalPace.of(float(rate), ())
    before = 0
    for number in sorted(int(f.name) for f in (checkpoint / "commits").iterdir() if f.name.isdigit()):
        offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])
        end = (checkpoint / "commits" / str(number)).stat().st_mtime
        yield end, latencies(pace, offset, before, end)
        before = int(offset["read"])


def latencies(pace: ArrivalPace, offset: dict[str, Any], before: int, end: float) -> LatencyHistogram:
    """Of the arrivals from number `before` on up to those of the offset, in a batch that has ended then."""
    created = offset["since"] / 1000 + pace.seconds(np.arange(before, int(offset["read"]))) * 1000
    counts = ages(pa.array(np.floor(created).astype(np.int64)), int(end * 1000))
    return LatencyHistogram({int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)})
