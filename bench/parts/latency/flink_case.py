"""Flink 2's side of the latency benchmark: `bench/shared/PacedJob.java`, in a cluster of its own.

One run says two things of each record: when its effect was made and handed to the sink, which a sink that is at least once
shows, and when a checkpoint had made that durable, before which a sink that is exactly once shows nothing.
"""

from __future__ import annotations

import shutil
import time

from bench.parts.latency.case import Bench, Measured, Start
from bench.shared.flink import FlinkCluster, compiled, installed
from bench.shared.flink_paced import MANAGERS, SOURCE, SYSTEMS, settings, steps_of

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
        cluster.submit(jar, SOURCE.stem, a.cores, arguments)
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
