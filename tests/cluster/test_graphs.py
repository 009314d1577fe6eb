"""Operators in graphs that are no chains, and pipelines without operators, under moves and kills, against DuckDB."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.cluster import queries, runner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HERE = Path(__file__).parent

TABLES = """
  short AS (SELECT auction, ts // 10000 * 10000 AS window_start, window_start + 10000 AS window_end, count(*) AS num,
                   max(price) AS top FROM '{input}/bid.parquet' GROUP BY auction, ts // 10000),
  busy AS (SELECT bidder, ts // 20000 * 20000 AS window_start, window_start + 20000 AS window_end, count(*) AS num
           FROM '{input}/bid.parquet' GROUP BY bidder, ts // 20000),
  who AS (SELECT id AS who, ts FROM '{input}/person.parquet' UNION ALL SELECT seller, ts FROM '{input}/auction.parquet'
          UNION ALL SELECT bidder, ts FROM '{input}/bid.parquet'),
  seen AS (SELECT who, ts // 60000 * 60000 AS window_start, window_start + 60000 AS window_end, count(*) AS num
           FROM who GROUP BY who, ts // 60000),
  placed AS (SELECT auction, num, top, (window_end - 1) // 60000 * 60000 AS w FROM short),
  wide AS (SELECT auction, w AS window_start, w + 60000 AS window_end, sum(num)::BIGINT AS total FROM placed
           WHERE top < 50000000 GROUP BY auction, w),
  pairs AS (SELECT w AS window_start, w + 60000 AS window_end, auction, num, total
           FROM placed JOIN wide USING (auction) WHERE (wide.window_end - 1) // 60000 * 60000 = w),
  owned AS (SELECT w AS window_start, w + 60000 AS window_end, id AS auction, seller, num, placed.top AS top
            FROM '{input}/auction.parquet' a JOIN placed ON a.id = placed.auction AND ts // 60000 * 60000 = w),
  sold AS (SELECT window_start, window_end, auction, top, seller, name
           FROM owned JOIN '{input}/person.parquet' p ON p.id = seller AND p.ts // 60000 * 60000 = window_start),
  people AS (SELECT seq, id, name FROM '{input}/person.parquet' WHERE state = 'OR')"""

NAMES = ("short", "busy", "seen", "wide", "pairs", "owned", "sold", "people")


def job(directory: Path, file: str, args: dict[str, Any]) -> Path:
    """A document for one of the pipelines."""
    spec = {
        "pipeline": {"file": str(HERE / "pipelines" / file), "args": args},
        "workers": 2,
        "state": {"virtualNodes": 16},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "graph"}, "spec": spec}
    (directory / "job.yaml").write_text(json.dumps(document))
    return directory / "job.yaml"


def test_a_graph_with_sinks_at_every_stage_under_faults(tmp_path: Path) -> None:
    events, args = 120_000, {"seed": 17, "rate": 500, "group": 100}
    queries.generate_input("nexmark", events, args, tmp_path / "oracle")
    at = [
        "epoch=1:prepare workers=3", "epoch=2:emit kill-driver", "epoch=3:commit kill-instance=0.0",
        "epoch=4:ingest kill-worker=1", "epoch=5:begin move=5:2.0", "epoch=6:sink kill-driver", "epoch=7:begin workers=2",
    ]  # fmt: skip
    result = runner.run(job(tmp_path, "graph.py", args), tmp_path, events, ["epoch.maxRows=10000"], at)
    assert result.code == 0 and not result.left, result.story()
    tables = TABLES.format(input=tmp_path / "oracle")
    for name in NAMES:
        found = f"SELECT * FROM read_parquet('{result.output}/{name}/*/*.parquet', hive_partitioning = false)"
        con = duckdb.connect()
        columns = ", ".join(c[0] for c in con.sql(f"DESCRIBE {found}").fetchall())
        expected = f"WITH {tables} SELECT {columns} FROM {name}"
        missing = con.sql(f"{expected} EXCEPT ALL SELECT {columns} FROM ({found})").fetchall()
        extra = con.sql(f"SELECT {columns} FROM ({found}) EXCEPT ALL ({expected})").fetchall()
        count = con.sql(f"SELECT count(*) FROM ({found})").fetchall()[0][0]
        assert count and not missing and not extra, (
            f"{name}: {count} rows, missing {missing[:3]}, unexpected {extra[:3]}"
        )
    assert result.summary["rows"] == events, "each record is counted once"
