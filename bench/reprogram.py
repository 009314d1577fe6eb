"""`make bench-reprogram`: how long the output stops when the program of a running job changes, in an open loop.

A filter is introduced or replaced, state moves, an aggregate gets one more column (Bartnik et al., figures 3 to 8). Ferry
deploys; the others, and Ferry for comparison, take a savepoint and start again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.parts.reprogram import ferry_case, flink_case, report, spark_case
from bench.parts.reprogram.case import ALTER, PROGRAMS, Case, Refused, Reprogrammed
from bench.shared.bigstate import SIZES
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.flink import HOME
from bench.shared.results import Results
from ferry.contract.errors import FerryError

METHOD = """\
Open loop: record n is created n / {rate:,} s after the clock began, however fast the systems are. smq: each number is \
counted by one of 80 instances. nbq5: bids per auction in windows of 60 s every 10 s; {size} of auctions (texts of 224 \
bytes, 250 with their counts) are loaded first, and event time stands still, so no window fires and the state keeps \
its size. nbq8: a join of people, of whom as many are loaded first, and their auctions in windows of 12 h; each record \
is an auction of a person, and no window fires. introduce: a filter comes that passes every fifth number; replace: one \
that passes every tenth comes in its place; alter: the aggregate gains a column, a sum, and the join a column of the \
auction; migrate: half of the virtual nodes that one worker leads go to the other; Flink and Spark cannot move parts \
of a state, so they start the same program again, as in the paper. Acts go forth and back in turns, {acts} in each \
case, {between:g} s after each other, and all of them count. Ferry: `ferry deploy` of a file, from the start of the \
command on; 2 workers with {vnodes} virtual nodes and 1 replica, continuous epochs, a checkpoint each {checkpoint}. \
Restart: a last checkpoint, the end of all processes, `ferry run` with restoreFrom. Killed: in each act a worker or \
the driver is killed with kill -9 in one phase of the deploy. Flink, tuned: 2 task managers, a parallelism of 2, \
buffers of 1 ms, objects used again, state on the heap (nbq5, nbq8: RocksDB, incremental), no timers, a checkpoint each \
{flink_checkpoint}; stopped with a savepoint in the native format and submitted with it, in a cluster that stays up. \
Spark: the query is stopped and the other one started with the same checkpoint, in a process that stays; RocksDB with \
changelog; it counts in batches, and in one pane, which is less work. {cores} cores for each system, all processes on \
one host, all files {place}. Output: of Ferry the end of an epoch with records, exactly once; of Flink what its sinks \
write, at most each 5 ms, before a checkpoint makes it durable; of Spark the commit of a batch. Usual: the gaps \
between outputs in the {before:g} s before the first act; if an act takes as long, compare its silence with the \
longest of these gaps. Silence: the longest gap that has a part in the time from the request to 1 s after the first \
output of the new program. Extra: a silence without p99 of the usual gaps. Kept: \
p99 of extra at most the usual median gap and 50 ms, none above 1 s. Latency: from the creation of a record to its \
output; before the first act, during an act and 1 s behind it, after (all other time). Checked: of Ferry's smq each \
row, of nbq5 the counts of each key and the sums in the new column, of nbq8 each row of the state; of Flink how many \
records of each millisecond are committed; of Spark nothing. The first {warm:g} s are not counted."""

CASES: dict[str, Case] = {
    ferry_case.DEPLOY: partial(ferry_case.measure, system=ferry_case.DEPLOY),
    ferry_case.RESTART: partial(ferry_case.measure, system=ferry_case.RESTART),
    ferry_case.KILLED: partial(ferry_case.measure, system=ferry_case.KILLED),
    flink_case.FLINK: flink_case.measure,
    spark_case.NAME: spark_case.measure,
}
QUERIES = list(dict.fromkeys(query for query, _ in PROGRAMS))
ACTS = list(dict.fromkeys(act for _, act in PROGRAMS))


