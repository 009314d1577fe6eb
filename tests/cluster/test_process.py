"""Processes of users' files in jobs that are moved, scaled and killed, against plain Python."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.core, pytest.mark.turns, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SEEN, DUE = 0, 1


def written(folder: Path, rows: list[dict[str, Any]], files: int) -> str:
    """The rows as files in their order."""
    folder.mkdir()
    step = -(-len(rows) // files)
    for i in range(files):
        pq.write_table(pa.Table.from_pylist(rows[i * step : (i + 1) * step]), folder / f"{i:02}.parquet")
        os.utime(folder / f"{i:02}.parquet", (1_700_000_000 + i, 1_700_000_000 + i))
    return str(folder)


def job_of(pipeline: str, base: Path, args: dict[str, Any], rows: int) -> Path:
    job = base / "job.yaml"
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": pipeline},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / f"{pipeline}.py"), "args": args},
            "workers": 2, "state": {"virtualNodes": 16}, "epoch": {"maxRows": rows},
        },
    }  # fmt: skip
    job.write_text(json.dumps(spec))
    return job


def test_no_timer_is_lost_and_none_goes_off_twice(tmp_path: Path) -> None:
    draw, hold, files = random.Random(7), 3_000, 14
    records = [
        {"who": f"{draw.randrange(400)} é", "ts": i // 4 * 10, "seq": i, "unused": 0.5} for i in range(files * 1000)
    ]
    until = records[-1]["ts"] * 3 // 4
    args = {"records": written(tmp_path / "records", records, files), "hold": hold, "until": until}
    at = [
        "epoch=2 workers=3", "epoch=3:prepare kill-instance=0.0", "epoch=4:commit kill-worker=1", "epoch=6:begin move=5:2.0",
        "epoch=7:emit kill-driver", "epoch=9:begin workers=2", "epoch=11:ingest kill-instance=1.0",
    ]  # fmt: skip
    result = runner.run(job_of("timers", tmp_path, args, 1000), tmp_path, at=at)
    assert result.code == 0 and not result.left, result.story()
    assert result.changes("switched") and result.changes("promoted") and result.changes("in-sync"), result.story()
    numbers, per_time = Counter[str](), Counter[tuple[str, int]]()
    expected = Counter[tuple[int, str, int, int]]()
    for record in records:
        numbers[record["who"]] += 1
        per_time[record["who"], record["ts"]] += 1
        expected[SEEN, record["who"], record["seq"], numbers[record["who"]]] += 1
    timers = {}
    for (who, ts), count in sorted(per_time.items(), key=lambda one: one[0][1]):
        for time in (ts + hold, *range(ts + 2 * hold, until + 1, hold)):
            timers[who, time] = count  # of one time there is one timer: that of the latest record
    expected.update((DUE, who, time, count) for (who, time), count in timers.items())
    rows = duckdb.sql(
        f"SELECT what, who, \"at\", n FROM read_parquet('{result.output}/reminders/*/*.parquet')"
    ).fetchall()
    found = Counter(rows)
    assert found == expected, ((found - expected).most_common(5), (expected - found).most_common(5))


def test_timers_of_the_clock_go_off_without_records(tmp_path: Path) -> None:
    args = {
        "records": written(tmp_path / "records", [{"k": k, "ts": k} for k in range(300)], 1),
        "after_ms": 4_000,
    }

    def rows(output: Path) -> list[tuple[int, int]]:
        files = f"{output}/alarms/epoch=*/*.parquet"
        if not any(output.glob("alarms/epoch=*/*.parquet")):
            return []
        return duckdb.sql(f"SELECT k, late FROM read_parquet('{files}')").fetchall()

    def meanwhile(running: runner.Running) -> None:
        running.await_that(lambda: len(rows(running.output)) >= 300, "alarm", 200)
        running.process.send_signal(signal.SIGINT)

    result = runner.run(job_of("alarms", tmp_path, args, 1000), tmp_path, meanwhile=meanwhile)
    assert not result.left, result.story()
    found = rows(result.output)
    assert sorted(k for k, _ in found) == list(range(300)), result.story()
    assert all(late >= 0 for _, late in found)


def test_a_process_of_two_inputs_and_an_aggregate_behind_it(tmp_path: Path) -> None:
    draw, hold, files = random.Random(9), 4_000, 10
    orders = [{"id": i * 7 - 100, "ts": i * 10, "cents": draw.randrange(1, 500)} for i in range(files * 800)]
    payments = sorted(
        ({"order": o["id"], "ts": o["ts"] + draw.randrange(2 * hold)} for o in orders if draw.random() < 0.8),
        key=lambda one: one["ts"],
    )
    args = {
        "orders": written(tmp_path / "orders", orders, files), "payments": written(tmp_path / "payments", payments, files),
        "hold": hold,
    }  # fmt: skip
    at = ["epoch=2:commit kill-instance=0.0", "epoch=4 workers=3", "epoch=6:prepare kill-worker=1"]
    result = runner.run(job_of("payments", tmp_path, args, 1500), tmp_path, at=at)
    assert result.code == 0 and not result.left, result.story()
    paid = {p["order"]: p["ts"] for p in payments}
    expected: dict[tuple[str, int], list[int]] = {}
    for order in orders:
        is_paid = paid.get(order["id"], 10**9) <= order["ts"] + hold
        time = max(order["ts"], paid[order["id"]]) if is_paid else order["ts"] + hold
        entry = expected.setdefault(("paid" if is_paid else "unpaid", time // 10_000 * 10_000), [0, 0])
        entry[0] += 1
        entry[1] += order["cents"]
    columns = "what, window_start, orders, cents"
    rows = duckdb.sql(f"SELECT {columns} FROM read_parquet('{result.output}/sums/*/*.parquet')").fetchall()
    assert sorted(rows) == sorted((*key, *values) for key, values in expected.items()), result.story()
