"""Jobs that aggregate columns of many types, with nulls among them, equal plain Python's, under faults and through Spark."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import statistics
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cluster import runner

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
FILES, ROWS = 4, 2000
CENT = pa.decimal128(12, 2)
SCHEMA = pa.schema(
    [
        ("at", pa.timestamp("ms", "UTC")), ("shop", pa.int32()), ("price", CENT), ("day", pa.date32()), ("member", pa.bool_()),
        ("took", pa.duration("us")), ("opened", pa.timestamp("ns")), ("great", pa.decimal128(38, 10)),
        ("note", pa.string()),
    ]
)  # fmt: skip
Row = dict[str, Any]
DIGITS = Context(prec=60)


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Files in the order of their times, to the millisecond, and all that is in them. Prices differ within a shop."""
    directory, draw, everything = tmp_path_factory.mktemp("sales"), random.Random(8), []
    prices = iter(draw.sample(range(-(10**12) + 1, 10**12), FILES * ROWS))
    for number in range(FILES):
        rows = [
            {
                "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=number * 10_000 + 5 * i),
                "shop": draw.randrange(40),
                "price": Decimal(next(prices)).scaleb(-2) if draw.random() < 0.9 else None,
                "day": dt.date(2024, 2, 1) + dt.timedelta(days=draw.randrange(60)),
                "member": draw.choice([True, False, None]),
                "took": draw.choice([dt.timedelta(microseconds=draw.randrange(10**9)), None]),
                "opened": dt.datetime(1969, 12, 31) + dt.timedelta(seconds=draw.randrange(10**6)),
                "great": Decimal(draw.randrange(-(10**34), 10**34)).scaleb(-10, DIGITS),
                "note": draw.choice([None, "", "e", "é", "\uffff", "\U0001f600", f"{draw.randrange(500)} é"]),
            }
            for i in range(ROWS)
        ]
        draw.shuffle(rows)
        path = directory / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=500)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        everything += rows
    return directory, everything


def run(directory: Path, again: bool, where: Path, **more: Any) -> dict[str, pa.Table]:
    """What the job has written, by sink."""
    spec = {
        "apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "metadata": {"name": "values"},
        "spec": {
            "pipeline": {"file": str(HERE / "pipelines" / "typed_values.py"), "args": {"sales": str(directory), "again": again}},
            "workers": 2, "state": {"virtualNodes": 8}, "epoch": {"maxRows": ROWS},
        },
    }  # fmt: skip
    job = where / "job.yaml"
    job.write_text(json.dumps(spec))
    result = runner.run(job, where, **more)
    assert result.code == 0 and not result.left, result.story()
    assert not any(r.get("malformed") for r in result.kinds("epoch")), result.story()
    files: dict[str, list[Path]] = {}
    for path in sorted(result.output.glob("*/*/*.parquet")):
        files.setdefault(path.parts[-3], []).append(path)
    return {name: pa.concat_tables([pq.read_table(p) for p in some]) for name, some in files.items()}


def window(row: Row, size_ms: int) -> int:
    return int(row["at"].timestamp() * 1000) // size_ms * size_ms


def known(rows: list[Row], name: str) -> list[Any]:
    return [row[name] for row in rows if row[name] is not None]


