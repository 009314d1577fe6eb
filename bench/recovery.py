"""`make bench-recovery`: how long a job stands still after a loss, by the source of its state: Ferry, Spark and Flink 2.

Rhino's table 1 at the scale of one machine: times of scheduling, fetching and loading. One of four workers is
lost, and an in-sync replica or its own files have its state; or only the checkpoint store is left.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from bench.parts.recovery.case import Recovery
from bench.parts.recovery.ferry_case import FerryCase
from bench.parts.recovery.flink_case import DEFAULTS, TUNED, FlinkCase
from bench.parts.recovery.spark_case import SparkCase
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.flink import HOME
from bench.shared.links import Links, links
from bench.shared.results import Panel, Results, draw, show
from bench.shared.store import FOLDER, S3, Store, store

METHOD = """\
A state of S bytes is S / 240 keys with one row each. It is filled, then {rows:,} records over random known keys come \
every {interval}. {workers} workers, {cores} cores. A checkpoint every {every} s, into {kind}. {where} total: from kill \
-9 to the end of the next epoch (Spark: batch; Flink: the first row of the last of its sinks). store, all lost: kill -9 \
of every process, local files removed, and everything started again at once with the newest checkpoint: Ferry by `ferry \
run` with restoreFrom=latest (total from its start), Spark's driver (local mode, one process; RocksDB state store with \
changelog checkpointing), Flink's cluster and the job with savepointPath (RocksDB, incremental checkpoints). store, one \
worker lost: one of {workers}; for Flink a task manager with free slots on the others, for Ferry a worker without \
replicas, whose files are deleted: it is started again, and the job begins again with its newest checkpoint. Ferry, \
in-sync replica: a worker is killed, with 1 replica. own files: an instance is killed, without replicas, and comes \
back. Parts: Ferry's fetching and loading from the store as the slowest instance logs them, scheduling is the rest \
(processes, plans, the first epoch); for replica and own files scheduling ends when the replica groups are known, or \
the instance is up, and instances fetch nothing and map their files. Spark: scheduling until the query has started; \
loading contains fetching: the load of the state in the metrics of the first batch (sum over partitions, divided by the \
number of cores). Flink: fetching and loading from its own traces (DownloadStateDurationMs, RestoreStateDurationMs, the \
slowest task), scheduling is the rest. Flink tuned: heartbeats of 500 ms, a timeout of 3 s, one failure is enough, \
restart after 100 ms, and local recovery."""

TOGETHER = "All processes are on one host, without links."
APART = """\
Workers and the store are each in a network namespace of its own, behind a link of {links} both ways; drivers and masters, \
and Spark whole (local mode), are on the host."""

PARTS = ("total", "scheduling", "fetching", "loading")


