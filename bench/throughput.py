"""`make bench-throughput`: records per second of ten queries, Ferry and vanilla Spark, and the cost of replication.

All systems read the same Parquet files with the same cores; their outputs are compared before any number is shown.
`--systems` adds Ferry with repartitioned records in place of partial aggregates (`uppar`), a program with one thread
(`single`), Ferry of another checkout (`earlier`, `--checkout`), Flink SQL (`flink`, `flink-rocksdb`), and Spark with its
in-memory state store (`spark-memory`); `--skew` draws keys from Zipf distributions.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench.parts.throughput import inputs
from bench.parts.throughput.flink_sql import BACKENDS, KEYS, RUNS, FlinkSql
from bench.parts.throughput.inputs import CASES
from bench.parts.throughput.method import METHOD
from bench.parts.throughput.report import NAMES, SPARKS, STAGES, Asked, Report, inputs_of
from bench.parts.throughput.single_job import SingleJob
from bench.shared import flink
from bench.shared.ferry_job import RESULTS, ROOT, FerryJob, RunFailed, job_document, work_directory
from bench.shared.processes import KINDS, Watch
from bench.shared.results import Results
from bench.shared.spark_job import SparkJob


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one run."""

    records_per_second: float
    begin: float
    end: float
    records: int
    batch_seconds: float | None = None
    """median time between ends of batches in the measured part"""


def steady(batches: Sequence[tuple[float, int]]) -> Rate:
    """The rate of (end, records) batches, in order, without the first third of the records and a short last batch."""
    full = [b for b in batches if b[1]]
    if len(full) > 2 and full[-1][1] < full[-2][1]:
        full = full[:-1]
    total, passed, first = sum(n for _, n in full), 0, 0
    for first, (_, n) in enumerate(full):  # noqa: B007
        passed += n
        if passed >= total / 3:
            break
    measured = full[first + 1 :]
    if not measured:
        raise RunFailed(f"only {len(full)} full batches: too few to measure; use more records or smaller batches")
    seconds = measured[-1][0] - full[first][0]
    ends = [full[first][0], *(end for end, _ in measured)]
    records = sum(n for _, n in measured)
    gap = statistics.median(b - a for a, b in pairwise(ends))
    return Rate(records / seconds, full[first][0], measured[-1][0], records, gap)


class Batch(NamedTuple):
    """An input, and the size of its batches."""

    folder: Path
    arrivals: int
    files: int
    """of each stream"""
    max_rows: int
    """of an epoch; it takes a file of each stream at least"""
    file_rows: int
    """arrivals per file, of all streams together"""


