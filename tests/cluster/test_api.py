"""The steps of the API in jobs: Spark's frames, Ferry's splits, SQL, batch functions, every aggregate, printed rows."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import queries, runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

HERE = Path(__file__).parent

FIRST = """
  bids AS (SELECT auction, price, ts, price / 4 AS quarter, 'c' || (bidder % 3) AS channel FROM read_parquet('{bids}')
           WHERE seq % 10 <> 3),
  spread AS (SELECT *, (ts // 5000 - k) * 5000 AS start FROM bids, range(2) AS r(k)),
  first AS (SELECT auction, channel, start + 10000 AS end, count(*) AS num, sum(price) AS total, min(price) AS low,
                   max(quarter) AS high, avg(price) AS mean, max(price) FILTER (ts = latest) AS last
            FROM (SELECT *, max(ts) OVER (PARTITION BY auction, channel, start) AS latest FROM spread)
            GROUP BY auction, channel, start HAVING count(*) > 1)"""

EXPECTED = """WITH {first},
  placed AS (SELECT *, (first.end - 1) // 20000 * 20000 AS window_start FROM first WHERE first.end <= {watermark})
  SELECT channel, window_start, window_start + 20000 AS window_end, count(*) AS rows, sum(num)::BIGINT AS bids,
         sum(total)::BIGINT AS total, min(low) AS low, max(high) AS high, max(last) AS best, round(max(mean), 6) AS mean
  FROM placed WHERE window_start + 20000 <= {watermark} GROUP BY channel, window_start"""


def test_frames_sql_and_two_operators_under_faults(tmp_path: Path) -> None:
    parts, events = 8, 40_000
    bids = tmp_path / "bids"
    bids.mkdir()
    queries.generate_input("nexmark", events, {"seed": 11, "rate": 500}, tmp_path / "oracle")
    table = pq.read_table(tmp_path / "oracle" / "bid.parquet")
    step = -(-table.num_rows // parts)
    for i in range(parts):
        pq.write_table(table.slice(i * step, step), bids / f"{i:02}.parquet")
        # Spark takes the files in the order of their times, to the millisecond; one out of order would be late.
        os.utime(bids / f"{i:02}.parquet", (1_700_000_000 + i, 1_700_000_000 + i))
    job = tmp_path / "job.yaml"
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "frames"},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / "frames.py"), "args": {"bids": str(bids)}},
            "workers": 2, "state": {"virtualNodes": 16},
        },
    }  # fmt: skip
    job.write_text(json.dumps(spec))

    def meanwhile(running: runner.Running) -> None:
        def read() -> bool:
            return sum(r["rows"] for r in running.records() if r["kind"] == "epoch") >= table.num_rows * 0.9

        running.await_epoch(6, 300)
        # Spark ends its query then, outside of any epoch; that must not pass for the end of the input.
        for process in runner.processes_of(running.home):
            if any("python_streaming_source_runner" in word for word in process.cmdline()):
                process.kill()
        # Only that makes a third one; on a slow machine the end of the bids is known before the end of their source.
        running.await_that(lambda: sum(r["kind"] == "ready" for r in running.records()) == 3, "third driver", 180)
        running.await_that(read, "end of the bids", 180)
        running.await_that(
            lambda: any(r["kind"] == "epoch" and r["epoch"] >= parts - 1 for r in running.records()), "last epoch", 60
        )
        runner.stop(running)

    at = [
        "epoch=1 workers=3",
        "epoch=2:prepare kill-instance=0.0",
        "epoch=3:commit kill-worker=1",
        "epoch=5:emit kill-driver",
    ]
    result = runner.run(job, tmp_path, at=at, meanwhile=meanwhile)
    assert result.code == 0 and not result.left, result.story()
    assert len(result.kinds("ready")) == 3, result.story()
    watermark = max(r["watermark"] for r in result.kinds("epoch") if r["watermark"] is not None)
    first = FIRST.format(bids=f"{bids}/*.parquet")
    expected = duckdb.sql(EXPECTED.format(first=first, watermark=watermark)).fetchall()
    columns = "channel, window_start, window_end, rows, bids, total, low, high, best, round(mean, 6)"
    actual = duckdb.sql(f"SELECT {columns} FROM read_parquet('{result.output}/frames/*/*.parquet')").fetchall()
    assert len(actual) > 6, result.story()
    assert sorted(actual) == sorted(expected)


def test_batch_functions_around_sql_on_splits_and_printed_rows(tmp_path: Path) -> None:
    files, draw = 6, random.Random(5)
    sales, regions = tmp_path / "sales", {0: "north", 1: "south", 2: "south", 3: "west"}
    sales.mkdir()
    expected: dict[tuple[int, str], list[int]] = {}
    prices: dict[tuple[int, str], set[int]] = {}
    for number in range(files):
        rows = [
            (draw.randint(0, 5), number * 10_000 + draw.randrange(10_000), draw.randint(-50, 999)) for _ in range(5000)
        ]
        table = pa.table({n: [row[i] for row in rows] for i, n in enumerate(("shop", "ts", "cents"))})
        pq.write_table(table, sales / f"{number}.parquet", row_group_size=1000)
        os.utime(sales / f"{number}.parquet", (1_700_000_000 + number, 1_700_000_000 + number))
        for shop, ts, cents in rows:
            if cents > 0 and shop in regions:
                key = ts // 10_000 * 10_000 + 10_000, regions[shop]
                prices.setdefault(key, set()).add(cents)
                entry = expected.setdefault(key, [0, 0, 0])
                for i, value in enumerate((1, cents // 5, cents)):
                    entry[i] += value
    job = tmp_path / "job.yaml"
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "sales"},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / "sales.py"), "args": {"sales": str(sales)}},
            "workers": 2, "state": {"virtualNodes": 8}, "epoch": {"maxRows": 5000},
        },
    }  # fmt: skip
    job.write_text(json.dumps(spec))
    result = runner.run(job, tmp_path, at=["epoch=2:commit kill-instance=0.0", "epoch=3:ingest kill-worker=1"])
    assert result.code == 0 and not result.left, result.story()
    assert result.directory is not None
    printed = (result.directory / "logs" / "driver.log").read_text()
    line = r'^   region="(\w+)", window_end=(\d+), num=(\d+), tax=(\d+), prices=(\d+), mean=(\d+)$'
    rows = re.findall(line, printed, re.MULTILINE)
    shown = {(int(end), region): [int(num), int(tax), int(mean)] for region, end, num, tax, _, mean in rows}
    # The input is always the same, and so is what is about right.
    assert all(0.85 < int(about) / len(prices[int(end), region]) < 1.15 for region, end, _, _, about, _ in rows)
    right = {key: [num, tax, total // num] for key, (num, tax, total) in expected.items()}
    assert len(rows) == len(shown) and shown.items() <= right.items()
    # Of the three regions of each window two are printed, and how many there are.
    epochs = [(int(e), int(n)) for e, n in re.findall(r"^-- epoch (\d+): (\d+) rows$", printed, re.MULTILINE)]
    assert sum(n for _, n in epochs) == len(right) and len(shown) == sum(min(n, 2) for _, n in epochs)
    assert len({epoch for epoch, _ in epochs}) == len(epochs) > 3
