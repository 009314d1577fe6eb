"""The table and the plot of `bench/reprogram.py`: extra silence of each act; latency before, during and after the acts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.parts.reprogram.case import Reprogrammed, is_kept, quantile
from bench.shared.results import Panel, Results, draw, show

QUANTILES = {"p50": 0.5, "p99": 0.99, "max": 1.0}
PARTS = ("before", "during", "after")


def add(results: Results, one: Reprogrammed, **about: float | int | str) -> None:
    """The numbers of a case."""
    case = {"case": f"{one.query}, {one.act}", "query": one.query, "act": one.act, **about}

    def put(metric: str, value: float | str, unit: str, **more: int) -> None:
        results.add(one.system, metric=metric, value=value, unit=unit, **{**case, **more})  # type: ignore[arg-type]

    put("epoch", one.epoch(), "s")
    put("usual gap, p99", quantile(one.usual(), 0.99), "s")
    put("usual gap, longest", one.undisturbed(), "s")
    for number, (act, silent, extra) in enumerate(zip(one.acts, one.silences(), one.extra(), strict=True)):
        put("silence", silent, "s", number=number)
        put("extra silence", extra, "s", number=number)
        put("in force", act.ended - act.asked, "s", number=number)
    for name, part in one.parts().items():
        for told, share in QUANTILES.items():
            put(f"{told} {name}", part.quantile(share), "s")
        put(f"records {name}", part.records, "records")
    put("checked", one.checked, "text")


def line(one: Reprogrammed) -> str:
    """In short."""
    extra = [each * 1000 for each in one.extra()]
    took = [act.ended - act.asked for act in one.acts]
    return (
        f"{one.query} {one.act}  {one.system}: extra silence median {quantile(extra, 0.5):,.0f} max {max(extra):,.0f} ms "
        f"({len(extra)} acts; usual p99 {quantile(one.usual(), 0.99) * 1000:,.0f}, longest {one.undisturbed() * 1000:,.0f}, "
        f"epoch {one.epoch() * 1000:,.1f} ms), "
        f"in force after {min(took):.2f} to {max(took):.2f} s; {one.checked}"
    )


def table(console: Console, found: Sequence[Reprogrammed]) -> None:
    """Milliseconds; `kept`: the bound of the extra silence."""
    rows = []
    for one in found:
        extra, parts = one.extra(), one.parts()
        took = [act.ended - act.asked for act in one.acts]
        values: list[float | str] = [one.epoch() * 1000, quantile(one.usual(), 0.99) * 1000, one.undisturbed() * 1000]
        values += [quantile(extra, share) * 1000 for share in QUANTILES.values()]
        values += ["yes" if is_kept(extra, one.epoch()) else "no", quantile(took, 0.5), max(took)]
        values += [parts[name].quantile(share) * 1000 for name in PARTS for share in QUANTILES.values()]
        rows.append([f"{one.query} {one.act}: {one.system}", *values])
    heads = ["", "epoch", "usual p99", "usual max", *(f"extra {name}" for name in QUANTILES)]
    heads += ["kept", "in force, s", "max, s"]
    heads += [f"{name} {part}" for part in PARTS for name in QUANTILES]
    show(console, "Silence around an act, and latency of records, milliseconds", heads, rows)


def pictures(file: Path, found: Sequence[Reprogrammed]) -> list[Path]:
    """Extra silence and time to the new program, by query and act."""
    labels = list(dict.fromkeys(f"{one.query}\n{one.act}" for one in found))
    systems = list(dict.fromkeys(one.system for one in found))
    by = {(f"{one.query}\n{one.act}", one.system): one for one in found}

    def bars(title: str, value: str) -> Panel:
        series: dict[str, list[float | None]] = {
            name: [_value(by.get((label, name)), value) for label in labels] for name in systems
        }
        return Panel(title, "s", labels, series, logarithmic=True)

    panels = [
        bars("longest extra silence of an act", "extra"),
        bars("from the request to the first output, longest", "in force"),
        bars("longest latency of a record around the acts", "latency"),
    ]
    draw(file.with_suffix(".png"), "The program of a running job changes", panels)
    return [file.with_suffix(".png")]


def _value(one: Reprogrammed | None, what: str) -> float | None:
    if one is None:
        return None
    if what == "extra":
        return max(max(one.extra()), 1e-3)
    if what == "in force":
        return max(act.ended - act.asked for act in one.acts)
    return max(one.parts()["during"].quantile(1.0), 1e-3)
