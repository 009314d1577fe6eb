"""Ferry's side: new workers, or half of what one worker leads goes to the other, while records come at their own pace."""

from __future__ import annotations

import argparse
from typing import Any

from bench.parts.reconfigure import profile
from bench.parts.reconfigure.case import (
    BALANCE,
    NONE,
    QUERIES,
    WORKERS,
    Bench,
    Plan,
    Reconfigured,
    counted,
    refuse_late,
)
from bench.shared.ferry_job import FERRY, FerryJob, job_document
from bench.shared.ferry_paced import ORIGIN, TARGET, is_behind, keep, last_switched, latencies, watch
from bench.shared.links import links
from ferry.contract.latency import LatencyHistogram

START_SECONDS = 30.0
"""The clock of the stream begins so long after the job is asked for."""


def measure(bench: Bench, query: str) -> list[Reconfigured]:
    """Run it."""
    a = bench.a
    with links(a.links, max(WORKERS, a.to)) as apart:
        plan = bench.plan(START_SECONDS)
        job = document(a, query, plan)
        with FerryJob(job, bench.work / "ferry", command=FERRY if apart is None else apart.ferry) as run:
            run.wait_for(lambda: bool(latencies(run.records)), "the first latencies")
            refuse_late(plan)
            acts = [] if a.act == NONE else [(plan.seconds / 2, a.act, lambda: act(run, a.act, a.to))]
            done = watch(run, plan.begin, plan.seconds, acts)
            run.wait_for(lambda: is_behind(run.records, plan.end), "the end of the backlog", 120)
            keep(run.directory / "timeline.jsonl", a.keep, f"{query}-{a.act}-{a.profile}")
    steps = [(r["t"], LatencyHistogram(dict(r["counts"]))) for r in latencies(run.records)]
    asked = done[0][0] if done else plan.middle
    ended = last_switched(run, asked) if done else None
    return [Reconfigured("Ferry", query, counted(steps, plan), plan, asked, ended)]


def document(a: argparse.Namespace, query: str, plan: Plan) -> dict[str, Any]:
    """The job of a query that follows this plan."""
    arguments = {
        **QUERIES[query], "query": query, "clock_us": int(plan.clock * 1e6), "rate": profile.mean(plan.steps),
        "profile": profile.as_text(plan.steps),
    }  # fmt: skip
    return job_document(
        f"reconfigure-{query}", {"module": "bench.parts.reconfigure.job", "args": arguments}, workers=WORKERS,
        cores=a.cores, state={"virtualNodes": a.vnodes, "replicas": 1},
        epoch={"mode": "continuous", "interval": a.interval, "maxRows": max(a.rate, 10_000) * 2},
    )  # fmt: skip


def act(run: FerryJob, what: str, workers: int) -> None:
    """Ask for it; does not wait."""
    if what == BALANCE:
        run.move_half(ORIGIN, TARGET)
    else:
        run.scale(workers)
