"""Tables of Delta Lake and PostgreSQL have exactly the rows of the job when the driver and a worker are killed under it."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cluster import runner
from tests.postgres import PASSWORD, PostgresServer

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("postgres"), pytest.mark.timeout(300)]

PIPELINE = Path(__file__).parent / "pipelines" / "to_tables.py"


def job(folder: Path, dsn: str) -> Path:
    """A job file; its orders come in ten files, one second after the other."""
    (folder / "orders").mkdir()
    for file in range(10):
        shops = [f"shop {n % 37}" for n in range(400)]
        times = [file * 1_000 + n * 2 for n in range(400)]
        orders = pa.table({"shop": shops, "ts": times, "cents": [file * n for n in range(400)]})
        pq.write_table(orders, folder / "orders" / f"{file}.parquet")
    spec = {
        "pipeline": {"file": str(PIPELINE), "args": {"orders": str(folder / "orders"), "dsn": dsn}},
        "workers": 2,
        "epoch": {"maxRows": 400},
        "state": {"virtualNodes": 8},
    }
    made = {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "tables"}, "spec": spec}
    path = folder / "tables.yaml"
    path.write_text(json.dumps(made))
    return path


def test_tables_are_exact_when_the_driver_and_a_worker_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    server = PostgresServer()
    try:
        at = ["epoch=3:sink kill-driver", "epoch=4:emit kill-worker=1"]
        result = runner.run(job(tmp_path, server.dsn), tmp_path, None, at=at)
        assert result.code == 0 and not result.left, result.story()
        found, totals = server.sql("SELECT * FROM sales"), server.sql("SELECT * FROM totals")
    finally:
        server.close()
    delta = DeltaTable(result.output / "sales").to_pyarrow_table()
    orders = f"read_parquet('{tmp_path}/orders/*.parquet')"
    windows = (
        f"SELECT shop, ts // 1000 * 1000 AS w, w + 1000, count(*), sum(cents)::BIGINT FROM {orders} GROUP BY shop, w"
    )
    expected = sorted(duckdb.sql(windows).fetchall())
    assert sorted(found) == expected
    assert sorted(tuple(row.values()) for row in delta.to_pylist()) == expected
    assert sorted(totals) == sorted(
        duckdb.sql(f"SELECT shop, sum(cents)::BIGINT FROM {orders} GROUP BY shop").fetchall()
    )
    written = (
        [one for path in result.directory.rglob("*") if path.is_file() for one in [path.read_bytes()]]
        if result.directory
        else []
    )
    assert written and not any(PASSWORD.encode() in one for one in written), "the password is in a file of the run"
