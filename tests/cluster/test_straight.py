"""Sources of Ferry's own straight to sinks, and through SQL, while the driver and a worker die: each record once."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parent / "pipelines" / "straight.py"
SALES, FILES = 600, 3


def write_sales(folder: Path) -> None:
    """The same sales as JSON, as CSV, each with lines that are none, and in a table."""
    for kind in ("json", "csv"):
        (folder / kind).mkdir(parents=True)
    for file in range(FILES):
        mine = range(file * SALES // FILES, (file + 1) * SALES // FILES)
        lines = [json.dumps({"n": n, "shop": f"s{n % 7}", "ts": n * 100}) for n in mine]
        (folder / "json" / f"{file}.json").write_text("\n".join([*lines[:50], "{oops", *lines[50:]]))
        lines = [f'{n * 100};"s{n % 7}";{n}' for n in mine]
        (folder / "csv" / f"{file}.csv").write_text("\n".join(["ts;shop;n", *lines[:50], '7;"open', *lines[50:]]))
    with sqlite3.connect(folder / "sales.db") as sales:
        sales.execute("CREATE TABLE sales (n INTEGER PRIMARY KEY, shop TEXT, ts INTEGER)")
        sales.executemany("INSERT INTO sales VALUES (?, ?, ?)", [(n, f"s{n % 7}", n * 100) for n in range(SALES)])
    sales.close()


def job(folder: Path, **args: Any) -> Path:
    file = folder / "straight.yaml"
    spec = {
        "pipeline": {"file": str(PIPELINE), "args": {"folder": str(folder / "in"), "sales": SALES, **args}}, "workers": 2,
        "cores": 1, "state": {"virtualNodes": 4}, "epoch": {"maxRows": 400}, "deadLetter": {"directory": str(folder / "dead")},
    }  # fmt: skip
    document = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "straight"}, "spec": spec}
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize("sql", [False, True])
def test_each_record_reaches_sinks_straight_behind_its_source_once(tmp_path: Path, sql: bool) -> None:
    write_sales(tmp_path / "in")
    at = ["epoch=1:sink kill-driver", "epoch=2:ingest kill-worker=1"] if sql else ["epoch=1:emit kill-worker=0"]
    result = runner.run(job(tmp_path, sql=sql), tmp_path, None, (), at)
    assert result.code == 0 and not result.left, result.story()

    def rows(name: str, of: str = "n, shop, ts") -> list[tuple[Any, ...]]:
        files = f"read_parquet('{result.output}/{name}/*/*.parquet', hive_partitioning = false)"
        return duckdb.sql(f"SELECT {of} FROM {files} ORDER BY ALL").fetchall()

    right = [(n, f"s{n % 7}", n * 100) for n in range(SALES)]
    for name in ("json", "csv", "table", "poll"):
        assert rows(name) == right, name
    for name in ("odd", "odd_by_sql"):
        assert rows(name) == right[1::2], name
    if sql:
        assert sum(one[0] for one in rows("counts", "sales")) == SALES // 2
    letters = [json.loads(line) for file in tmp_path.glob("dead/*/*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(letter["record"] for letter in letters) == ['7;"open'] * FILES + ["{oops"] * FILES
    assert result.summary["rows"] == 4 * SALES, "each record is counted once"
    modes = [one["text"] for one in result.kinds("mode")] if result.kinds("mode") else []
    assert all(("micro-batch" in mode) == sql for mode in modes)
