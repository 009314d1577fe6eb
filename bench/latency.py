"""`make bench-latency`: time of records from their creation to the sink, when records arrive at a fixed rate.

Ferry with continuous epochs and with micro-batches, vanilla Spark with micro-batches and in Real-time Mode (where it can run
the query: from Kafka to Kafka), and Flink read the same paced stream one after the other: from a generator, from
Kafka, or from files. Records that a system cannot read in time wait, and their waiting time counts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.parts.latency import ferry_case, files_case, flink_case, kafka_case, report, spark_case
from bench.parts.latency.case import COUNTS, FILES, Bench, Measured
from bench.parts.latency.feed_files import PERIOD
from bench.shared.ferry_job import RESULTS, RunFailed, work_directory
from bench.shared.ferry_paced import QUERIES
from bench.shared.flink import HOME
from bench.shared.results import Results

METHOD = """\
Open loop: arrival i of the generator is created at begin + i / rate, and positions of the source follow the clock, \
however long epochs take. Latency of a record: from its creation (whole milliseconds, rounded down) to the moment when \
the sinks have the rows of its epoch. Ferry measures it itself (histograms with 1 % buckets, lines of its timeline); \
for Spark it follows from the offsets of each batch and the time of its commit file. {cores} cores for each system, 2 \
workers and 1 replica of Ferry, one process of Spark (local mode, RocksDB with changelog checkpointing, as many shuffle \
partitions as cores, batches as fast as they come, noop sink; its source is a Python data source that makes Arrow \
batches). Flink: 2 task managers, the query as a process function in Java with state on the heap, buffers of 1 ms, \
checkpoints every {checkpoint}; its generator is its own, with the same mix of keys. An at-least-once sink has a record \
when the record is written, an exactly-once sink when a checkpoint has made the record durable. The first {warm:g} s \
after the first epoch are not counted: JVM and compiled kernels warm up. Rates are arrivals of all streams of the \
generator: 92 % of NEXMark are bids. The generator takes processor time of the tasks, in all systems. counts: each \
change of a count for each of 1,000 keys, JSON from a topic of Kafka to another, 2 partitions; another program writes \
by the clock, and the benchmark reads; both and the broker are on the same cores. Latency there: from the moment when a \
record is due until a consumer that reads committed records has its count; Ferry's sink is exactly once unless the \
system's name says otherwise, Spark's sinks are at least once; batches of Real-time Mode take {realtime}. files: the \
same counts from a directory, with the sinks of the generator's queries (Ferry's writes Parquet). Another program adds \
a file each {period:g} s, with the records that have become due, so half of that time is in the latency of every \
system; a file appears when it is whole, and stays. Parquet, and lines of text for Flink, whose reader of Parquet needs \
jars of Hadoop. Flink looks at the directory each 10 ms, the others before each epoch; for Spark the log of its source \
says which files a batch had, and the name of a file says which records it has."""

Case = Callable[[Bench, str, int], Iterable[Measured]]
GENERATED: dict[str, Case] = {
    "continuous": partial(ferry_case.measure, mode="continuous"),
    "micro-batch": partial(ferry_case.measure, mode="micro-batch"),
    "spark": spark_case.measure,
    "flink": flink_case.measure,
}
TOPICS: dict[str, Case] = {system: partial(kafka_case.measure, system=system) for system in kafka_case.SYSTEMS}
ADDED: dict[str, Case] = {system: partial(files_case.measure, system=system) for system in files_case.SYSTEMS}
CASES = {**dict.fromkeys(QUERIES, GENERATED), COUNTS: TOPICS, FILES: ADDED}
SYSTEMS = list(dict.fromkeys([*GENERATED, *TOPICS]))
"""Real-time Mode refuses sources in Python."""


class Latency:
    """All cases of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        a = self.a = arguments
        self.work, self.console = work, console
        self.found: list[Measured] = []
        self.results = Results(
            "latency",
            METHOD.format(
                cores=a.cores, warm=a.warm, checkpoint=a.flink_checkpoint, realtime=kafka_case.REALTIME, period=PERIOD
            ),
        )

    def run(self) -> None:
        """Every query at every rate, one system after the other."""
        for query in self.a.queries:
            for rate in self.a.rates:
                for system in self.a.systems:
                    if system in CASES[query]:
                        self._one(query, rate, system)

    def _one(self, query: str, rate: int, system: str) -> None:
        with self.console.status(f"{query} at {rate:,}/s: {system}"):
            try:
                for one in CASES[query][system](self, query, rate):
                    self._add(one)
            except RunFailed as failed:
                self.console.print(f"failed: {query} at {rate:,}/s: {system}: {failed}", style="red", markup=False)
                self.results.add(system, query, "failed", str(failed)[:500], "text", query=query, rate=rate)

    def _add(self, one: Measured) -> None:
        query, rate = one.query, one.rate
        if not one.steps:
            self.results.add(one.system, query, "failed", "nothing after the warm-up", "text", query=query, rate=rate)
            return
        self.found.append(one)
        report.add(self.results, one, minutes=self.a.minutes, disturb=" ".join(self.a.disturb))
        whole = one.whole()
        numbers = ", ".join(f"{name} {whole.quantile(share) * 1000:,.1f}" for name, share in report.QUANTILES.items())
        self.console.print(f"  {query} {rate:,}/s  {one.system}: {numbers} ms ({whole.records:,} records)")


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--json", type=Path, default=RESULTS / "latency.json", help="records; pictures are put beside it")
    p.add_argument("--queries", nargs="+", default=list(CASES), choices=list(CASES))
    p.add_argument("--rates", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="arrivals a second")
    p.add_argument("--systems", nargs="+", default=SYSTEMS, choices=SYSTEMS)
    p.add_argument("--minutes", type=float, default=1.0, help="measured time of each case")
    p.add_argument("--warm", type=float, default=10.0, help="seconds of warm-up before the measured time")
    p.add_argument("--interval", default="10ms", help="shortest interval of Ferry's epochs")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--flink", type=Path, default=HOME, help="folder of Flink, which pip installs if missing")
    p.add_argument("--flink-checkpoint", default="1s", help="interval of Flink's checkpoints")
    p.add_argument("--vnodes", type=int, default=16, help="virtual nodes of Ferry's jobs")
    p.add_argument(
        "--disturb",
        nargs="*",
        default=[],
        choices=list(ferry_case.DISTURBANCES),
        help="disturbances of Ferry in each minute",
    )
    p.add_argument("--keep", type=Path, default=None, help="a folder for the timelines of Ferry's runs")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.queries, a.rates, a.minutes, a.warm = a.queries[:1], [2_000], 0.1, 2.0
    console = Console(highlight=False)
    bench: Latency | None = None
    try:
        with work_directory("latency") as work:
            bench = Latency(a, work, console)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
