"""`make bench-handover`: how long the output stops when state moves or a worker is killed, by size of the state.

Ferry moves half of its virtual nodes to new workers and back, loses a worker (kill -9), and loses its driver. In the same
call Flink changes its parallelism twice, and loses a task manager; vanilla Spark is stopped, repartitioned offline and
started again, and loses its driver.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from bench.parts.handover.ferry_case import FerryCase
from bench.parts.handover.flink_case import FlinkCase
from bench.parts.handover.spark_case import SparkCase
from bench.shared.bigstate import SIZES
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.results import Panel, Results, draw, show

METHOD = """\
Count per text key of 224 bytes; a state of S bytes is S / 250 keys, and nothing fires. The state is filled, then \
{rows:,} records over random known keys come every {interval} (epoch or trigger interval), {cores} cores. Ferry: 64 \
virtual nodes, 1 replica. move: 2 workers become 4 (32 virtual nodes get a new leader, 64 copies are warmed) and 2 \
again; pause = the longest time between two ends of epochs that overlaps the time from the begin of the first warming \
to the last switchover or clean-up; 'pause since asked' counts from the request, so the start of the new processes is \
in it. usual = median of the last 20 times between two ends of epochs before. recovery: from kill -9 of a worker, with \
all its processes, to the end of the next epoch. Epochs follow each other, so a pause makes no backlog: the latency of \
records offered at a fixed rate would show more. extra memory: anonymous memory (RssAnon, 5 samples a second) of all \
sidecars, its peak during the move above the greater of the medians before and after; pages of mapped state files are \
the kernel's cache and not in it. Spark: no chmod processes, RocksDB state store with changelog checkpointing, update \
mode, noop sink, local disk; pause = from the last committed batch before to the first one after. repartition: stop, \
Spark's offline state repartitioning to twice (half) the partitions, start in the same session. kill driver: kill -9 of \
the driver's process and JVM, and a new one started at once. Flink: two task managers of two slots, adaptive scheduler \
without waiting, heartbeats of 0.5 s (timeout 3 s), RocksDB, incremental checkpoints every 5 s to a folder, local \
recovery; a row has the same number of bytes; pause = from the last output before to the moment when all tasks have \
written output again."""


