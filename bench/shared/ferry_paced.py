"""Jobs of Ferry whose records come at their own pace: what their timeline says of latency, and what is done meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.shared.ferry_job import FerryJob, Record, RunFailed
from ferry.contract.latency import LatencyHistogram

QUERIES: dict[str, dict[str, Any]] = {
    "nbq5": {},
    "ysb": {"campaigns": 100, "ads_per_campaign": 10},
    "q11": {},
}
"""Arguments of the jobs of `ferry_workloads.jobs`: windows are the papers', and event time passes as the clock does."""

ORIGIN, TARGET = "0.0", "1.0"
APART_SECONDS = 10.0
"""Moves that begin so long after all others are the planner's own."""

Step = tuple[float, LatencyHistogram]
"""When the sinks had some records (seconds since 1970), and how long these took."""


def latencies(records: list[Record]) -> list[Record]:
    """Lines of the timeline that tell of records."""
    return [r for r in records if r["kind"] == "latency"]


def is_behind(records: list[Record], end: float) -> bool:
    """Whether all records that were created until then have come to the sinks: those after them have."""
    return any(r["t"] - r["max"] >= end for r in latencies(records)[-20:])


def watch(
    run: FerryJob, begin: float, seconds: float, acts: list[tuple[float, str, Callable[[], None]]]
) -> list[tuple[float, str]]:
    """Until the time is over; what was done, and when."""
    done: list[tuple[float, str]] = []
    for at, what, act in [*acts, (seconds, "", None)]:
        run.wait_for(lambda at=at: time.time() >= begin + at, f"second {at:g}", seconds + 120)  # type: ignore[misc]
        if act is not None:
            done.append((time.time(), what))
            act()
    return done


def keep(timeline: Path, folder: Path | None, name: str) -> None:
    """Copy the timeline of a run to where somebody asked for it."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.jsonl").write_bytes(timeline.read_bytes())


def last_switched(run: FerryJob, since: float) -> float:
    """When the last virtual node of the act got another leader. Raises RunFailed when none did."""
    times: list[float] = [
        r["t"]
        for r in run.records
        if r["kind"] == "groups" and r["t"] >= since and any(kind == "switched" for _, kind, _ in r["changes"])
    ]
    if not times:
        raise RunFailed(f"nothing was moved\n{run.log_end()}")
    later = [t for before, t in pairwise(times) if t - before > APART_SECONDS]
    return max(t for t in times if not later or t < later[0])
