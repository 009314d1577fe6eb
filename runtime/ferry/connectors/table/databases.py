"""Rows of a table in the order of a column, read through Python's DB-API from PostgreSQL or SQLite. Must never write."""

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
"""Longest wait for SQLite's lock."""

FETCHED_ROWS = 10_000
"""Number of rows in a fetch."""

BOUND = "\0"
"""Placeholder for a value in a query."""


class Misfit(Unreachable):
    """The database reports a missing table or column, or an invalid query."""


def refuse_unknown(dsn: Any) -> None:
    """Raise SpecRefused for an unsupported database, and for a password in plain text."""
    if not isinstance(dsn, str) or not dsn.startswith((SQLITE, *POSTGRES)):
        raise SpecRefused(
            f"table: {shown_place(dsn)!r} is not a database; give 'postgresql://user:${{PASSWORD}}@host/database', or "
            "'sqlite:///file'"
        )
    if dsn.startswith(SQLITE):
        return
    require("table")
    PostgresPlace(dsn)


@dataclass(frozen=True, slots=True)
class Ordered:
    """A table or the rows of a query, with the column that orders the rows."""

    dsn: str
    table: str
    column: str

    def rows(self, columns: Sequence[str], low: Any, high: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Rows with low < column <= high, in order. Rows of equal value have a deterministic order."""
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
        """The greatest value of the column. None without rows."""
        return connection.single(f"SELECT max({_column(self.column)}) FROM {self._of}", [])[0]

    def after(self, connection: _Connection, low: Any, high: Any, rows: int) -> tuple[Any, int]:
        """(value up to which about `rows` rows follow `low`, their exact number). Rows of equal value stay together."""
        column, (where, values) = _column(self.column), self._between(low, high)
        first = f"SELECT {column} AS c FROM {self._of} WHERE {where} ORDER BY 1 LIMIT {rows}"
        last = connection.single(f"SELECT max(c) FROM ({first}) AS f", values)[0]
        return last, 0 if last is None else self.count(connection, low, kept(last))

    def count(self, connection: _Connection, low: Any, high: Any) -> int:
        """Number of rows with low < column <= high."""
        where, values = self._between(low, high)
        return int(connection.single(f"SELECT count(*) FROM {self._of} WHERE {where}", values)[0])

    def require(self, connection: _Connection, columns: Sequence[str]) -> None:
        """Raise Misfit if a column is missing."""
        wanted = ", ".join(map(_column, columns)) or "1"
        connection.single(f"SELECT count(*) FROM (SELECT {wanted} FROM {self._of} LIMIT 0) AS f", [])

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
        """A new connection, which the caller closes."""
        return _Connection(self.dsn)


class _Connection:
    """A read-only connection. Each query sees the rows that are committed when it begins."""

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

    def single(self, query: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The only row of an answer. Raises Unreachable or Misfit."""
        with _reached(self._dsn):
            row = self._own.execute(self._written(query), values).fetchone()
            self._own.rollback()
            return tuple(row)

    def stream(self, query: str, values: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of an answer, in fetches of `FETCHED_ROWS`."""
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
        """The query with the library's placeholders."""
        return query.replace("%", "%%").replace(BOUND, "%s") if self._postgres else query.replace(BOUND, "?")

    def close(self) -> None:
        """Close the connection without errors."""
        with suppress(Exception):
            self._own.close()


@contextmanager
def _reached(dsn: str) -> Iterator[None]:
    """Translate errors of a database into Unreachable, and into Misfit for an invalid query."""
    try:
        yield
    except (SpecRefused, Unreachable):
        raise
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        text = " ".join(str(error).split())
        wrong = "ProgrammingError" in names or text.startswith(("no such table", "no such column", "near "))
        if not wrong and not {"DatabaseError", "InterfaceError"} & {*names} and not isinstance(error, OSError):
            raise
        raise (Misfit if wrong else Unreachable)(f"{shown_url(dsn)}: {type(error).__name__}: {text}") from error


def kept(value: Any) -> Any:
    """A value of the column as JSON for a position. The database accepts it as a bound. Raises TypeError."""
    if value is None or isinstance(value, int | float | str):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ in ("Decimal", "UUID"):
        return str(value)
    raise TypeError(f"values of {type(value).__name__} cannot be a position; use integers, texts or times")


def _in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows without their first value. Rows with an equal first value have the same order in every read."""
    ordered: list[tuple[Any, ...]] = []
    for _, same in groupby(rows, key=lambda row: row[0]):
        alike = [row[1:] for row in same]
        ordered += alike if len(alike) == 1 else sorted(alike, key=repr)
    return ordered


def _column(name: str) -> str:
    """A column with its table's name. SQLite reads the bare name of a missing column as a text."""
    return f"r.{_quoted(name)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
