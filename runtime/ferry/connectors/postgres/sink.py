"""A PostgreSQL table as a sink: one transaction writes the rows of an epoch and the sink's mark.

The mark is a row of the table `ferry_epochs` in the same schema. Each transaction locks this row: a second driver waits, and
then sees the first driver's mark. Must never write rows for a driver of a lower generation or of another run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa

from ferry.connectors.marked_sinks import MarkedSink, Overtaken, SinkMark
from ferry.connectors.postgres.client import PostgresPlace, require
from ferry.connectors.postgres.tables import PostgresTable, texts
from ferry.contract.errors import SpecRefused
from ferry.contract.texts import require_name

MARK = "sink, epoch, generation, run, life"
"""Columns of a mark."""

LOCAL = "SET LOCAL lock_timeout = '30s'; SET LOCAL idle_in_transaction_session_timeout = '60s'"
"""Settings of a transaction: they bound the time that a frozen driver blocks the next driver."""


class PostgresSink(MarkedSink):
    """The sink of `postgres`."""

    def __init__(self, place: PostgresPlace, table: PostgresTable, name: str) -> None:
        super().__init__(name)
        self._place = place
        self._table = table
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"postgres({self._place.shown!r}, {self._table.shown!r})"

    @property
    def label(self) -> str:
        """The sink's name in `ferry.test`."""
        return self._table.name

    def expect(self, schema: pa.Schema) -> None:
        """Take the columns of the rows. Raises SpecRefused."""
        self._table = self._table.with_columns(schema)

    def _prepare(self) -> None:
        table = self._table
        with self._transaction() as cursor:
            for place, create in ((table.place, table.create()), (table.marks, table.create_marks())):
                if cursor.execute("SELECT to_regclass(%s)", (place,)).fetchone()[0] is None:
                    # The lock serializes two drivers: PostgreSQL would refuse a concurrent CREATE.
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (place,))
                    cursor.execute(create)
            cursor.execute(f"SELECT * FROM {table.place} LIMIT 0")
            there = [column.name for column in cursor.description]
            if not [name for name in table.names if name not in there]:
                self._write(cursor, None)  # Fails for a view and for a generated column.
        if missing := [name for name in table.names if name not in there]:
            raise SpecRefused(f"sink: {self!r}: the table has no column {missing[0]!r}; it has {', '.join(there)}")

    def _marked(self, name: str) -> SinkMark | None:
        with self._transaction() as cursor:
            return self._read(cursor, name, "")

    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        table = self._table
        with self._transaction() as cursor:
            if there is None:
                added = f"INSERT INTO {table.marks} ({MARK}) VALUES (%s, -1, -1, '', '') ON CONFLICT DO NOTHING"
                cursor.execute(added, (self._name,))
                if not cursor.rowcount:
                    raise Overtaken("another driver has written its mark")
            elif self._read(cursor, self._name, " FOR UPDATE") != there:
                raise Overtaken("another driver has changed the mark")
            if rows is not None:
                self._write(cursor, rows)
            cursor.execute(
                f"UPDATE {table.marks} SET epoch = %s, generation = %s, run = %s, life = %s, written_at = now() "
                "WHERE sink = %s",
                (mark.epoch, mark.generation, mark.run, mark.life, self._name),
            )

    def _write(self, cursor: Any, rows: pa.Table | None) -> None:
        if self._table.key:
            cursor.execute(self._table.incoming())
        with cursor.copy(self._table.copy()) as copy:
            for row in [] if rows is None else texts(rows):
                copy.write_row(row)
        if self._table.key:
            cursor.execute(self._table.merge())

    def _read(self, cursor: Any, name: str, lock: str) -> SinkMark | None:
        query = f"SELECT epoch, generation, run, life FROM {self._table.marks} WHERE sink = %s{lock}"
        row = cursor.execute(query, (name,)).fetchone()
        return None if row is None else SinkMark(*row)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction on the kept connection, which is closed after an error."""
        if self._connection is None:
            self._connection = self._place.connect()
        try:
            with self._place.errors(), self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.execute(LOCAL)
                yield cursor
        except BaseException:
            connection, self._connection = self._connection, None
            with suppress(Exception):
                connection.close()
            raise


def postgres(
    dsn: str,
    table: str,
    *,
    key: Sequence[str] | str = (),
    latest: str | None = None,
    name: str | None = None,
) -> PostgresSink:
    """Write rows to a PostgreSQL table, one transaction per epoch, exactly once.

    The job creates the table if it does not exist. It also creates `ferry_epochs` in the same schema, which records the
    published epochs. Needs `pip install 'ferry-stream[postgres]'`. The driver writes the rows, with COPY.

    Parameters:
        dsn: address of the database, "postgresql://me:${PG_PASSWORD}@db/shop" or "host=db dbname=shop". A password is a
            reference to an environment variable. The whole address may be a reference: "${DATABASE_URL}".
        table: name of the table, TABLE or SCHEMA.TABLE.
        key: the columns of the key. A row replaces the row with the same key (upsert). An existing table needs a primary key
            or a unique index on exactly these columns. Empty: rows are appended.
        latest: a growing column, such as "window_end". Among rows of the same key the row with the greatest value stays, in
            an epoch and in the table. None: two rows of one key in an epoch stop the job.
        name: name of the sink in its job, which identifies its transactions. None: the name of the table.
    Returns: a sink.
    Raises: SpecRefused, if an argument is invalid, or the library is not installed. `.sink(...)` raises SpecRefused, if a
        column of `key` or `latest` is missing. The job raises SpecRefused at its start, if the table lacks a column or an
        index.
    Example:
        >>> output = counts.sink(ferry.postgres("host=db dbname=shop", "counts", key=["auction", "window_end"]))
    """
    require()
    require_name(dsn, "postgres: dsn")
    require_name(table, "postgres: table")
    if name is not None:
        require_name(name, "postgres: name=")
    return PostgresSink(PostgresPlace(dsn), PostgresTable.of(table, key, latest), name or table)
