"""Acts, the measured values of a case, and the silence around an act: for all systems of `bench/reprogram.py`."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.shared import bigstate
from bench.shared.ferry_paced import Step
from ferry.contract.latency import LatencyHistogram

INTRODUCE, REPLACE, MIGRATE, ALTER = "introduce", "replace", "migrate", "alter"
SMQ, NBQ5, NBQ8 = "smq", "nbq5", "nbq8"

PROGRAMS = {
    (SMQ, INTRODUCE): ("smq", "smq_fifth"),
    (SMQ, REPLACE): ("smq_fifth", "smq_tenth"),
    (SMQ, MIGRATE): ("smq", "smq"),
    (NBQ5, MIGRATE): ("nbq5", "nbq5"),
    (NBQ5, ALTER): ("nbq5", "nbq5_columns"),
    (NBQ8, MIGRATE): ("nbq8", "nbq8"),
    (NBQ8, ALTER): ("nbq8", "nbq8_columns"),
}
"""Of each query and act: the program before, and the one behind the act. Acts go forth and back in turns."""

TAIL_SECONDS = 1.0
"""For so long after its end a silence still belongs to an act."""


def share(program: str) -> int:
    """One of so many records passes the filter of a program."""
    return {"fifth": 5, "tenth": 10}.get(program.rpartition("_")[2], 1)


def keys_of(query: str, size: str) -> int:
    """Keys that are loaded before the measured time."""
    return 0 if query == SMQ else bigstate.SIZES[size] // bigstate.STATE_BYTES


@dataclass(frozen=True, slots=True)
class Act:
    """One change, in seconds since 1970."""

    asked: float
    ended: float
    """when the first output of the new program, or of the new place, came"""


@dataclass(frozen=True, slots=True)
class Reprogrammed:
    """One system, with some acts in the middle of an open loop."""

    system: str
    query: str
    act: str
    begin: float
    """of the measured time"""
    end: float
    acts: Sequence[Act]
    outputs: Sequence[float]
    """when the sinks had records, in order"""
    steps: Sequence[Step]
    checked: str
    """how the records were counted"""

    def usual(self) -> list[float]:
        """Gaps between outputs before the first act."""
        times = [t for t in self.outputs if self.begin <= t < self.acts[0].asked]
        return [b - a for a, b in pairwise(times)]

    def undisturbed(self) -> float:
        """The longest gap before the first act: the longest one of an act is compared with it, if both take as long."""
        return max(self.usual(), default=math.nan)

    def silences(self) -> list[float]:
        """Of each act: the longest gap that has a part in its time."""
        return [silence(self.outputs, act) for act in self.acts]

    def extra(self) -> list[float]:
        """Of each act: what the silence has more than p99 of the usual gaps."""
        usual = quantile(self.usual(), 0.99)
        return [max(0.0, one - usual) for one in self.silences()]

    def epoch(self) -> float:
        """The usual distance of two outputs; nan with fewer than two before the first act."""
        usual = self.usual()
        return statistics.median(usual) if usual else math.nan

    def parts(self) -> dict[str, LatencyHistogram]:
        """Latency before the first act, while an act is under way (and its tail), and in all other time after the first."""
        made = {"before": LatencyHistogram(), "during": LatencyHistogram(), "after": LatencyHistogram()}
        for t, one in self.steps:
            if self.begin <= t <= self.end:
                made[self._part(t)].merge(one.counts)
        return made

    def _part(self, t: float) -> str:
        if t < self.acts[0].asked:
            return "before"
        return "during" if any(act.asked <= t <= act.ended + TAIL_SECONDS for act in self.acts) else "after"


def silence(outputs: Sequence[float], act: Act) -> float:
    """The longest gap between two outputs that has a part in the time of an act."""
    return max(
        (b - a for a, b in pairwise(outputs) if b >= act.asked and a <= act.ended + TAIL_SECONDS), default=math.inf
    )


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that so many are not above; nan without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def is_kept(extra: Sequence[float], epoch: float) -> bool:
    """Whether p99 is at most an epoch and 50 ms, and nothing above a second."""
    return quantile(extra, 0.99) <= epoch + 0.05 and max(extra) <= 1.0


class Refused(Exception):
    """A system cannot do this act at all; the message is its own."""


class Bench(Protocol):
    """One call of the benchmark, as a case sees it."""

    a: argparse.Namespace
    work: Path
    console: Console


Case = Callable[[Bench, str, str], Reprogrammed]
"""Of a bench, a query and an act. Raises RunFailed, Refused."""

Wait = Callable[[float], None]
"""Until this time."""


def acted(
    bench: Bench, wait: Wait, act: Callable[[int], Act], many: int | None = None
) -> tuple[float, list[Act], float]:
    """The system is up: warm up, measure, act in turns. Returns (begin, acts, end) of the measured time."""
    a = bench.a
    begin, acts = time.time() + a.warm, list[Act]()
    wait(begin + a.before)
    for number in range(many or a.acts):
        acts.append(act(number))
        wait(max(time.time(), acts[-1].ended) + a.between)
    return begin, acts, time.time()