class Reprogram:
    """All cases of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        self.a, self.work, self.console = arguments, work, console
        self.found: list[Reprogrammed] = []
        self.failed = False
        self.results = Results("reprogram", METHOD.format(**vars(arguments)))

    def run(self) -> None:
        """Every query and act, one system after the other."""
        for query, act in PROGRAMS:
            if query in self.a.queries and act in self.a.kinds:
                for system in self.a.systems:
                    if system != ferry_case.KILLED or act == ALTER:
                        self._one(query, act, system)

    def _one(self, query: str, act: str, system: str) -> None:
        about = {"query": query, "act": act, "rate": self.a.rate, "size": self.a.size}
        case = f"{query}, {act}"
        try:
            with self.console.status(f"{case}: {system}"):
                one = CASES[system](self, query, act)
        except Refused as refused:
            self.console.print(f"  {case}: {system} cannot do it: {refused}", markup=False)
            self.results.add(system, case, "refused", str(refused)[:500], "text", **about)
            return
        except (RunFailed, FerryError, OSError) as failed:  # The other cases are measured.
            self.failed = True
            self.console.print(f"failed: {case}: {system}: {failed}", style="red", markup=False)
            self.results.add(system, case, "failed", str(failed)[:500], "text", **about)
            return
        finally:
            shutil.rmtree(self.work / system, ignore_errors=True)  # GBs of state and checkpoints
        self.found.append(one)
        report.add(self.results, one, rate=self.a.rate, size=self.a.size)
        self.results.write(self.a.json)  # An hour of measurements outlasts the end of the command.
        self.console.print(f"  {report.line(one)}", markup=False)


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "reprogram.json", help="records; a picture is put beside it")
    p.add_argument("--queries", nargs="+", default=QUERIES, choices=QUERIES)
    p.add_argument("--kinds", nargs="+", default=ACTS, choices=ACTS, help="of acts")
    p.add_argument("--systems", nargs="+", default=list(CASES), choices=list(CASES))
    p.add_argument("--size", default="1GB", choices=list(SIZES), help="of the state of nbq5")
    p.add_argument("--rate", type=int, default=20_000, help="records a second")
    p.add_argument("--acts", type=int, default=5, help="acts of each case, forth and back in turns")
    p.add_argument("--before", type=float, default=10.0, help="measured seconds before the first act")
    p.add_argument("--between", type=float, default=5.0, help="seconds behind the end of each act")
    p.add_argument("--warm", type=float, default=15.0, help="seconds of warm-up before the measured time")
    p.add_argument("--interval", default="10ms", help="shortest interval of Ferry's epochs")
    p.add_argument("--checkpoint", default="10s", help="interval of Ferry's durable checkpoints")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--vnodes", type=int, default=16, help="virtual nodes of Ferry's jobs")
    p.add_argument(
        "--directory", type=Path, default=RESULTS, help="folder for all files of all systems; /dev/shm is memory"
    )
    p.add_argument("--flink", type=Path, default=HOME, help="folder of Flink, which pip installs if missing")
    p.add_argument("--flink-checkpoint", default="1s", help="interval of Flink's checkpoints")
    p.add_argument("--quick", action="store_true", help="small and short, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.size, a.rate, a.acts, a.before, a.between, a.warm = "2MB", 10_000, 3, 3.0, 2.0, 3.0
    a.place = "in memory (tmpfs)" if a.directory.is_relative_to("/dev/shm") else "on its disk"
    console = Console(highlight=False)
    bench: Reprogram | None = None
    try:
        with work_directory("reprogram", below=a.directory) as work:
            bench = Reprogram(a, work, console)
            bench.run()
    except KeyboardInterrupt:
        console.print("interrupted")
    if bench is None or not bench.found:
        return 1
    bench.results.write(a.json)
    report.table(console, bench.found)
    for file in report.pictures(a.json, bench.found):
        console.print(f"picture: {file}")
    console.print(f"records: {a.json}")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