class Handover:
    """All sizes and systems of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        a = self.a = arguments
        self.work, self.console = work, console
        self.results = Results("handover", METHOD.format(rows=a.rows, interval=a.interval, cores=a.cores))

    def add(self, system: str, case: str, metric: str, value: float, unit: str, size: str, repeat: int = 0) -> None:
        """One number of one size."""
        parameters = {"size": size, "state_bytes": SIZES[size], "repeat": repeat, "rows": self.a.rows}
        self.results.add(system, case, metric, float(value), unit, **parameters, interval=self.a.interval)

    def say(self, system: str, size: str, text: str) -> None:
        """A line of progress."""
        self.console.print(f"  {system:6}{size:>6}  {text}")

    def run(self) -> None:
        """Every size, one system after the other."""
        for size in self.a.sizes:
            if "ferry" in self.a.systems:
                FerryCase(self, size).measure()
            if "flink" in self.a.systems:
                FlinkCase(self, size).measure()
            if "spark" in self.a.systems:
                SparkCase(self, size).measure()

    def slopes(self) -> None:
        """The largest size against the smallest."""
        small, large = self.a.sizes[0], self.a.sizes[-1]
        for system, case, metric in WHAT:
            a, b = (self.results.median(system=system, case=case, metric=metric, size=s) for s in (small, large))
            if a and b and small != large:
                self.results.add(system, case, f"{metric}: {large} / {small}", b / a, "x")

    def tables(self) -> None:
        """Print medians."""
        rows = []
        for system, case, metric in WHAT:
            found = [self.results.median(system=system, case=case, metric=metric, size=s) for s in self.a.sizes]
            if any(v is not None for v in found):
                scale = 1e-6 if metric == "extra memory" else 1.0
                name = f"{system}: {case}: {metric}" + (" (MB)" if scale != 1.0 else "")
                rows.append([name, *(None if v is None else v * scale for v in found)])
            if metric in ("pause", "to next epoch") and self.a.repeats > 1:
                # A median hides what happens once in a while; a user does not.
                worst = [self.results.values(system=system, case=case, metric=metric, size=s) for s in self.a.sizes]
                rows.append([f"{system}: {case}: {metric}, worst", *(max(v, default=None) for v in worst)])
        show(self.console, f"Medians of {self.a.repeats}, seconds unless said otherwise", ["", *self.a.sizes], rows)

    def picture(self, file: Path) -> None:
        """Pauses and recoveries by size."""
        panels = [
            Panel("pause of a planned change", "s", self.a.sizes, self._series(PLANNED), logarithmic=True),
            Panel("after kill -9: to the next epoch", "s", self.a.sizes, self._series(KILLED), logarithmic=True),
            Panel("Ferry: pause / usual distance of epochs", "x", self.a.sizes, self._series(RATIOS)),
            Panel("Ferry: extra memory of a move", "bytes", self.a.sizes, self._series(MEMORY)),
        ]
        pace = f"{self.a.rows:,} records every {self.a.interval}"
        title = f"Handover by size of the state, medians of {self.a.repeats}, {pace}"
        draw(file, title, panels)

    def _series(self, what: dict[str, tuple[str, str, str]]) -> dict[str, list[float | None]]:
        out = {}
        for name, (system, case, metric) in what.items():
            out[name] = [self.results.median(system=system, case=case, metric=metric, size=s) for s in self.a.sizes]
        return {name: values for name, values in out.items() if any(v is not None for v in values)}


PLANNED = {
    "Ferry, 2 to 4 workers": ("Ferry", "move to 4", "pause"),
    "Ferry, 4 to 2 workers": ("Ferry", "move to 2", "pause"),
    "Ferry, usual": ("Ferry", "move to 4", "usual"),
    "Flink, 2 to 4": ("Flink", "move to 4", "pause"),
    "Flink, 4 to 2": ("Flink", "move to 2", "pause"),
    "Spark, repartition": ("Spark", "repartition", "pause"),
}
KILLED = {
    "Ferry, worker": ("Ferry", "recovery", "to next epoch"),
    "Ferry, driver": ("Ferry", "kill driver", "to next epoch"),
    "Ferry, driver, standby": ("Ferry", "kill driver, standby", "to next epoch"),
    "Flink, task manager": ("Flink", "recovery", "to next epoch"),
    "Spark, driver": ("Spark", "kill driver", "to next epoch"),
}
RATIOS = {"to 4": ("Ferry", "move to 4", "pause / usual"), "to 2": ("Ferry", "move to 2", "pause / usual")}
MEMORY = {"to 4": ("Ferry", "move to 4", "extra memory"), "to 2": ("Ferry", "move to 2", "extra memory")}
OF_A_MOVE = ("pause", "usual", "pause / usual", "pause since asked", "seconds", "extra memory")
WHAT = [
    *(("Ferry", f"move to {n}", metric) for n in (4, 2) for metric in OF_A_MOVE),
    *(("Ferry", "recovery", metric) for metric in ("to next epoch", "to full strength")),
    ("Ferry", "kill driver", "to next epoch"),
    ("Ferry", "kill driver, standby", "to next epoch"),
    *(("Flink", f"move to {n}", "pause") for n in (4, 2)),
    ("Flink", "recovery", "to next epoch"),
    ("Spark", "repartition", "pause"),
    ("Spark", "kill driver", "pause"),
    ("Spark", "kill driver", "to next epoch"),
]


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "handover.json", help="records; the picture is put beside it")
    p.add_argument("--sizes", nargs="+", default=["10MB", "100MB", "1GB"], choices=list(SIZES))
    p.add_argument("--systems", nargs="+", default=["ferry", "flink", "spark"], choices=["ferry", "flink", "spark"])
    p.add_argument("--rows", type=int, default=20_000, help="records per epoch")
    p.add_argument("--interval", default="500ms", help="time between the begins of two epochs; 0ms: back to back")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--driver-kills", type=int, default=1, help="number of kills of Ferry's driver at each size")
    p.add_argument("--standby", action="store_true", help="Ferry has a second driver that is ready (driver.standby)")
    p.add_argument("--settle", type=int, default=10, help="epochs between the fill and the first move")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.sizes, a.repeats, a.rows, a.settle = ["2MB", "10MB"], 1, 5_000, 3
    console = Console(highlight=False)
    bench: Handover | None = None
    code = 0
    try:
        with work_directory("handover") as work:
            bench = Handover(a, work, console)
            bench.run()
    except KeyboardInterrupt:
        return 130
    except RunFailed as failed:
        console.print(f"failed: {failed}", style="red", markup=False)
        code = 1
    if bench is None or len(bench.results.records) < 5:
        return 1
    bench.slopes()
    bench.results.write(a.json)
    bench.tables()
    bench.picture(a.json.with_suffix(".png"))
    console.print(f"\nrecords: {a.json}\npicture: {a.json.with_suffix('.png')}")
    return code


if __name__ == "__main__":
    sys.exit(main())
