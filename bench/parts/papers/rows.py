"""What a row is, and how answers are read from what a measurement has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.shared.results import Results

Answer = tuple[str, float | None]
"""What was found, in words, and how many times Ferry is ahead of the rival; None where no rival can do it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, table or section."""

    key: str
    where: str
    question: str
    paper: str
    """what it found"""
    ratio: str
    """its way ahead of the rival"""
    command: tuple[str, ...]
    """a command of this folder, and its arguments"""
    answer: Callable[[Results], Answer]


def medians(results: Results, *wanted: dict[str, Any]) -> list[float]:
    """Of each of these; raises LookupError for one that was not measured."""
    found = [results.median(**one) for one in wanted]
    if missing := [one for one, value in zip(wanted, found, strict=True) if value is None]:
        raise LookupError(f"not measured: {missing[0]}")
    return [value for value in found if value is not None]


def thrown(query: str, *rivals: str) -> Callable[[Results], Answer]:
    """Records/s of files beside others, the same batch; the first of them is the one that Ferry is ahead of."""

    def answer(results: Results) -> Answer:
        case = {"case": f"{query}, files", "metric": "throughput", "batch": 1_000_000}
        ours, *theirs = medians(results, *({"system": name, **case} for name in ("Ferry", *rivals)))
        others = ", ".join(f"{name} {rate / 1e6:.2f} M" for name, rate in zip(rivals, theirs, strict=True))
        return f"{ours / 1e6:.2f} M records/s; {others}", ours / theirs[0]

    return answer


def thrown_with(*queries: str, systems: Sequence[str] = ("ferry", "spark")) -> tuple[str, ...]:
    """Arguments of `throughput.py` for nothing but these queries."""
    return ("throughput", "--queries", *queries, "--systems", *systems, "--cases", "--larger", "1", "--repeats", "1")
