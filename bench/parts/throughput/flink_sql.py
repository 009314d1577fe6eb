"""Flink's side of the throughput benchmark: queries as SQL, which `bench/shared/SqlJob.java` runs over Parquet files."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from bench.parts.throughput.inputs import CASES
from bench.shared import fetching, flink
from bench.shared.ferry_job import RunFailed, environment

SOURCE = Path(flink.__file__).with_name("SqlJob.java")
PARQUET = f"org.apache.flink:flink-sql-parquet:{flink.VERSION}"

RUNS = 3
"""Of a query in one JVM; the last one is measured."""

SETTINGS = {
    "execution.checkpointing.interval": "10 s", "execution.checkpointing.incremental": "true",
    "pipeline.object-reuse": "true", "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true", "table.exec.mini-batch.allow-latency": "10 s",
    "table.exec.mini-batch.size": "1000000", "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "taskmanager.memory.managed.size": "1gb", "taskmanager.memory.network.min": "128mb",
    "taskmanager.memory.network.max": "128mb",
}  # fmt: skip
BACKENDS = {"flink": "hashmap", "flink-rocksdb": "rocksdb"}
"""Systems, and the state backend of each."""

TYPES = {"long": "BIGINT", "float": "FLOAT", "string": "STRING"}
"""Spark's names of types, and Flink's."""

EPOCH, BLACKHOLE = "TIMESTAMP '1970-01-01 00:00:00'", "'connector' = 'blackhole'"

KEYS = {"nbq5": "auction", "ysb": "campaign_id", "ysb-100": "campaign_id", "cm": "job_id", "hash_count": "`key`"}
"""Of each query that Flink runs."""


def query_of(conf: dict[str, Any]) -> tuple[str, str, str]:
    """The view `events`, the query over it, and the columns of the result; bounds of windows are milliseconds."""
    query, key = conf["query"], KEYS[conf["query"]]
    if query == "hash_count":
        counts = f"SELECT {key}, COUNT(*) AS num FROM input GROUP BY {key}"
        return counts, "SELECT * FROM events", f"{key} BIGINT, num BIGINT"
    view, aggregates, more = "SELECT * FROM input", "COUNT(*)", ""
    window = f"TUMBLE(TABLE events, DESCRIPTOR(t), {_interval(conf.get('window_ms', 2_000))})"
    if query == "nbq5":
        window = f"HOP(TABLE events, DESCRIPTOR(t), {_interval(10_000)}, {_interval(60_000)})"
    elif query == "cm":
        aggregates = "COUNT(*), SUM(CAST(cpu AS DOUBLE)), AVG(CAST(cpu AS DOUBLE))"
        more = ", total_cpu DOUBLE, avg_cpu DOUBLE"
    else:
        view = f"SELECT ad_id / {conf['ads_per_campaign']} AS {key}, t FROM input WHERE event_type = 'view'"
    start, end = (f"1000 * CAST(TIMESTAMPDIFF(SECOND, {EPOCH}, window_{x}) AS BIGINT)" for x in ("start", "end"))
    rows = f"SELECT {key}, {start}, {end}, {aggregates} FROM TABLE({window}) GROUP BY {key}, window_start, window_end"
    return view, rows, f"{key} BIGINT, window_start BIGINT, window_end BIGINT, num BIGINT{more}"


def properties(conf: dict[str, Any], work: Path) -> dict[str, str]:
    """The settings of `SqlJob`: the query `RUNS` times, and hash_count a further time, which writes its counts."""
    case, counts = CASES[conf["query"]], conf["query"] == "hash_count"
    ((stream, columns),) = case.streams.items()
    view, rows, result = query_of(conf)
    types = (column.split() for column in case.spark_schema(stream).split(", "))
    made = {
        "folder": f"{conf['input']}/{stream}", "view": view,
        "columns": ", ".join(f"`{name}` {TYPES[kind]}" for name, kind in types),
    }  # fmt: skip
    if "ts" in columns.split():
        made |= {"time": "TO_TIMESTAMP_LTZ(ts, 3)", "watermark": f"t - {_interval(conf['delay_ms'])}"}
    for run in range(RUNS):
        made[f"rows-{run}"] = rows
        made[f"sink-{run}"] = f"({result}) WITH ({BLACKHOLE if counts else _files(work / f'out-{run}')})"
    if counts:
        changes = "input => TABLE events, op_mapping => MAP['INSERT', 'new', 'UPDATE_AFTER', 'new']"
        made[f"rows-{RUNS}"] = f"SELECT `key`, num FROM TO_CHANGELOG({changes})"
        made[f"sink-{RUNS}"] = f"({result}) WITH ({_files(work / f'out-{RUNS}')})"
    return made | SETTINGS | {
        "state.backend.type": BACKENDS[conf["system"]], "parallelism.default": str(conf["cores"]),
        "taskmanager.numberOfTaskSlots": str(conf["cores"]), "execution.checkpointing.dir": f"file://{work}/checkpoints",
        "io.tmp.dirs": str(work / "tmp"),
    }  # fmt: skip


def _interval(ms: int) -> str:
    minutes, rest = divmod(ms, 60_000)
    return f"INTERVAL '0 {minutes // 60:02}:{minutes % 60:02}:{rest / 1000:06.3f}' DAY TO SECOND(3)"


def _files(folder: Path) -> str:
    return f"'connector' = 'filesystem', 'format' = 'parquet', 'path' = 'file://{folder}'"


class FlinkSql:
    """One process of Flink that runs a query some times. Use as a context."""

    def __init__(self, conf: dict[str, Any], work: Path) -> None:
        """`conf`: system, query and its parameters, input, delay_ms, cores; `work` is emptied, the result is in `out`."""
        shutil.rmtree(work, ignore_errors=True)
        (work / "tmp").mkdir(parents=True)
        self.conf, self.work = conf, work
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> FlinkSql:
        home, work = flink.installed(flink.HOME), self.work
        jars = [fetching.artifact(PARQUET, flink.HOME / "jars"), *hadoop()]
        jar = flink.compiled(home, work, SOURCE, jars)
        (work / "log4j.properties").write_text(f"{flink.LOG4J}appender.out.target = SYSTEM_ERR\n")
        (work / "job.properties").write_text("".join(f"{k}={v}\n" for k, v in properties(self.conf, work).items()))
        with open(work / "log", "wb") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx3g", "-XX:+UseParallelGC", f"-Dlog4j.configurationFile={work / 'log4j.properties'}",
                 f"-Djava.io.tmpdir={work / 'tmp'}", *(f"--add-opens=java.base/{p}=ALL-UNNAMED" for p in flink.OPENED),
                 "-cp", ":".join(map(str, [jar, home / "lib" / "*", *jars])), "SqlJob", str(work / "job.properties")],
                env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def finish(self) -> tuple[float, float]:
        """Wait for its end: when the measured run began and ended. Raises RunFailed unless it ended well."""
        assert self._process is not None and self._process.stdout is not None
        runs = [json.loads(line) for line in self._process.stdout if line.startswith("{")]
        if self._process.wait():
            log = (self.work / "log").read_text(errors="replace")
            raise RunFailed(f"Flink ended with exit code {self._process.returncode}\n{log[-2000:]}")
        self._write_result()
        return runs[RUNS - 1]["begin"], runs[RUNS - 1]["end"]

    @property
    def records(self) -> int:
        """Of the input."""
        return sum(pq.read_metadata(file).num_rows for file in Path(self.conf["input"]).glob("*/*.parquet"))

    def _write_result(self) -> None:
        """The rows of the last run in one file; of the changes of a count the last one, which is the greatest."""
        columns, last = CASES[self.conf["query"]].result, sorted(self.work.glob("out-*"))[-1]
        rows = f"SELECT {columns} FROM read_parquet('{last}/part-*')"
        if self.conf["query"] == "hash_count":
            rows = f"SELECT key, max(num) AS num FROM ({rows}) GROUP BY key"
        (self.work / "out").mkdir()
        duckdb.execute(f"COPY ({rows}) TO '{self.work / 'out' / 'rows.parquet'}'")


def hadoop() -> list[Path]:
    """Hadoop's client, which Flink's Parquet needs: Spark has it."""
    spark = find_spec("pyspark")
    assert spark is not None and spark.submodule_search_locations is not None
    return sorted((Path(spark.submodule_search_locations[0]) / "jars").glob("hadoop-client-*.jar"))
