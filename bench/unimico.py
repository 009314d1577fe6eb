"""`make bench-unimico`: the queries of UniMiCo with and without a handover at the boundary of a window.

Figures 4 to 6 of the paper: is the output the same, and do records take longer around the handover?
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from rich.console import Console

from bench.shared.ferry_job import RESULTS, FerryJob, RunFailed, job_document, work_directory
from bench.shared.results import Panel, Results, draw, show
from ferry.contract.errors import Refusal
from ferry.contract.latency import LatencyHistogram, seconds_of

METHOD = """\
Q1: pairs of readings of S and T at one place, less than 10 s apart; Q2: sum of the last five readings of S; Q3: sum \
over the last five pairs. {rate:g} readings a second, created at the pace of the clock; two workers, no replicas, 4 \
virtual nodes, continuous epochs of {interval} at least. The worker that has most of the state hands over all virtual \
nodes that it leads at the boundary of a window; the request comes {after:g} s after the first epoch. without: the same \
run without a handover. Response time of a reading: from its creation (whole milliseconds) to the moment when the sinks \
have the rows of its epoch, for readings that came to the sinks in the {around:g} s before and after the last \
switchover (without: at the same time after the first epoch). Rows are compared as a multiset. Bytes are snapshots, \
counted by the instances."""

QUERIES = {"uq1": "Q1", "uq2": "Q2", "uq3": "Q3"}
PAPER = {"uq1": (3.751, 3.750), "uq2": (3.155, 3.101), "uq3": (6.568, 6.658)}
"""Mean response times of figures 4 to 6 in milliseconds, without and with a migration."""
VNODES = 4


class Seen(NamedTuple):
    """One run."""

    rows: Counter[str]
    lines: list[tuple[float, LatencyHistogram]]
    """(seconds since the first epoch, response times)"""
    switched: float | None
    """seconds since the first epoch of the last switchover"""
    sent_bytes: int

    def around(self, at: float, seconds: float) -> tuple[float, float]:
        """Mean and standard deviation of the response times at that time, in milliseconds."""
        made = LatencyHistogram()
        for t, one in self.lines:
            if abs(t - at) <= seconds:
                made.merge(one.counts)
        if not made.records:
            return math.nan, math.nan
        mean = sum(n * seconds_of(b) for b, n in made.counts.items()) / made.records
        spread = sum(n * (seconds_of(b) - mean) ** 2 for b, n in made.counts.items()) / made.records
        return mean * 1000, math.sqrt(spread) * 1000


def asked(run: FerryJob) -> bool:
    """Request a handover to the worker with less state; False while the driver is busy and does not answer.

    The request names all virtual nodes, because the planner may copy other virtual nodes to balance the load.
    """
    if (status := run.status()) is None:
        return False
    most = max(range(VNODES), key=lambda v: tuple(status["load"]["vnodes"][v]))
    target = "1.0" if status["groups"][most][0][0] == "0.0" else "0.0"
    try:
        run.ask("POST", "/move", {"vnodes": list(range(VNODES)), "instance": target, "at_window": True})
    except Refusal:
        return False
    return True


def measured(a: argparse.Namespace, work: Path, query: str, moves: bool) -> Seen:
    """Run a query to its end. Raises RunFailed."""
    pipeline = {"module": f"ferry_workloads.jobs.{query}", "args": {"pace": a.rate}}
    document = job_document(
        query, pipeline, workers=2, cores=a.cores, state={"virtualNodes": VNODES, "replicas": 0},
        epoch={"mode": "continuous", "interval": a.interval},
    )  # fmt: skip
    with FerryJob(document, work / query, events=int(a.rate * a.seconds)) as run:
        run.wait_for(lambda: any(r["kind"] == "latency" for r in run.records), "the first response times")
        began = run.epochs()[0]["end"]
        run.wait_for(lambda: time.time() >= began + a.after, "the time to move")
        if moves:
            run.wait_for(partial(asked, run), "an answer of the driver")
        run.finish()
        changes = [(r["t"], kind) for r in run.records if r["kind"] == "groups" for _, kind, _ in r["changes"]]
        switched = [t for t, kind in changes if kind == "switched"]
        if moves and not switched:
            raise RunFailed("no state was handed over: use more --seconds")
        sent = sum(json.loads(f.read_text())["snapshot_sent_bytes"] for f in run.directory.glob("**/metrics.json"))
        files = sorted((run.output / query).glob("*/*.parquet"))
        rows = Counter(str(row) for file in files for row in pq.read_table(file).to_pylist())
        lines = [(r["t"] - began, LatencyHistogram(dict(r["counts"]))) for r in run.records if r["kind"] == "latency"]
    return Seen(rows, lines, max(switched) - began if switched else None, sent)


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "unimico.json", help="records; a picture is put beside it")
    p.add_argument("--queries", nargs="+", default=list(QUERIES), choices=list(QUERIES))
    p.add_argument("--rate", type=float, default=10.0, help="readings a second")
    p.add_argument("--seconds", type=float, default=60.0, help="duration of the readings in a run")
    p.add_argument("--after", type=float, default=10.0, help="seconds from the first epoch to the request to move")
    p.add_argument("--around", type=float, default=2.0, help="measured seconds before and after the handover")
    p.add_argument("--interval", default="10ms", help="shortest interval of epochs")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--quick", action="store_true", help="one query: to see that it works, not to measure")
    a = p.parse_args()
    a.queries = ["uq2"] if a.quick else a.queries
    about = {"rate": a.rate, "interval": a.interval, "after": a.after, "around": a.around}
    console, results = Console(highlight=False), Results("unimico", METHOD.format(**about))
    table, panels = list[list[str | float | None]](), list[Panel]()
    with work_directory("unimico") as work:
        for query in a.queries:
            try:
                with console.status(f"{query}: without and with a handover"):
                    without, moved = (measured(a, work, query, moves) for moves in (False, True))
            except RunFailed as failed:
                console.print(f"failed: {query}: {failed}", style="red", markup=False)
                continue
            assert moved.switched is not None
            same = "the same" if without.rows == moved.rows else "OTHER ROWS"
            means = [one.around(moved.switched, a.around) for one in (without, moved)]
            for name, (mean, spread) in zip(("without", "with"), means):
                results.add("Ferry", query, f"mean response {name}", mean, "ms")
                results.add("Ferry", query, f"standard deviation {name}", spread, "ms")
            results.add("Ferry", query, "output", same, "text", rows=sum(moved.rows.values()))
            results.add("Ferry", query, "bytes of snapshots", moved.sent_bytes, "bytes")
            results.add("Ferry", query, "from the request to the handover", moved.switched - a.after, "s")
            cells = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in means]
            paper = " / ".join(map(str, PAPER[query]))
            table.append([QUERIES[query], f"{sum(moved.rows.values())} rows, {same}", *cells, paper, moved.sent_bytes])
            panels.append(panel(QUERIES[query], without, moved, moved.switched))
    if not table:
        return 1
    results.write(a.json)
    heads = ["", "output", "without, ms", "with, ms", "paper: without / with", "bytes of snapshots"]
    show(console, f"Response times {a.around:g} s before and after the handover", heads, table)
    draw(a.json.with_suffix(".png"), "UniMiCo's queries, handed over at 0", panels)
    console.print(f"records: {a.json}")
    return 0


def panel(name: str, without: Seen, moved: Seen, at: float) -> Panel:
    """Mean response time over the seconds around the handover."""
    ticks = [t / 2 for t in range(-20, 21)]
    series: dict[str, list[float | None]] = {}
    for label, one in (("without", without), ("with", moved)):
        means = [one.around(at + t, 0.25)[0] for t in ticks]
        series[label] = [None if math.isnan(mean) else mean / 1000 for mean in means]
    return Panel(f"{name}: mean response time", "s", ticks, series, "times")


if __name__ == "__main__":
    sys.exit(main())
