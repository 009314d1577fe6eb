"""Records per second of one StatefulProcessor of PySpark, a running count, on Ferry and on vanilla Spark.

Both read the same files; Spark needs the package `protobuf` for StatefulProcessors. The final counts are compared before any
number is shown.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from bench.shared.ferry_job import ROOT, FerryJob, RunFailed, job_document, work_directory
from bench.shared.results import Results, show
from bench.shared.spark_job import SparkJob

METHOD = """\
A running count by key in value state, one output row for each key of a batch; the same class in both. Parquet files, \
one a batch, keys drawn evenly; {cores} cores each, runs alternate, fresh processes. Spark: RocksDB with changelog \
checkpointing, {cores} shuffle partitions, the next batch as soon as possible; its checkpoint files have the default \
settings: with the tuned settings of the other benchmarks Spark cannot commit this state. Ferry: 2 workers, 64 virtual \
nodes, no replicas. records/s: input between the end of the second batch and the end of the last, divided by the time \
between. Final counts are compared."""


def write(folder: Path, files: int, rows: int, keys: int) -> None:
    """The input."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(files):
        table = pa.table(
            {
                "k": random.integers(0, keys, rows),
                "ts": pa.array(np.arange(rows) + number * rows, pa.timestamp("ms", "UTC")).cast(
                    pa.timestamp("us", "UTC")
                ),
            }
        )
        pq.write_table(table, folder / f"{number:04}.parquet", row_group_size=-(-rows // 2))
        os.utime(folder / f"{number:04}.parquet", (1_700_000_000 + number,) * 2)


def rate(ends: Sequence[float], rows: int) -> float:
    """Records a second from the end of the second batch on."""
    if len(ends) < 4:
        raise RunFailed(f"only {len(ends)} batches: too few to measure")
    return (len(ends) - 2) * rows / (ends[-1] - ends[1])


def on_ferry(folder: Path, work: Path, rows: int, cores: int) -> list[float]:
    """Ends of Ferry's epochs."""
    pipeline = {"file": str(ROOT / "bench/parts/stateful_processor/job.py"), "args": {"directory": str(folder)}}
    state = {"virtualNodes": 64, "replicas": 0}
    job = job_document("counting", pipeline, workers=2, cores=cores, state=state, epoch={"maxRows": rows})
    with FerryJob(job, work) as run:
        run.finish()
        return [epoch["end"] for epoch in run.epochs() if epoch["rows"]]


def on_spark(folder: Path, work: Path, cores: int) -> list[float]:
    """Ends of Spark's batches."""
    conf = {
        "tuned_files": False, "processor": "bench.parts.stateful_processor.counting",
        "input": str(folder), "output": str(work / "out"),
        "files_per_batch": 1, "cores": cores, "partitions": cores,
    }  # fmt: skip
    with SparkJob(conf, work) as spark:
        spark.ask("start")
        batches = spark.ask("drain")["batches"]
        commits = spark.commits()
    return [commits[batch["batch"]] for batch in batches if batch["rows"]]


def counted(files: str) -> str:
    """The last count of every key."""
    return f"SELECT k, max(n) AS n FROM read_parquet('{files}', hive_partitioning = false) GROUP BY k"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--rows", type=int, default=50_000, help="of a file, which is a batch")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results, rows = Results("stateful_processor", METHOD.format(cores=args.cores)), []
    with work_directory("stateful-processor") as work:
        write(work / "input", args.files, args.rows, args.keys)
        for repeat in range(args.repeats):
            ours, theirs = work / f"ferry-{repeat}", work / f"spark-{repeat}"
            found = {
                "Ferry": rate(on_ferry(work / "input", ours, args.rows, args.cores), args.rows),
                "Spark": rate(on_spark(work / "input", theirs, args.cores), args.rows),
            }
            here, there = counted(f"{ours}/out/rows/*/*.parquet"), counted(f"{theirs}/out/*.parquet")
            for one, other in ((here, there), (there, here)):
                if differing := duckdb.sql(f"{one} EXCEPT {other}").fetchall():
                    raise RunFailed(f"{len(differing)} keys have other counts: {differing[:3]}")
            for system, value in found.items():
                parameters = {"repeat": repeat, "keys": args.keys, "batch": args.rows}
                results.add(system, "running count", "records/s", value, "1/s", **parameters)
                rows.append((system, repeat, f"{value:,.0f}"))
    show(Console(), "running count, records/s", ("system", "repeat", "records/s"), rows)
    if args.json is not None:
        results.write(args.json)


if __name__ == "__main__":
    main()
