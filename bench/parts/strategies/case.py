"""One state of one size, cut into so many virtual nodes: a quarter of them moves and comes back, once for each strategy.

The state is that of counts per key, filled to its size before, or what a query of NEXMark has made of some time of records.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.parts.strategies import job
from bench.shared import bigstate
from bench.shared.ferry_job import FerryJob, RunFailed, job_document
from bench.shared.processes import Watch
from ferry.contract.latency import LatencyHistogram

ORIGIN, TARGET = "0.0", "1.0"

AFTER_SECONDS = 4.0
"""What is looked at after a move."""


COUNTS = {"hash_count": bigstate.STATE_BYTES, "key_count": bigstate.NUMBER_BYTES}
"""Counts per text and per number, and what a key of them weighs."""

STREAMS = {"nbq5": {"group": 1000, "delay_prob": 0.05}, "q4": {}}
"""Queries whose state is what they have made of it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One move."""

    query: str
    size: str
    bins: int
    strategy: str
    warm: bool
    seconds: float
    lines: Sequence[tuple[float, LatencyHistogram]]
    """(seconds since it was asked for, how long records took), in order"""
    memory: Sequence[tuple[float, float]]
    """(seconds since it was asked for, anonymous bytes of the sidecars)"""
    looked_at: float
    """seconds before it was asked for"""

    @property
    def name(self) -> str:
        """Strategy, warm or cold."""
        return f"{self.strategy}, {'warm' if self.warm else 'cold'}"

    def latency(self, begin: float, end: float) -> LatencyHistogram:
        """Of all records that came to the sinks in this time."""
        made = LatencyHistogram()
        for t, one in self.lines:
            if begin <= t < end:
                made.merge(one.counts)
        return made

    @property
    def during(self) -> LatencyHistogram:
        """While it moved, and what waited because of it."""
        return self.latency(0.0, self.seconds + 1.0)

    @property
    def before(self) -> LatencyHistogram:
        """Of the seconds before."""
        return self.latency(-self.looked_at, 0.0)


class Case:
    """A job with one state."""

    def __init__(self, a: argparse.Namespace, work: Path, console: Console, query: str, size: str, bins: int) -> None:
        self.a, self.console, self.query, self.size, self.bins = a, console, query, size, bins
        if query in COUNTS:
            self.keys = bigstate.SIZES[size] // COUNTS[query]
            args = {"keys": self.keys, "rate": a.rate, "numbered": query == "key_count"}
            pipeline: dict[str, Any] = {"file": job.__file__, "args": args}
        else:
            pipeline = {"module": f"ferry_workloads.jobs.{query}", "args": {**STREAMS[query], "pace": a.rate}}
        document = job_document(
            "strategies", pipeline, workers=2, cores=a.cores, state={"virtualNodes": bins, "replicas": 0},
            epoch={"mode": "continuous", "interval": a.interval, "maxRows": bigstate.FILL_ROWS},
            handover={"bandwidth": a.bandwidth, "atWindow": "never"},
        )  # fmt: skip
        self.run = FerryJob(document, work / "ferry")

    def measure(self) -> list[Moved]:
        """Fill, then move and move back for each strategy."""
        with self.run, Watch(self.run.process.pid, 0.25) as self.watch:
            with self.console.status(f"{self.query}, {self.size}, {self.bins} virtual nodes: filling"):
                self._fill()
            led = [v for v, (in_sync, _) in enumerate(self.run.groups()) if in_sync[0] == ORIGIN]
            moving = led[: max(1, self.bins // 4)]
            ways = [(strategy, way == "warm") for way in self.a.ways for strategy in self.a.strategies]
            return [self._moved(strategy, warm, moving) for strategy, warm in ways]

    def _fill(self) -> None:
        """With all keys; or for some time, after which the size is what is there."""
        if self.query in COUNTS:
            self.run.wait_for(
                lambda: sum(e["rows"] for e in self.run.epochs()) > self.keys + self.a.rate, "all keys", 1800
            )
            self._pause(self.a.settle)
            return
        self.run.wait_for(lambda: any(r["kind"] == "latency" for r in self.run.records), "the first latencies")
        self._pause(self.a.fill)
        status = self.run.status()
        self.size = f"{sum(used for _, used in status['load']['vnodes']) / 1e6:.1f}MB" if status is not None else "?"

    def _moved(self, strategy: str, warm: bool, vnodes: list[int]) -> Moved:
        self.run.ask("PATCH", "/spec", {"handover": {"strategy": strategy, "warm": warm, "batch": self.a.batch}})
        self._pause(self.a.before)
        asked = time.time()
        with self.console.status(f"{self.size}, {self.bins}: {strategy}, {'warm' if warm else 'cold'}"):
            self._move(vnodes, TARGET)
        changes = [r for r in self.run.records if r["kind"] == "groups" and r["t"] >= asked]
        ended = max(r["t"] for r in changes if any(c[1] == "switched" for c in r["changes"]))
        self._pause(AFTER_SECONDS)
        lines = [
            (r["t"] - asked, LatencyHistogram(dict(r["counts"])))
            for r in self.run.records
            if r["kind"] == "latency" and asked - self.a.before <= r["t"]
        ]
        memory = [(s.t - asked, float(s.anonymous_bytes)) for s in self.watch.samples if s.t >= asked - self.a.before]
        found = Moved(self.query, self.size, self.bins, strategy, warm, ended - asked, lines, memory, self.a.before)
        self.console.print(
            f"  {self.query:10} {self.size:>6} {self.bins:>5} {found.name:20} {found.seconds:6.2f} s, longest latency "
            f"{found.during.quantile(1.0) * 1000:7.0f} ms, p99 {found.during.quantile(0.99) * 1000:6.0f} ms "
            f"(before: {found.before.quantile(0.99) * 1000:.0f})"
        )
        self.run.ask("PATCH", "/spec", {"handover": {"strategy": "all-at-once", "warm": True}})
        self._move(vnodes, ORIGIN)
        self._pause(self.a.settle)
        return found

    def _move(self, vnodes: list[int], target: str) -> None:
        self.run.ask("POST", "/move", {"vnodes": vnodes, "instance": target})

        def there() -> bool:
            groups = self.run.groups()
            return all(groups[v][0] == [target] for v in vnodes) and not any(learners for _, learners in groups)

        deadline = time.monotonic() + 900
        while not there():
            if time.monotonic() > deadline:
                raise RunFailed(f"{len(vnodes)} virtual nodes did not come to {target}")
            self._pause(0.1)

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run.wait_for(lambda: time.monotonic() >= end, "the end of a pause", seconds + 60)
