"""Flink 2's side of the latency benchmark: `flink/PacedJob.java`, in a cluster of its own.

One run says two things of each record: when its effect was made and handed to the sink, which a sink that is at least once
shows, and when a checkpoint had made that durable, before which a sink that is exactly once shows nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.parts.latency.case import Bench, Measured, Start, Step
from bench.shared.flink import FAST, FlinkCluster, compiled, installed
from ferry.contract.latency import LatencyHistogram, bucket_of

SOURCE = Path(__file__).parent / "flink" / "PacedJob.java"
SYSTEMS = {"at-once": "Flink, at least once", "committed": "Flink, exactly once"}
MANAGERS = 2
BEFORE_MS = 3000
"""The clock of the stream begins so long after the job is asked for."""


def measure(bench: Bench, query: str, rate: int, *more: str, start: Start = time.time) -> list[Measured]:
    """Run it; `more` arguments of the job."""
    a, work = bench.a, bench.work / f"flink-{query}-{rate}"
    home = installed(a.flink)
    jar = compiled(home, bench.work, SOURCE)
    cluster = FlinkCluster(work, home, MANAGERS, settings(work, a.cores, a.flink_checkpoint))
    try:
        cluster.launch()
        arguments = [query, str(rate), str(int(time.time() * 1000) + BEFORE_MS), str(work / "out"), *more]
        cluster.submit(jar, "PacedJob", a.cores, arguments)
        cluster.until(lambda: any(True for _ in steps_of(work / "out", "committed")), "committed record", 120)
        begin = start() + a.warm
        end = begin + a.minutes * 60
        cluster.until(lambda: time.time() >= end, "end of the time", a.minutes * 60 + a.warm + 60)
    finally:
        cluster.kill()
    found = [
        Measured(system, query, rate, [s for s in steps_of(work / "out", what) if begin <= s[0] <= end])
        for what, system in SYSTEMS.items()
    ]
    shutil.rmtree(work)
    return found


def settings(work: Path, cores: int, checkpoint: str) -> dict[str, str]:
    """Tuned for latency: records are not held back in buffers, nor copied; state is small, so it is on the heap."""
    return {
        "taskmanager.cpu.cores": str(cores), "state.backend.type": "hashmap",
        "execution.checkpointing.interval": checkpoint, "execution.checkpointing.dir": f"file://{work}/checkpoints",
        "execution.buffer-timeout.interval": "1 ms", "pipeline.object-reuse": "true",
        "pipeline.auto-watermark-interval": "50 ms", **FAST,
    }  # fmt: skip


def steps_of(out: Path, what: str) -> Iterator[Step]:
    """What the sinks have written, in order."""
    lines = [line for file in out.glob(f"*-{what}.txt") for line in file.read_text().splitlines(keepends=True)]
    steps = []
    for line in lines:
        now, _, *ages = line.split()
        if ages and line.endswith("\n"):
            counts: dict[int, int] = {}
            for age, count in (each.split(":") for each in ages):
                bucket = bucket_of(int(age) / 1000)
                counts[bucket] = counts.get(bucket, 0) + int(count)
            steps.append((int(now) / 1000, LatencyHistogram(counts)))
    yield from sorted(steps, key=lambda step: step[0])
