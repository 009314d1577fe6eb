"""Ferry's side of the latency benchmark: a paced job runs for some minutes, and what is asked for is done to it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.parts.latency.case import Bench, Measured, Start
from bench.shared.ferry_job import FerryJob, job_document
from bench.shared.ferry_paced import QUERIES, is_behind, keep, latencies, watch
from ferry.contract.latency import LatencyHistogram

DISTURBANCES = {"move": 0.25, "scale": 0.25, "worker": 0.5, "driver": 0.75}
"""What is done in each minute, and at which part of it."""

BACK_AND_FORTH = (3, 2)
"""Workers after each scaling, in turns."""

WORKERS = ("0.0", "1.0")
"""The first gives the other half of what it leads, the next minute it is the other way round."""


def measure(bench: Bench, query: str, rate: int, *, mode: str) -> list[Measured]:
    """Run it; `mode` of epochs."""
    pipeline = {"module": f"ferry_workloads.jobs.{query}", "args": {**QUERIES[query], "pace": rate}}
    return measure_job(bench, query, rate, pipeline, mode=mode)


def measure_job(
    bench: Bench, query: str, rate: int, pipeline: dict[str, Any], *, mode: str, start: Start = time.time
) -> list[Measured]:
    """Run this one, which says when its records were created."""
    a = bench.a
    job = job_document(
        f"latency-{query}", pipeline, workers=2, cores=a.cores, state={"virtualNodes": a.vnodes, "replicas": 1},
        epoch={"mode": mode, "interval": a.interval, "maxRows": max(rate, 10_000) * 2},
        driver={"standby": "driver" in a.disturb},
    )  # fmt: skip
    with FerryJob(job, bench.work / "ferry") as run:
        run.wait_for(lambda: bool(latencies(run.records)), "the first latencies")
        begin = start() + a.warm
        done = watch(run, begin, a.minutes * 60, plan(run, a.minutes, a.disturb))
        end = begin + a.minutes * 60
        # What was created by then and still waits counts, too: else a loss at the end would not be seen.
        run.wait_for(lambda: is_behind(run.records, end), "the end of the backlog", 120)
        keep(run.directory / "timeline.jsonl", a.keep, f"{query}-{rate}-{mode}")
    found = [r for r in latencies(run.records) if r["t"] >= begin and r["t"] - r["max"] < end]
    steps = [(r["t"], LatencyHistogram(dict(r["counts"]))) for r in found]
    return [Measured(f"Ferry, {mode}", query, rate, steps, done)]


def plan(run: FerryJob, minutes: float, disturb: list[str]) -> list[tuple[float, str, Callable[[], None]]]:
    """(seconds, what, how) of all that is done."""
    acts: list[tuple[float, str, Callable[[], None]]] = []
    for minute in range(max(int(minutes), 1) if disturb else 0):
        for what in disturb:
            at = (minute + DISTURBANCES[what]) * min(minutes, 1.0) * 60
            acts.append((at, *act(run, what, minute % 2)))
    return sorted(acts, key=lambda act: act[0])


def act(run: FerryJob, what: str, turn: int) -> tuple[str, Callable[[], None]]:
    """(what, how) of one."""
    if what == "scale":
        return f"scale to {BACK_AND_FORTH[turn]}", lambda: run.scale(BACK_AND_FORTH[turn])
    if what == "move":
        origin, target = WORKERS[turn], WORKERS[1 - turn]
        return f"move from {origin}", lambda: run.move_half(origin, target)
    return f"kill {what}", lambda: run.kill("1" if what == "worker" else what)
