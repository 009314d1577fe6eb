"""Tables of PostgreSQL: types for columns, statements, and rows as texts for COPY. Must never import its client library."""

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
"""The table that says which epochs are there, in the schema of the table with the rows."""

INCOMING = "ferry_incoming"
"""A temporary one, for the rows of an epoch."""

NAME_MAX = 63
"""Bytes of a name that PostgreSQL keeps."""

FAR = r"^(\+[0-9]+|-[0-9]+|0000|[0-9]{5,})"
"""Years that are not written with four digits, or have no number of their own in SQL."""

_NAMED = {
    pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer", pa.int64(): "bigint", pa.float32(): "real",
    pa.float64(): "double precision", pa.bool_(): "boolean", pa.string(): "text", pa.binary(): "bytea", pa.date32(): "date",
}  # fmt: skip


def type_of(kind: pa.DataType) -> str:
    """Of a column that rows with this type of Spark's fit."""
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
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table, the key that its rows are told apart by, and the column that says which of two rows is the later one."""

    schema: str
    """Empty: the first one of the connection's search path."""
    name: str
    key: tuple[str, ...]
    latest: str | None
    columns: tuple[tuple[str, str], ...] = ()
    """Names and types, once they are known."""

    @classmethod
    def of(cls, table: str, key: Sequence[str] | str, latest: str | None) -> PostgresTable:
        """Checked. Raises SpecRefused."""
        schema, _, name = table.rpartition(".")
        if not name or "." in schema:
            raise SpecRefused(f"postgres: table {table!r}; give TABLE, or SCHEMA.TABLE")
        keys = (key,) if isinstance(key, str) else tuple(key)
        if wrong := [one for one in keys if not isinstance(one, str) or not one]:
            raise SpecRefused(f"postgres: key= names columns; {wrong[0]!r} is no name of one")
        if latest is not None and not keys:
            raise SpecRefused("postgres: latest= says which of two rows of one key stays; give key=, too")
        if latest is not None and latest in keys:
            raise SpecRefused(
                f"postgres: latest={latest!r} is a column of the key, so two rows of one key have the same"
            )
        return cls(schema, name, keys, latest)

    def with_columns(self, schema: pa.Schema) -> PostgresTable:
        """For these rows. Raises SpecRefused for a column that is not there, or cannot be one."""
        what = f"postgres {self.shown!r}"
        for name, given in [*((one, "key=") for one in self.key), *([(self.latest, "latest=")] if self.latest else ())]:
            if name not in schema.names:
                raise SpecRefused(f"{what}: {given} no column {name!r}; there are {', '.join(schema.names)}")
        if long := [name for name in schema.names if len(name.encode()) > NAME_MAX]:
            raise SpecRefused(
                f"{what}: the name of column {long[0]!r} is longer than the {NAME_MAX} bytes of PostgreSQL's"
            )
        kinds = frame_schema(schema)
        if wrong := [one.name for one in kinds if one.name in self.key and pa.types.is_nested(one.type)]:
            raise SpecRefused(
                f"{what}: key= column {wrong[0]!r} is {schema.field(wrong[0]).type}, which cannot be a key"
            )
        columns = tuple((field.name, type_of(field.type)) for field in kinds)
        return PostgresTable(self.schema, self.name, self.key, self.latest, columns)

    @property
    def shown(self) -> str:
        """As a user writes it."""
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def place(self) -> str:
        """In statements."""
        return self._in_schema(self.name)

    @property
    def marks(self) -> str:
        """In statements."""
        return self._in_schema(MARKS)

    def create(self) -> str:
        """A table for these columns."""
        columns = [f"{quoted(name)} {kind}" for name, kind in self.columns]
        keys = [f"PRIMARY KEY ({self._list(self.key)})"] if self.key else []
        return f"CREATE TABLE IF NOT EXISTS {self.place} ({', '.join(columns + keys)})"

    def create_marks(self) -> str:
        """The table of marks."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.marks} (sink text PRIMARY KEY, epoch bigint NOT NULL, "
            "generation bigint NOT NULL, run text NOT NULL, life text NOT NULL, "
            "written_at timestamptz NOT NULL DEFAULT now())"
        )

    def incoming(self) -> str:
        """A table for the rows of an epoch, until its transaction ends."""
        return (
            f"CREATE TEMPORARY TABLE {INCOMING} ON COMMIT DROP AS SELECT {self._list(self.names)} FROM {self.place} "
            "WITH NO DATA"
        )

    def copy(self) -> str:
        """Reads rows as texts."""
        return f"COPY {INCOMING if self.key else self.place} ({self._list(self.names)}) FROM STDIN"

    def merge(self) -> str:
        """Rows of the epoch take the places of those with their keys."""
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
        """Of the columns."""
        return tuple(name for name, _ in self.columns)

    def _in_schema(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}" if self.schema else quoted(name)

    @staticmethod
    def _list(names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))


def texts(rows: pa.Table) -> Iterator[tuple[str | None, ...]]:
    """The values of each row, as PostgreSQL reads them."""
    columns = []
    for column in rows.columns:
        if pa.types.is_binary(column.type):
            columns.append([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()])
        else:
            columns.append(_as_read(column.type, plain_text(column)).to_pylist())
    return zip(*columns, strict=True)


def _as_read(kind: pa.DataType, made: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts of times as PostgreSQL has them: a sign stands before the number, and few years have more than four digits."""
    if pa.types.is_duration(kind):
        return pc.replace_substring_regex(made, "^-PT", "PT-")
    if (
        not (pa.types.is_timestamp(kind) or pa.types.is_date(kind))
        or not pc.any(pc.match_substring_regex(made, FAR)).as_py()
    ):
        return made
    return pa.chunked_array([[None if one is None else _year(one) for one in made.to_pylist()]], made.type)


def _year(text: str) -> str:
    if not (found := re.match(FAR, text)):
        return text
    year, rest = int(found[0]), text[found.end() :]
    return f"{year:05}{rest}" if year > 0 else f"{1 - year:04}{rest} BC"