class Throughput:
    """All cases of one call."""

    def __init__(self, arguments: argparse.Namespace, work: Path, console: Console) -> None:
        self.a, self.work, self.console = arguments, work, console
        a = arguments
        skew = " ".join(f"{one:g}" for one in a.skew) or "none"
        method = METHOD.format(**{**vars(a), "skew": skew}, flink=flink.VERSION, runs=RUNS)
        self.results = Results("throughput", method)
        self.results.add("-", "about", "cores", a.cores, "cores")

    def run(self) -> None:
        """Measure all queries and cases, in the order of the picture."""
        a = self.a
        for one in inputs_of(a):
            self._beside(one)
        if "generator" in a.cases:
            for query in (q for q in a.queries if q in EXAMPLES):
                for n in range(a.repeats):
                    self._generated(query, "own generator", n, virtual_nodes=64, replicas=0, workers=2)
        if "replicas" in a.cases:
            for n in range(a.repeats):
                for replicas in (0, 1, 2):
                    self._generated("nbq5", "replicas", n, virtual_nodes=64, replicas=replicas, workers=3)
        if "stages" in a.cases:
            for n in range(a.repeats):
                for nodes in (64, 1024):
                    for rows in (20_000, a.batch):
                        self._generated("nbq5", "stages", n, virtual_nodes=nodes, replicas=1, workers=2, batch=rows)

    # ---- beside others
    def _beside(self, one: Asked) -> None:
        """Run all systems that have the query, alternating, and compare each output with the first system's output."""
        a, size = self.a, max(self.a.batch // self.a.file_rows, 1)
        batches = [self._input(one, files) for files in sorted({size, size * a.larger})]
        runs = [(name, run) for name, run in self._systems(one.query) if name in a.systems]
        for repeat in range(a.repeats):
            for batch in batches:
                outputs = [(NAMES[name], run(one, batch, repeat)) for name, run in runs]
                for theirs in outputs[1:]:
                    self._compare(one, outputs[0], theirs, batch.arrivals, repeat)
                for _, output in outputs:
                    shutil.rmtree(output.parent)
        for folder in {batch.folder for batch in batches}:
            shutil.rmtree(folder)

    def _systems(self, query: str) -> list[tuple[str, Callable[[Asked, Batch, int], Path]]]:
        """The systems that have a query."""
        alone = [("uppar", self._uppar_files), ("single", self._single_files)] if query in inputs.AGGREGATES else []
        spark = [("spark", self._spark_files), ("spark-memory", self._spark_memory_files)] if CASES[query].peer else []
        sql = [(name, partial(self._flink_files, name)) for name in BACKENDS] if query in KEYS else []
        earlier = [("earlier", self._earlier_files)] if self.a.checkout else []
        return [("ferry", self._ferry_files), *earlier, *spark, *sql, *alone]

    def _input(self, one: Asked, files: int) -> Batch:
        """Batches of this number of files, or of as many arrivals in one file of each stream; writes missing files."""
        a, arrivals = self.a, files * self.a.file_rows
        folder = f"input-{one.query}" if one.skew is None else f"input-{one.query}-zipf-{one.skew:g}"
        batch = Batch(self.work / folder, arrivals, files, arrivals, a.file_rows)
        if CASES[one.query].batch_is_file:
            batch = Batch(self.work / f"{folder}-{files}", arrivals, 1, 1, arrivals)
        if not batch.folder.exists():
            with self.console.status(f"{one.case}: writing {a.events:,} events"):
                number = a.events // batch.file_rows
                records = inputs.write(one.query, batch.folder, number, batch.file_rows, a.seed, a.rate, one.skew)
            self.console.print(f"{one.case}: {records:,} records in {number} files of each stream")
        return batch

    def _ferry_files(
        self, one: Asked, batch: Batch, repeat: int, system: str = "Ferry", root: Path = ROOT, **more: Any
    ) -> Path:
        a, query, work = self.a, one.query, self.work / system.lower()
        args = {
            "directory": str(batch.folder),
            "query": query,
            "delay_ms": a.delay_ms,
            **CASES[query].parameters,
            **more,
        }
        pipeline = {
            "file": str(root / "bench" / "parts" / "throughput" / "queries.py"),
            "args": args,
        }
        job = job_document(
            query.replace("_", "-"), pipeline, workers=2, cores=a.cores, state={"virtualNodes": 64, "replicas": a.replicas},
            epoch={"maxRows": batch.max_rows, "mode": a.mode},
        )  # fmt: skip
        self._measure(job, work, one.case, None, repeat, system, root, **one.parameters, batch=batch.arrivals)
        return work / "out"

    def _earlier_files(self, one: Asked, batch: Batch, repeat: int) -> Path:
        return self._ferry_files(one, batch, repeat, NAMES["earlier"], self.a.checkout.resolve())

    def _uppar_files(self, one: Asked, batch: Batch, repeat: int) -> Path:
        return self._ferry_files(one, batch, repeat, "UpPar", repartitioned=True)

    def _single_files(self, one: Asked, batch: Batch, repeat: int) -> Path:
        a, work = self.a, self.work / "single"
        conf = {
            "query": one.query, "directory": str(batch.folder), "output": str(work / "out"), "delay_ms": a.delay_ms,
            "files_per_batch": batch.files, **CASES[one.query].parameters,
        }  # fmt: skip
        with SingleJob(conf, work) as run, Watch(run.pid, every=0.1) as watch:
            with self.console.status(f"One thread: {one.case}, {batch.arrivals:,} arrivals a batch, repeat {repeat}"):
                batches = run.finish()
        self._record("One thread", one.case, steady(batches), watch, repeat, **one.parameters, batch=batch.arrivals)
        return work / "out"

    def _flink_files(self, system: str, one: Asked, batch: Batch, repeat: int) -> Path:
        a, name, work = self.a, NAMES[system], self.work / system
        conf = {
            "system": system, "query": one.query, "input": str(batch.folder), "delay_ms": a.delay_ms, "cores": a.cores,
            **CASES[one.query].parameters,
        }  # fmt: skip
        with FlinkSql(conf, work) as run, Watch(run.pid, every=0.1) as watch:
            with self.console.status(f"{name}: {one.case}, repeat {repeat}"):
                begin, end = run.finish()
        rate = Rate(run.records / (end - begin), begin, end, run.records)
        self._record(name, one.case, rate, watch, repeat, **one.parameters, batch=batch.arrivals)
        return work / "out"

    def _spark_memory_files(self, one: Asked, batch: Batch, repeat: int) -> Path:
        store = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
        settings = {"spark.sql.streaming.stateStore.providerClass": store, "spark.sql.adaptive.enabled": "false"}
        return self._spark_files(one, batch, repeat, "spark-memory", settings)

    def _spark_files(
        self, one: Asked, batch: Batch, repeat: int, system: str = "spark", settings: dict[str, str] | None = None
    ) -> Path:
        a, query, case, name = self.a, one.query, CASES[one.query], NAMES[system]
        work = self.work / f"{system}-{query}"
        conf = {
            "tuned_files": True, "query": query, "streams": {s: case.spark_schema(s) for s in case.streams},
            "input": str(batch.folder), "output": str(work / "out"), "files_per_batch": batch.files,
            "cores": a.cores, "partitions": a.cores, "delay_ms": a.delay_ms, **case.parameters,
            "spark": settings or {},
        }  # fmt: skip
        if case.batch_is_file:
            conf["spark"]["spark.sql.files.openCostInBytes"] = "0"  # else a small file is read by one task
        with SparkJob(conf, work) as spark, Watch(spark.pid) as watch:
            with self.console.status(f"{name}: {one.case}, {batch.arrivals:,} arrivals a batch, repeat {repeat}"):
                spark.ask("start")
                batches = spark.ask("drain")["batches"]
                spark.ask("write_counts")
        commits = spark.commits()
        rate = steady([(commits[b["batch"]], b["rows"]) for b in batches if b["batch"] in commits])
        self._record(name, one.case, rate, watch, repeat, **one.parameters, batch=batch.arrivals)
        return work / "out"

    def _compare(self, one: Asked, ours: tuple[str, Path], theirs: tuple[str, Path], batch: int, repeat: int) -> None:
        """Compare both results; with Spark, only windows that both closed, because Spark leaves the last ones open."""
        import duckdb

        columns = CASES[one.query].result
        con = duckdb.connect()
        for table, (_, output) in (("ours", ours), ("theirs", theirs)):
            con.execute(f"CREATE TABLE {table} AS SELECT {columns} FROM read_parquet('{output}/**/*.parquet')")
        for table, other, (name, _) in (("ours", "theirs", theirs), ("theirs", "ours", ours)):
            if "window_end" in columns and name in SPARKS:
                con.execute(
                    f"DELETE FROM {table} WHERE window_end > (SELECT coalesce(max(window_end), 0) FROM {other})"
                )
        missing, unexpected, rows = (
            con.execute(f"SELECT count(*) FROM ({x})").fetchall()[0][0]
            for x in ("FROM theirs EXCEPT ALL FROM ours", "FROM ours EXCEPT ALL FROM theirs", "FROM theirs")
        )
        if missing or unexpected or not rows:
            raise RunFailed(
                f"{one.case}: results differ: {missing} rows only of {theirs[0]}, {unexpected} only of {ours[0]}, of {rows}"
            )
        who = "both" if theirs[0] == "Spark" else f"{ours[0]} and {theirs[0]}"
        self.results.add(who, one.case, "equal rows", rows, "rows", **one.parameters, batch=batch, repeat=repeat)
        self.console.print(f"  results of {ours[0]} and {theirs[0]} agree: {rows:,} rows", style="dim")

    # ---- Ferry alone
    def _generated(
        self, query: str, case: str, repeat: int, virtual_nodes: int, replicas: int, workers: int, batch: int = 0
    ) -> None:
        a, rows = self.a, batch or self.a.batch
        arguments = {"seed": a.seed, "rate": a.rate, "delay_ms": a.delay_ms}
        job = job_document(
            query, {"module": f"ferry_workloads.jobs.{query}", "args": arguments}, workers=workers, cores=a.cores,
            state={"virtualNodes": virtual_nodes, "replicas": replicas}, epoch={"maxRows": rows, "mode": a.mode},
        )  # fmt: skip
        events = min(a.events, rows * 60)
        parameters: dict[str, Any] = {"query": query, "batch": rows, "virtual_nodes": virtual_nodes}
        parameters |= {"replicas": replicas, "workers": workers}
        self._measure(job, self.work / "ferry", case, events, repeat, "Ferry", **parameters)

    def _measure(
        self,
        job: dict[str, Any],
        work: Path,
        case: str,
        events: int | None,
        repeat: int,
        system: str,
        root: Path = ROOT,
        **parameters: Any,
    ) -> None:
        text = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{v}" for k, v in parameters.items())
        with FerryJob(job, work, events=events, root=root) as run, Watch(run.process.pid) as watch:
            with self.console.status(f"{system}: {case}: {text}, repeat {repeat}"):
                run.finish(900)
        epochs = run.epochs()
        rate = steady([(e["end"], e["rows"]) for e in epochs])
        self._record(system, case, rate, watch, repeat, **parameters)
        inside = [e for e in epochs if rate.begin < e["end"] <= rate.end]
        for stage in STAGES:
            value = statistics.median(e["stages"].get(stage, 0.0) for e in inside)
            self.results.add(system, case, f"stage {stage}", value, "s", **parameters, repeat=repeat)

    def _record(self, system: str, case: str, rate: Rate, watch: Watch, repeat: int, **parameters: Any) -> None:
        add = self.results.add
        add(system, case, "throughput", rate.records_per_second, "records/s", **parameters, repeat=repeat)
        each = ""
        if rate.batch_seconds is not None:
            add(system, case, "batch", rate.batch_seconds, "s", **parameters, repeat=repeat)
            each = f", {rate.batch_seconds:.3f} s a batch"
        for metric, kinds in (("cpu", KINDS), *((f"{kind} cpu", (kind,)) for kind in KINDS)):
            cpu = watch.cpu_between(rate.begin, rate.end, *kinds) / rate.records * 1e6
            add(system, case, metric, cpu, "s per million records", **parameters, repeat=repeat)
        self.console.print(f"  {system:16}{case:16} {rate.records_per_second:12,.0f} records/s{each}")


EXAMPLES = ("nbq5", "ysb")
"""Queries that are measured with records from their own generators, too."""


def main() -> int:
    """Parse arguments and measure."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument(
        "--json", type=Path, default=RESULTS / "throughput.json", help="records; the picture is put beside it"
    )
    p.add_argument("--events", type=int, default=24_000_000)
    p.add_argument("--batch", type=int, default=1_000_000, help="arrivals per epoch")
    p.add_argument("--larger", type=int, default=3, help="the second batch size is this many times larger")
    p.add_argument("--file-rows", type=int, default=250_000, help="arrivals per file")
    p.add_argument("--rate", type=float, default=100_000.0, help="events per second of event time")
    p.add_argument("--delay-ms", type=int, default=1000, help="delay of the watermark")
    p.add_argument("--cores", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--seed", type=int, default=7)
    p.add_argument("--replicas", type=int, default=0, help="of Ferry's state, beside others")
    p.add_argument("--checkout", type=Path, help="directory of another version of Ferry, for the system `earlier`")
    p.add_argument("--queries", nargs="+", default=[*CASES], choices=[*CASES])
    p.add_argument("--systems", nargs="+", default=["ferry", "spark"], choices=[*NAMES])
    p.add_argument(
        "--skew",
        nargs="+",
        type=float,
        default=[],
        metavar="EXPONENT",
        help="draw keys from Zipf distributions with these exponents",
    )
    p.add_argument("--cases", nargs="*", default=["generator", "replicas", "stages"], help="further cases")
    p.add_argument("--mode", default="continuous", choices=["continuous", "micro-batch"], help="mode of Ferry's epochs")
    p.add_argument("--quick", action="store_true", help="one small run, to test the command, not to measure")
    a = p.parse_args()
    if a.quick:
        a.events, a.batch, a.file_rows, a.repeats, a.rate = 1_000_000, 100_000, 50_000, 1, 10_000.0
    if ("earlier" in a.systems) != bool(a.checkout):
        p.error("--systems earlier and --checkout DIRECTORY belong together")
    if a.skew and (other := [query for query in a.queries if query not in inputs.SKEWED]):
        p.error(f"--skew: the keys of {other[0]} have a fixed distribution; use --queries {' '.join(inputs.SKEWED)}")
    console = Console(highlight=False)
    try:
        with work_directory("throughput") as work:
            bench = Throughput(a, work, console)
            bench.run()
    except KeyboardInterrupt:
        return 130
    except RunFailed as failed:
        console.print(f"failed: {failed}", style="red", markup=False)
        return 1
    report = Report(bench.results, a, console)
    report.ratios()
    report.cpu_ratios()
    bench.results.write(a.json)
    report.tables()
    report.picture(a.json.with_suffix(".png"))
    console.print(f"\nrecords: {a.json}\npicture: {a.json.with_suffix('.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
