"""What the pipeline of `pipelines/graph.py` has to write to each of its sinks, said in SQL over the generator's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb

from ferry.process.joins import HOW
from tests.cluster import queries

HERE = Path(__file__).parent

TABLES = """
  short AS (SELECT auction, ts // 10000 * 10000 AS window_start, window_start + 10000 AS window_end, count(*) AS num,
                   max(price) AS top FROM '{input}/bid.parquet' GROUP BY auction, ts // 10000),
  busy AS (SELECT bidder, ts // 20000 * 20000 AS window_start, window_start + 20000 AS window_end, count(*) AS num
           FROM '{input}/bid.parquet' GROUP BY bidder, ts // 20000),
  who AS (SELECT id AS who, ts FROM '{input}/person.parquet' UNION ALL SELECT seller, ts FROM '{input}/auction.parquet'
          UNION ALL SELECT bidder, ts FROM '{input}/bid.parquet'),
  seen AS (SELECT who, ts // 60000 * 60000 AS window_start, window_start + 60000 AS window_end, count(*) AS num,
                  count(DISTINCT ts) AS times FROM who GROUP BY who, ts // 60000),
  once AS (SELECT DISTINCT who, ts FROM who),
  times AS (SELECT who, ts // 30000 * 30000 - k * 30000 AS window_start, window_start + 60000 AS window_end, count(*) AS num
            FROM once, range(2) AS r(k) GROUP BY ALL),
  dearest AS (SELECT bidder, ts // 10000 * 10000 - k * 10000 AS window_start, window_start + 20000 AS window_end,
                     row_number() OVER (PARTITION BY bidder, window_start ORDER BY price DESC, ts, seq) AS rank, seq, price
              FROM '{input}/bid.parquet', range(2) AS r(k) QUALIFY rank <= 3),
  placed AS (SELECT auction, num, top, (window_end - 1) // 60000 * 60000 AS w FROM short),
  wide AS (SELECT auction, w AS window_start, w + 60000 AS window_end, sum(num)::BIGINT AS total FROM placed
           WHERE top < 50000000 GROUP BY auction, w),
  pairs AS (SELECT w AS window_start, w + 60000 AS window_end, auction, num, total
           FROM placed JOIN wide USING (auction) WHERE (wide.window_end - 1) // 60000 * 60000 = w),
  owned AS (SELECT w AS window_start, w + 60000 AS window_end, id AS auction, seller, num, placed.top AS top
            FROM '{input}/auction.parquet' a JOIN placed ON a.id = placed.auction AND ts // 60000 * 60000 = w),
  sold AS (SELECT window_start, window_end, auction, top, seller, name
           FROM owned JOIN '{input}/person.parquet' p ON p.id = seller AND p.ts // 60000 * 60000 = window_start),
  near AS (SELECT a.id AS auction, a.ts AS opened, reserve, bidder, b.ts AS offered, price
           FROM '{input}/auction.parquet' a {how} JOIN
                (FROM '{input}/bid.parquet' WHERE price >= 50000000 OR price < 200) b
                ON a.id = b.auction AND reserve <= price AND b.ts >= a.ts - 1000 AND b.ts < a.ts + 2000),
  tally AS (SELECT bidder, coalesce(opened, offered) // 10000 * 10000 AS window_start, window_start + 10000 AS window_end,
                   count(*) AS num FROM near GROUP BY ALL),
  people AS (SELECT seq, id, name FROM '{input}/person.parquet' WHERE state = 'OR')"""

NAMES = (
    "short", "busy", "seen", "wide", "pairs", "owned", "sold", "near", "tally", "once", "times", "dearest", "people",
)  # fmt: skip


def job(directory: Path, args: dict[str, Any]) -> Path:
    """A document for the pipeline, written to the directory."""
    spec = {
        "pipeline": {"file": str(HERE / "pipelines" / "graph.py"), "args": args},
        "workers": 2,
        "state": {"virtualNodes": 16},
    }
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "graph"}, "spec": spec}
    (directory / "graph.yaml").write_text(json.dumps(document))
    return directory / "graph.yaml"


def difference(events: int, args: dict[str, Any], output: Path, work: Path) -> tuple[list[Any], list[Any]]:
    """(rows missing, rows not expected) of a run, each with the name of its sink before it."""
    queries.generate_input("nexmark", events, args, work / "oracle")
    how = HOW[1:][args["seed"] % 3]
    tables, con = TABLES.format(input=work / "oracle", how=how), duckdb.connect()
    missing, extra = list[Any](), list[Any]()
    for name in NAMES:
        con.execute(f"CREATE TABLE {name} AS WITH {tables} SELECT * FROM {name}")
        columns = ", ".join(column for column, *_ in con.execute(f"DESCRIBE {name}").fetchall())
        files = [str(file) for file in output.glob(f"{name}/*/*.parquet")]
        source = f"read_parquet({files}, hive_partitioning = false)" if files else f"(FROM {name} LIMIT 0)"
        found = f"SELECT {columns} FROM {source}"
        missing += con.execute(f"SELECT '{name}', * FROM (FROM {name} EXCEPT ALL {found})").fetchall()
        extra += con.execute(f"SELECT '{name}', * FROM ({found} EXCEPT ALL FROM {name})").fetchall()
    return missing, extra
