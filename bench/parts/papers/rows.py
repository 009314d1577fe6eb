"""Rows of the table of the papers, and functions that read answers from the records of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.shared.results import Results


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a measurement, for the table."""

    words: str
    ratio: float | None = None
    """How many times Ferry is ahead of the rival; None: no rival, or another rival than in the paper."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, table or section."""

    key: str
    where: str
    question: str
    paper: str
    """the measurement of the paper"""
    ratio: str
    """How far the paper's system is ahead of its rival; empty: Ferry has no comparable ratio."""
    unlike: str
    """Differences from the paper, and effects that are not counted."""
    command: tuple[str, ...]
    """a command of this folder, and its arguments"""
    answer: Callable[[Results], Answer]

    @property
    def repeats(self) -> int:
        """Number of runs of the command."""
        return int(self.command[self.command.index("--repeats") + 1]) if "--repeats" in self.command else 1


@dataclass(frozen=True, slots=True)
class Runs:
    """The values of one metric over all runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over all runs."""
        return statistics.median(self.values)

    def told(self, scale: float = 1.0, form: str = ".2f") -> str:
        """The median; for several runs with the minimum and the maximum."""
        low, high = (f"{bound * scale:{form}}" for bound in (min(self.values), max(self.values)))
        spread = f" ({low} to {high})" if len(self.values) > 1 else ""
        return f"{self.median * scale:{form}}{spread}"


def runs(results: Results, *wanted: dict[str, Any]) -> list[Runs]:
    """The runs of each of these records. Raises LookupError for a record that was not measured."""
    found = [Runs(tuple(results.values(**one))) for one in wanted]
    if missing := [one for one, seen in zip(wanted, found, strict=True) if not seen.values]:
        raise LookupError(f"not measured: {missing[0]}")
    return found


def throughputs(query: str, *systems: str) -> Callable[[Results], Answer]:
    """Records/s from files, with the same batch. The paper has other systems, so there is no ratio."""

    def answer(results: Results) -> Answer:
        case = {"case": f"{query}, files", "metric": "throughput", "batch": 1_000_000}
        found = runs(results, *({"system": name, **case} for name in systems))
        return Answer("; ".join(f"{name} {rate.told(1e-6)} M" for name, rate in zip(systems, found, strict=True)))

    return answer


def thrown_with(*queries: str, systems: Sequence[str]) -> tuple[str, ...]:
    """Arguments of `throughput.py` for these queries only."""
    return ("throughput", "--queries", *queries, "--systems", *systems, "--cases", "--larger", "1", "--repeats", "3")
