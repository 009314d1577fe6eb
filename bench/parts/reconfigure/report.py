"""What `bench/reconfigure.py` shows: before, during and after the act, and latency over time above the rate of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.parts.reconfigure import profile
from bench.parts.reconfigure.case import PIECE_SECONDS, Reconfigured
from bench.shared.results import Panel, Results, draw, show

QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
PARTS = ("before", "during", "after")


def add(results: Results, one: Reconfigured, **about: float | int | str) -> None:
    """The numbers of a system; those of each 250 ms, too, so that pictures can be drawn again."""
    for name, part in one.parts().items():
        results.add(one.system, one.query, f"records {name}", part.records, "records", **about)
        for quantile, share in QUANTILES.items():
            results.add(one.system, one.query, f"{quantile} {name}", part.quantile(share), "s", **about)
    if one.ended is not None:
        results.add(one.system, one.query, "act", one.ended - one.asked, "s", **about)
        back = one.back()
        value, unit = ("not within the time", "text") if back is None else (back, "s")
        results.add(one.system, one.query, "back", value, unit, **about)
    for t, piece in one.pieces():
        for quantile, share in QUANTILES.items():
            results.add(one.system, one.query, f"{quantile} of 250 ms", piece.quantile(share), "s", at=t, **about)


def line(one: Reconfigured) -> str:
    """In short, milliseconds."""
    parts = [
        f"{name} p50 {part.quantile(0.5) * 1000:,.0f} p99 {part.quantile(0.99) * 1000:,.0f} "
        f"max {part.quantile(1.0) * 1000:,.0f}"
        for name, part in one.parts().items()
    ]
    if one.ended is not None:
        back = one.back()
        parts.append(f"act {one.ended - one.asked:.2f} s")
        parts.append("not back" if back is None else f"back after {back:.2f} s")
    return f"{one.query}  {one.system}: {', '.join(parts)}"


def table(console: Console, found: Sequence[Reconfigured]) -> None:
    """Milliseconds."""
    rows = []
    for one in found:
        parts, back = one.parts(), one.back()
        values = [
            parts[name].quantile(share) * 1000 if name in parts else None
            for name in PARTS
            for share in QUANTILES.values()
        ]
        took = None if one.ended is None else one.ended - one.asked
        rows.append([f"{one.query}: {one.system}", *values, took, back])
    heads = [f"{quantile} {name}" for name in PARTS for quantile in QUANTILES]
    show(console, "Latency of records around the act, milliseconds", ["", *heads, "act, s", "back, s"], rows)


def pictures(file: Path, title: str, found: Sequence[Reconfigured]) -> list[Path]:
    """One for each query: its name is the file's with that."""
    made = []
    for query in dict.fromkeys(one.query for one in found):
        mine = [one for one in found if one.query == query]
        made.append(file.with_name(f"{file.stem}-{query}.png"))
        draw(made[-1], f"{query}: {title}", panels(mine))
    return made


def panels(found: Sequence[Reconfigured]) -> list[Panel]:
    """Median and p99 of each 250 ms, and the rate below; the act is asked for at 0."""
    half = found[0].plan.seconds / 2
    ticks = [n * PIECE_SECONDS for n in range(int(-half / PIECE_SECONDS), int(half / PIECE_SECONDS) + 1)]
    over = [one.ended - one.asked for one in found if one.ended is not None]
    spans = [(0.0, max(PIECE_SECONDS, min(over)))] if over else []
    made = []
    for name in ("p50", "p99"):
        series = {one.system: _filled(one, ticks, QUANTILES[name]) for one in found}
        made.append(Panel(f"{name} of each 250 ms, act asked for at 0", "s", ticks, series, "times", True, spans))
    rate: list[float | None] = [profile.rate_at(found[0].plan.steps, found[0].plan.warm + half + t) for t in ticks]
    return [*made, Panel("arrivals a second", "arrivals/s", ticks, {"created": rate}, "times", False, spans)]


def _filled(one: Reconfigured, ticks: Sequence[float], share: float) -> list[float | None]:
    """Where nothing came out, what came next: it was what waited."""
    by_tick, values, following = dict(one.pieces()), list[float | None](), None
    for t in reversed(ticks):
        if t in by_tick:
            following = max(by_tick[t].quantile(share), 1e-4)
        values.append(following)
    return values[::-1]
