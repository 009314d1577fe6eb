"""What the latency benchmark shows: a table of quantiles, and pictures of them over time and over all records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.parts.latency.case import Measured
from bench.shared.results import Panel, Results, draw, show

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

SHARES = [0.9**n for n in range(90)]
"""Down to one record of ten thousand."""


def add(results: Results, one: Measured, **parameters: float | int | str) -> None:
    """The numbers of a case; quantiles of each second, too, so that pictures can be drawn again."""
    whole = one.whole()
    about = {"query": one.query, "rate": one.rate, **parameters}
    seconds = max(one.steps[-1][0] - one.begin, 1e-9)
    results.add(one.system, one.query, "records", whole.records, "records", **about)
    results.add(one.system, one.query, "records/s", whole.records / seconds, "records/s", **about)
    for name, share in QUANTILES.items():
        results.add(one.system, one.query, name, whole.quantile(share), "s", **about)
    for second, each in one.seconds():
        for name in ("p50", "p99"):
            found = each.quantile(QUANTILES[name])
            results.add(one.system, one.query, f"{name} of a second", found, "s", second=second, **about)
    for t, what in one.marks:
        results.add(one.system, one.query, "mark", what, "text", second=round(t - one.begin, 3), **about)


def table(console: Console, found: Sequence[Measured]) -> None:
    """Quantiles in milliseconds."""
    rows = []
    for one in found:
        whole = one.whole()
        seconds = max(one.steps[-1][0] - one.begin, 1e-9)
        values = [whole.quantile(share) * 1000 for share in QUANTILES.values()]
        rows.append([f"{one.query} {one.rate:,}/s: {one.system}", whole.records / seconds, *values])
    show(console, "Latency of records, milliseconds", ["", "records/s", *QUANTILES], rows)


def pictures(file: Path, found: Sequence[Measured]) -> list[Path]:
    """One for each query and rate: its name is the file's with both."""
    made = []
    for query, rate in dict.fromkeys((one.query, one.rate) for one in found):
        mine = [one for one in found if (one.query, one.rate) == (query, rate)]
        made.append(file.with_name(f"{file.stem}-{query}-{rate}.png"))
        title = f"Latency of records: {query}, {rate:,} arrivals/s, open loop"
        draw(made[-1], title, [*_over_time(mine), _of_all(mine)])
    return made


def _over_time(found: Sequence[Measured]) -> list[Panel]:
    last = max(second for one in found for second, _ in one.seconds())
    seconds = [float(n) for n in range(last + 1)]
    spans = [(t - one.begin, t - one.begin + 0.3) for one in found for t, _ in one.marks]
    panels = []
    for name in ("p50", "p99"):
        series: dict[str, list[float | None]] = {}
        for one in found:
            by_second = dict(one.seconds())
            values = (by_second.get(int(n)) for n in seconds)
            series[one.system] = [None if v is None else max(v.quantile(QUANTILES[name]), 1e-4) for v in values]
        marked = ", shaded: a move or a kill" if spans else ""
        panels.append(Panel(f"{name} of each second{marked}", "s", seconds, series, "times", True, spans))
    return panels


def _of_all(found: Sequence[Measured]) -> Panel:
    """What is exceeded by one record of two, of ten, of a hundred and so on."""
    wholes = {one.system: one.whole() for one in found}
    series: dict[str, list[float | None]] = {
        name: [max(whole.quantile(1 - share), 1e-4) for share in SHARES] for name, whole in wholes.items()
    }
    nines = [-math.log10(share) for share in SHARES]
    return Panel("all records: one of 10^x takes longer", "s", nines, series, "times", True)
