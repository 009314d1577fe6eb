"""A table of PostgreSQL has each epoch once, with a real server: repeated, crashed between, of two drivers, restored."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.connectors import marked_sinks
from ferry.connectors.postgres import sink as postgres_sink
from ferry.connectors.postgres.sink import PostgresSink
from ferry.connectors.postgres.tables import PostgresTable
from ferry.contract.errors import Final, SpecRefused, Unreachable
from tests.postgres import PASSWORD, PostgresServer

SCHEMA = pa.schema([("shop", pa.string()), ("n", pa.int64())])

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    one = PostgresServer()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked_sinks, "TRY_SECONDS", 0.001)
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)


@pytest.fixture
def table(server: PostgresServer) -> str:
    """The name of one that is not there yet."""
    names = {name for (name,) in server.sql("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}
    return f"t{len(names)}"


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table({"shop": [shop for shop, _ in values], "n": [n for _, n in values]}, schema=SCHEMA)


def declared(
    server: PostgresServer, table: str, run: str = "run", schema: pa.Schema = SCHEMA, **more: Any
) -> PostgresSink:
    sink = ferry.postgres(server.dsn, table, **more)
    sink.expect(schema)
    sink.identify("job", run)
    return sink


def opened(server: PostgresServer, table: str, committed: int = -1, run: str = "run", **more: Any) -> PostgresSink:
    sink = declared(server, table, run, **more)
    sink.open(committed)
    return sink


def there(server: PostgresServer, table: str) -> list[tuple[Any, ...]]:
    return sorted(server.sql(f"SELECT shop, n FROM {table}"))


def test_an_epoch_is_there_once(server: PostgresServer, table: str) -> None:
    sink = opened(server, table)
    sink.write(3, 1, rows(("a", 1), ("a", 1)))
    sink.write(3, 1, rows(("a", 1), ("a", 1)))
    opened(server, table, committed=3).write(3, 2, rows(("a", 1), ("a", 1)))
    sink.write(4, 2, rows(("b", 2)))
    assert there(server, table) == [("a", 1), ("a", 1), ("b", 2)]
    assert server.sql(f"SELECT epoch, generation, run FROM ferry_epochs WHERE sink = 'ferry.job.{table}'") == [
        (4, 2, "run")
    ]


def test_two_drivers_make_the_table_at_once(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = PostgresTable.create

    def together(self: PostgresTable) -> str:
        return f"SELECT pg_sleep(0.2); {create(self)}"

    monkeypatch.setattr(PostgresTable, "create", together)
    with ThreadPoolExecutor(2) as pool:
        for made in [pool.submit(declared(server, table)._prepare) for _ in range(2)]:
            made.result(60)
    assert there(server, table) == []


def test_a_crash_before_the_end_of_the_transaction_leaves_nothing(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(server, table)
    write = PostgresSink._write

    def killed(self: PostgresSink, cursor: Any, given: pa.Table) -> None:
        write(self, cursor, given)
        server.sql(f"SELECT pg_terminate_backend({cursor.connection.info.backend_pid})")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSink, "_write", killed)
        with pytest.raises(Unreachable, match="AdminShutdown"):
            sink.write(0, 1, rows(("a", 1)))
    assert there(server, table) == []
    sink.write(0, 1, rows(("a", 1)))
    assert there(server, table) == [("a", 1)]


def test_a_lost_answer_of_a_commit_is_no_second_one(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(server, table)
    put = PostgresSink._put

    def lost(self: PostgresSink, *args: Any) -> None:
        put(self, *args)
        raise Unreachable("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSink, "_put", lost)
        with pytest.raises(Unreachable):
            sink.write(0, 1, rows(("a", 1)))
    sink.write(0, 1, rows(("a", 1)))
    assert there(server, table) == [("a", 1)]


def test_of_two_drivers_in_one_epoch_one_writes(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = opened(server, table), opened(server, table)
    marked = PostgresSink._marked

    def first_the_other(self: PostgresSink, name: str) -> Any:
        found = marked(self, name)
        if self is slow:
            fast.write(0, 2, rows(("a", 1)))
        return found

    monkeypatch.setattr(PostgresSink, "_marked", first_the_other)
    with pytest.raises(Final, match=r"generation 2 writes; this driver is of 1$"):
        slow.write(0, 1, rows(("a", 1)))
    assert there(server, table) == [("a", 1)]


def test_a_driver_that_is_frozen_in_a_transaction_does_not_hold_up_the_next(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_sink, "LOCAL", "SET LOCAL idle_in_transaction_session_timeout = '300ms'")
    frozen, sink = opened(server, table), opened(server, table)
    with pytest.raises(Unreachable):
        with frozen._transaction() as cursor:
            assert frozen._read(cursor, f"ferry.job.{table}", " FOR UPDATE")
            sink.write(0, 2, rows(("a", 1)))
            cursor.execute("SELECT 1")
    assert there(server, table) == [("a", 1)]


def test_rows_take_the_place_of_those_with_their_key(server: PostgresServer, table: str) -> None:
    sink = opened(server, table, key="shop")
    sink.write(0, 1, rows(("a", 1), ("b", 1)))
    sink.write(1, 1, rows(("a", 2), ("c", 3)))
    assert there(server, table) == [("a", 2), ("b", 1), ("c", 3)]
    with pytest.raises(Final, match=r"name more columns in key=, or choose the row to keep with latest="):
        sink.write(2, 1, rows(("a", 7), ("a", 8)))
    assert there(server, table) == [("a", 2), ("b", 1), ("c", 3)]


def test_the_latest_row_of_a_key_stays(server: PostgresServer, table: str) -> None:
    sink = opened(server, table, key=["shop"], latest="n")
    sink.write(0, 1, rows(("a", 2), ("a", 5), ("a", 3), ("b", 1)))
    sink.write(1, 1, rows(("a", 4), ("b", 2)))
    assert there(server, table) == [("a", 5), ("b", 2)]


def test_a_table_of_nothing_but_a_key(server: PostgresServer, table: str) -> None:
    only = pa.schema([("shop", pa.string())])
    sink = declared(server, table, schema=only, key="shop")
    sink.open(-1)
    for epoch in (0, 1):
        sink.write(epoch, 1, pa.table({"shop": ["a"]}, schema=only))
    assert server.sql(f"SELECT * FROM {table}") == [("a",)]


def test_another_run_is_refused_by_name(server: PostgresServer, table: str) -> None:
    opened(server, table, run="first").write(0, 1, rows(("a", 1)))
    with pytest.raises(SpecRefused, match=r"rows of another run \(first\), up to its epoch 0.*another name="):
        opened(server, table, run="second")
    opened(server, table, run="second", name="again").write(0, 1, rows(("a", 1)))
    assert there(server, table) == [("a", 1), ("a", 1)]


def test_a_run_that_has_written_nothing_leaves_the_table_to_the_next(server: PostgresServer, table: str) -> None:
    first = opened(server, table, run="first")
    second = opened(server, table, run="second")
    with pytest.raises(Final, match=r"written by another run \(second\)"):
        first.write(0, 1, rows(("a", 1)))
    second.write(0, 1, rows(("b", 1)))
    assert there(server, table) == [("b", 1)]


def test_a_mark_that_is_gone_is_waited_for(server: PostgresServer, table: str) -> None:
    sink = opened(server, table)
    sink.write(0, 1, rows(("a", 1)))
    server.sql(f"DELETE FROM ferry_epochs WHERE sink = 'ferry.job.{table}'")
    with pytest.raises(Unreachable, match="is missing: is it the same table"):
        sink.write(1, 1, rows(("b", 1)))
    again = opened(server, table, committed=0)
    assert "has no rows of this run, which has committed epoch 0" in again.notice
    again.write(1, 1, rows(("b", 1)))
    assert there(server, table) == [("a", 1), ("b", 1)]


def test_a_restore_is_refused_or_leaves_the_rows(server: PostgresServer, table: str) -> None:
    before = opened(server, table, key="shop")
    before.write(4, 1, rows(("a", 1)))
    before.write(5, 1, rows(("a", 2)))
    with pytest.raises(SpecRefused, match=r"cannot take back epoch 5.*--sink keep"):
        declared(server, table, run="next", key="shop").truncate_after(4)
    restored = declared(server, table, run="next", key="shop")
    restored.truncate_after(5)
    restored.keep_after(4)
    restored.open(4)
    with pytest.raises(Final, match="another driver has restored the job"):
        before.write(6, 1, rows(("z", 9)))
    restored.write(5, 2, rows(("a", 2), ("b", 1)))
    assert there(server, table) == [("a", 2), ("b", 1)]


def test_rows_of_the_job_whose_checkpoint_it_is_are_not_taken_back(server: PostgresServer, table: str) -> None:
    opened(server, table, name="same").write(9, 1, rows(("a", 1)))
    fork = ferry.postgres(server.dsn, table, name="same")
    fork.expect(SCHEMA)
    fork.identify("fork", "run2", before="job")
    with pytest.raises(SpecRefused, match=r"epochs up to 9 of the checkpoint's job"):
        fork.truncate_after(8)
    fork.truncate_after(9)


TYPES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int8(), -3, -3),
    (pa.uint32(), 4_000_000_000, 4_000_000_000),
    (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    (pa.float64(), float("inf"), float("inf")),
    (pa.decimal128(9, 2), Decimal("1.50"), Decimal("1.50")),
    (pa.bool_(), True, True),
    (pa.string(), 'tab\t"quote\\N\n', 'tab\t"quote\\N\n'),
    (pa.large_binary(), b"\x00\xff", b"\x00\xff"),
    (pa.date32(), date(2026, 1, 2), date(2026, 1, 2)),
    (pa.time64("us"), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (pa.timestamp("us"), datetime(2026, 1, 2, 3), datetime(2026, 1, 2, 3)),
    (pa.timestamp("ms", "UTC"), datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
    (pa.duration("us"), timedelta(days=1, seconds=2), timedelta(days=1, seconds=2)),
    (pa.list_(pa.int64()), [1, 2], [1, 2]),
    (pa.struct({"a": pa.string()}), {"a": "x"}, {"a": "x"}),
    (pa.dictionary(pa.int32(), pa.string()), "word", "word"),
]


def test_columns_of_every_type_come_back(server: PostgresServer, table: str) -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    columns = [pa.array([value, None], kind) for kind, value, _ in TYPES]
    given = pa.table(dict(zip(names, columns, strict=True)))
    sink = declared(server, table, schema=given.schema)
    sink.open(-1)
    sink.write(0, 1, given)
    assert server.sql(f"SELECT * FROM {table} ORDER BY c0 NULLS LAST") == [
        tuple(back for _, _, back in TYPES),
        (None,) * len(TYPES),
    ]


def test_times_that_python_or_iso_8601_do_not_know_come_as_they_are(server: PostgresServer, table: str) -> None:
    micros = pa.array([-(10**15), 253_402_300_800_000_000, -62_167_219_200_000_001, 0], pa.int64())
    schema = pa.schema([("at", pa.timestamp("us")), ("on", pa.date32()), ("long", pa.duration("us"))])
    days = [-720_000, 2_932_897, -719_529, 0]
    longs = [timedelta(days=-1, microseconds=1), timedelta(microseconds=-1), timedelta(days=10**6), timedelta(0)]
    given = pa.table(
        [micros.cast(pa.timestamp("us")), pa.array(days, pa.int32()).cast(pa.date32()), longs], schema=schema
    )
    sink = declared(server, table, schema=schema)
    sink.open(-1)
    sink.write(0, 1, given)
    epochs = f"SELECT (extract(epoch FROM at) * 1000000)::bigint, \"on\" - DATE '1970-01-01', long FROM {table}"
    assert server.sql(epochs) == list(zip(micros.to_pylist(), days, longs, strict=True))


def test_what_takes_no_rows_is_refused_when_the_job_begins(server: PostgresServer, table: str) -> None:
    server.sql(f"CREATE VIEW {table}_seen AS SELECT 'a' AS shop, 1 AS n")
    server.sql(f"CREATE TABLE {table} (shop text, n int GENERATED ALWAYS AS (1) STORED)")
    for name, words in ((f"{table}_seen", "cannot copy to view"), (table, 'column "n" is a generated column')):
        with pytest.raises(SpecRefused, match=words) as refused:
            opened(server, name)
        assert "unique index" not in str(refused.value)


def test_a_character_that_the_database_has_not_is_named(server: PostgresServer, table: str) -> None:
    sink = opened(server, table)
    with pytest.raises(Final, match=r"remove .u0000 from texts"):
        sink.write(0, 1, rows(("a\0", 1)))


def test_an_address_that_is_none_is_told_without_its_password() -> None:
    for dsn in ("host=db password=open nonsense", "host=db password = 'my open' x", "mysql://me:open@db/x"):
        for make in (lambda dsn=dsn: ferry.postgres(dsn, "t"), lambda dsn=dsn: ferry.table(dsn, "t", SCHEMA, "n")):
            with pytest.raises(SpecRefused, match=r"is not (the address|a database)") as refused:
                make()
            assert "open" not in str(refused.value), refused.value


def test_what_the_database_cannot_take_is_told(server: PostgresServer, table: str) -> None:
    server.sql(f"CREATE TABLE {table} (shop text, other text, n smallint CHECK (n > 0))")
    with pytest.raises(SpecRefused, match=r"unique index, or a primary key, of exactly the columns of key="):
        opened(server, table, key="shop")
    with pytest.raises(SpecRefused, match=r"the table has no column 'm'; it has shop, other, n"):
        opened(server, table, schema=pa.schema([("m", pa.int64())]))
    sink = opened(server, table)
    for n in (0, 70_000):
        with pytest.raises(Final, match=r"CheckViolation|NumericValueOutOfRange"):
            sink.write(0, 1, rows(("a", n)))
    server.sql(f"ALTER TABLE {table} RENAME TO {table}_away")
    with pytest.raises(Unreachable, match="UndefinedTable"):
        sink.write(0, 1, rows(("a", 1)))
    server.sql(f"ALTER TABLE {table}_away RENAME TO {table}")
    sink.write(0, 1, rows(("a", 1)))
    assert there(server, table) == [("a", 1)]


def test_a_server_that_is_away_is_waited_for_and_no_word_holds_the_password(
    server: PostgresServer, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(server, table)
    server.stop()
    try:
        with pytest.raises(Unreachable) as away:
            sink.write(0, 1, rows(("a", 1)))
        with pytest.raises(Unreachable) as still:
            sink.write(0, 1, rows(("a", 1)))
    finally:
        server.start()
    sink.write(0, 1, rows(("a", 1)))
    monkeypatch.setenv("PG_PASSWORD", wrong := "wrong one")
    with pytest.raises(Unreachable, match="password authentication failed") as refused:
        opened(server, table)
    monkeypatch.setenv("DATABASE", f"nonsense {PASSWORD}")
    with pytest.raises(SpecRefused, match="the variable's value is not the address") as unread:
        ferry.postgres("${DATABASE}", table)._place.connect()
    words = " ".join(map(str, (away.value, still.value, refused.value, unread.value, repr(sink))))
    assert PASSWORD not in words and wrong not in words and unread.value.__cause__ is None
    assert repr(sink) == f"postgres('127.0.0.1:{server.port}/shop', '{table}')"


REFUSED = [
    (("postgresql://me:hello@db/shop", "t"), {}, r"option 'password' is a secret.*\$\{NAME\}"),
    (("nonsense", "t"), {}, r"'nonsense' is not the address of a database; write postgresql://"),
    (("host=db", "a.b.c"), {}, r"give TABLE, or SCHEMA\.TABLE"),
    (("host=db", ""), {}, r"postgres: table ''; give its name"),
    (("host=db", "t"), {"key": [7]}, r"key= names columns; 7 is not a column name"),
    (("host=db", "t"), {"latest": "n"}, r"give key=, too"),
    (("host=db", "t"), {"key": "n", "latest": "n"}, r"is a column of the key"),
    (("host=db", "t"), {"name": 7}, r"name= 7"),
]


@pytest.mark.parametrize(("args", "more", "text"), REFUSED)
def test_what_cannot_be_meant_is_refused(args: tuple[Any, ...], more: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecRefused, match=text):
        ferry.postgres(*args, **more)


def test_a_pipeline_is_refused_where_it_gives_a_stream_to_a_sink_with_another_key() -> None:
    def pipeline(streams: Any, args: Any, key: str = "shop") -> Any:
        totals = streams["orders"].key_by("shop").aggregate("totals", n=ferry.sum("n"), emit=ferry.changes())
        return totals.sink(ferry.postgres("host=db", "public.totals", key=key))

    made = ferry.test(pipeline, {"orders": rows(("a", 1), ("a", 2))})
    assert made["totals"].to_pylist() == [{"shop": "a", "n": 3}]
    with pytest.raises(
        SpecRefused, match=r"sink on operator 'totals': .*no column 'shp'; .*test_postgres_sink\.py:\d+"
    ):
        ferry.test(lambda streams, args: pipeline(streams, args, "shp"), {"orders": rows(("a", 1))})


def test_a_key_that_is_no_column_is_refused_where_the_stream_is_given() -> None:
    wrong = PostgresTable.of("counts", ["auction", "bid"], None)
    with pytest.raises(SpecRefused, match=r"postgres 'counts': key= no column 'bid'; there are auction, num"):
        wrong.with_columns(pa.schema([("auction", pa.int64()), ("num", pa.int64())]))
    nested = PostgresTable.of("counts", ["auction"], None)
    with pytest.raises(SpecRefused, match="cannot be a key"):
        nested.with_columns(pa.schema([("auction", pa.list_(pa.int64()))]))


def test_the_schema_of_a_table_may_be_named(server: PostgresServer) -> None:
    server.sql('CREATE SCHEMA IF NOT EXISTS "Odd one"')
    opened(server, "Odd one.T").write(0, 1, rows(("a", 1)))
    assert there(server, '"Odd one"."T"') == [("a", 1)]
    assert server.sql('SELECT epoch FROM "Odd one".ferry_epochs') == [(0,)]
