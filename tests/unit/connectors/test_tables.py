"""A table as a source: rows in the order of a column, the same for the same range, and what does not fit a type."""

from __future__ import annotations

import json
import pickle
import sqlite3
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.connectors.secrets import shown_url
from ferry.connectors.splits import Malformed
from ferry.connectors.table import databases
from ferry.connectors.table import source as tables
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("shop", pa.string())])


class Shop:
    """A file of SQLite."""

    def __init__(self, folder: Path) -> None:
        self.dsn = f"sqlite:///{folder}/shop.db"
        self.own = sqlite3.connect(folder / "shop.db", isolation_level=None)
        self.own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, shop TEXT, at TEXT, more)")

    def add(self, *ids: int, at: str = "") -> None:
        self.own.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)", [(n, f"s{n}", at or f"2024-{n:04}", n) for n in ids]
        )

    def orders(self, schema: pa.Schema = SCHEMA, column: str = "id", **more: Any) -> Any:
        given = {"table": "orders", "every": 0, "settle": 0, **more}
        return ferry.table(self.dsn, schema=schema, column=column, **given)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def read(source: Any, start: Any, stop: Any, tasks: int = 2) -> list[Any]:
    """What tasks read, as rows, and Malformed."""
    splits = json.loads(json.dumps(source.plan(start, stop, tasks)))
    task = pickle.loads(pickle.dumps(source))
    found = [one for split in splits for one in task.read(split)]
    return [row for one in found for row in (one.to_pylist() if isinstance(one, pa.RecordBatch) else [one])]


def test_new_rows_are_read_once_in_their_order(shop: Shop) -> None:
    source, found = shop.orders(), []
    start = position = source.start()
    assert source.latest(start, 10) == start
    for ids in ([3, 1, 2], [], [10, 5]):
        shop.add(*ids)
        later = source.latest(position, 10)
        assert (later == position) == (not ids)
        found += read(source, position, later)
        position = later
    assert [row["id"] for row in found] == [1, 2, 3, 5, 10] and found[0] == {"id": 1, "shop": "s1"}
    assert position == {"after": 10, "rows": 2} and not source.ended(position)


def test_an_epoch_has_about_as_many_rows_as_it_may_have(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CUT_ROWS", 1)
    shop.add(*range(1, 11))
    source = shop.orders()
    start = source.start()
    later = source.latest(start, 7)
    assert later == {"after": 7, "rows": 7}
    splits = source.plan(start, later, 3)
    assert [(one["low"], one["high"], one["rows"]) for one in splits] == [(None, 3, 3), (3, 6, 3), (6, 7, 1)]
    assert [row["id"] for row in read(source, start, later, 3)] == [1, 2, 3, 4, 5, 6, 7]
    assert source.latest(later, 7) == {"after": 10, "rows": 3}


def test_rows_of_one_value_belong_together_and_have_one_order(shop: Shop) -> None:
    shop.add(3, 1, 2, at="2024-01-01")
    shop.add(4, at="2024-01-02")
    source = shop.orders(column="at")
    start = source.start()
    later = source.latest(start, 2)
    assert later == {"after": "2024-01-01", "rows": 3}
    assert [row["id"] for row in read(source, start, later)] == [1, 2, 3]
    assert [row["id"] for row in read(source, later, source.latest(later, 2))] == [4]


def test_the_order_of_rows_of_one_value_is_not_that_of_the_database() -> None:
    assert databases._in_order([(1, "b"), (1, "a"), (2, None), (3, "d"), (3, "c")]) == [
        ("a",),
        ("b",),
        (None,),
        ("c",),
        ("d",),
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=25), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5))
def test_every_row_is_in_one_split_of_one_epoch(
    tmp_path_factory: Any, times: list[int], most: int, tasks: int, cut: int
) -> None:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    for n, at in enumerate(times):
        shop.add(n, at=f"t{at}")
    source, found = shop.orders(column="at", finite=True), []
    position = source.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "CUT_ROWS", cut)
        patch.setattr(databases, "FETCHED_ROWS", cut)
        while not source.ended(position):
            later = source.latest(position, most)
            assert later != position
            mine = read(source, position, later, tasks)
            assert mine == read(shop.orders(column="at", finite=True), position, later, 1), "whoever reads it, and how"
            found += mine
            position = later
    assert sorted(row["id"] for row in found) == [*range(len(times))]


