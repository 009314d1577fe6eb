"""A table of Iceberg has each epoch once: repeated, crashed between, of two drivers, restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog

import ferry
from ferry.connectors import marked_sinks, secrets
from ferry.connectors.iceberg.sink import IcebergSink
from ferry.contract.errors import Final, SpecRefused, Unreachable

SCHEMA = pa.schema([("shop", pa.string()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_sinks, "TRY_SECONDS", 0.001)


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table({"shop": [shop for shop, _ in values], "n": [n for _, n in values]}, schema=SCHEMA)


def properties(base: Path) -> dict[str, str]:
    (base / "warehouse").mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{base}/catalog.db", "warehouse": f"file://{base}/warehouse"}


def catalog(base: Path) -> Catalog:
    return load_catalog("default", **properties(base))


def declared(base: Path, run: str = "run", schema: pa.Schema = SCHEMA, **more: Any) -> IcebergSink:
    sink = ferry.iceberg("shop.sales", catalog=properties(base), **more)
    sink.expect(schema)
    sink.identify("job", run)
    return sink


def opened(base: Path, committed: int = -1, run: str = "run", **more: Any) -> IcebergSink:
    sink = declared(base, run, **more)
    sink.open(committed)
    return sink


def there(base: Path) -> list[tuple[Any, ...]]:
    sales = catalog(base).load_table("shop.sales").scan().to_arrow()  # noqa: F841  DuckDB looks it up
    found: list[tuple[Any, ...]] = duckdb.sql("SELECT shop, n FROM sales ORDER BY ALL").fetchall()
    return found


def test_an_epoch_is_there_once(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    assert there(tmp_path) == []
    sink.write(3, 1, rows(("a", 1), ("a", 1)))
    sink.write(3, 1, rows(("a", 1), ("a", 1)))
    opened(tmp_path, committed=3).write(3, 2, rows(("a", 1), ("a", 1)))
    sink.write(4, 2, rows(("b", 2)))
    assert there(tmp_path) == [("a", 1), ("a", 1), ("b", 2)]
    last = catalog(tmp_path).load_table("shop.sales").current_snapshot()
    assert last is not None and last.summary is not None
    assert (last.summary["ferry.epoch"], last.summary["ferry.sink"]) == ("4", "ferry.job.shop.sales")


def test_a_lost_answer_of_a_commit_is_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    put = IcebergSink._put

    def lost(self: IcebergSink, *args: Any) -> None:
        put(self, *args)
        raise Unreachable("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(IcebergSink, "_put", lost)
        with pytest.raises(Unreachable):
            sink.write(0, 1, rows(("a", 1)))
    sink.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]


def test_of_two_drivers_in_one_epoch_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has looked at the table before the first one commits; the library would put it behind that."""
    slow, fast = opened(tmp_path), opened(tmp_path)
    summary = IcebergSink._summary

    def first_the_other(self: IcebergSink, mark: Any) -> dict[str, str]:
        if self is slow:
            fast.write(0, 2, rows(("a", 1)))
        return summary(self, mark)

    monkeypatch.setattr(IcebergSink, "_summary", first_the_other)
    with pytest.raises(Final, match=r"generation 2 writes; this driver is of 1$"):
        slow.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]


def test_another_run_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path, run="first").write(0, 1, rows(("a", 1)))
    with pytest.raises(SpecRefused, match=r"rows of another run \(first\), up to its epoch 0.*another name="):
        opened(tmp_path, run="second")
    opened(tmp_path, run="second", name="again").write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1), ("a", 1)]


def test_a_restore_takes_back_later_epochs_and_stops_the_driver_before(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for epoch in range(4):
        before.write(epoch, 1, rows((f"epoch {epoch}", epoch)))
    restored = declared(tmp_path, "next")
    for _ in range(2):
        restored.truncate_after(1)
    assert there(tmp_path) == [("epoch 0", 0), ("epoch 1", 1)]
    restored.open(1)
    with pytest.raises(Final, match="another driver has restored the job"):
        before.write(4, 1, rows(("z", 9)))
    restored.write(2, 2, rows(("other", 2)))
    declared(tmp_path, "third").truncate_after(0)
    assert there(tmp_path) == [("epoch 0", 0)]


def test_a_restore_may_keep_the_rows_and_does_not_touch_those_of_others(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for epoch in range(2):
        before.write(epoch, 1, rows((f"epoch {epoch}", epoch)))
    catalog(tmp_path).load_table("shop.sales").append(rows(("a colleague's", 7)))
    restored = declared(tmp_path, "next")
    with pytest.raises(SpecRefused, match=r"cannot take back epoch 1: snapshot \d+ of the table, append, is another"):
        restored.truncate_after(0)
    restored.keep_after(0)
    restored.open(0)
    restored.write(1, 2, rows(("other", 1)))
    assert [shop for shop, _ in there(tmp_path)] == ["a colleague's", "epoch 0", "epoch 1", "other"]


def test_others_write_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    summary, others = IcebergSink._summary, [5, 6]

    def first_a_colleague(self: IcebergSink, mark: Any) -> dict[str, str]:
        if others:
            catalog(tmp_path).load_table("shop.sales").append(rows(("b", others.pop())))
        return summary(self, mark)

    monkeypatch.setattr(IcebergSink, "_summary", first_a_colleague)
    sink.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1), ("b", 5), ("b", 6)]