class RecoveryBench:
    """All sizes and systems of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        a = self.a = arguments
        self.work, self.console = work, console
        method = METHOD.format(
            rows=a.rows, interval=a.interval, workers=a.workers, cores=a.cores, every=a.every, kind=a.store,
            where=APART.format(links=a.links) if a.links else TOGETHER,
        )  # fmt: skip
        self.results = Results("recovery", method)
        self._store: Store | None = None
        self._apart: Links | None = None

    def store(self) -> Store:
        """The store of the current case."""
        assert self._store is not None
        return self._store

    def apart(self) -> Links | None:
        """The machines of the current case."""
        return self._apart

    def add(self, system: str, case: str, gigabytes: float, repeat: int, found: Recovery) -> None:
        """One recovery."""
        values = {metric: value for metric, value in asdict(found).items() if value is not None}
        for metric, value in values.items():
            self.results.add(
                system, case, metric, float(value), "s", gigabytes=gigabytes, repeat=repeat, store=self.a.store,
                links=self.a.links or "",
            )  # fmt: skip
        text = ", ".join(f"{metric} {value:.2f}" for metric, value in values.items())
        self.console.print(f"  {system:13} {gigabytes:g} GB, {case}: {text}")

    def run(self) -> None:
        """Every size, one system after the other, each with an empty store."""
        for gigabytes in self.a.gigabytes:
            for system in self.a.systems:
                with (
                    links(self.a.links, self.a.workers) as self._apart,
                    store(self.a.store, self._apart) as self._store,
                ):
                    if system == "ferry":
                        FerryCase(self, gigabytes).measure()
                    elif system == "spark":
                        SparkCase(self, gigabytes).measure()
                    else:
                        FlinkCase(self, gigabytes, system).measure()

    def table(self) -> None:
        """Print medians, a row for each of table 1."""
        for gigabytes in self.a.gigabytes:
            rows = []
            for system, case in self._cases():
                values = [self._median(system, case, part, gigabytes) for part in PARTS]
                rows.append([f"{system}, {case}", *values])
            show(self.console, f"{gigabytes:g} GB: seconds, medians of {self.a.repeats}", ["", *PARTS], rows)

    def picture(self, file: Path) -> None:
        """A panel for each part."""
        labels = [f"{gigabytes:g} GB" for gigabytes in self.a.gigabytes]
        panels = []
        for part in PARTS:
            series = {
                f"{system}, {case}": [self._median(system, case, part, gigabytes) for gigabytes in self.a.gigabytes]
                for system, case in self._cases()
            }
            panels.append(Panel(part, "s", labels, series))
        where = f"{self.a.store}{', ' + self.a.links if self.a.links else ''}"
        draw(file, f"After a loss, by size of the state, medians of {self.a.repeats}; store: {where}", panels)

    def _cases(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((r["system"], r["case"]) for r in self.results.records if r["case"] != "about"))

    def _median(self, system: str, case: str, part: str, gigabytes: float) -> float | None:
        return self.results.median(system=system, case=case, metric=part, gigabytes=gigabytes)


def main() -> int:
    """Parse arguments and measure."""
    systems = ["ferry", "spark", DEFAULTS, TUNED]
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "recovery.json", help="records; the picture is put beside it")
    p.add_argument(
        "--gigabytes", nargs="+", type=float, default=[0.25, 0.5, 1.0], help="size of the state, in one copy"
    )
    p.add_argument("--systems", nargs="+", default=systems, choices=systems)
    p.add_argument(
        "--store", default=S3, choices=[FOLDER, S3], help="store of checkpoints; s3: versitygw, on this machine"
    )
    p.add_argument(
        "--links", metavar="RATE", help="speed of the link to an s3 store, in the notation of tc (1gbit); needs root"
    )
    p.add_argument("--flink", type=Path, default=HOME, help="folder of Flink, which pip and Maven install if missing")
    p.add_argument("--rows", type=int, default=10_000, help="records per epoch")
    p.add_argument("--interval", default="500ms", help="time between the begins of two epochs, in ms")
    p.add_argument("--every", type=int, default=10, help="seconds from one checkpoint to the next")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--settle", type=int, default=10, help="epochs before each loss")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.links and a.store != S3:
        p.error("--links needs --store s3: a folder has no link")
    if a.quick:
        a.gigabytes, a.repeats, a.rows, a.settle, a.every = [0.02], 1, 2_000, 3, 3
    console = Console(highlight=False)
    bench: RecoveryBench | None = None
    code = 0
    try:
        with work_directory("recovery") as work:
            bench = RecoveryBench(a, work, console)
            bench.run()
    except (KeyboardInterrupt, SystemExit):
        code = 130  # What was measured until then is written.
    except RunFailed as failed:
        console.print(f"failed: {failed}", style="red", markup=False)
        code = 1
    if bench is None or len(bench.results.records) < 5:
        return 1
    bench.results.write(a.json)
    bench.table()
    bench.picture(a.json.with_suffix(".png"))
    console.print(f"\nrecords: {a.json}\npicture: {a.json.with_suffix('.png')}")
    return code


if __name__ == "__main__":
    sys.exit(main())