def test_rows_are_taken_when_those_with_smaller_values_had_time_to_come(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(tables, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    source = shop.orders(every="1s", settle="2s")
    start = source.start()
    shop.add(5)
    seen = []
    for after in (0.0, 1.0, 1.5, 2.0, 3.0, 4.0):
        now[0] = 100.0 + after
        if after == 1.0:
            shop.add(4, 7)
        seen.append(source.latest(start, 10)["after"])
    assert seen == [None, None, None, 5, 7, 7]


@pytest.mark.parametrize("change", ["DELETE FROM orders WHERE id = 2", "INSERT INTO orders (id) VALUES (0)"])
def test_a_range_that_has_other_rows_than_before_is_not_read(shop: Shop, change: str) -> None:
    shop.add(1, 2, 3)
    source = shop.orders()
    start = source.start()
    later = source.latest(start, 10)
    (split,) = source.plan(start, later, 2)
    shop.own.execute(change)
    with pytest.raises(RowsGone, match=r"id in \(None, 3\], but the epoch was planned with 3"):
        source.plan(start, later, 2)
    with pytest.raises(RowsGone):
        list(source.read(split))


def test_a_finite_input_ends_with_what_was_there(shop: Shop) -> None:
    assert shop.orders(finite=True).ended(shop.orders(finite=True).start()), "nothing"
    shop.add(1, 2)
    source = shop.orders(finite=True)
    start = source.start()
    shop.add(3)
    later = source.latest(start, 10)
    assert source.ended(later) and [row["id"] for row in read(source, start, later)] == [1, 2]
    shop.own.execute("DELETE FROM orders")
    gone = source.latest(start, 10)
    assert source.ended(gone) and read(source, start, gone) == []
    with pytest.raises(SpecRefused, match="the job began with finite=False"):
        source.latest(shop.orders().start(), 10)


def test_values_that_do_not_fit_set_their_rows_aside(shop: Shop) -> None:
    shop.add(1, 2, 3, 4)
    for n, more in ((1, "2024-01-01T00:00:00Z"), (2, "x"), (3, None), (4, 1.5)):
        shop.own.execute("UPDATE orders SET more = ?, at = NULL WHERE id = ?", (more, n))
    schema = pa.schema([*SCHEMA, ("more", pa.timestamp("ms")), ("at", pa.int8())])
    source = shop.orders(schema=schema)
    start = source.start()
    bad, *rows = read(source, start, source.latest(start, 10))
    assert isinstance(bad, Malformed) and source.sets_aside
    assert [json.loads(one)["id"] for one in bad.records] == [2, 4]
    assert bad.reasons[0] == "orders, row with id in (None, 4]: column 'more': 'x' does not fit timestamp[ms]"
    assert [(row["id"], row["more"]) for row in rows] == [(1, datetime(2024, 1, 1)), (3, None)]
    strict = shop.orders(schema=pa.schema([pa.field("at", pa.string(), nullable=False)]))
    (bad,) = read(strict, start, strict.latest(start, 10))
    assert bad.count == 4 and bad.reasons[0].endswith("column 'at' is null")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1.5, pa.int64()),
        (Decimal("1.5"), pa.int32()),
        (Decimal("NaN"), pa.int8()),
        (Decimal("-Infinity"), pa.int64()),
        (float("inf"), pa.int64()),
        (Decimal("1" * 40), pa.int64()),
        (Decimal("1" * 40 + ".5"), pa.int64()),
        (Decimal("1e400"), pa.float64()),
    ],
)
def test_a_number_of_a_database_that_does_not_fit_is_malformed(value: Any, kind: pa.DataType) -> None:
    schema = pa.schema([("n", kind)])
    found, bad = tables.records([(2.0,), (value,), (Decimal(3),), (None,)], schema)
    assert [row["n"] for row in found.to_pylist()] == [2, 3, None]
    assert bad == {1: f"column 'n': {str(value)!r} does not fit {kind}"}


def test_a_number_of_a_database_may_be_a_double() -> None:
    found, bad = tables.records([(Decimal("1.5"),), (2,)], pa.schema([("n", pa.float64())]))
    assert ([row["n"] for row in found.to_pylist()], bad) == ([1.5, 2.0], {})


def test_a_query_is_a_table_too(shop: Shop) -> None:
    shop.add(1, 2, 3)
    source = shop.orders(table="SELECT id, shop || '%?' AS shop FROM orders WHERE id <> 2;", schema=SCHEMA)
    start = source.start()
    assert [row["shop"] for row in read(source, start, source.latest(start, 10))] == ["s1%?", "s3%?"]


def test_a_database_that_is_away_is_waited_for(shop: Shop, tmp_path: Path) -> None:
    shop.add(1)
    source = shop.orders()
    start = source.start()
    (tmp_path / "shop.db").rename(tmp_path / "away.db")
    away = shop.orders()
    with pytest.raises(Unreachable, match=r"shop\.db: FileNotFoundError: no file"):
        away.latest(start, 10)
    (tmp_path / "away.db").rename(tmp_path / "shop.db")
    assert away.latest(start, 10) == source.latest(start, 10) == {"after": 1, "rows": 1}
    shop.own.execute("DROP TABLE orders")
    with pytest.raises(Unreachable, match="no such table"):
        source.latest(start, 10)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": "nothing"}, "no such table: nothing"),
        ({"column": "nothing"}, "no such column: r.nothing"),
        ({"schema": pa.schema([("nothing", pa.string())])}, "no such column: r.nothing"),
        ({"table": ""}, "table: table ''; give its name"),
        ({"column": None}, "table: column None; give its name"),
        ({"schema": {"id": "int"}}, "give a pyarrow.schema"),
        ({"every": 5}, "table: every: 5 has no unit"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_there_is_refused_when_the_job_begins(shop: Shop, given: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecRefused, match=words):
        shop.orders(**given).start()


def test_a_password_is_named_and_not_shown() -> None:
    def columns(dsn: str) -> Any:
        return ferry.table(dsn, "orders", SCHEMA, "id")

    with pytest.raises(SpecRefused, match="is not a database; give 'postgresql://"):
        columns("mysql://shop")
    pytest.importorskip("psycopg")
    with pytest.raises(SpecRefused, match=r"option 'password' is a secret: .*'password': '\$\{NAME\}'"):
        columns("postgresql://me:secret@db/shop")
    assert repr(columns("postgresql://me:${PASSWORD}@db:5432/shop?sslmode=require")) == (
        "table('postgresql://db:5432/shop', 'orders')"
    )
    assert shown_url("sqlite:////a@b/shop.db") == "sqlite:////a@b/shop.db"
