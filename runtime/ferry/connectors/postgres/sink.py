"""A table of PostgreSQL as a sink: the rows of an epoch and its number are one transaction.

The number stands in the table `ferry_epochs` beside it, in a row that each transaction locks: of two drivers one waits, and
then sees what the other has written. Must never write rows for a driver of a lower generation, or of another run.
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
"""Of a transaction: a driver that is frozen in one does not hold up the next for longer."""


class PostgresSink(MarkedSink):
    """See `postgres`."""

    def __init__(self, place: PostgresPlace, table: PostgresTable, name: str) -> None:
        super().__init__(name)
        self._place = place
        self._table = table
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"postgres({self._place.shown!r}, {self._table.shown!r})"

    @property
    def label(self) -> str:
        """What `ferry.test` calls it."""
        return self._table.name

    def expect(self, schema: pa.Schema) -> None:
        """Know the columns; raises SpecRefused."""
        self._table = self._table.with_columns(schema)

    def _prepare(self) -> None:
        table = self._table
        with self._transaction() as cursor:
            for place, create in ((table.place, table.create()), (table.marks, table.create_marks())):
                if cursor.execute("SELECT to_regclass(%s)", (place,)).fetchone()[0] is None:
                    # Of two drivers that make it at once PostgreSQL would refuse the second.
                    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (place,))
                    cursor.execute(create)
            cursor.execute(f"SELECT * FROM {table.place} LIMIT 0")
            there = [column.name for column in cursor.description]
            if not [name for name in table.names if name not in there]:
                self._write(cursor, None)  # A view, or a column that is made of others, takes no rows.
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
        asked = f"SELECT epoch, generation, run, life FROM {self._table.marks} WHERE sink = %s{lock}"
        found = cursor.execute(asked, (name,)).fetchone()
        return None if found is None else SinkMark(*found)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """One of a connection that is kept until something fails."""
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
    """Rows of a table of PostgreSQL, with the number of their epoch in one transaction: each epoch at once, and once.

    The table is made when the job begins, unless it is there; so is `ferry_epochs` beside it, which says what was written.
    Needs `pip install 'ferry-stream[postgres]'`. The driver writes, with COPY.

    Parameters:
        dsn: address of the database, "postgresql://me:${PG_PASSWORD}@db/shop" or "host=db dbname=shop"; a password is the
            name of a variable of the environment, and so may the whole address be: "${DATABASE_URL}".
        table: its name, or SCHEMA.TABLE.
        key: columns that tell rows apart: a row takes the place of the one with its key (upsert). A table of yours needs
            a primary key or a unique index of them. Without it rows are added.
        latest: a column that grows, such as "window_end": of several rows of a key the one with the greatest stays, in an
            epoch and in the table. Without it two rows of one key in an epoch stop the job.
        name: of the sink in its job, by which its epochs are known; None: that of the table.
    Returns: a sink.
    Raises: SpecRefused, if an argument is none of these, or the library is not installed; where the sink is given its
        stream, if a column of `key` or `latest` is not there; when the job begins, if the table lacks a column or an index.
    Example:
        >>> output = counts.sink(ferry.postgres("host=db dbname=shop", "counts", key=["auction", "window_end"]))
    """
    require()
    for given, what in ((dsn, "postgres: dsn"), (table, "postgres: table")):
        require_name(given, what)
    if name is not None:
        require_name(name, "postgres: name=")
    return PostgresSink(PostgresPlace(dsn), PostgresTable.of(table, key, latest), name or table)