def expected(rows: list[Row], size_ms: int, by_shop: bool) -> dict[tuple, Row]:
    """By shop and window."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["shop"] if by_shop else 0, window(row, size_ms)), []).append(row)
    return {name: aggregated(some) for name, some in groups.items()}


def aggregated(rows: list[Row]) -> Row:
    prices, ranked = known(rows, "price"), [r for r in rows if r["price"] is not None]
    with localcontext(DIGITS):
        total, great = sum(prices), sum(known(rows, "great"))
        usual = (total / len(prices)).quantize(Decimal("0.000001"), ROUND_HALF_UP)
    return {
        "total": total,
        "usual": usual,
        "low": min(prices),
        "high": max(prices),
        "since": min(known(rows, "at")),
        "until": max(known(rows, "at")),
        "day": max(rows, key=lambda r: (r["at"], r["day"]))["day"],
        "member": max(known(rows, "member")),
        "took": sum(known(rows, "took"), dt.timedelta()),
        "dearest": max(ranked, key=lambda r: r["price"])["opened"],
        "great": great,
    }


def test_values_of_all_types_under_faults(sales: tuple[Path, list[Row]], tmp_path: Path) -> None:
    directory, rows = sales
    at = ["epoch=1 workers=3", "epoch=2:commit kill-instance=0.0"]
    tables = run(directory, False, tmp_path, at=at)
    table = tables["sales"]
    assert {name: table.schema.field(name).type for name in table.schema.names[3:]} == {
        "total": pa.decimal128(22, 2), "usual": pa.decimal128(16, 6), "low": CENT, "high": CENT,
        "since": pa.timestamp("ms", "UTC"), "until": pa.timestamp("ms", "UTC"), "day": pa.date32(), "member": pa.bool_(),
        "took": pa.duration("us"), "dearest": pa.timestamp("ns"), "great": pa.decimal128(38, 10), "prices": pa.int64(),
    }  # fmt: skip
    found = {(row["shop"], row["window_start"]): row for row in table.to_pylist()}
    right = expected(rows, 10_000, True)
    assert found.keys() == right.keys() and len(right) == table.num_rows == 40 * FILES
    for name, row in right.items():
        assert {column: found[name][column] for column in row} == row, name
    texts_are_right(tables, rows)


def texts_are_right(tables: dict[str, pa.Table], rows: list[Row]) -> None:
    """Those of windows, sessions, windows of rows and all time, by shop; prices and times differ within a shop."""
    expected: dict[str, dict[tuple, Row]] = {"windows": {}, "sessions": {}, "rows": {}, "ever": {}}
    for shop in range(40):
        mine = sorted((row for row in rows if row["shop"] == shop), key=lambda row: row["at"])
        times = [millis(row["at"]) for row in mine]
        expected["ever"][(shop,)] = {c: v for c, v in noted(mine).items() if c not in ("a", "z")}
        for start in range(-5_000, FILES * 10_000, 5_000):
            if some := [row for row, time in zip(mine, times, strict=True) if start <= time < start + 10_000]:
                expected["windows"][shop, start] = noted(some)
        opens = [i for i in range(len(mine)) if i == 0 or times[i] - times[i - 1] > 300]
        for begin, end in zip(opens, [*opens[1:], len(mine)], strict=True):
            expected["sessions"][shop, times[begin]] = noted(mine[begin:end])
        for i in range(len(mine)):
            expected["rows"][shop, times[i]] = noted(mine[max(0, i - 4) : i + 1])
    for name, right in expected.items():
        table = tables[name]
        assert {table.schema.field(c).type for c in ("low", "high", "dearest")} == {pa.string()}
        assert table.schema.field("total").type == pa.decimal128(22, 2) and table.num_rows == len(right), name
        for row in table.to_pylist():
            at = next((millis(row[name]) for name in ("window_start", "at") if name in row), None)
            wanted = right[(row["shop"],) if at is None else (row["shop"], at)]
            assert row["spread"] == pytest.approx(wanted.pop("spread")), (name, row)
            assert {column: row[column] for column in wanted} == wanted, (name, row)


def millis(time: dt.datetime) -> int:
    return round(time.timestamp() * 1000)


def noted(rows: list[Row]) -> Row:
    """Of rows in the order of their times."""
    notes, prices = known(rows, "note"), known(rows, "price")
    both = [row for row in rows if row["note"] is not None and row["price"] is not None]
    return {
        "low": min(notes, default=None),
        "high": max(notes, default=None),
        "a": notes[0] if notes else None,
        "z": notes[-1] if notes else None,
        "dearest": max(both, key=lambda r: r["price"])["note"] if both else None,
        "greatest": max(both, key=lambda r: (r["note"], r["price"]))["price"] if both else None,
        "total": sum(prices) if prices else None,
        "usual": (sum(prices) / len(prices)).quantize(Decimal("0.000001"), ROUND_HALF_UP) if prices else None,
        "spread": statistics.stdev(map(float, prices)) if len(prices) > 1 else None,
        "notes": len(notes),
    }


def test_values_go_through_sql_between_two_operators(sales: tuple[Path, list[Row]], tmp_path: Path) -> None:
    directory, rows = sales
    table = run(directory, True, tmp_path)["sales"]
    assert table.schema.field("total").type == pa.decimal128(32, 2)
    assert table.schema.field("since").type == pa.timestamp("us", "UTC")
    found = {(0, row["window_start"]): row for row in table.to_pylist()}
    # A window of the second operator has the rows whose window of the first one ends in it.
    shifted = [{**row, "end": window(row, 10_000) + 10_000} for row in rows]
    groups: dict[int, list[Row]] = {}
    for row in shifted:
        groups.setdefault((row["end"] - 1) // 20_000 * 20_000, []).append(row)
    assert {start for _, start in found} == set(groups)
    for start, some in groups.items():
        right = aggregated(some)
        right["member"] = min(
            max(known([r for r in some if (r["shop"], r["end"]) == g], "member"))
            for g in {(r["shop"], r["end"]) for r in some}
        )
        assert {c: found[0, start][c] for c in right if c not in ("usual", "day")} == {
            c: v for c, v in right.items() if c not in ("usual", "day")
        }
