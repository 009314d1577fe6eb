"""Pictures of a pipeline, and of a run's timeline with gaps, epoch time, throughput, moves and failures.

The only importer of matplotlib. It draws records; `timeline` computes their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter

from ferry_operator.local import graph
from ferry_operator.local.timeline import timeline

LINE, FAST, MOVE, FAILURE, ACTION = "#1f5fa8", "#2a7f62", "#f2b544", "#c0392b", "#6b4fa0"

LABELS_MAX = 24
"""With more actions than this only their lines are drawn: the labels would be unreadable."""

BOX_LETTERS = 28
"""Longer names in boxes of a pipeline are cut."""

LEAST_SECONDS = 1e-4
"""Least latency in the picture, because the scale is logarithmic."""

STYLE = {
    "font.size": 9,
    "axes.edgecolor": "#9aa4ad",
    "axes.labelcolor": "#333a40",
    "xtick.color": "#333a40",
    "ytick.color": "#333a40",
    "svg.hashsalt": "ferry",
}

Record = dict[str, Any]


def draw_pipeline(plan: graph.Plan, file: Path, job: str) -> None:
    """Write the picture of a pipeline, sources left, sinks right; PNG, SVG or PDF by the suffix of the file."""
    boxes, edges = graph.laid_out(plan)
    width, height = 1 + max(x for x, _ in boxes.values()), 1 + max(y for _, y in boxes.values())
    figure = Figure(figsize=(3.2 * width, 0.6 + 1.1 * height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), title=f"{job}: {graph.mode(plan)}")
    axes.axis("off")
    patches = {}
    for name, (x, y) in boxes.items():
        kind, _, rest = name.partition(" ")
        colour = {"source": "#d5e5f5", "operator": "#fdebc8"}.get(kind, "#d6ede4")
        box = {"boxstyle": "round,pad=0.5", "facecolor": colour, "edgecolor": "#9aa4ad"}
        short = rest.strip() if len(rest.strip()) <= BOX_LETTERS else f"{rest[:BOX_LETTERS]} ..."
        drawn = axes.text(x, y, f"{kind}\n{short}", fontsize=8, ha="center", va="center", bbox=box)
        patches[name] = drawn.get_bbox_patch()
    for (begin, end), text in edges:
        (x0, y0), (x1, y1) = boxes[begin], boxes[end]
        arrow = {"arrowstyle": "->", "color": "#333a40", "patchA": patches[begin], "patchB": patches[end]}
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
        at: Record = {"fontsize": 6, "ha": "center", "va": "center", "backgroundcolor": "white", "color": "#333a40"}
        axes.text(x0 + 0.36 * (x1 - x0), y0 + 0.36 * (y1 - y0), text, **at)
    figure.savefig(file)


def draw(records: Sequence[Record], file: Path, job: str) -> None:
    """Write the picture of a timeline with at least one epoch; PNG, SVG or PDF by the suffix of the file, else PNG.

    The panels share the time since the begin of the first epoch. They show the gap between the ends of epochs, the time
    from the begin of an epoch to the end of its sink, and records per second. If sources give the creation time of
    records, a fourth panel shows the latency from creation to the sinks on a logarithmic scale. Moves are shaded; lines
    mark failures and other actions.
    """
    epochs = timeline.epochs_of(records)
    assert epochs, "nothing to draw"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 7.2), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        latencies = [r for r in records if r["kind"] == "latency"]
        axes = figure.subplots(4 if latencies else 3, 1, sharex=True)
        begin = min(r["begin"] for r in epochs)
        summary = timeline.summarize(records)
        _panels(axes, epochs, begin)
        if latencies:
            _quantiles(axes[3], latencies, begin)
        last = max(r["end"] for r in epochs) - begin
        marks = _marks(records, begin, last)
        for axis in axes:
            _dress(axis, summary.moves, marks, begin)
        if latencies:
            _by_powers(axes[3], latencies)
        _labels(axes[0], marks, last)
        axes[-1].set_xlabel("seconds since the first epoch began")
        axes[-1].set_xlim(0, last * 1.01 or 1.0)
        figure.suptitle(_title(job, summary), fontsize=11, x=0.01, ha="left")
        _legend(figure, summary, marks)
        figure.savefig(file, format=None if file.suffix else "png")


def _panels(axes: Any, epochs: Sequence[Record], begin: float) -> None:
    ends = [r["end"] for r in epochs]
    times = [end - begin for end in ends]
    gaps = [epochs[0]["end"] - epochs[0]["begin"], *timeline.gaps(ends)]
    rates = [r.get("rows", 0) / max(gap, 1e-6) for r, gap in zip(epochs, gaps)]
    latencies = [r["end"] - r["begin"] for r in epochs]
    labels = ("gap between ends (s)", "epoch time (s)", "records/s")
    # The width of an epoch is its duration, so that a pause is a block and not a slope.
    for axis, label, values, color in zip(axes, labels, (gaps, latencies, rates), (LINE, LINE, FAST)):
        axis.stairs(values, [0.0, *times], color=color, linewidth=1.2, baseline=None, zorder=3)
        axis.stairs(values, [0.0, *times], color=color, alpha=0.13, fill=True, zorder=2)
        axis.set_ylabel(label)
    if len(epochs) < timeline.FEW_EPOCHS:  # few enough to mark each epoch
        for axis, values, color in zip(axes, (gaps, latencies, rates), (LINE, LINE, FAST)):
            axis.plot(times, values, "o", color=color, markersize=4, clip_on=False, zorder=3)
    # The rate of the first epoch has no preceding wait; on its scale the other rates would look flat.
    axes[2].set_ylim(top=1.08 * (max(rates[1:], default=0.0) or rates[0]) or 1.0)
    axes[2].yaxis.set_major_formatter(EngFormatter(sep=" "))


def _quantiles(axis: Any, latencies: Sequence[Record], begin: float) -> None:
    """The 50th, 90th, 99th and 100th percentile of each latency record of the timeline."""
    times = [r["t"] - begin for r in latencies]
    for name, color in (("max", "#b9c2ca"), ("p99", FAILURE), ("p90", MOVE), ("p50", LINE)):
        axis.plot(
            times, [max(r[name], LEAST_SECONDS) for r in latencies], color=color, linewidth=1.1, label=name, zorder=3
        )
    axis.set_ylabel("record latency (s)")
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="upper left")


def _by_powers(axis: Any, latencies: Sequence[Record]) -> None:
    """A logarithmic scale, which has no zero and so needs explicit bounds."""
    axis.set_yscale("log")
    shown = [max(r[name], LEAST_SECONDS) for r in latencies for name in ("p50", "max")]
    axis.set_ylim(min(shown) / 2, max(shown) * 3)


def _dress(axis: Any, moves: Sequence[timeline.Move], marks: Sequence[tuple[float, str, bool]], begin: float) -> None:
    """Grid, frame, shaded moves and vertical lines of one panel."""
    axis.set_ylim(bottom=0)
    axis.grid(axis="y", color="#dfe4e8", linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for move in moves:
        axis.axvspan(move.begin - begin, move.end - begin, color=MOVE, alpha=0.35, linewidth=0, zorder=1)
        # The area of a move of some milliseconds would be thinner than a pixel.
        axis.axvline(move.begin - begin, color=MOVE, linewidth=1.0, alpha=0.8, zorder=1)
    for at, _, failure in marks:
        axis.axvline(
            at, color=FAILURE if failure else ACTION, linewidth=1.0, linestyle="--" if failure else ":", zorder=4
        )


ACTIONS = "action", "deployed"
"""Kinds of records that users have caused."""


def _marks(records: Sequence[Record], begin: float, last: float) -> list[tuple[float, str, bool]]:
    """(seconds, text, is a failure) of actions and losses since the first epoch."""
    marks: list[tuple[float, str, bool]] = []
    for record in records:
        if record["kind"] not in (*ACTIONS, "halt", "degraded") or not 0 <= record["t"] - begin <= last + 1:
            continue
        text = str(record.get("text", ""))
        failure = record["kind"] not in ACTIONS or text.startswith(timeline.FAILURES)
        text = text.partition(" is in force")[0] if record["kind"] == "deployed" else text
        marks.append((record["t"] - begin, record["kind"] if failure and record["kind"] != "action" else text, failure))
    return marks


def _labels(axis: Any, marks: Sequence[tuple[float, str, bool]], last: float) -> None:
    """Labels of the lines above the first panel, in rows without overlaps."""
    if len(marks) > LABELS_MAX:
        return
    free: list[float] = []
    for at, text, failure in marks:
        shown = text if len(text) <= 28 else text[:27] + "…"
        width = last * 0.0075 * (len(shown) + 2)
        left = min(at, last * 1.01 - width)
        row = next((n for n, until in enumerate(free) if until <= left), len(free))
        free[row : row + 1] = [left + width]
        axis.annotate(
            shown,
            (left, 1.0),
            (0, 3 + 11 * row),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            color=FAILURE if failure else ACTION,
            fontsize=8,
            ha="left",
            va="bottom",
            annotation_clip=False,
        )


def _title(job: str, summary: timeline.Summary) -> str:
    epochs = f"{summary.epochs:,} {'epoch' if summary.epochs == 1 else 'epochs'}"
    few = summary.epochs < timeline.FEW_EPOCHS
    took = f"first epoch {summary.epoch_first:.3g} s" if few else f"median epoch {summary.epoch_median:.3g} s"
    return f"{job}: {epochs}, {summary.rows:,} records, {summary.rows_per_second:,.0f} records/s, {took}"


def _legend(figure: Any, summary: timeline.Summary, marks: Sequence[tuple[float, str, bool]]) -> None:
    """A legend of the elements in the picture."""
    entries: list[Any] = []
    if summary.moves:
        entries.append(Patch(color=MOVE, alpha=0.5, label="move in progress"))
    if any(failure for *_, failure in marks):
        entries.append(Line2D([], [], color=FAILURE, linestyle="--", label="failure"))
    if any(not failure for *_, failure in marks):
        entries.append(Line2D([], [], color=ACTION, linestyle=":", label="action"))
    if entries:
        figure.legend(handles=entries, loc="outside lower right", ncols=3, frameon=False, fontsize=8)
