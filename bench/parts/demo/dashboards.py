"""Draws the panels of a Grafana dashboard as one picture, from a real Prometheus' answers.

Knows the few kinds of panels that the chart's dashboards use. Must never make up a value: what was not answered is a gap.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, MaxNLocator, MultipleLocator

from tests.kube.prometheus import Series

Board = Mapping[str, Any]
Ask = Callable[[str], list[Series]]
Line = tuple[str, Series]
"""(its text in the legend, its points)"""

Marks = Sequence[tuple[float, str]]
"""(seconds since 1970, what happened then)"""

COLUMNS = 24
"""Of Grafana's grid."""

COLORS = ("#1f5fa8", "#d9822b", "#2a7f62", "#6b4fa0", "#c0392b", "#4aa3c7", "#8a8f94", "#f2b544")
LEGEND_MAX = 8
GAP_STEPS = 2.5
"""A line is broken where nothing was answered for so many steps."""

UNITS = {"s": "seconds", "bytes": "bytes", "Bps": "bytes per second", "rowsps": "records per second",
    "reqps": "requests per second", "short": ""}  # fmt: skip


def draw(file: Path, board: Board, ask: Ask, span: tuple[float, float], marks: Marks) -> int:
    """Write the picture of a time (from, to); how many of its panels had something to show."""
    rows = [list(group) for _, group in itertools.groupby(board["panels"], lambda panel: panel["gridPos"]["y"])]
    figure = Figure(figsize=(17, 3.0 * len(rows) + 0.7), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{board['title']}: {_lower(board['description'])}", x=0.01, ha="left", fontsize=13, fontweight="bold"
    )
    shown = 0
    for part, row in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows):
        axes = part.subplots(1, len(row), squeeze=False, width_ratios=[panel["gridPos"]["w"] for panel in row])[0]
        for axis, panel in zip(axes, row):
            lines = [line for target in panel["targets"] for line in _lines(target, ask)]
            shown += bool(lines)
            _panel(axis, panel, lines, span, marks)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return shown


def _lines(target: Board, ask: Ask) -> list[Line]:
    found = [(_legend(target["legendFormat"], one.labels), one) for one in ask(target["expr"]) if one.numbers]
    return sorted(found, key=lambda line: [int(w) if w.isdigit() else w for w in re.split(r"(\d+)", line[0])])


def _legend(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), text).strip()


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _panel(axis: Axes, panel: Board, lines: list[Line], span: tuple[float, float], marks: Marks) -> None:
    begin, end = span
    defaults = panel["fieldConfig"]["defaults"]
    unit = str(defaults["unit"])
    if not lines:
        axis.text(0.5, 0.5, "nothing in this run", transform=axis.transAxes, ha="center", color="#8a8f94", fontsize=9)
        axis.set_yticks([])
    elif panel["type"] == "bargauge":
        _bars(axis, lines)
    elif "stacking" in defaults.get("custom", {}):
        _stack(axis, lines, begin)
    else:
        _plot(axis, lines, begin)
    _dress(axis, panel, unit, [value for _, one in lines for value in one.numbers])
    if panel["type"] != "bargauge":
        axis.set_xlim(0, end - begin)
        axis.set_xlabel("seconds", fontsize=7, labelpad=1)
        for t, _ in marks:
            axis.axvline(t - begin, color="#c0392b", linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        top = axis.secondary_xaxis("top")
        top.set_xticks([t - begin for t, _ in marks], [text for _, text in marks], fontsize=6.5, color="#c0392b")
        top.tick_params(length=0, pad=1)
        top.spines["top"].set_visible(False)


def _plot(axis: Axes, lines: list[Line], begin: float) -> None:
    for (text, one), color in zip(lines, itertools.cycle(COLORS)):
        xs, ys = _broken(one, begin)
        axis.plot(xs, ys, color=color, linewidth=1.4, label=text, marker="." if len(one.numbers) < 3 else None)


def _broken(one: Series, begin: float) -> tuple[list[float], list[float]]:
    steps = [b - a for (a, _), (b, _) in itertools.pairwise(one.points)]
    usual = min(steps, default=1.0)
    xs, ys = [], []
    for at, (t, value) in enumerate(one.points):
        if at and steps[at - 1] > GAP_STEPS * usual:
            xs.append(t - begin)
            ys.append(math.nan)
        xs.append(t - begin)
        ys.append(value if math.isfinite(value) else math.nan)
    return xs, ys


def _stack(axis: Axes, lines: list[Line], begin: float) -> None:
    times = sorted({t for _, one in lines for t, _ in one.points})
    heights = []
    for _, one in lines:
        known = dict(one.points)
        heights.append([value if math.isfinite(value := known.get(t, 0.0)) else 0.0 for t in times])
    colors = [color for _, color in zip(lines, itertools.cycle(COLORS))]
    axis.stackplot(
        [t - begin for t in times], heights, labels=[text for text, _ in lines], colors=colors, alpha=0.75, linewidth=0
    )


def _bars(axis: Axes, lines: list[Line]) -> None:
    at = range(len(lines))
    axis.bar(list(at), [one.numbers[-1] for _, one in lines], 0.8, color=COLORS[0])
    step = max(1, len(lines) // 32)
    axis.set_xticks(list(at)[::step], [text.split()[-1] for text, _ in lines][::step], fontsize=7)
    axis.set_xlim(-0.6, len(lines) - 0.4)


def _dress(axis: Axes, panel: Board, unit: str, values: list[float]) -> None:
    axis.set_title(panel["title"], fontsize=10, loc="left", fontweight="bold", pad=14)
    axis.set_ylabel(UNITS.get(unit, unit), fontsize=7.5)
    if values:
        high, legend = axis.get_ylim()[1], panel["type"] != "bargauge"
        axis.set_ylim(0, max(high, 1e-9 if unit != "short" else 1.0) * (1.28 if legend else 1.05))
        axis.yaxis.set_major_locator(_locator(unit, high, all(value == int(value) for value in values)))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, unit)))
        handles, texts = axis.get_legend_handles_labels()
        if legend and handles:
            if len(texts) > LEGEND_MAX:
                texts = [*texts[: LEGEND_MAX - 1], f"and {len(texts) - LEGEND_MAX + 1} more"]
            look = {
                "handlelength": 1.2,
                "columnspacing": 1.0,
                "borderaxespad": 0.2,
                "borderpad": 0.2,
                "framealpha": 0.8,
            }
            shown = handles[: len(texts)]
            axis.legend(shown, texts, fontsize=7, loc="upper left", ncols=min(3, len(texts)), edgecolor="none", **look)
    axis.tick_params(labelsize=7.5)
    axis.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _locator(unit: str, high: float, whole: bool) -> Locator:
    if unit in ("bytes", "Bps"):
        return MultipleLocator(2.0 ** math.ceil(math.log2(max(high, 1.0) / 4)))
    return MaxNLocator(5, integer=whole and unit == "short")


def amount(value: float, unit: str) -> str:
    """A value with its unit, in a few characters."""
    if unit == "s":
        return f"{value:g} s" if value >= 1 or value == 0 else f"{value * 1000:g} ms"
    base, names = (
        (1024, ("", " Ki", " Mi", " Gi", " Ti")) if unit in ("bytes", "Bps") else (1000, ("", " k", " M", " G"))
    )
    power = 0
    while abs(value) >= base and power < len(names) - 1:
        value, power = value / base, power + 1
    return f"{value:.3g}{names[power]}"
