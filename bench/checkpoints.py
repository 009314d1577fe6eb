"""`make bench-checkpoints`: cost of a durable checkpoint every 10 s, with 1 GB of state; a tenth changes between two.

Runs of the same job with and without checkpoints alternate, with epochs back to back (throughput) and at a fixed
interval (length of epochs).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.parts.checkpoints.report import WITHOUT, Report
from bench.parts.checkpoints.written import Written
from bench.shared import bigstate
from bench.shared.ferry_job import RESULTS, FerryJob, RunFailed, job_document, work_directory
from bench.shared.links import links
from bench.shared.processes import Watch
from bench.shared.results import Results
from bench.shared.store import FOLDER, S3, Store, store

METHOD = """\
Count per text key of 224 bytes, {workers} workers, {replicas} replica(s), {cores} cores, 64 virtual nodes. Every key \
comes once ({keys:,}; a row counts as {row} bytes: key, count, window), then records have keys of a range that drifts: \
{share:.0%} of the keys while the range moves by its width, which takes the records of {every} s. Runs with and without \
checkpoints alternate, each with empty state at first. Both wait for {settle} checkpoints (or the same time) after the \
fill; then comes the measured time: {count} checkpoints, or the same time. epoch: time between the ends of two \
successive epochs. Throughput: records of the epochs that end in the measured time, divided by this time. CPU: \
processor seconds of all processes of the run. changed: distinct keys of the records between the epochs of two \
manifests, counted from the source; written: bytes and rows of the files that a manifest names and no earlier manifest \
names, scans and changes apart. A checkpoint lasts from the end of its epoch to its manifest. interval 0ms: epochs of \
{batch:,} records back to back; else of {rows:,}."""

ROW_BYTES = bigstate.KEY_BYTES + 16
"""Bytes of one row: key, count, window."""

REPLICAS = 1


class Checkpoints:
    """All runs of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        a = self.a = arguments
        self.work, self.console = work, console
        self.keys = int(a.gigabytes * 1e9 / ROW_BYTES)
        method = METHOD.format(
            workers=a.workers, replicas=REPLICAS, cores=a.cores, keys=self.keys, row=ROW_BYTES, share=a.share, every=a.every,
            settle=a.settle, count=a.checkpoints, batch=a.batch, rows=a.rows,
        )  # fmt: skip
        self.results = Results("checkpoints", method)
        self.report = Report(self.results, a, console)

    def run(self) -> None:
        """Every interval and store, with and without checkpoints; the order changes from repeat to repeat."""
        for repeat in range(self.a.repeats):
            for interval in self.a.intervals:
                for case in [WITHOUT, *self.a.stores][:: 1 if repeat % 2 == 0 else -1]:
                    with nullcontext() if case == WITHOUT else _store(case, self.a.links) as where:
                        self._run(interval, case, where, repeat)

    def _run(self, interval: str, case: str, where: Store | None, repeat: int) -> None:
        a = self.a
        paced = milliseconds(interval) > 0
        rows = a.rows if paced else a.batch
        rate = a.rows * 1000 / milliseconds(interval) if paced else a.rate
        source = bigstate.Keys(self.keys, a.share, int(rate * a.every))
        pipeline = {
            "file": bigstate.__file__,
            "args": {"keys": source.keys, "share": source.share, "drift": source.drift},
        }
        state: dict[str, Any] = {"virtualNodes": 64, "replicas": REPLICAS}
        if where is not None:
            state["checkpoint"] = {"location": where.location, "every": f"{a.every}s"}
        job = job_document(
            "checkpoints", pipeline, workers=a.workers, cores=a.cores, state=state,
            epoch={"maxRows": rows, "interval": interval},
        )  # fmt: skip
        with FerryJob(job, self.work / "ferry") as run, Watch(run.process.pid) as watch:
            written = None if where is None else Written(run, where.files / "checkpoints", source)
            with self.console.status(f"{interval}, {case}, repeat {repeat}: {self.keys:,} keys"):
                run.wait_for(lambda: sum(e["rows"] for e in run.epochs()) >= self.keys, f"all {self.keys:,} keys", 1800)
                self._let(run, written, a.settle)
                begin = run.epochs()[-1]["end"]
                self._let(run, written, a.checkpoints)
            run.wait_epochs(1)
            end = run.epochs()[-1]["end"]
            self.report.measured(run.epochs(), watch, begin, end, interval=interval, case=case, repeat=repeat)
            if written is not None:
                self.report.written(written.after(begin), ROW_BYTES, interval=interval, case=case, repeat=repeat)

    def _let(self, run: FerryJob, written: Written | None, checkpoints: int) -> None:
        """Wait for this number of further checkpoints, or, without checkpoints, for the same time."""
        if written is None:
            until = run.epochs()[-1]["end"] + checkpoints * self.a.every
            run.wait_for(lambda: run.epochs()[-1]["end"] >= until, f"{checkpoints * self.a.every} s of epochs")
        else:
            target = len(written.look()) + checkpoints
            run.wait_for(lambda: len(written.look()) >= target, f"{checkpoints} checkpoints", 1800)


