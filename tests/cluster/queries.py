"""The papers' queries that have a job in `examples/`, and what random runs vary of each; one line makes another query tested.

What a query reads, and which arguments its generator and it take, the oracle knows.
"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "oracle"
if str(ORACLE) not in sys.path:
    sys.path.insert(0, str(ORACLE))

from oracle import expect as oracle  # noqa: E402
from oracle.gen import Config, generate  # noqa: E402

compare, write = oracle.compare, oracle.write


@dataclass(frozen=True, slots=True)
class Query:
    """What random runs need to know of a query."""

    share: int = 1
    """how often it is run, beside the others"""
    args: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """what is always one of these"""
    least_domain: int = 10
    """A join of ten keys fires five million rows an epoch: right, and minutes long."""
    keys: tuple[str, ...] = ("uniform", "zipf", "pareto")
    """how keys may be distributed"""
    rates: tuple[int, ...] = (200, 1000, 5000)
    """events per second of event time"""
    sinks: tuple[str, ...] = ()
    """where its rows are, if not under its own name"""


SHORT = {"window_ms": (20_000, 60_000, 43_200_000), "proportions": ("1,3,46", "10,30,10")}
SLIDES = {"slide_ms": (5_000, 20_000)}
UNIQUE_IDS = ("zipf", "pareto")
"""With uniform keys ids come again: some queries have no meaning then, and joins have a hundred million pairs."""

SLOW = (5, 10, 20)
"""UniMiCo: of each place all pairs of ten seconds."""

PARTS = ("session_30m", "session_60m", "session_90m", "session_120m", "tumbling_4h")

JOBS = {
    "cm": Query(),
    "hash_count": Query(),
    "count_updates": Query(),
    "nb11": Query(args={"gap_ms": (200, 10_000)}, keys=UNIQUE_IDS),
    "nb7": Query(),
    "nbq5": Query(share=2),
    "nbq8": Query(share=2, args=SHORT, least_domain=200),
    "nbqx": Query(args={"min_ms": (100, 1000)}, keys=UNIQUE_IDS, sinks=tuple(f"nbqx_{part}" for part in PARTS)),
    "q1": Query(),
    "q11": Query(args={"gap_ms": (500, 10_000)}),
    "q2": Query(),
    "q3": Query(keys=UNIQUE_IDS),
    "q4": Query(keys=UNIQUE_IDS),
    "q4_updates": Query(keys=UNIQUE_IDS),
    "q5": Query(args=SLIDES),
    "q5_counts": Query(args=SLIDES),
    "q6": Query(keys=UNIQUE_IDS),
    "q6_updates": Query(keys=UNIQUE_IDS),
    "q7": Query(args={"window_ms": (1_000, 60_000)}),
    "q8": Query(args=SHORT, least_domain=200),
    "ro": Query(),
    "q8_within": Query(args={"window_ms": (5_000, 43_200_000)}, keys=UNIQUE_IDS),
    "q9": Query(keys=UNIQUE_IDS),
    "smq": Query(),
    "smq_filter": Query(args={"parallelism": (7, 80), "switch_seq": (0, 50_000)}),
    "uq1": Query(rates=SLOW),
    "uq2": Query(rates=SLOW),
    "uq3": Query(rates=SLOW),
    "ysb": Query(),
}

DISORDERED = ("cm", "keys", "nexmark", "ysb")
KEYED = ("keys", "nexmark", "ysb")
"""Generators that have an order of arrival, and a distribution of keys, to choose."""

_OWN = {"delay_ms": "late_ms"}
"""What an argument of the oracle's generator is called in a job, where it is not the same."""


def sinks_of(query: str) -> tuple[str, ...]:
    """Where a job's rows are below its output."""
    return JOBS[query].sinks or (query,)


def rows_of(query: str, output: Path) -> list[str]:
    """The files of a job's rows."""
    return sorted(str(file) for sink in sinks_of(query) for file in output.glob(f"{sink}/*/*.parquet"))


def workload_of(query: str) -> str:
    """The generator that a query reads."""
    workload: str = oracle.QUERIES[query][0]
    return workload


def generate_input(workload: str, events: int, args: dict[str, Any], folder: Path) -> None:
    """Write the generator's input as parquet files, one a stream, from the arguments of a job; others are left alone."""
    names = {f.name for f in dataclasses.fields(Config)} - {"workload", "events"}
    own = {name: args[_OWN.get(name, name)] for name in names if _OWN.get(name, name) in args}
    generate(Config(workload=workload, events=events, **own), str(folder))


def expected(query: str, folder: Path, args: dict[str, Any]) -> tuple[Any, str]:
    """A connection of DuckDB, and the text that gives a query's rows over these files; arguments are those of a job."""
    names = {name: f"{name}_ms" if name in oracle.SCALED else name for name in oracle.QUERIES[query][1]}
    own = {name: args[given] for name, given in names.items() if given in args}
    con, text, _ = oracle.expect(query, str(folder), scale=int(args.get("scale", 1)), **own)
    return con, text
