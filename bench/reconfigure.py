"""`make bench-reconfigure`: latency of records over time, in an open loop, with one change (act) in the middle.

Half of the virtual nodes that one worker leads move to another worker (Rhino's figures 4g to 4i), or workers are added (4d
to 4f). The rate is constant, or goes up and down in steps (figure 6). Ferry, and Flink with its defaults and tuned.
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
Open loop: record i is created by the clock, however fast the systems are; latency is from then (whole milliseconds) to \
the moment when the sinks have its result, as in `bench/latency.py`. profile constant: {rate:,} arrivals/s of all \
streams of the generator. varying: Rhino's figure 6, from an eighth of that in 14 equal steps up to it and down again, \
{step} each, so that the act comes at the peak when a round fits. The clock begins at a moment set before, so all \
systems have the same rate when the act is requested. Event time passes as arrivals come in Ferry's generator (mean \
rate), as the clock does in Flink's. {cores} cores for each system, {workers} workers with {vnodes} virtual nodes and 1 \
replica of Ferry, continuous epochs; 2 task managers of 2 slots and a parallelism of {workers} of Flink. The act, in \
the middle of {seconds:g} s: balance: half of the virtual nodes that one worker leads go to the other; scale: {workers} \
workers become {to}. Flink cannot move single key groups, so for both acts it gets a parallelism of {to}, in free \
slots, as Rhino compares load balancing with rescaling. Flink, tuned: buffers of 1 ms, objects used again, state on the \
heap, adaptive scheduler without waits, heartbeats of 0.5 s: Flink restarts the job from a checkpoint. Flink as it \
comes: its default scheduler cannot do that, so the job is stopped with a savepoint and submitted again with it. Both \
have a checkpoint each {checkpoint}. At least once: a sink has a record when the record is written, and records that \
are read again after a checkpoint count again; exactly once: when a checkpoint has made the record durable. before: the \
measured time until the act was requested; during: until {tail:g} s after the system had finished it (Ferry: the last \
virtual node has its new leader; Flink: all sinks of the new tasks have written a record) and latency is back; after: \
the rest. back: from the act to the end of the last 250 ms whose p99 is more than twice the p99 of all records before, \
if no such interval follows for {calm:g} s. The first {warm:g} s are not counted. Where no record came out within 250 \
ms, pictures have the next value. {where} Rhino had 190 GB of state on 8 machines; only the effect of the act on \
latency is compared."""

TOGETHER = "All processes are on one host, without links."
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
        """The times of a case whose system will be up after this number of seconds."""
        a = self.a
        made = profile.steps(a.profile, a.rate, a.warm, a.minutes * 60, a.step)
        return Plan(time.time() + start * self.patience, a.warm, a.minutes * 60, made)

    def run(self) -> None:
        """Every query, one system after the other."""
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
        """Measure a case; after a late start on a busy machine all later cases have more time to start."""
        try:
            return CASES[system](self, query)
        except NotUp as late:
            self.console.print(f"  {query}: {system}: {late}: again, with {PATIENCE:g} times the time to start")
            self.patience *= PATIENCE
            return CASES[system](self, query)


def method(a: argparse.Namespace) -> str:
    """The method of this call."""
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
    p.add_argument(
        "--act", default=BALANCE, choices=[BALANCE, SCALE, NONE], help="the change in the middle of the measured time"
    )
    p.add_argument("--profile", default=profile.CONSTANT, choices=[profile.CONSTANT, profile.VARYING])
    p.add_argument("--rate", type=int, default=50_000, help="arrivals a second; for 'varying' the highest rate")
    p.add_argument(
        "--step", type=float, help="seconds of each step of 'varying' (the paper: 10); without it one round fits"
    )
    p.add_argument(
        "--to", type=int, default=3, choices=[3, 4], help="workers (Ferry) or parallelism (Flink) after the act"
    )
    p.add_argument("--minutes", type=float, default=2.0, help="measured time of each case")
    p.add_argument("--warm", type=float, default=15.0, help="seconds of warm-up before the measured time")
    p.add_argument("--interval", default="10ms", help="shortest interval of Ferry's epochs")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--vnodes", type=int, default=16, help="virtual nodes of Ferry's jobs")
    p.add_argument("--flink", type=Path, default=HOME, help="folder of Flink, which pip installs if missing")
    p.add_argument("--flink-checkpoint", default="1s", help="interval of Flink's checkpoints")
    p.add_argument("--links", help="put each worker behind a link of this speed, such as 1gbit; needs root")
    p.add_argument("--keep", type=Path, default=None, help="a folder for the timelines of Ferry's runs")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
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