@contextmanager
def _store(kind: str, rate: str | None) -> Iterator[Store]:
    """A store; an S3 store is behind a link of this rate."""
    with links(rate if kind == S3 else None) as apart, store(kind, apart) as where:
        yield where


def milliseconds(text: str) -> float:
    """'500ms' -> 500."""
    return float(text.removesuffix("ms")) if text.endswith("ms") else float(text.removesuffix("s")) * 1000


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument(
        "--json", type=Path, default=RESULTS / "checkpoints.json", help="records; the picture is put beside it"
    )
    p.add_argument("--gigabytes", type=float, default=1.0, help="size of the state, in one copy")
    p.add_argument("--share", type=float, default=0.1, help="share of the keys that changes between two checkpoints")
    p.add_argument("--every", type=int, default=10, help="seconds from one checkpoint to the next")
    p.add_argument("--checkpoints", type=int, default=8, help="number of checkpoints in the measured time")
    p.add_argument("--settle", type=int, default=2, help="checkpoints between the fill and the measured time")
    p.add_argument(
        "--stores",
        nargs="+",
        default=[FOLDER],
        choices=[FOLDER, S3],
        help="store of checkpoints; s3: versitygw, on this machine",
    )
    p.add_argument(
        "--links", metavar="RATE", help="speed of the link to an s3 store, in the notation of tc (1gbit); needs root"
    )
    p.add_argument(
        "--intervals",
        nargs="+",
        default=["0ms", "500ms"],
        help="time between the begins of two epochs; 0ms: back to back",
    )
    p.add_argument("--batch", type=int, default=200_000, help="records of an epoch, back to back")
    p.add_argument("--rows", type=int, default=40_000, help="records of an epoch at a fixed interval")
    p.add_argument(
        "--rate", type=float, default=250_000.0, help="expected records/s back to back: the speed of the drift"
    )
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.gigabytes, a.every, a.checkpoints, a.settle, a.repeats, a.batch, a.rows = 0.03, 3, 3, 1, 1, 20_000, 4_000
        a.rate = 40_000.0
    console = Console(highlight=False)
    bench: Checkpoints | None = None
    code = 0
    try:
        with work_directory("checkpoints") as work:
            bench = Checkpoints(a, work, console)
            bench.run()
    except KeyboardInterrupt:
        return 130
    except RunFailed as failed:
        console.print(f"failed: {failed}", style="red", markup=False)
        code = 1
    if bench is None or len(bench.results.records) < 5:
        return 1
    bench.report.ratios()
    bench.results.write(a.json)
    bench.report.tables()
    bench.report.picture(a.json.with_suffix(".png"))
    console.print(f"\nrecords: {a.json}\npicture: {a.json.with_suffix('.png')}")
    return code


if __name__ == "__main__":
    sys.exit(main())
