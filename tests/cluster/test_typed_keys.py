"""Jobs with keys of many types, with nulls among them, equal DuckDB's groups, under faults and through Spark's SQL."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
FILES, ROWS = 4, 4000
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("ms", "UTC")), ("cents", pa.int64()), ("region", pa.string()), ("day", pa.date32()),
        ("price", pa.decimal128(12, 2)), ("member", pa.bool_()), ("weight", pa.float64()), ("code", pa.binary()),
        ("shop", pa.int32()), ("opened", pa.timestamp("ns")),
    ]
)  # fmt: skip
CHOICES: dict[str, list[Any]] = {
    "region": ["north", "", None],
    "day": [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None],
    "price": [Decimal("0.10"), Decimal("-9999999999.99"), None],
    "member": [True, False, None],
    "weight": [0.0, -0.0, math.nan, 2.5, None],
    "code": [b"\0", None],
    "shop": [0, -1, 7, None],
    "opened": [dt.datetime(1969, 12, 31, 23, 59, 59, 1), dt.datetime(2024, 2, 29), None],
}


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files in the order of their times, to the millisecond."""
    directory, draw = tmp_path_factory.mktemp("sales"), random.Random(7)
    for number in range(FILES):
        rows = [
            {
                "at": dt.datetime.fromtimestamp(number * 10 + draw.randrange(10_000) / 1000, dt.UTC),
                "cents": draw.randint(1, 999),
                **{name: draw.choice(values) for name, values in CHOICES.items()},
            }
            for _ in range(ROWS)
        ]
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=500)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return directory


def run(sales: Path, keys: list[str], again: bool, directory: Path, **more: Any) -> pa.Table:
    """What the job has written."""
    args = {"sales": str(sales), "keys": keys, "again": again}
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "typed"},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / "typed_keys.py"), "args": args},
            "workers": 2, "state": {"virtualNodes": 8}, "epoch": {"maxRows": ROWS},
        },
    }  # fmt: skip
    job = directory / "job.yaml"
    job.write_text(json.dumps(spec))
    result = runner.run(job, directory, **more)
    assert result.code == 0 and not result.left, result.story()
    assert not any(r.get("malformed") for r in result.kinds("epoch")), result.story()
    table = pa.concat_tables([pq.read_table(p) for p in sorted(result.output.glob("sales/*/*.parquet"))])
    for name in ("window_start", "window_end"):
        assert table.schema.field(name).type == pa.timestamp("us" if again else "ms", "UTC"), "that of the event time"
        bounds = table[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        table = table.set_column(table.schema.get_field_index(name), name, bounds)
    return table


def groups(sales: Path, keys: list[str], size_ms: int) -> list[tuple]:
    """By DuckDB, which takes NaN for one value and -0.0 for 0.0, too."""
    by = ", ".join(f"{name} + 0.0 AS {name}" if name == "weight" else name for name in keys)
    begin = f"""epoch_ms("at") // {size_ms} * {size_ms}"""
    return duckdb.sql(f"""
        SELECT {by}, {begin} AS window_start, {begin} + {size_ms} AS window_end, count(*), sum(cents)::BIGINT
        FROM read_parquet('{sales}/*.parquet') GROUP BY ALL""").fetchall()


def told_apart(rows: list[tuple]) -> list[str]:
    """NaN equals nothing, and a null has no order."""
    return sorted(map(repr, rows))


def test_nulls_and_all_types_in_one_key_under_faults(sales: Path, tmp_path: Path) -> None:
    keys = ["region", "day", "price", "member", "weight", "code"]
    at = ["epoch=1 workers=3", "epoch=2:commit kill-instance=0.0"]
    table = run(sales, keys, False, tmp_path, at=at)
    assert [table.schema.field(name).type for name in keys] == [SCHEMA.field(name).type for name in keys]
    expected = groups(sales, keys, 10_000)
    assert told_apart([tuple(row.values()) for row in table.to_pylist()]) == told_apart(expected)
    assert len(expected) > 1000 and any(row[:4] == (None,) * 4 for row in expected)


def test_keys_go_through_sql_between_two_operators(sales: Path, tmp_path: Path) -> None:
    table = run(sales, ["member", "shop", "opened"], True, tmp_path)
    # Spark's timestamps have microseconds.
    assert table.schema.field("opened").type == pa.timestamp("us")
    expected = groups(sales, ["opened::TIMESTAMP AS opened"], 20_000)
    assert told_apart([tuple(row.values()) for row in table.to_pylist()]) == told_apart(expected)
    assert len(expected) == 2 * len(CHOICES["opened"])
