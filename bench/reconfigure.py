"""`make bench-reconfigure`: latency of records over time, in an open loop, with one act in the middle.

Half of what a worker leads goes to another (Rhino's figures 4g to 4i), or workers are added (4d to 4f), while records come
at one rate or at one that goes up and down in steps (figure 6). Ferry beside Flink, as it comes and tuned.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.parts.reconfigure import ferry_case, flink_case, profile, report
from bench.parts.reconfigure.case import (
    BALANCE,
    FERRY_ALONE,
    NONE,
    QUERIES,
    SCALE,
    WORKERS,
    Case,
    NotUp,
    Plan,
    Reconfigured,
)
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.flink import HOME
from bench.shared.results import Results

METHOD = """\
Open loop: record i is created when the clock says so, whatever the systems do; latency is from then (whole milliseconds) \
to the moment when the sinks have what came of it, as `bench/latency.py` counts it. profile constant: {rate:,} arrivals/s \
of all streams of the generator. varying: Rhino's figure 6, from an eighth of that in 14 equal steps up to it and down \
again, {step} each, so that the act comes at the peak when a round fits. The clock begins at a moment that is agreed on, so \
all systems have the same rate when the act is asked for. Event time passes as arrivals come in Ferry's generator (mean \
rate), as the clock does in Flink's. {cores} cores for each system, {workers} workers with {vnodes} virtual nodes and 1 \
replica of Ferry, continuous epochs; 2 task managers of 2 slots and a parallelism of {workers} of Flink. The act, in the \
middle of {seconds:g} s: balance: half of the virtual nodes that one worker leads go to the other; scale: {workers} workers \
become {to}. Flink moves no single key groups, so for both it is given a parallelism of {to}, in slots that are there, as \
Rhino compares load balancing with rescaling. Flink, tuned: buffers of 1 ms, objects used again, state on the heap, \
adaptive scheduler that waits for nothing, heartbeats of 0.5 s: it takes the job down at a checkpoint and brings it up with \
that. Flink as it comes: its default scheduler cannot do that, so the job is stopped with a savepoint and submitted again \
with it. Both have a checkpoint each {checkpoint}. At least once: a sink has a record when its effect is made, and those \
that are read again after a checkpoint count again; exactly once: when a checkpoint has made it durable. before: the \
measured time until the act was asked for; during: until {tail:g} s after the system had done it (Ferry: the last virtual \
node has its new leader; Flink: all sinks of the new tasks have told of a record) and latency is back; after: the rest. \
back: from the act to the end of the last 250 ms whose p99 is more than twice that of all records before, when it then \
stays so for {calm:g} s. The first {warm:g} s are not counted. Where nothing came out within 250 ms pictures have what came \
next. {where} Rhino had 190 GB of state on 8 machines; what is compared is what the act does to latency."""

TOGETHER = "All is on one host, nothing behind a link."
APART = (
    "Each worker and task manager is in a network namespace of its own, behind a link of {links} both ways; drivers \
and masters are on the host."
)

PATIENCE = 3.0

CASES: dict[str, Case] = {
    "ferry": ferry_case.measure,
    flink_case.TUNED: partial(flink_case.measure, system=flink_case.TUNED),
    flink_case.DEFAULT: partial(flink_case.measure, system=flink_case.DEFAULT),
}


