"""What `bench/throughput.py` runs beside Ferry and Spark gives the oracle's rows, and keys by Zipf are as often as they should."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from bench import throughput
from bench.parts.throughput import inputs, single
from bench.parts.throughput.report import NAMES, Asked, Report, inputs_of
from bench.parts.throughput.single_job import SingleJob
from bench.shared.ferry_job import ROOT, RunFailed
from bench.shared.results import Results
from ferry.api.pipeline import Build, Input, MapBatches
from ferry.api.stream import Stream
from ferry.process.harness import ProcessHarness
from ferry.process.shapes import process_of
from ferry.spark.compile import load
from tests.cluster.queries import expected, generate_input, workload_of

FILES = 6
DISORDER = {"group": 50, "delay_prob": 0.1, "late_ms": 2500}
JOB_ARGS: dict[str, dict[str, Any]] = {
    "nbq5": {"rate": 20.0, "window_ms": 60_000, "slide_ms": 10_000},
    "ysb": {"rate": 50.0, "keys": "zipf", "campaigns": 50, "ads_per_campaign": 1, "window_ms": 10_000},
    "ysb-100": {"rate": 50.0, "campaigns": 5, "ads_per_campaign": 10, "window_ms": 10_000},
    "cm": {"rate": 50.0},
    "ro": {"keys": "uniform", "domain": 700},
    "hash_count": {"keys": "zipf", "zipf_s": 1.5, "domain": 300},
}
DELAY_MS = 20_000
"""Beyond the disorder of all of these."""


def written(query: str, folder: Path, events: int = 3000) -> tuple[Any, str]:
    """Files of the oracle's records, in order of arrival, as the benchmark's are; and the rows that are expected of them."""
    args = {**DISORDER, **JOB_ARGS[query]}
    base, case = query.partition("-")[0], inputs.CASES[query]
    generate_input(workload_of(base), events, args, folder / "oracle")
    ((stream, columns),) = case.streams.items()
    rows = pq.read_table(folder / "oracle" / f"{stream}.parquet").sort_by("seq").select(columns.split())
    if query == "hash_count":
        loaded = np.arange(JOB_ARGS[query]["domain"])
        rows = pa.concat_tables([pa.table({"key": loaded}), rows])
    (folder / "input" / stream).mkdir(parents=True)
    step = -(-rows.num_rows // FILES)
    for number in range(FILES):
        some = rows.slice(number * step, step)
        pq.write_table(some, folder / "input" / stream / f"part-{number:05d}.parquet", row_group_size=step // 3)
    return expected(base, folder / "oracle", args)


def conf_of(query: str, folder: Path, files_per_batch: int = 2) -> dict[str, Any]:
    own = {name: value for name, value in JOB_ARGS[query].items() if name in ("window_ms", "ads_per_campaign")}
    return {
        "query": query, "directory": str(folder / "input"), "output": str(folder / "out"), "delay_ms": DELAY_MS,
        "files_per_batch": files_per_batch, **own,
    }  # fmt: skip


def assert_rows(query: str, wanted: tuple[Any, str], made: str) -> None:
    """As a multiset."""
    con, text = wanted
    columns = inputs.CASES[query].result
    theirs, ours = f"SELECT {columns} FROM ({text})", f"SELECT {columns} FROM {made}"
    for one, other in ((theirs, ours), (ours, theirs)):
        assert con.execute(f"{one} EXCEPT ALL {other}").fetchall() == []
    assert con.execute(f"SELECT count(*) FROM {made}").fetchone()[0] > 0


@pytest.mark.parametrize("query", inputs.AGGREGATES)
def test_one_thread_finds_what_the_oracle_does(query: str, tmp_path: Path) -> None:
    wanted = written(query, tmp_path)
    batches = list(single.run(conf_of(query, tmp_path)))
    assert [batch["rows"] > 0 for batch in batches] == [True, True, True, False] and batches[-1]["late"] == 0
    assert_rows(query, wanted, f"read_parquet('{tmp_path}/out/*.parquet')")


def test_one_thread_emits_what_the_watermark_has_passed_and_leaves_out_what_comes_after(tmp_path: Path) -> None:
    conf = {"query": "cm", "directory": "", "output": str(tmp_path), "delay_ms": 500}
    program = single.Program(single.QUERIES["cm"], conf)

    def batch(times: list[int]) -> list[dict[str, Any]]:
        before = program.files
        program.take(pa.record_batch({"ts": times, "job_id": [7] * len(times), "cpu": [0.5] * len(times)}))
        program.batch_over()
        new = [f"{tmp_path}/part-{number:05d}.parquet" for number in range(before, program.files)]
        return [row for file in new for row in pq.read_table(file).to_pylist()]

    assert batch([100, 1900, 2499]) == []
    (first,) = batch([2500, 30])
    assert (first["window_start"], first["window_end"], first["num"], first["total_cpu"]) == (0, 2000, 3, 1.5)
    assert batch([1999]) == [] and program.late == 1
    program.input_over()
    (last,) = pq.read_table(tmp_path / "part-00001.parquet").to_pylist()
    assert (last["window_end"], last["num"], last["avg_cpu"]) == (4000, 2, 0.5)


def test_a_table_keeps_counts_and_sums_while_it_grows() -> None:
    random = np.random.default_rng(3)
    keys = random.integers(-50_000, 50_000, 200_000) * 2**40
    values = random.integers(0, 100, keys.size) / 4.0
    table = single.Table(True, 16)
    for some in range(0, keys.size, 7777):
        table.add(keys[some : some + 7777], values[some : some + 7777])
    found_keys, counts, sums = table.content()
    order = np.argsort(found_keys)
    distinct, number, often = np.unique(keys, return_inverse=True, return_counts=True)
    assert (found_keys[order] == distinct).all() and (counts[order] == often).all()
    assert (sums[order] == np.bincount(number, values)).all()
    assert distinct.size <= table.used < len(table.rows) * 7 // 10 + 1


def test_the_program_says_when_its_batches_were_over(tmp_path: Path) -> None:
    written("cm", tmp_path, events=600)
    with SingleJob(conf_of("cm", tmp_path, 3), tmp_path / "work") as run:
        (first, rows), (last, more) = run.finish()
    assert first < last and rows + more == 600
    with SingleJob({"query": "q7"}, tmp_path / "work") as run, pytest.raises(RunFailed, match="KeyError"):
        run.finish()


def built(query: str, args: dict[str, Any]) -> Build:
    build = Build(lambda function, schema, where: schema)
    case = inputs.CASES[query]
    streams = {one: Stream(build, Input(one, (), case.schema(one), None, 0)) for one in case.streams}
    module = load(None, str(ROOT / "bench" / "parts" / "throughput" / "queries.py"))
    module.pipeline(streams, {"query": query, "directory": "", "delay_ms": DELAY_MS, **args})
    return build


def batches_of(query: str, steps: tuple[Any, ...], folder: Path) -> Iterator[pa.Table]:
    """Records of each file, as tasks make them."""
    case = inputs.CASES[query]
    ((stream, _),) = case.streams.items()
    for file in sorted((folder / stream).glob("*.parquet")):
        rows = pq.read_table(file).cast(case.schema(stream))
        for step in steps:
            assert isinstance(step, MapBatches)
            rows = pa.Table.from_batches([step.function(batch) for batch in rows.combine_chunks().to_batches()])
        yield rows


@pytest.mark.parametrize("query", inputs.AGGREGATES)
def test_repartitioned_records_give_the_oracles_rows_at_one_place(query: str, tmp_path: Path) -> None:
    wanted = written(query, tmp_path)
    case = inputs.CASES[query]
    given = {name: value for name, value in JOB_ARGS[query].items() if name.endswith(("_ms", "per_campaign"))}
    (usual,), (operator,) = built(query, given).operators, built(query, {**given, "repartitioned": True}).operators
    descriptor = operator.descriptor
    assert usual.descriptor.kind == "aggregate" and str(usual.inputs) == str(operator.inputs)
    assert descriptor.kind == "process" and descriptor.shape.parts is None, "tasks send records, and condense nothing"
    (read,) = operator.inputs
    harness = ProcessHarness(process_of(descriptor), read.schema, read.key, time=read.time)
    found, newest = [], 0
    for rows in batches_of(query, read.steps, tmp_path / "input"):
        newest = max(newest, *rows.column("ts").to_pylist()) if read.time else newest
        found.append(harness.epoch(rows, watermark=newest - DELAY_MS if read.time else None))
    found.append(harness.end())
    assert harness.late == 0 and sum(map(len, found)) > 0
    assert sum(map(len, found[:-1])) > 0 or not case.result.count("window_end"), "windows are emitted as they end"
    wanted[0].register("made", pa.concat_tables(found))
    assert_rows(query, wanted, "made")


@pytest.mark.parametrize("skew", [0.2, 0.6, 1.0, 1.5, 2.0])
@pytest.mark.parametrize(("query", "column"), [("ro", "key"), ("ysb", "ad_id")])
def test_keys_by_zipf_are_as_often_as_they_should(query: str, column: str, skew: float, tmp_path: Path) -> None:
    files, rows = 4, 50_000
    ((stream, _),) = inputs.CASES[query].streams.items()
    assert inputs.write(query, tmp_path / "in", files, rows, 7, 100_000.0, skew) == files * rows
    keys = pq.read_table(tmp_path / "in" / stream).column(column).to_numpy()
    assert keys.min() >= 0 and keys.max() < 10_000_000
    # Ranks in parts of equal width on a logarithmic scale: their counts against the sum of the weights.
    bounds = np.unique(np.geomspace(1, 10_000_001, 24).astype(np.int64)) - 1
    weights = np.concatenate([[0.0], np.cumsum(np.arange(1, 10_000_001, dtype=np.float64) ** -skew)])
    share = np.diff(weights[bounds]) / weights[-1]
    count = np.histogram(keys, bounds)[0]
    wanted = share * keys.size
    off = np.abs(count - wanted) / np.sqrt(np.maximum(wanted * (1 - share), 1.0))
    assert off.max() < 5, (count, wanted)


def test_usual_keys_are_those_without_skew(tmp_path: Path) -> None:
    inputs.write("ro", tmp_path / "in", 1, 50_000, 7, 100_000.0)
    keys = pq.read_table(tmp_path / "in" / "keys").column("key").to_numpy()
    assert np.unique(keys).size > 49_000


def arguments(*words: str) -> argparse.Namespace:
    given = {"batch": 200, "file_rows": 100, "larger": 1, "repeats": 1, "cores": 2, "cases": [], "skew": []}
    return argparse.Namespace(**given, systems=list(words), queries=["ro", "ysb"])


def test_a_difference_between_results_ends_the_run(tmp_path: Path) -> None:
    bench = throughput.Throughput.__new__(throughput.Throughput)
    bench.results, bench.console = Results("throughput", ""), Console(file=io.StringIO())
    con = duckdb.connect()
    for name, rows in (
        ("ours", "(1, 0, 10, 5), (1, 10, 20, 6)"),
        ("less", "(1, 0, 10, 5)"),
        ("other", "(1, 0, 10, 4)"),
    ):
        (tmp_path / name).mkdir()
        columns = "campaign_id, window_start, window_end, num"
        con.execute(f"COPY (SELECT * FROM (VALUES {rows}) AS t({columns})) TO '{tmp_path / name / 'x.parquet'}'")

    def compare(system: str, name: str, first: tuple[str, str] = ("Ferry", "ours")) -> None:
        bench._compare(Asked("ysb", 1.0), (first[0], tmp_path / first[1]), (system, tmp_path / name), 100, 0)

    compare("Spark", "less")
    compare("Spark, memory", "less")
    compare("Flink", "ours", ("Spark, memory", "less"))
    compare("UpPar", "ours")
    wrong = [("One thread", "less"), ("UpPar", "less"), ("Spark", "other"), ("UpPar", "other"), ("Flink", "less")]
    for system, name in [*wrong, ("Spark, memory", "other")]:
        with pytest.raises(RunFailed, match=f"only of {system}"):
            compare(system, name)
    with pytest.raises(RunFailed, match="1 rows only of Spark"):
        compare("Spark", "ours", ("Ferry", "less"))  # a window that Spark has closed is not left out


def test_systems_take_turns_at_what_they_can_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = [*NAMES]
    a = arguments(*systems)
    a.larger, a.repeats, a.skew, a.rate, a.mode, a.replicas, a.checkout = 3, 2, [0.5], 1.0, "", 1, tmp_path
    bench, done = throughput.Throughput(a, tmp_path, Console(file=io.StringIO())), list[tuple[Any, ...]]()

    def taken(one: Asked, files: int) -> throughput.Batch:
        (tmp_path / "input").mkdir(exist_ok=True)
        return throughput.Batch(tmp_path / "input", files * 100, files, files * 100, 100)

    def ran(system: str) -> Any:
        def run(*asked: Any) -> Path:
            name, one, batch, repeat = (system, *asked)[
                -4:
            ]  # the method for Flink has the name of the system as a further argument
            done.append((name, one.skew, batch.arrivals, repeat))
            output: Path = tmp_path / name / "out"
            output.mkdir(parents=True)
            return output

        return run

    monkeypatch.setattr(bench, "_input", taken)
    for system in systems:
        if system != "flink-rocksdb":
            monkeypatch.setattr(bench, f"_{system.replace('-', '_')}_files", ran(system))
    monkeypatch.setattr(
        bench,
        "_compare",
        lambda one, ours, theirs, *rest: done.append((ours[0], theirs[0], theirs[1].parent.name, *rest)),
    )
    bench._beside(Asked("ysb", 0.5))
    turn = [*systems, *["Ferry"] * 7]
    assert [entry[0] for entry in done] == turn * 4 and {entry[1] for entry in done[:8]} == {0.5}
    assert done[8:15] == [("Ferry", NAMES[system], system, 200, 0) for system in systems[1:]]
    assert [entry[2:] for entry in done if entry[0] == "spark"] == [(200, 0), (600, 0), (200, 1), (600, 1)]
    assert list(tmp_path.iterdir()) == []
    a.checkout = None
    for query, names in (("q11", ["ferry", "spark", "spark-memory"]), ("nb11", ["ferry"])):
        assert [name for name, _ in bench._systems(query)] == names


def test_the_report_shows_each_system_and_each_exponent(tmp_path: Path) -> None:
    a = arguments("ferry", "uppar", "single")
    a.skew = [0.2, 2.0]
    results, out = Results("throughput", ""), io.StringIO()
    rates = {"Ferry": 3e6, "UpPar": 1e6, "One thread": 6e6}
    for one in inputs_of(a):
        for system, rate in rates.items():
            rate *= 2 if one.skew == 2.0 and system == "Ferry" else 1
            results.add(system, one.case, "throughput", rate, "records/s", **one.parameters, batch=200, repeat=0)
            for repeat, cpu in enumerate((1e6 / rate, 3e6 / rate if system == "Ferry" else 1e6 / rate)):
                parameters = {**one.parameters, "batch": 200, "repeat": repeat}
                results.add(system, one.case, "cpu", cpu, "s per million records", **parameters)
                results.add(system, one.case, "tasks cpu", cpu / 2, "s per million records", **parameters)
    a.repeats = 2
    report = Report(results, a, Console(file=out, width=200))
    report.ratios()
    report.cpu_ratios()
    report.tables()
    report.picture(tmp_path / "picture.png")
    assert results.values(case="ro, zipf", metric="ratio to UpPar, same batch", skew=2.0) == [6.0]
    assert results.values(case="ro, zipf", metric="ratio to One thread, same batch", skew=0.2) == [0.5]
    pairs = results.values(case="ro, zipf", metric="cpu ratio to UpPar", skew=0.2)
    assert pairs == [pytest.approx(1 / 3), pytest.approx(1.0)]
    lines = [line.split() for line in out.getvalue().splitlines()]
    assert any(line[:5] == ["ro,", "0.2", "200", "UpPar", "1,000"] and line[6] == "500" for line in lines)
    assert any(
        line[:4] == ["ro,", "0.2", "200", "UpPar"] and line[-4:] == ["0.6667", "0.3333", "1", "2"] for line in lines
    )
    assert "over UpPar" in out.getvalue() and "ysb, 0.2" in out.getvalue()
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert [panel.title.split(",")[0] for panel in report._of_skew()] == ["ro", "ysb"]
    assert report._of_skew()[0].series["Ferry"] == [3e6, 6e6]


def test_spark_is_judged_by_its_better_store_and_flink_is_shown(tmp_path: Path) -> None:
    a = arguments("ferry", "spark", "spark-memory", "flink-rocksdb")
    results, out = Results("throughput", ""), io.StringIO()
    rates = {"ro": [4e6, 1e6, 3e6, 5e6], "ysb": [6e6, 2e6]}
    for query, each in rates.items():
        for system, rate in zip(("Ferry", "Spark", "Spark, memory", "Flink, RocksDB"), each):
            results.add(system, f"{query}, files", "throughput", rate, "records/s", query=query, batch=200, repeat=0)
    report = Report(results, a, Console(file=out, width=250))
    report.ratios()
    report.tables()
    for metric in ("ratio, best of each", "ratio, Spark's best"):
        assert results.values(case="ro, files", metric=metric) == [pytest.approx(4 / 3)]
        assert results.values(case="ysb, files", metric=metric) == [3.0]
    assert results.values(case="ro, files", metric="ratio to Flink, RocksDB, same batch") == [0.8]
    assert "over Flink, RocksDB" in out.getvalue() and "5,000,000" in out.getvalue()
    assert [*report._of_files()[0].series] == ["Ferry", "Spark", "Spark, memory", "Flink, RocksDB"]


def test_skew_is_refused_for_keys_with_a_fixed_distribution() -> None:
    line = [sys.executable, "-m", "bench.throughput", "--queries", "cm", "--skew", "1.0"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "--skew: the keys of cm have a fixed distribution" in done.stderr
    assert inputs.SKEWED == ("nbq5", "ysb", "ysb-100", "ro", "hash_count")
