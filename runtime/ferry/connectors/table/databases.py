"""Rows of a table in the order of a column, from a database that Python knows by its DB-API: Postgres and SQLite.

Must never write.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ferry.connectors.postgres.client import PostgresPlace, require
from ferry.connectors.secrets import shown_place, shown_url
from ferry.contract.errors import SpecRefused, Unreachable

SQLITE, POSTGRES = "sqlite:///", ("postgresql://", "postgres://")

ANSWER_SECONDS = 10
"""A database that does not answer within this time counts as unreachable."""

FETCHED_ROWS = 10_000
"""Rows that are taken over at once."""

BOUND = "\0"
"""Stands in a query where a value belongs."""


class Misfit(Unreachable):
    """The database answers that a table or a column is not there, or that a query is wrong."""


def refuse_unknown(dsn: Any) -> None:
    """Raise SpecRefused for a database that cannot be read here, and for a password that everybody would see."""
    if not isinstance(dsn, str) or not dsn.startswith((SQLITE, *POSTGRES)):
        raise SpecRefused(
            f"table: {shown_place(dsn)!r} is no database; give 'postgresql://user:${{PASSWORD}}@host/database', or 'sqlite:///file'"
        )
    if dsn.startswith(SQLITE):
        return
    require("table")
    PostgresPlace(dsn)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A table, or the rows of a query, and the column that says their order."""

    dsn: str
    table: str
    column: str

    def rows(self, columns: Sequence[str], low: Any, high: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Rows with low < column <= high, in order; those of one value in an order of their own."""
        wanted = ", ".join(map(_column, [self.column, *columns]))
        where, values = self._between(low, high)
        query = f"SELECT {wanted} FROM {self._of} WHERE {where} ORDER BY 1"
        with closing(_Connection(self.dsn)) as connection:
            last: list[tuple[Any, ...]] = []
            for rows in connection.stream(query, values):
                rows = [*last, *rows]
                enough = len(rows) > FETCHED_ROWS
                begin = next((i for i in range(len(rows), 0, -1) if rows[i - 1][0] != rows[-1][0]), 0) if enough else 0
                last = rows[begin:]
                if begin:
                    yield _in_order(rows[:begin])
            yield _in_order(last)

    def greatest(self, connection: _Connection) -> Any:
        """The greatest value; None: there is no row."""
        return connection.one(f"SELECT max({_column(self.column)}) FROM {self._of}", [])[0]

    def after(self, connection: _Connection, low: Any, high: Any, rows: int) -> tuple[Any, int]:
        """(value up to which about so many rows lie behind `low`, how many they are); all of one value belong together."""
        column, (where, values) = _column(self.column), self._between(low, high)
        first = f"SELECT {column} AS c FROM {self._of} WHERE {where} ORDER BY 1 LIMIT {rows}"
        last = connection.one(f"SELECT max(c) FROM ({first}) AS f", values)[0]
        return last, 0 if last is None else self.count(connection, low, kept(last))

    def count(self, connection: _Connection, low: Any, high: Any) -> int:
        """How many rows have low < column <= high."""
        where, values = self._between(low, high)
        return int(connection.one(f"SELECT count(*) FROM {self._of} WHERE {where}", values)[0])

    def require(self, connection: _Connection, columns: Sequence[str]) -> None:
        """Raises Misfit when one of the columns is not there."""
        wanted = ", ".join(map(_column, columns)) or "1"
        connection.one(f"SELECT count(*) FROM (SELECT {wanted} FROM {self._of} LIMIT 0) AS f", [])

    @property
    def _of(self) -> str:
        text = self.table.strip()
        if " " in text or "\n" in text:
            return f"({text.rstrip(';')}) AS r"
        return f"{'.'.join(_quoted(part) for part in text.split('.'))} AS r"

    def _between(self, low: Any, high: Any) -> tuple[str, list[Any]]:
        bounds = [(sign, value) for sign, value in ((">", low), ("<=", high)) if value is not None]
        parts = [f"{_column(self.column)} {sign} {BOUND}" for sign, _ in bounds]
        return " AND ".join(parts) or f"{_column(self.column)} IS NOT NULL", [value for _, value in bounds]

    def connection(self) -> _Connection:
        """To be closed by whoever asks for it."""
        return _Connection(self.dsn)


class _Connection:
    """Reads only; each query sees what is committed when it begins."""

    def __init__(self, dsn: str) -> None:
        """Raises Unreachable."""
        self._dsn = dsn
        self._postgres = dsn.startswith(POSTGRES)
        with _reached(dsn):
            if self._postgres:
                self._own: Any = PostgresPlace(dsn).connect()
                self._own.read_only = True
                return
            path = dsn.removeprefix("sqlite:///")
            if not os.path.exists(path):
                raise FileNotFoundError(f"no file {os.path.abspath(path)}")
            self._own = sqlite3.connect(path, timeout=ANSWER_SECONDS, check_same_thread=False)
            self._own.execute("PRAGMA query_only = ON")

    def one(self, query: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The only row of an answer. Raises Unreachable, and Misfit."""
        with _reached(self._dsn):
            row = self._own.execute(self._written(query), values).fetchone()
            self._own.rollback()
            return tuple(row)

    def stream(self, query: str, values: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of an answer, some at a time."""
        with _reached(self._dsn):
            cursor = self._own.cursor(name="ferry") if self._postgres else self._own.cursor()
            cursor.execute(self._written(query), values)
        while True:
            with _reached(self._dsn):
                rows = cursor.fetchmany(FETCHED_ROWS)
            if not rows:
                return
            yield rows

    def _written(self, query: str) -> str:
        """As the library has it."""
        return query.replace("%", "%%").replace(BOUND, "%s") if self._postgres else query.replace(BOUND, "?")

    def close(self) -> None:
        """Whatever has become of the other end."""
        with suppress(Exception):
            self._own.close()


@contextmanager
def _reached(dsn: str) -> Iterator[None]:
    """Around what a database is asked: its errors become Unreachable, and Misfit where a query does not fit it."""
    try:
        yield
    except (SpecRefused, Unreachable):
        raise
    except Exception as error:
        names = [one.__name__ for one in type(error).__mro__]
        text = " ".join(str(error).split())
        wrong = "ProgrammingError" in names or text.startswith(("no such table", "no such column", "near "))
        if not wrong and not {"DatabaseError", "InterfaceError"} & {*names} and not isinstance(error, OSError):
            raise
        raise (Misfit if wrong else Unreachable)(f"{shown_url(dsn)}: {type(error).__name__}: {text}") from error


def kept(value: Any) -> Any:
    """A value of the column as a position has it; the database takes it back as a bound. Raises TypeError."""
    if value is None or isinstance(value, int | float | str):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ in ("Decimal", "UUID"):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no order that is kept; use integers, texts or times")


def _in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows of one value in an order that each reading has, without that value."""
    made: list[tuple[Any, ...]] = []
    for _, same in groupby(rows, key=lambda row: row[0]):
        alike = [row[1:] for row in same]
        made += alike if len(alike) == 1 else sorted(alike, key=repr)
    return made


def _column(name: str) -> str:
    """With its table: SQLite takes a name alone, of a column that is not there, for a text."""
    return f"r.{_quoted(name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
