"""The pure parts of `bench/latency.py`: what a checkpoint of Spark says of latencies, and how cases are told."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

from bench.parts.latency import feed_files, ferry_case, files_case, report, spark_case
from bench.parts.latency.case import Measured
from bench.parts.latency.feed import KEYS
from bench.parts.latency.topics import Counts
from bench.shared import ferry_paced
from bench.shared.results import Results
from ferry.contract.latency import LatencyHistogram, bucket_of

BEGIN = 1_800_000_000.0


def histogram(seconds: float, count: int) -> LatencyHistogram:
    return LatencyHistogram({bucket_of(seconds): count})


def write_batches(checkpoint: Path, batches: list[tuple[dict[str, int], float]]) -> None:
    """By offset and by when it ended, after the begin."""
    for folder in ("offsets", "commits"):
        (checkpoint / folder).mkdir()
    for batch, (offset, end) in enumerate(batches):
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        commit = checkpoint / "commits" / str(batch)
        commit.write_text("v1\n{}")
        os.utime(commit, (BEGIN + end, BEGIN + end))


def test_latencies_of_spark_follow_from_offsets_and_commit_files(tmp_path: Path) -> None:
    since = int(BEGIN * 1e6)
    ends = [(100, 0.2), (100, 0.3), (1000, 1.5)]
    write_batches(tmp_path, [({"since": since, "read": read}, end) for read, end in ends])
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n{}")
    first, none, last = spark_case.steps_of(tmp_path, 1000)
    assert [one[1].records for one in (first, none, last)] == [100, 0, 900]
    # Records 0 to 99 were created within 0.1 s, the others within 0.9 s.
    for (_, found), greatest, least in ((first, 0.2, 0.101), (last, 1.4, 0.501)):
        assert math.isclose(found.quantile(1.0), greatest, rel_tol=0.01)
        assert math.isclose(found.quantile(1e-9), least, rel_tol=0.01)


def test_what_is_done_to_a_job_is_spread_over_each_minute() -> None:
    done: list[Any] = []
    run: Any = SimpleNamespace(scale=done.append, kill=done.append, move_half=lambda *who: done.append(who))
    acts = ferry_case.plan(run, 2, ["driver", "scale", "worker"])
    assert [(at, what) for at, what, _ in acts] == [
        (15, "scale to 3"), (30, "kill worker"), (45, "kill driver"),
        (75, "scale to 2"), (90, "kill worker"), (105, "kill driver"),
    ]  # fmt: skip
    acts += ferry_case.plan(run, 2, ["move"])
    assert [(at, what) for at, what, _ in acts[6:]] == [(15, "move from 0.0"), (75, "move from 1.0")]
    for _, _, act in acts:
        act()
    assert done == [3, "1", "driver", 2, "1", "driver", ("0.0", "1.0"), ("1.0", "0.0")]
    assert ferry_case.plan(run, 5, []) == [] and [at for at, *_ in ferry_case.plan(run, 0.1, ["worker"])] == [3]


def test_cases_are_told_whole_and_by_the_second(tmp_path: Path) -> None:
    steps = [(BEGIN + n / 4, histogram(0.01 if n < 8 else 1.0, 10)) for n in range(12)]
    one = Measured("Ferry, continuous", "nbq5", 1000, steps, [(BEGIN + 2, "kill worker")])
    assert one.whole().records == 120 and [(s, h.records) for s, h in one.seconds()] == [(0, 40), (1, 40), (2, 40)]
    results = Results("latency", "method")
    report.add(results, one, minutes=1)
    assert results.values(metric="records") == [120]
    (p50,), (p99,) = results.values(metric="p50"), results.values(metric="p99")
    assert math.isclose(p50, 0.01, rel_tol=0.01) and math.isclose(p99, 1.0, rel_tol=0.01)
    assert [round(v, 1) for v in results.values(metric="p50 of a second")] == [0.0, 0.0, 1.0]
    (file,) = report.pictures(tmp_path / "latency.json", [one, Measured("Spark, micro-batch", "nbq5", 1000, steps[:5])])
    assert file.name == "latency-nbq5-1000.png" and file.read_bytes().startswith(b"\x89PNG")


def test_a_backlog_at_the_end_is_waited_for() -> None:
    lines = [{"kind": "latency", "t": BEGIN + t, "max": most} for t, most in ((9.9, 0.1), (15.0, 5.2), (15.3, 0.2))]
    assert [ferry_paced.is_behind(lines[:many], BEGIN + 10) for many in range(4)] == [False, False, False, True]


def test_counts_tell_of_all_records_that_are_in_them() -> None:
    counts = Counts(BEGIN, 1000)
    counts.add(BEGIN - 1, [{"k": key, "n": 1} for key in range(KEYS)])
    assert counts.newest.sum() == KEYS and counts.between(0, BEGIN * 2) == []
    # Key 3 is of records 3, 1003, 2003: due after 0.003, 1.003 and 2.003 s. A count may come late, and again.
    counts.add(BEGIN + 0.103, [{"k": 3, "n": 2}])
    counts.add(BEGIN + 2.203, [{"k": 3, "n": 3}, {"k": 3, "n": 4}, {"k": 7, "n": 2}, {"k": 3, "n": 2}])
    counts.add(BEGIN + 3, [{"k": 7, "n": 2}])
    (t1, one), (t2, three) = counts.between(BEGIN, BEGIN + 10)
    assert (t1, t2) == (BEGIN + 0.103, BEGIN + 2.203) and (one.records, three.records) == (1, 3)
    for found, share, seconds in ((one, 1.0, 0.1), (three, 0.1, 0.2), (three, 0.6, 1.2), (three, 1.0, 2.196)):
        assert math.isclose(found.quantile(share), seconds, rel_tol=0.015)
    assert [h.records for _, h in counts.between(BEGIN + 0.005, BEGIN + 2)] == [2]


def test_files_hold_what_their_names_say_and_appear_whole(tmp_path: Path) -> None:
    numbers = range(KEYS * 3 - 1, KEYS * 3 + 2)
    for kind in feed_files.WRITERS:
        feed_files.write(tmp_path, kind, numbers, 400, BEGIN)
    name = f"{KEYS * 3 - 1}_{KEYS * 3 + 2}"
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{name}.csv", f"{name}.parquet"]
    assert feed_files.numbers_in(f"file:///somewhere/{name}.parquet").tolist() == list(numbers)
    times = [int(BEGIN * 1000) + ms for ms in (7497, 7500, 7502)]
    table = pq.read_table(tmp_path / f"{name}.parquet")
    assert table.schema.equals(feed_files.COLUMNS)
    assert table.to_pydict() == {"k": [KEYS - 1, 0, 1], "t": times}
    assert (tmp_path / f"{name}.csv").read_text() == "".join(f"{k},{t}\n" for k, t in zip([KEYS - 1, 0, 1], times))


def test_latencies_of_spark_follow_from_the_log_of_its_files(tmp_path: Path) -> None:
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    lines = [
        json.dumps({"path": f"file:///in/{name}.parquet", "timestamp": 1, "batchId": taken})
        for name, taken in (("-1000_0", 0), ("0_100", 1), ("100_200", 2), ("200_300", 2), ("300_400", 3))
    ]
    # A compacted log repeats what is in others; a hidden file is none.
    for name, some in (("0", lines[:1]), ("1", lines[1:2]), ("2.compact", lines[:4]), ("3", lines[4:]), (".4", ["{"])):
        (log / name).write_text("\n".join(["v1", *some]))
    # The second batch has two steps of the log, the last one has not ended.
    write_batches(tmp_path, [({"logOffset": 0}, -5.0), ({"logOffset": 2}, 0.5)])
    (tmp_path / "offsets" / "2").write_text('v1\n{}\n{"logOffset":3}')
    folder = files_case.GrowingFolder(tmp_path, "parquet", 1000)
    folder.begin = BEGIN
    (_, first), (end, second) = files_case.spark_steps(folder, tmp_path)
    assert (first.records, second.records, end) == (1000, 300, BEGIN + 0.5)
    assert math.isclose(second.quantile(1.0), 0.5, rel_tol=0.01)
    assert math.isclose(second.quantile(1e-9), 0.201, rel_tol=0.01)
