"""What every benchmark writes: a list of flat records as JSON, a picture beside it, a table on the terminal."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Value = float | int | str


@dataclass(slots=True)
class Results:
    """Records of one benchmark, in order."""

    benchmark: str
    method: str
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add("-", "about", "method", self.method, "text")
        self.add("-", "about", "date", time.strftime("%Y-%m-%d %H:%M:%S%z"), "text")
        cores = len(os.sched_getaffinity(0))
        self.add("-", "about", "machine", f"{cores} cores, {platform.processor() or platform.machine()}", "text")

    def add(self, system: str, case: str, metric: str, value: Value, unit: str, **parameters: Value) -> None:
        """One number. Names of parameters must not be those of the other fields."""
        self.records.append(
            {
                "benchmark": self.benchmark,
                "system": system,
                "case": case,
                "metric": metric,
                "value": round(value, 6) if isinstance(value, float) else value,
                "unit": unit,
                "load1": round(os.getloadavg()[0], 2),
                **parameters,
            }
        )

    def values(self, **wanted: Value) -> list[float]:
        """Values of the records whose fields have these values."""
        return [float(r["value"]) for r in self.records if all(r.get(k) == v for k, v in wanted.items())]

    def median(self, **wanted: Value) -> float | None:
        """Median of `values`; None when there is none."""
        found = self.values(**wanted)
        return statistics.median(found) if found else None

    def write(self, file: Path) -> None:
        """Write the JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.records, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel of a picture: groups of bars, lines with one point per x, lines over seconds (kind `times`), or `points`."""

    title: str
    unit: str
    labels: Sequence[str] | Sequence[float]
    series: dict[str, list[float | None]]
    """name -> one value per label"""
    kind: str = "bars"
    logarithmic: bool = False
    spans: Sequence[tuple[float, float]] = ()
    """of `times`: what is shaded"""


COLORS = {
    ("Ferry",): "#1f5fa8",
    ("Ferry, usual",): "#b9c2ca",
    ("Spark", "Spark, repartition", "Spark, driver"): "#d9822b",
}
MORE = ("#2a7f62", "#6b4fa0", "#c0392b", "#8a8f94", "#f2b544", "#4aa3c7", "#d98880", "#34495e", "#a3c585", "#e08e45")


LEGEND_MAX = 6
"""Names that have room in a panel; more are put beside it."""


def draw(file: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write a picture with the panels side by side, two in a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.8 * columns, 3.7 * rows + 0.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axis, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels):
        _panel(axis, panel)
        largest = max((v for values in panel.series.values() for v in values if v is not None), default=0.0)
        axis.yaxis.set_major_formatter(EngFormatter(sep=" ") if largest >= 1000 else StrMethodFormatter("{x:g}"))
    for axis in figure.axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    alike = len({tuple(panel.series) for panel in panels}) == 1
    for axis in figure.axes[: 1 if alike else len(panels)]:
        handles, names = axis.get_legend_handles_labels()
        if alike:  # Beside the panels, where it covers none of their bars.
            figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False, fontsize=7)
        else:
            beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(names) > LEGEND_MAX else {}
            axis.legend(handles, names, frameon=False, fontsize=7, **beside)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def _panel(axis: Any, panel: Panel) -> None:
    colors = cycle(MORE)
    width = 0.8 / max(len(panel.series), 1)
    at = range(len(panel.labels))
    for number, (name, values) in enumerate(panel.series.items()):
        color = next((c for word, c in COLORS.items() if name in word), None) or next(colors)
        shown = [float("nan") if v is None else v for v in values]
        if panel.kind == "times":
            axis.plot(panel.labels, shown, color=color, label=name, linewidth=0.9)
            continue
        if panel.kind == "points":
            axis.plot(panel.labels, shown, "o", color=color, label=name, markersize=4)
            continue
        if panel.kind == "lines":
            axis.plot(list(at), shown, marker="o", color=color, label=name, linewidth=1.4)
            continue
        places = [x + (number - (len(panel.series) - 1) / 2) * width for x in at]
        axis.bar(places, shown, width * 0.92, color=color, label=name)
        for x, value in zip(places, shown):
            if value == value:
                axis.annotate(_short(value), (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    if panel.logarithmic:
        axis.set_yscale("log")
        if panel.kind == "points":
            axis.set_xscale("log")
        there = [v for values in panel.series.values() for v in values if v] or [1.0]
        axis.set_ylim(min(there) / 2, max(there) * 8)  # with room for the legend
    else:
        axis.set_ylim(bottom=0)
    for begin, end in panel.spans:
        axis.axvspan(begin, end, color="#dfe4e8", linewidth=0)
    if panel.kind not in ("times", "points"):
        axis.set_xticks(list(at), panel.labels, fontsize=8)
    axis.set_title(panel.title, fontsize=9, loc="left")
    axis.set_ylabel(panel.unit, fontsize=8)
    axis.tick_params(which="both", labelsize=8)
    axis.grid(axis="y", color="#dfe4e8", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _short(value: float) -> str:
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= bound:
            return f"{value / bound:.3g}{unit}"
    return f"{value:.3g}"


def show(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers are set to the right and shortened."""
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(("-" if v is None else f"{v:,.4g}" if isinstance(v, float) else str(v)) for v in row))
    console.print(table)
