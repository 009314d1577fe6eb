"""A table of a real Postgres as a source: values of every kind, a server that goes away, a transaction that comes late."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable
from tests.postgres import PASSWORD, PostgresServer
from tests.unit.connectors.test_tables import read

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("Shop", pa.string()), ("at", pa.timestamp("us", "UTC")), ("cents", pa.decimal128(12, 2)),
     ("whose", pa.string()), ("more", pa.string()), ("paid", pa.bool_()), ("data", pa.binary()), ("day", pa.date32())]
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    made = PostgresServer()
    yield made
    made.close()


def test_a_table_of_postgres_is_read_in_order_and_waited_for(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PG_PASSWORD", PASSWORD)
    server.sql(
        'CREATE TABLE orders (id bigserial PRIMARY KEY, "Shop" text, at timestamptz, cents numeric(12, 2), whose uuid, more jsonb,'
        " paid boolean, data bytea, day date)"
    )
    row = """('50%', '2024-03-10 02:30:00.123456+01', 12.5, '00000000-0000-0000-0000-000000000007', '{"a": [1]}', true, 'hi', '0044-03-15')"""
    server.sql(f'INSERT INTO orders ("Shop", at, cents, whose, more, paid, data, day) VALUES {row}')
    server.sql(
        "INSERT INTO orders (at) SELECT '2024-03-11'::timestamptz + n * interval '1 s' FROM generate_series(1, 9) AS n"
    )

    def orders(**more: Any) -> Any:
        return ferry.table(
            server.dsn, **{"table": "public.orders", "schema": SCHEMA, "column": "id", "every": 0, "settle": 0, **more}
        )

    source = orders()
    start = source.start()
    assert source.latest(start, 4) == {"after": 4, "rows": 4}
    later = source.latest(start, 100)
    first, *others = read(source, start, later)
    assert list(first.values()) == [
        1, "50%", dt.datetime(2024, 3, 10, 1, 30, 0, 123456, dt.UTC), Decimal("12.50"), str(uuid.UUID(int=7)), '{"a": [1]}', True,
        b"hi", dt.date(44, 3, 15),
    ]  # fmt: skip
    assert [one["id"] for one in others] == [*range(2, 11)] and set(others[0].values()) == {2, None, others[0]["at"]}

    by_time = orders(table="SELECT * FROM orders WHERE at IS NOT NULL AND 5 % 2 = 1", column="at")
    begin = by_time.start()
    half = by_time.latest(begin, 5)
    assert half["after"] == "2024-03-11T00:00:04+00:00" and len(read(by_time, begin, half)) == 5
    assert [one["id"] for one in read(by_time, half, by_time.latest(half, 100))] == [*range(6, 11)]

    for wrong in ({"table": "nothing"}, {"column": "shop"}):
        with pytest.raises(SpecRefused, match="does not exist"):
            orders(**wrong).start()

    server.stop()
    with pytest.raises(Unreachable):
        source.latest(later, 100)
    assert "secret" not in repr(source) and PASSWORD not in repr(source)
    server.start()
    server.sql("INSERT INTO orders (id) VALUES (20)")
    last = source.latest(later, 100)
    assert [one["id"] for one in read(source, later, last)] == [20]
    server.sql("INSERT INTO orders (id) VALUES (15)")  # too late: a greater value was read
    with pytest.raises(RowsGone, match=r"2 rows have id in \(10, 20\], but the epoch was planned with 1"):
        source.plan(later, last, 1)
