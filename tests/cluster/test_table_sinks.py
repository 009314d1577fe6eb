"""Tables of Delta Lake and PostgreSQL have exactly the rows of the job when the driver and a worker are killed under it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import ferry
from ferry.connectors.delta.sink import DeltaSink
from ferry.connectors.iceberg.sink import IcebergSink
from ferry.connectors.marked_sinks import MarkedSink
from ferry.contract.errors import Final
from tests.cluster import runner
from tests.postgres import PASSWORD, PostgresServer
from tests.s3 import S3Server

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("postgres"), pytest.mark.timeout(300)]

PIPELINE = Path(__file__).parent / "pipelines" / "to_tables.py"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    one = PostgresServer()
    yield one
    one.close()


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


@pytest.mark.parametrize("mode", ["continuous", "micro-batch"])
def test_tables_are_exact_when_the_driver_and_a_worker_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: PostgresServer, mode: str
) -> None:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    server.sql("DROP TABLE IF EXISTS sales, totals, ferry_epochs")
    at = ["epoch=3:sink kill-driver", "epoch=4:emit kill-worker=1"]
    result = runner.run(job(tmp_path, server.dsn), tmp_path, None, [f"epoch.mode={mode}"], at=at)
    assert result.code == 0 and not result.left, result.story()
    found, totals = server.sql("SELECT * FROM sales"), server.sql("SELECT * FROM totals")
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


def test_of_two_drivers_one_commits_to_tables_in_a_store_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: PostgresServer
) -> None:
    """The second one has the table as it was before the first one commits. The catalog of Iceberg is in PostgreSQL."""
    store = S3Server(tmp_path)
    server.sql("CREATE DATABASE catalog")
    for name, value in {**store.environment, "PG_PASSWORD": PASSWORD}.items():
        monkeypatch.setenv(name, value)
    key, endpoint = store.environment["AWS_ACCESS_KEY_ID"], f"http://127.0.0.1:{store.port}"
    lake = {"aws_endpoint_url": endpoint, "aws_allow_http": "true", "aws_region": "us-east-1"}
    catalog = {
        "type": "sql",
        "uri": server.dsn.replace("postgresql:", "postgresql+psycopg:").replace("/shop", "/catalog"),
        "warehouse": "s3://checkpoints/warehouse",
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": key,
        "s3.secret-access-key": "${AWS_SECRET_ACCESS_KEY}",
    }
    rows = pa.table({"n": [1, 2]})

    def overtaken(method: Any) -> Any:
        def first_the_other(self: MarkedSink, mark: Any) -> Any:
            if (other := before.pop(self, None)) is not None:
                other.write(0, 2, rows)
            return method(self, mark)

        return first_the_other

    monkeypatch.setattr(DeltaSink, "_properties", overtaken(DeltaSink._properties))
    monkeypatch.setattr(IcebergSink, "_summary", overtaken(IcebergSink._summary))
    before: dict[MarkedSink, MarkedSink] = {}
    try:
        for kind in ("delta", "iceberg"):
            slow, fast = (
                ferry.delta("s3://checkpoints/lake/sales", storage_options=lake)
                if kind == "delta"
                else ferry.iceberg("shop.sales", catalog=catalog)
                for _ in range(2)
            )
            for sink in (slow, fast):
                sink.expect(rows.schema)
                sink.identify("job", "run")
                sink.open(-1)
            before[slow] = fast
            with pytest.raises(Final, match=r"generation 2 writes; this driver is of 1$"):
                slow.write(0, 1, rows)
            table = fast._table()
            found = table.to_pyarrow_table() if kind == "delta" else table.scan().to_arrow()
            assert sorted(found["n"].to_pylist()) == [1, 2], kind
            assert PASSWORD not in repr(fast) and store.environment["AWS_SECRET_ACCESS_KEY"] not in repr(fast)
    finally:
        store.kill()