def test_a_table_that_is_away_is_waited_for(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    catalog(tmp_path).rename_table("shop.sales", "shop.away")
    with pytest.raises(Unreachable, match="NoSuchTableError"):
        sink.write(0, 1, rows(("a", 1)))
    catalog(tmp_path).rename_table("shop.away", "shop.sales")
    sink.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]


def test_a_table_may_have_more_columns(tmp_path: Path) -> None:
    catalog(tmp_path).create_namespace("shop")
    catalog(tmp_path).create_table("shop.sales", pa.schema([("more", pa.string()), *SCHEMA]))
    opened(tmp_path).write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]
    with pytest.raises(SpecRefused, match=r"no column 'm'; it has more, shop, n"):
        opened(tmp_path, schema=pa.schema([("m", pa.int64())]))
    with pytest.raises(SpecRefused, match=r"column 'n' is int64 in the table, and string in the rows; cast"):
        opened(tmp_path, schema=pa.schema([("n", pa.string())]))


def test_columns_of_every_type_come_back(tmp_path: Path) -> None:
    kinds: list[tuple[pa.DataType, Any]] = [
        *((pa.int8(), 1), (pa.uint32(), 2), (pa.bool_(), True), (pa.float64(), 1.5), (pa.large_binary(), b"x")),
        *((pa.date32(), 3), (pa.time64("us"), 4), (pa.time32("s"), 5), (pa.timestamp("us"), 6)),
        *((pa.timestamp("ms", "UTC"), 7), (pa.list_(pa.int16()), [1]), (pa.struct({"a": pa.int64()}), {"a": 1})),
        *((pa.map_(pa.string(), pa.int64()), [("a", 1)]), (pa.dictionary(pa.int32(), pa.string()), "word")),
    ]
    given = pa.table({f"c{i}": pa.array([value, None], kind) for i, (kind, value) in enumerate(kinds)})
    opened(tmp_path, schema=given.schema).write(0, 1, given)
    found = catalog(tmp_path).load_table("shop.sales").scan().to_arrow()
    for i, (kind, _) in enumerate(kinds):
        back = found[f"c{i}"].cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
        assert back.to_pylist() == given[f"c{i}"].to_pylist(), kind


REFUSED = [
    ({"table": "sales"}, "give NAMESPACE.TABLE"),
    ({"table": "shop..sales"}, "give NAMESPACE.TABLE"),
    ({"catalog": {"s3.secret-access-key": "hello"}}, r"catalog= 's3\.secret-access-key' is a secret"),
    ({"catalog": {"uri": "postgresql://me:hello@db/shop"}}, "the password in the URL is a secret"),
    ({"catalog": {"token": "hello"}}, "catalog= 'token' is a secret"),
    ({"catalog": 7}, "give its name, or a dictionary"),
    ({"name": ""}, "give its name"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecRefused, match=text) as refused:
        ferry.iceberg(**{"table": "shop.sales", **given})
    assert "hello" not in str(refused.value)


def test_a_duration_is_refused_where_the_stream_is_given() -> None:
    with pytest.raises(SpecRefused, match=r"iceberg: column 'x' is duration\[s\], which Iceberg does not have"):
        ferry.iceberg("shop.sales").expect(pa.schema([("x", pa.duration("s"))]))
    for within in (pa.list_(pa.duration("us")), pa.struct([("nothing", pa.null())])):
        with pytest.raises(SpecRefused, match=r"iceberg: column 'x' is .*, which Iceberg does not have"):
            ferry.iceberg("shop.sales").expect(pa.schema([("x", within)]))


def test_no_word_of_an_error_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "7/opens@me")
    assert secrets.filled_url("postgresql://me:${SECRET}@db/shop") == "postgresql://me:7%2Fopens%40me@db/shop"
    sink = ferry.iceberg("shop.sales", catalog={"type": "sql", "uri": "sqlite:////nowhere/${SECRET}.db"})
    sink.expect(SCHEMA)
    with pytest.raises(Unreachable) as away:
        sink.open(-1)
    assert "opens" not in str(away.value)


def test_a_secret_is_hidden_as_a_url_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "7/opens@me:all")
    url = "postgresql://me:${SECRET}@db/shop"
    assert secrets.masked(f"no route to {secrets.filled_url(url)}", [url]) == f"no route to {url}"


def test_a_secret_with_a_line_break_is_hidden_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "opens me\n")
    for text in ("opens me\n", "Bearer opens me", repr("opens me\n"), repr(b"opens me\n")):
        assert "opens" not in secrets.masked(text, ["Bearer ${SECRET}"])
