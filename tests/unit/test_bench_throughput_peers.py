"""Settings of Flink, and of Spark with its state in memory, in `bench/throughput.py`; no test starts them."""

from __future__ import annotations

import argparse
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from bench import throughput
from bench.parts.throughput import flink_sql, inputs
from bench.parts.throughput.report import Asked
from bench.shared import fetching, flink
from bench.shared.ferry_job import RunFailed


def test_spark_in_memory_has_another_store_that_spark_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "rate": 1.0,
        "cores": 2,
        "larger": 1,
        "mode": "",
        "replicas": 0,
        "delay_ms": 1000,
        "skew": [],
        "checkout": None,
    }
    a = argparse.Namespace(**given, systems=["spark", "spark-memory"])
    bench, confs = throughput.Throughput(a, tmp_path, Console(file=io.StringIO())), list[dict[str, Any]]()

    def started(conf: dict[str, Any], work: Path) -> Any:
        confs.append(conf)
        raise RunFailed("not here")

    monkeypatch.setattr(throughput, "SparkJob", started)
    for query in ("ysb", "q3"):
        for name, run in bench._systems(query):
            if name in a.systems:
                with pytest.raises(RunFailed, match="not here"):
                    run(Asked(query), throughput.Batch(tmp_path, 200, 2, 200, 100), 0)
    usual, memory, _, both = (conf["spark"] for conf in confs)
    assert usual == {} and memory.items() < both.items() and memory["spark.sql.adaptive.enabled"] == "false"
    provider = memory["spark.sql.streaming.stateStore.providerClass"].replace(".", "/") + ".class"
    (jar,) = (flink_sql.hadoop()[0].parent).glob("spark-sql_*.jar")
    assert provider in zipfile.ZipFile(jar).namelist()


def flink_conf(query: str, folder: Path) -> dict[str, Any]:
    about = {"system": "flink-rocksdb", "query": query, "input": str(folder), "delay_ms": 61_500, "cores": 3}
    return {**about, **inputs.CASES[query].parameters}


@pytest.mark.parametrize("query", flink_sql.KEYS)
def test_flink_is_told_what_the_other_systems_do(query: str, tmp_path: Path) -> None:
    made = flink_sql.properties(flink_conf(query, tmp_path / "in"), tmp_path)
    case = inputs.CASES[query]
    ((stream, columns),) = case.streams.items()
    assert made["folder"] == f"{tmp_path}/in/{stream}"
    assert re.findall(r"`(\w+)`", made["columns"]) == columns.split()
    runs = [number for number in range(9) if f"rows-{number}" in made]
    for number in runs:
        names = [text.split()[0].strip("`") for text in made[f"sink-{number}"].partition(")")[0].strip("(").split(", ")]
        assert names == case.result.split(", ")
    # Of counts a run more than the measured one and those before it writes what is compared.
    written = [number for number in runs if "filesystem" in made[f"sink-{number}"]]
    assert written == ([flink_sql.RUNS] if query == "hash_count" else runs) and len(runs) >= 2
    if "window_end" in case.result:
        assert made["watermark"] == "t - INTERVAL '0 00:01:01.500' DAY TO SECOND(3)"
        slides = {"nbq5": "00:00:10.000", "ysb": "00:10:00.000", "ysb-100": "00:00:10.000", "cm": "00:00:02.000"}
        assert f"DESCRIPTOR(t), INTERVAL '0 {slides[query]}'" in made["rows-0"]
    assert made["parallelism.default"] == "3" and made["state.backend.type"] == "rocksdb"


JAVA = """#!/bin/sh
echo '{"begin": 1.5, "end": 4.0}'
echo 'words of a library'
echo '{"begin": 5.0, "end": 7.0}'
echo '{"begin": 8.0, "end": 9.5}'
echo '{"begin": 9.5, "end": 99.0}'
echo 'why it failed' >&2
exit %d
"""


@pytest.mark.parametrize("code", [0, 7])
def test_of_flink_the_last_run_counts_and_of_a_key_the_last_change(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "java").write_text(JAVA % code)
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setattr(flink_sql, "environment", lambda: {"PATH": str(tmp_path)})
    for module, name in ((flink, "installed"), (flink, "compiled"), (fetching, "artifact")):
        monkeypatch.setattr(module, name, lambda *_: tmp_path)
    (tmp_path / "in" / "keys").mkdir(parents=True)
    pq.write_table(pa.table({"key": [1, 2, 2]}), tmp_path / "in" / "keys" / "part-0.parquet")
    with flink_sql.FlinkSql(flink_conf("hash_count", tmp_path / "in"), tmp_path / "work") as run:
        (tmp_path / "work" / "out-3").mkdir()
        for part, rows in enumerate(({"key": [1, 2], "num": [1, 1]}, {"key": [2], "num": [2]})):
            pq.write_table(pa.table(rows), tmp_path / "work" / "out-3" / f"part-{part}")
        if code:
            with pytest.raises(RunFailed, match="exit code 7\nwhy it failed"):
                run.finish()
            return
        assert run.finish() == (8.0, 9.5) and run.records == 3
    made = pq.read_table(tmp_path / "work" / "out").to_pylist()
    assert sorted((row["key"], row["num"]) for row in made) == [(1, 1), (2, 2)]
