"""What both systems of `bench/reconfigure.py` share: what is asked of a case, and what is said of what it has measured."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from bench.parts.reconfigure import profile
from bench.shared.ferry_job import RunFailed
from bench.shared.ferry_paced import QUERIES as PACED
from bench.shared.ferry_paced import Step
from ferry.contract.latency import LatencyHistogram

QUERIES: dict[str, dict[str, Any]] = {
    "nbq5": PACED["nbq5"],
    "nbq8": {},
    "nbqx": {"min_ms": 100},
    "ysb": PACED["ysb"],
    "q11": PACED["q11"],
}
"""What is said of each to its job; of NBQX that a minute is 0.1 s, so that its sessions come to their ends."""
FERRY_ALONE = ("nbqx",)
"""Which would need joins of sessions elsewhere."""
SCALE, BALANCE, NONE = "scale", "balance", "none"
WORKERS = 2
"""Before the act; of Flink the parallelism."""

PIECE_SECONDS = 0.25
FACTOR = 2.0
"""Latency is back when it is so many times what it was before, at most."""
CALM_SECONDS = 2.0
"""For so long."""
TAIL_SECONDS = 1.0
"""After its end an act still counts for so long: what it made wait comes out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When things happen, in seconds since 1970, and how fast records come."""

    clock: float
    """when the first record is due"""
    warm: float
    seconds: float
    steps: Sequence[profile.Step]

    @property
    def begin(self) -> float:
        """Of what is measured."""
        return self.clock + self.warm

    @property
    def middle(self) -> float:
        """When the act is asked for."""
        return self.begin + self.seconds / 2

    @property
    def end(self) -> float:
        """Records that are created later do not count."""
        return self.begin + self.seconds


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """One system, with one act in the middle."""

    system: str
    query: str
    steps: Sequence[Step]
    """in order, of the measured time"""
    plan: Plan
    asked: float
    """when the act was; without one, the middle"""
    ended: float | None
    """when the system had done it; None: there was no act"""

    def between(self, begin: float, end: float) -> LatencyHistogram:
        """Of all records that came to the sinks in this time (seconds since the act was asked for)."""
        made = LatencyHistogram()
        for t, one in self.steps:
            if begin <= t - self.asked < end:
                made.merge(one.counts)
        return made

    def pieces(self) -> list[tuple[float, LatencyHistogram]]:
        """Of each 250 ms in which records came to the sinks: when it began, since the act was asked for."""
        made: dict[int, LatencyHistogram] = {}
        for t, one in self.steps:
            number = math.floor((t - self.asked) / PIECE_SECONDS)
            made.setdefault(number, LatencyHistogram()).merge(one.counts)
        return [(number * PIECE_SECONDS, made[number]) for number in sorted(made)]

    def back(self) -> float | None:
        """Seconds from the act until latency is what it was: 0 if it was never otherwise, None if it did not come back.

        From the end of the last piece whose p99 is more than twice that of all records before, until it stays so; what
        comes after that is not the act's.
        """
        if self.ended is None:
            return 0.0
        bound, last = FACTOR * self.between(-math.inf, 0.0).quantile(0.99), 0.0
        after = [(t, one.quantile(0.99) > bound) for t, one in self.pieces() if t + PIECE_SECONDS > 0]
        for number, (t, high) in enumerate(after):
            if high:
                last = t + PIECE_SECONDS
            elif t + self.asked >= self.ended and _is_calm(after[number:]):
                return last
        return None

    def parts(self) -> dict[str, LatencyHistogram]:
        """Before, during (the act, and until latency is back) and after."""
        if self.ended is None:
            return {"before": self.between(-math.inf, 0.0), "after": self.between(0.0, math.inf)}
        back = self.back()
        over = math.inf if back is None else max(self.ended - self.asked + TAIL_SECONDS, back)
        return {
            "before": self.between(-math.inf, 0.0),
            "during": self.between(0.0, over),
            "after": self.between(over, math.inf),
        }


def _is_calm(pieces: Sequence[tuple[float, bool]]) -> bool:
    """Whether none of these is high for long enough; where nothing comes nothing is known, so the next one tells."""
    for t, high in pieces:
        if high:
            return False
        if t >= pieces[0][0] + CALM_SECONDS:
            return True
    return False


def counted(steps: Sequence[Step], plan: Plan) -> list[Step]:
    """Without those of the warm-up, and of what was created after the end."""
    return [(t, one) for t, one in steps if t >= plan.begin and t - one.quantile(1.0) < plan.end]


class NotUp(RunFailed):
    """A system was not up when it was to be measured."""


def refuse_late(plan: Plan) -> None:
    """Raise NotUp when the measured time has begun: a system that has caught up since then was not measured whole."""
    if (late := time.time() - plan.begin) > 0:
        raise NotUp(f"it was up {late:.1f} s too late")


class Bench(Protocol):
    """One call of the benchmark, as a case sees it."""

    a: argparse.Namespace
    work: Path
    console: Console

    def plan(self, start: float) -> Plan:
        """Of a case whose system will be up in so many seconds."""


Case = Callable[[Bench, str], list[Reconfigured]]
