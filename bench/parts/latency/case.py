"""What all sides of the latency benchmark share: queries, what is asked of a case, and what it has measured."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.shared.ferry_paced import Step
from ferry.contract.latency import LatencyHistogram

COUNTS = "counts"
"""What is measured beside these, from topic to topic of Kafka: `counts.py`."""

FILES = "files"
"""The same counts, of what appears in a directory: `files_job.py`."""

Start = Callable[[], float]
"""Called when a system is up: begins with the records, if they are not there yet, and says when the first one is due."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One case of one system."""

    system: str
    query: str
    rate: int
    steps: Sequence[Step]
    """in order, without those of the warm-up"""
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """(seconds since 1970, what was done to it)"""

    @property
    def begin(self) -> float:
        """Of the first step."""
        return self.steps[0][0]

    def whole(self) -> LatencyHistogram:
        """Of all its records."""
        made = LatencyHistogram()
        for _, one in self.steps:
            made.merge(one.counts)
        return made

    def seconds(self) -> list[tuple[int, LatencyHistogram]]:
        """By the second since the first step."""
        made: dict[int, LatencyHistogram] = {}
        for t, one in self.steps:
            made.setdefault(int(t - self.begin), LatencyHistogram()).merge(one.counts)
        return sorted(made.items())


class Bench(Protocol):
    """One call of the benchmark, as a case sees it."""

    a: argparse.Namespace
    work: Path
    console: Console
