"""A table of Delta Lake has each epoch once: repeated, crashed between, of two drivers, restored, compacted."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import ferry
from ferry.connectors import marked_sinks
from ferry.connectors import sink as sinks
from ferry.connectors.delta.sink import DeltaSink
from ferry.contract.errors import Final, SpecRefused, Unreachable

SCHEMA = pa.schema([("shop", pa.string()), ("n", pa.int64())])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_sinks, "TRY_SECONDS", 0.001)


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table({"shop": [shop for shop, _ in values], "n": [n for _, n in values]}, schema=SCHEMA)


def declared(base: Path, run: str = "run", schema: pa.Schema = SCHEMA, job: str = "job", **more: Any) -> DeltaSink:
    sink = ferry.delta("elsewhere/sales", **more)
    sink.expect(schema)
    sink.place(str(base))
    sink.identify(job, run)
    return sink


def opened(base: Path, committed: int = -1, run: str = "run", **more: Any) -> DeltaSink:
    sink = declared(base, run, **more)
    sink.open(committed)
    return sink


def there(base: Path) -> list[tuple[Any, ...]]:
    sales = DeltaTable(base / "sales").to_pyarrow_dataset()  # noqa: F841  DuckDB looks it up
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
    assert DeltaTable(tmp_path / "sales").transaction_version("ferry.job.sales") == 4


def test_an_epoch_without_rows_is_no_commit(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    before = DeltaTable(tmp_path / "sales").version()
    sink.write(0, 1, rows())
    assert DeltaTable(tmp_path / "sales").version() == before


def test_a_lost_answer_of_a_commit_is_no_second_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened(tmp_path)
    put = DeltaSink._put

    def lost(self: DeltaSink, *args: Any) -> None:
        put(self, *args)
        raise Unreachable("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_put", lost)
        with pytest.raises(Unreachable):
            sink.write(0, 1, rows(("a", 1)))
    sink.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]


def test_of_two_drivers_in_one_epoch_one_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has looked at the table before the first one commits: Delta itself refuses its commit."""
    slow, fast = opened(tmp_path), opened(tmp_path)
    at = DeltaSink._at

    def first_the_other(self: DeltaSink, mark: Any) -> Any:
        table = at(self, mark)
        if self is slow:
            fast.write(0, 2, rows(("a", 1)))
        return table

    monkeypatch.setattr(DeltaSink, "_at", first_the_other)
    with pytest.raises(Final, match=r"generation 2 writes; this driver is of 1$"):
        slow.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1)]


def test_another_run_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path, run="first").write(0, 1, rows(("a", 1)))
    with pytest.raises(SpecRefused, match=r"rows of another run \(first\), up to its epoch 0.*another name="):
        opened(tmp_path, run="second")
    opened(tmp_path, run="second", name="again").write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1), ("a", 1)]


