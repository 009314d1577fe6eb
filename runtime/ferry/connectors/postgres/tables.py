"""PostgreSQL tables: types of columns, SQL statements, and rows as texts for COPY. Must never import the client library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ferry.connectors.formats.json_text import plain_text
from ferry.contract.errors import SpecRefused
from ferry.kernels.frame_types import frame_schema

MARKS = "ferry_epochs"
"""The table of marks, in the schema of the sink's table."""

INCOMING = "ferry_incoming"
"""A temporary table for the rows of an epoch."""

NAME_MAX = 63
"""Greatest number of bytes of a name in PostgreSQL."""

FAR = r"^(\+[0-9]+|-[0-9]+|0000|[0-9]{5,})"
"""Years with more than four digits, and years before 1, which SQL writes with BC."""

_NAMED = {
    pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint", pa.float32(): "real",
    pa.float64(): "double precision", pa.bool_(): "boolean", pa.string(): "text", pa.binary(): "bytea", pa.date32(): "date",
}  # fmt: skip


def type_of(kind: pa.DataType) -> str:
    """The PostgreSQL type for a column of this type."""
    types = pa.types
    if types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    if types.is_time(kind):
        return "time"
    if types.is_duration(kind):
        return "interval"
    if types.is_nested(kind):
        return "jsonb"
    return _NAMED.get(kind, "text")


def quoted(name: str) -> str:
    """A quoted name for a statement."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table, the columns of its key, and the column that orders rows of the same key."""

    schema: str
    """Empty: the first schema of the connection's search path."""
    name: str
    key: tuple[str, ...]
    latest: str | None
    columns: tuple[tuple[str, str], ...] = ()
    """(name, type) of each column, once `with_columns` was called."""

    @classmethod
    def of(cls, table: str, key: Sequence[str] | str, latest: str | None) -> PostgresTable:
        """A table with checked arguments. Raises SpecRefused."""
        schema, _, name = table.rpartition(".")
        if not name or "." in schema:
            raise SpecRefused(f"postgres: table {table!r}; give TABLE, or SCHEMA.TABLE")
        keys = (key,) if isinstance(key, str) else tuple(key)
        if wrong := [column for column in keys if not isinstance(column, str) or not column]:
            raise SpecRefused(f"postgres: key= names columns; {wrong[0]!r} is not a column name")
        if latest is not None and not keys:
            raise SpecRefused("postgres: latest= chooses among rows of the same key; give key=, too")
        if latest is not None and latest in keys:
            raise SpecRefused(
                f"postgres: latest={latest!r} is a column of the key, so rows of the same key have equal values"
            )
        return cls(schema, name, keys, latest)

    def with_columns(self, schema: pa.Schema) -> PostgresTable:
        """The table with the columns of these rows. Raises SpecRefused for a missing or unsupported column."""
        place = f"postgres {self.shown!r}"
        named = [*((column, "key=") for column in self.key), *([(self.latest, "latest=")] if self.latest else ())]
        for name, parameter in named:
            if name not in schema.names:
                raise SpecRefused(f"{place}: {parameter} no column {name!r}; there are {', '.join(schema.names)}")
        if long := [name for name in schema.names if len(name.encode()) > NAME_MAX]:
            raise SpecRefused(
                f"{place}: the name of column {long[0]!r} is longer than PostgreSQL's limit of {NAME_MAX} bytes"
            )
        kinds = frame_schema(schema)
        if wrong := [field.name for field in kinds if field.name in self.key and pa.types.is_nested(field.type)]:
            raise SpecRefused(
                f"{place}: key= column {wrong[0]!r} is {schema.field(wrong[0]).type}, which cannot be a key"
            )
        columns = tuple((field.name, type_of(field.type)) for field in kinds)
        return PostgresTable(self.schema, self.name, self.key, self.latest, columns)

    @property
    def shown(self) -> str:
        """The table's name for messages."""
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def place(self) -> str:
        """The table's quoted name for statements."""
        return self._in_schema(self.name)

    @property
    def marks(self) -> str:
        """The quoted name of the table of marks."""
        return self._in_schema(MARKS)

    def create(self) -> str:
        """The statement that creates the table."""
        columns = [f"{quoted(name)} {kind}" for name, kind in self.columns]
        keys = [f"PRIMARY KEY ({self._list(self.key)})"] if self.key else []
        return f"CREATE TABLE IF NOT EXISTS {self.place} ({', '.join(columns + keys)})"

    def create_marks(self) -> str:
        """The statement that creates the table of marks."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.marks} (sink text PRIMARY KEY, epoch bigint NOT NULL, "
            "generation bigint NOT NULL, run text NOT NULL, life text NOT NULL, "
            "written_at timestamptz NOT NULL DEFAULT now())"
        )

    def incoming(self) -> str:
        """The statement that creates the temporary table of an epoch's rows."""
        return (
            f"CREATE TEMPORARY TABLE {INCOMING} ON COMMIT DROP AS SELECT {self._list(self.names)} FROM {self.place} "
            "WITH NO DATA"
        )

    def copy(self) -> str:
        """The statement that reads rows as texts."""
        return f"COPY {INCOMING if self.key else self.place} ({self._list(self.names)}) FROM STDIN"

    def merge(self) -> str:
        """The statement that upserts the rows of the temporary table."""
        names, key = self._list(self.names), self._list(self.key)
        chosen, where = f"SELECT {names} FROM {INCOMING}", ""
        if self.latest is not None:
            latest = quoted(self.latest)
            chosen = f"SELECT DISTINCT ON ({key}) {names} FROM {INCOMING} ORDER BY {key}, {latest} DESC NULLS LAST"
            where = f" WHERE t.{latest} IS NULL OR t.{latest} <= excluded.{latest}"
        others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in self.names if name not in self.key]
        action = f"UPDATE SET {', '.join(others)}{where}" if others else "NOTHING"
        return f"INSERT INTO {self.place} AS t ({names}) {chosen} ON CONFLICT ({key}) DO {action}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name for name, _ in self.columns)

    def _in_schema(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}" if self.schema else quoted(name)

    @staticmethod
    def _list(names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))


def texts(rows: pa.Table) -> Iterator[tuple[str | None, ...]]:
    """The values of each row as texts for COPY."""
    columns = []
    for column in rows.columns:
        if pa.types.is_binary(column.type):
            columns.append([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()])
        else:
            columns.append(_as_read(column.type, plain_text(column)).to_pylist())
    return zip(*columns, strict=True)


def _as_read(kind: pa.DataType, iso: pa.ChunkedArray) -> pa.ChunkedArray:
    """ISO 8601 texts in PostgreSQL's notation: a duration's sign before its number, years without sign and with BC."""
    if pa.types.is_duration(kind):
        return pc.replace_substring_regex(iso, "^-PT", "PT-")
    if (
        not (pa.types.is_timestamp(kind) or pa.types.is_date(kind))
        or not pc.any(pc.match_substring_regex(iso, FAR)).as_py()
    ):
        return iso
    return pa.chunked_array([[None if text is None else _year(text) for text in iso.to_pylist()]], iso.type)


def _year(text: str) -> str:
    if not (match := re.match(FAR, text)):
        return text
    year, rest = int(match[0]), text[match.end() :]
    return f"{year:05}{rest}" if year > 0 else f"{1 - year:04}{rest} BC"