class Reconfigure:
    """All cases of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        self.a, self.work, self.console = arguments, work, console
        self.found: list[Reconfigured] = []
        self.patience = 1.0
        """how many times the usual time systems have to be up"""
        self.results = Results("reconfigure", method(arguments))

    def plan(self, start: float) -> Plan:
        """Of a case whose system will be up in so many seconds."""
        a = self.a
        made = profile.steps(a.profile, a.rate, a.warm, a.minutes * 60, a.step)
        return Plan(time.time() + start * self.patience, a.warm, a.minutes * 60, made)

    def run(self) -> None:
        """Every query, the systems in turns."""
        for query in self.a.queries:
            for system in self.a.systems:
                if system == "ferry" or query not in FERRY_ALONE:
                    self._one(query, system)

    def _one(self, query: str, system: str) -> None:
        a = self.a
        about = {"act": a.act, "profile": a.profile, "rate": a.rate, "links": a.links or ""}
        try:
            with self.console.status(f"{query}: {system}"):
                found = self._measured(query, system)
        except RunFailed as failed:
            self.console.print(f"failed: {query}: {system}: {failed}", style="red", markup=False)
            self.results.add(system, query, "failed", str(failed)[:500], "text", **about)
            return
        for one in found:
            self.found.append(one)
            report.add(self.results, one, **about)
            self.console.print(f"  {report.line(one)}")

    def _measured(self, query: str, system: str) -> list[Reconfigured]:
        """A case; on a machine that is slow beside other work all have more time from the first on that was late."""
        try:
            return CASES[system](self, query)
        except NotUp as late:
            self.console.print(f"  {query}: {system}: {late}: again, with {PATIENCE:g} times the time to start")
            self.patience *= PATIENCE
            return CASES[system](self, query)


def method(a: argparse.Namespace) -> str:
    """How this call measures."""
    step = f"{a.minutes * 60 / len(profile.ROUND) if a.step is None else a.step:.3g} s"
    return METHOD.format(
        rate=a.rate, step=step, cores=a.cores, workers=WORKERS, to=a.to, vnodes=a.vnodes, seconds=a.minutes * 60,
        checkpoint=a.flink_checkpoint, tail=1.0, calm=2.0, warm=a.warm,
        where=APART.format(links=a.links) if a.links else TOGETHER,
    )  # fmt: skip


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument(
        "--json", type=Path, default=RESULTS / "reconfigure.json", help="records; pictures are put beside it"
    )
    p.add_argument("--queries", nargs="+", default=["nbq5", "nbq8"], choices=list(QUERIES))
    p.add_argument("--systems", nargs="+", default=list(CASES), choices=list(CASES))
    p.add_argument("--act", default=BALANCE, choices=[BALANCE, SCALE, NONE], help="what is done in the middle")
    p.add_argument("--profile", default=profile.CONSTANT, choices=[profile.CONSTANT, profile.VARYING])
    p.add_argument("--rate", type=int, default=50_000, help="arrivals a second; of 'varying' the highest")
    p.add_argument("--step", type=float, help="seconds at one rate (the paper: 10); else one round up and down fits")
    p.add_argument("--to", type=int, default=3, choices=[3, 4], help="workers, or parallelism, after the act")
    p.add_argument("--minutes", type=float, default=2.0, help="that are measured, of each case")
    p.add_argument("--warm", type=float, default=15.0, help="seconds before, that are not")
    p.add_argument("--interval", default="10ms", help="of Ferry's epochs, at least")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--vnodes", type=int, default=16, help="virtual nodes of Ferry's jobs")
    p.add_argument("--flink", type=Path, default=HOME, help="where Flink is, or is installed by pip")
    p.add_argument("--flink-checkpoint", default="1s", help="interval of Flink's checkpoints")
    p.add_argument("--links", help="workers apart, each behind a link of this speed, as in 1gbit (root)")
    p.add_argument("--keep", type=Path, default=None, help="a folder for the timelines of Ferry's runs")
    p.add_argument("--quick", action="store_true", help="small and once: to see that it works, not to measure")
    a = p.parse_args()
    if a.quick:
        a.queries, a.rate, a.minutes, a.warm = a.queries[:1], 2_000, 0.4, 5.0
    console = Console(highlight=False)
    bench: Reconfigure | None = None
    try:
        with work_directory("reconfigure") as work:
            bench = Reconfigure(a, work, console)
            bench.run()
    except KeyboardInterrupt:
        console.print("interrupted")
    if bench is None or not bench.found:
        return 1
    bench.results.write(a.json)
    report.table(console, bench.found)
    title = f"{a.act}, {a.profile} rate ({a.rate:,} arrivals/s), open loop"
    for file in report.pictures(a.json, title, bench.found):
        console.print(f"picture: {file}")
    console.print(f"records: {a.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