def test_a_table_that_is_away_is_waited_for(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.write(0, 1, rows(("a", 1)))
    (tmp_path / "sales").rename(tmp_path / "away")
    with pytest.raises(Unreachable, match="does not exist"):
        sink.write(1, 1, rows(("b", 1)))
    DeltaTable.create(str(tmp_path / "sales"), SCHEMA)
    with pytest.raises(Unreachable, match="is missing: is it the same table"):
        sink.write(1, 1, rows(("b", 1)))
    shutil.rmtree(tmp_path / "sales")
    (tmp_path / "away").rename(tmp_path / "sales")
    sink.write(1, 1, rows(("b", 1)))
    assert there(tmp_path) == [("a", 1), ("b", 1)]


def test_a_restore_takes_back_later_epochs_and_stops_the_driver_before(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for epoch in range(4):
        before.write(epoch, 1, rows((f"epoch {epoch}", epoch)))
    DeltaTable(tmp_path / "sales").optimize.compact()
    restored = declared(tmp_path, "next")
    for _ in range(2):
        restored.truncate_after(1)
    assert there(tmp_path) == [("epoch 0", 0), ("epoch 1", 1)]
    restored.open(1)
    with pytest.raises(Final, match="another driver has restored the job"):
        before.write(4, 1, rows(("z", 9)))
    restored.write(2, 2, rows(("other", 2)))
    again = declared(tmp_path, "third")
    again.truncate_after(0)
    assert there(tmp_path) == [("epoch 0", 0)]


def test_a_restore_may_keep_the_rows(tmp_path: Path) -> None:
    before = opened(tmp_path)
    for epoch in range(2):
        before.write(epoch, 1, rows((f"epoch {epoch}", epoch)))
    restored = declared(tmp_path, "next")
    restored.keep_after(0)
    restored.open(0)
    restored.write(1, 2, rows(("other", 1)))
    assert there(tmp_path) == [("epoch 0", 0), ("epoch 1", 1), ("other", 1)]


def test_what_cannot_be_taken_back_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in range(3):
        sink.write(epoch, 1, rows((f"epoch {epoch}", epoch)))
    table = DeltaTable(tmp_path / "sales")
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(
        SpecRefused, match=r"cannot take back epochs 1 to 2: files of that version were removed \(VACUUM\)"
    ):
        declared(tmp_path, "next").truncate_after(0)
    write_deltalake(tmp_path / "sales", rows(("a colleague's", 7)), mode="append")
    with pytest.raises(SpecRefused, match=r"epoch 2: version 8 of the table, WRITE, is another writer's.*--sink keep"):
        declared(tmp_path, "next").truncate_after(1)
    assert len(there(tmp_path)) == 4


def test_others_write_and_compact_meanwhile(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in range(3):
        sink.write(epoch, 1, rows(("a", epoch)))
        write_deltalake(tmp_path / "sales", rows(("b", epoch)), mode="append")
        DeltaTable(tmp_path / "sales").optimize.compact()
    assert there(tmp_path) == [(shop, n) for shop in "ab" for n in range(3)]
    assert len(DeltaTable(tmp_path / "sales").file_uris()) == 1


def test_a_table_may_have_more_columns_and_partitions(tmp_path: Path) -> None:
    wide = pa.table({"more": ["x"], "shop": ["z"], "n": [0]})
    write_deltalake(tmp_path / "sales", wide, partition_by=["shop"])
    sink = opened(tmp_path)
    sink.write(0, 1, rows(("a", 1)))
    assert there(tmp_path) == [("a", 1), ("z", 0)]
    with pytest.raises(SpecRefused, match=r"no column 'm'; it has more, shop, n"):
        opened(tmp_path, schema=pa.schema([("m", pa.int64())]))
    with pytest.raises(SpecRefused, match=r"column 'n' is long in the table, and string in the rows; cast"):
        opened(tmp_path, schema=pa.schema([("n", pa.string())]))


def test_columns_of_every_type_come_back(tmp_path: Path) -> None:
    kinds = [
        *(pa.int8(), pa.uint32(), pa.bool_(), pa.float64(), pa.string(), pa.large_binary(), pa.date32()),
        *(pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.decimal128(9, 2)),
        *(pa.list_(pa.int64()), pa.struct({"a": pa.int64()}), pa.map_(pa.string(), pa.int64())),
        pa.dictionary(pa.int32(), pa.string()),
    ]
    names = [f"c{i}" for i in range(len(kinds))]
    values = [1, 2, True, 1.5, "x", b"x", 3, 4, 5, 6000, "1.50", [1], {"a": 1}, [("a", 1)], "word"]
    given = pa.table(
        {
            n: pa.array([v, None]).cast(k) if k == pa.decimal128(9, 2) else pa.array([v, None], k)
            for n, v, k in zip(names, values, kinds, strict=True)
        }
    )
    sink = opened(tmp_path, schema=given.schema)
    sink.write(0, 1, given)
    found = DeltaTable(tmp_path / "sales").to_pyarrow_table()
    for name, kind in zip(names, kinds, strict=True):
        mine = given[name]
        back = found[name].cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
        assert back.to_pylist() == mine.to_pylist(), name


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for kind in (pa.time64("us"), pa.duration("s")):
        with pytest.raises(SpecRefused, match=r"delta: column 'x' is .*, which Delta does not have"):
            ferry.delta("a").expect(pa.schema([("x", kind)]))
    with pytest.raises(SpecRefused, match=r"storage_options 'aws_secret_access_key' is a secret"):
        ferry.delta("s3://bucket/a", storage_options={"aws_secret_access_key": "hello"})
    with pytest.raises(SpecRefused, match="two drivers could commit the same version"):
        ferry.delta("s3://bucket/a", storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    with pytest.raises(SpecRefused, match=r"password in the URL is a secret"):
        ferry.delta("s3://me:hello@bucket/a")
    with pytest.raises(SpecRefused, match=r"delta: table 7; give its path"):
        ferry.delta(7)  # type: ignore[arg-type]
    assert ferry.delta("s3://bucket/a").place("out") is None


def test_no_word_of_an_error_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", "127.0.0.1")  # is sure to be in the error
    options = {
        "aws_secret_access_key": "${S3_SECRET}",
        "aws_access_key_id": "me",
        "aws_region": "x",
        "max_retries": "0",
    }
    more = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_allow_http": "true", "retry_timeout": "1s"}
    sink = ferry.delta("s3://bucket/sales", storage_options=options | more)
    sink.expect(SCHEMA)
    with pytest.raises(Unreachable, match=r"\$\{S3_SECRET\}:1/bucket") as away:
        sink.open(-1)
    assert "127.0.0.1" not in str(away.value) and "\x1b" not in str(away.value)


@pytest.mark.parametrize(
    ("library", "extra", "make"),
    [
        ("deltalake", "delta", lambda: ferry.delta("a")),
        ("pyiceberg", "iceberg", lambda: ferry.iceberg("a.b")),
        ("psycopg", "postgres", lambda: ferry.postgres("host=db", "a")),
    ],
)
def test_a_library_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, extra: str, make: Any
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SpecRefused, match=rf"{extra}: the package {library} is not installed: ferry-stream\[{extra}\]"):
        make()


def test_a_table_that_was_changed_is_waited_for(tmp_path: Path) -> None:
    """The library would write rows without the columns that have no place, or as texts."""
    sink = opened(tmp_path)
    sink.write(0, 1, rows(("a", 1)))
    for now in (pa.table({"shop": ["x"]}), pa.table({"shop": ["x"], "n": ["y"]})):
        write_deltalake(tmp_path / "sales", now, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(Unreachable, match=r"the table was changed: .*'n'"):
            sink.write(1, 1, rows(("b", 2)))
    write_deltalake(tmp_path / "sales", rows(("a", 1)), mode="overwrite", schema_mode="overwrite")
    sink.write(1, 1, rows(("b", 2)))
    assert there(tmp_path) == [("a", 1), ("b", 2)]


def test_a_column_of_the_table_that_rows_lack_may_be_null(tmp_path: Path) -> None:
    more = pa.schema([*SCHEMA, pa.field("by", pa.string(), nullable=False)])
    DeltaTable.create(tmp_path / "sales", more)
    with pytest.raises(SpecRefused, match="no column 'by', which must not be null in the table"):
        opened(tmp_path)


def test_a_row_that_does_not_keep_a_constraint_stops_the_job_and_is_not_shown(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "sales", rows(("a", 10)))
    DeltaTable(tmp_path / "sales").alter.add_constraint({"enough": "n > 5"})
    sink = opened(tmp_path)
    sink.write(0, 1, rows(("a", 6)))
    with pytest.raises(Final, match="violate a constraint of the table") as stopped:
        sink.write(1, 1, rows(("secret", 3)))
    assert "secret" not in str(stopped.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (pa.schema([("a", pa.struct([("at", pa.time64("us"))]))]), "column 'a' is struct<at: time64.us.>, which Delta"),
        (pa.schema([("a", pa.list_(pa.duration("us")))]), "column 'a' is list<.*>, which Delta does not have"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), "have one name"),
    ],
    ids=str,
)
def test_what_delta_has_not_is_refused_within_a_column_too(schema: pa.Schema, words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=words):
        declared(tmp_path, schema=schema)


def test_a_directory_is_one_whether_a_path_or_a_url_names_it(tmp_path: Path) -> None:
    both = [ferry.delta(f"{tmp_path}/sales"), ferry.delta(f"file://{tmp_path}/sales")]
    with pytest.raises(SpecRefused, match="both write to"):
        sinks.place(both, None)
    with pytest.raises(SpecRefused, match="decodes"):
        ferry.delta(tmp_path / "100%25")
