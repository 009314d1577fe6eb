"""Numbers, tables and the picture of the checkpoints benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.parts.checkpoints.written import Taken
from bench.shared.processes import SIDECARS, Watch
from bench.shared.results import Panel, Results, draw, show

WITHOUT = "without"
OF_A_RUN = {
    "throughput": "records/s", "epoch p50": "s", "epoch p99": "s", "longest epoch": "s", "cpu": "s per million records",
    "sidecar cpu": "s per million records",
}  # fmt: skip
OF_CHECKPOINTS = {
    "seconds": "s", "changed keys": "keys", "share changed": "of the keys", "changed bytes": "bytes",
    "written as changes": "bytes", "written as scans": "bytes", "rows of changes": "rows", "written / changed": "x",
    "restore reads": "bytes",
}  # fmt: skip
BYTES = ("changed bytes", "written as changes", "written as scans", "restore reads")


@dataclass(slots=True)
class Times:
    """A run as its picture shows it, in seconds since `begin`."""

    begin: float
    ends: list[float]
    """of epochs"""
    gaps: list[float]
    spans: list[tuple[float, float]] = field(default_factory=list)
    """in which a checkpoint was under way"""


class Report:
    """All that is shown of one call."""

    def __init__(self, results: Results, arguments: argparse.Namespace, console: Console) -> None:
        self.results, self.a, self.console = results, arguments, console
        self.times: dict[tuple[str, str], Times] = {}
        """(interval, case) of the last repeat"""

    def measured(
        self,
        epochs: list[dict[str, Any]],
        watch: Watch,
        begin: float,
        end: float,
        *,
        interval: str,
        case: str,
        repeat: int,
    ) -> None:
        """What a run has done between two times."""
        inside = [e for e in epochs if begin <= e["end"] <= end]
        ends, rows = [e["end"] for e in inside], sum(e["rows"] for e in inside[1:])
        gaps = [b - a for a, b in pairwise(ends)]
        cpus = [watch.cpu_between(begin, end, *kinds) / rows * 1e6 for kinds in ((), (SIDECARS,))]
        values = [rows / (ends[-1] - ends[0]), *np.percentile(gaps, (50, 99)), max(gaps), *cpus]
        for (metric, unit), value in zip(OF_A_RUN.items(), values, strict=True):
            self.results.add("Ferry", case, metric, float(value), unit, interval=interval, repeat=repeat)
        self.results.add("Ferry", case, "epochs", len(gaps), "epochs", interval=interval, repeat=repeat)
        self.times[interval, case] = Times(begin, [t - begin for t in ends[1:]], gaps)
        text = ", ".join(f"{name} {value:,.4g}" for name, value in zip(OF_A_RUN, values, strict=True))
        self.console.print(f"  {interval:6} {case:8} {text}")

    def written(self, taken: Sequence[Taken], row_bytes: int, *, interval: str, case: str, repeat: int) -> None:
        """What its checkpoints have written."""
        keys = int(self.a.gigabytes * 1e9 / row_bytes)
        for one in taken:
            bytes_changed = one.changed * row_bytes
            values = [
                one.end - one.begin, one.changed, one.changed / keys, bytes_changed, one.bytes["changes"], one.bytes["scan"],
                one.rows["changes"], sum(one.bytes.values()) / max(bytes_changed, 1), one.total_bytes,
            ]  # fmt: skip
            for (metric, unit), value in zip(OF_CHECKPOINTS.items(), values, strict=True):
                self.results.add(
                    "Ferry", case, metric, value, unit, interval=interval, repeat=repeat, number=one.number
                )
        written = sum(sum(one.bytes.values()) for one in taken)
        changed = sum(one.changed for one in taken) * row_bytes
        if taken and changed:
            self.results.add(
                "Ferry", case, "written / changed, whole run", written / changed, "x", interval=interval, repeat=repeat
            )
            self.console.print(
                f"         {len(taken)} checkpoints: {written / 1e6:,.1f} MB written, {changed / 1e6:,.1f} MB changed"
            )
        times = self.times[interval, case]
        times.spans += [(one.begin - times.begin, one.end - times.begin) for one in taken]

    def ratios(self) -> None:
        """With checkpoints over without."""
        for interval in self.a.intervals:
            for store in self.a.stores:
                for metric in OF_A_RUN:
                    ours, base = (self._median(case, metric, interval) for case in (store, WITHOUT))
                    if ours and base:
                        self.results.add(
                            "Ferry", store, f"{metric}: with / without", ours / base, "x", interval=interval
                        )

    def tables(self) -> None:
        """Print medians."""
        cases = [WITHOUT, *self.a.stores]
        for interval in self.a.intervals:
            rows: list[list[Any]] = []
            for metric, unit in [*OF_A_RUN.items(), *OF_CHECKPOINTS.items(), ("written / changed, whole run", "x")]:
                rows.append([f"{metric} ({unit})", *(self._median(case, metric, interval) for case in cases)])
            show(self.console, f"interval {interval}: medians of {self.a.repeats}", ["", *cases], rows)

    def picture(self, file: Path) -> None:
        """Runs beside each other, bytes beside each other, and a timeline of each kind of run."""
        a, cases = self.a, [WITHOUT, *self.a.stores]
        panels = []
        for metric in ("throughput", "epoch p50", "epoch p99", "cpu"):
            series = {case: [self._median(case, metric, i) for i in a.intervals] for case in cases}
            panels.append(Panel(f"{metric}, by interval of epochs", OF_A_RUN[metric], a.intervals, series))
        for interval in a.intervals:
            numbers = {m: [self._median(s, m, interval) for s in a.stores] for m in BYTES}
            panels.append(Panel(f"one checkpoint, {interval}", "bytes", a.stores, numbers))
            for case in cases:
                if (interval, case) in self.times:
                    times = self.times[interval, case]
                    title = f"epochs of the last run, {interval}, {case}; shaded: a checkpoint under way"
                    panels.append(
                        Panel(
                            title,
                            "s",
                            times.ends,
                            {"distance of two ends": list(times.gaps)},
                            "times",
                            spans=times.spans,
                        )
                    )
        title = f"Checkpoints every {a.every} s of {a.gigabytes:g} GB, medians of {a.repeats}"
        draw(file, title, panels)

    def _median(self, case: str, metric: str, interval: str) -> float | None:
        return self.results.median(system="Ferry", case=case, metric=metric, interval=interval)
