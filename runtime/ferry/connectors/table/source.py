"""A table of a database as a source: rows in the order of a column whose values grow, read inside the ingest tasks.

    greatest value now -> `settle` later -> about as many rows as an epoch may have -> their number is in the position

A position has the value up to which rows were read, and how many of them are of its epoch: whoever plans or reads that range
again counts them, and none may be missing or new. Must never pass over a row that was visible when its value was reached.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as types

from ferry.connectors.formats.csv_lines import column_of
from ferry.connectors.formats.json_lines import checked
from ferry.connectors.formats.json_nodes import JsonNode, is_text
from ferry.connectors.formats.python_values import is_cut
from ferry.connectors.secrets import shown_url
from ferry.connectors.splits import Malformed, Position, Split, malformed
from ferry.connectors.table.databases import Misfit, Ordered, kept, refuse_unknown
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable
from ferry.contract.texts import require_name

SHOWN = 60
"""Characters of a value that a reason shows."""

CUT_ROWS = 20_000
"""Ranges of more rows are cut for tasks."""


class TableSplits:
    """See `table`. A position: {"after": value, "rows": of the epoch that ends there}, of a finite input also "end"."""

    sets_aside = True

    def __init__(self, rows: Ordered, schema: pa.Schema, finite: bool, every: Duration, settle: Duration) -> None:
        self._rows = rows
        self._schema = schema
        self.finite = finite
        self._every = milliseconds(every, "table: every") / 1000
        self._settle = milliseconds(settle, "table: settle") / 1000
        self._seen: list[tuple[float, Any]] = []
        """(when, the greatest value then), the oldest first"""
        self._nothing: tuple[Any, Any] | None = None
        """(position, value) between which there is no row"""
        self._own: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks get: a connection of the driver's is of no use to them."""
        return {**self.__dict__, "_own": None, "_seen": [], "_nothing": None}

    def __repr__(self) -> str:
        return f"table({shown_url(self._rows.dsn)!r}, {self._rows.table!r})"

    def schema(self) -> pa.Schema:
        """The declared schema."""
        return self._schema

    def start(self) -> Position:
        """Before the first row. Raises SpecRefused for a table or a column that is not there."""
        try:
            with self._asked() as connection:
                end = kept(self._rows.greatest(connection))
                self._rows.require(connection, self._schema.names)
        except (Misfit, TypeError) as wrong:
            raise SpecRefused(f"{self!r}: {wrong}") from wrong
        return {"after": None, "rows": 0, **({"end": end} if self.finite else {})}

    def latest(self, start: Position, max_rows: int) -> Position:
        """About max_rows rows further on, of those that were there `settle` ago."""
        if self.ended(start):
            return start
        high = start["end"] if self.finite else self._settled()
        if high is None or (start["after"], high) == self._nothing:
            return start
        with self._asked() as connection:
            last, rows = self._rows.after(connection, start["after"], high, max_rows)
        if not rows:
            self._nothing = start["after"], high
            return {**start, "after": high, "rows": 0} if self.finite else start
        return {**start, "after": kept(last), "rows": rows}

    def _settled(self) -> Any:
        """The greatest value that was there `settle` ago, as far as anybody has looked."""
        if not self._seen or time.monotonic() - self._seen[-1][0] >= self._every:
            with self._asked() as connection:
                value = kept(self._rows.greatest(connection))
            self._seen.append((time.monotonic(), value))
        now = time.monotonic()
        settled = [i for i, (at, _) in enumerate(self._seen) if now - at >= self._settle]
        if not settled:
            return None
        del self._seen[: settled[-1]]
        return self._seen[0][1]

    def ended(self, position: Position) -> bool:
        """True when a finite input was read to the value that was the greatest when the job began."""
        return self.finite and position["after"] == position["end"]

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Ranges of values. Raises RowsGone when there are not as many rows as when the epoch was planned first."""
        low, high, rows = start["after"], stop["after"], stop["rows"]
        made: list[Split] = []
        if low == high:
            return made
        with self._asked() as connection:
            found = self._rows.count(connection, low, high)
            self._require(low, high, found, rows)
            each = max(-(-rows // max(tasks, 1)), CUT_ROWS)
            while rows > 0:
                last, some = self._rows.after(connection, low, high, each) if rows > each else (high, rows)
                made.append({"low": low, "high": kept(last), "rows": some})
                low, rows = kept(last), rows - some
        return made

    def _require(self, low: Any, high: Any, found: int, rows: int) -> None:
        if found != rows:
            raise RowsGone(
                f"{self!r}: {found} rows have {self._rows.column} in ({low}, {high}], and {rows} were there when the epoch "
                "was planned: rows that were read may not go, change that column, or come later with a smaller value "
                "(settle= says how much later); make them as they were"
            )

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed]:
        """The rows of a range. Raises RowsGone when there are others than were planned."""
        low, high, found = split["low"], split["high"], 0
        wanted = self._schema if columns is None else pa.schema([self._schema.field(one) for one in columns])
        for rows in self._rows.rows(self._schema.names, low, high):
            found += len(rows)
            batch, bad = records(rows, self._schema)
            if bad:
                yield malformed(
                    [
                        json.dumps(dict(zip(self._schema.names, rows[i], strict=True)), default=str).encode()
                        for i in bad
                    ],
                    [
                        f"{self._rows.table}, row with {self._rows.column} in ({low}, {high}]: {why}"
                        for why in bad.values()
                    ],
                )
            yield batch if columns is None else batch.select(wanted.names)
        self._require(low, high, found, split["rows"])

    def _asked(self) -> _Lent:
        return _Lent(self)


class _Lent:
    """The connection that the driver keeps; one that has failed is made anew the next time."""

    def __init__(self, of: TableSplits) -> None:
        self._of = of

    def __enter__(self) -> Any:
        if self._of._own is None:
            self._of._own = self._of._rows.connection()
        return self._of._own

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Unreachable):
            self._of._own.close()
            self._of._own = None


def records(rows: list[tuple[Any, ...]], schema: pa.Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """(rows as records, what is wrong with those that are none, by their place in order)."""
    bad: dict[int, str] = {}
    columns = []
    for k, field in enumerate(schema):
        made, unfit = _column(field, [row[k] for row in rows])
        columns.append(made)
        for i, why in unfit.items():
            bad.setdefault(i, why)
    if not bad:
        return pa.RecordBatch.from_arrays(columns, schema=schema), {}
    fit = [row for i, row in enumerate(rows) if i not in bad]
    return records(fit, schema)[0], dict(sorted(bad.items()))


def _column(field: pa.Field, values: list[Any]) -> tuple[pa.Array | None, dict[int, str]]:
    """A column, or what does not fit it."""
    plain = [_plain(value, field.type) for value in values]
    unfit: dict[int, str] = {}
    if not field.nullable:
        unfit = {i: f"column {field.name!r} is null" for i, value in enumerate(plain) if value is None}
    if not unfit and not any(_is_of_another(value, field.type) for value in plain):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.array(plain, field.type), {}
    made: list[Any] = []
    for i, value in enumerate(plain):
        if (one := _single(value, field)) is None:
            unfit.setdefault(i, f"column {field.name!r}: {str(values[i])[:SHOWN]!r} does not fit {field.type}")
        else:
            made.append(one)
    return (None, unfit) if unfit else (pa.concat_arrays(made), {})


def _single(value: Any, field: pa.Field) -> pa.Array | None:
    """An array of one value; None: it does not fit. Texts of other types, as SQLite has them, are read as in CSV."""
    with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        if isinstance(value, str) and not is_text(field.type):
            made, unfit = column_of(JsonNode(field.name, field, (), 0), pa.array([value]))
            return None if np.any(unfit) else made
        return None if _is_of_another(value, field.type) else pa.array([value], field.type)
    return None


def _is_of_another(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow would change the value: it makes times of numbers, and cuts fractions."""
    return (types.is_temporal(kind) and isinstance(value, int | float)) or is_cut(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of a database's library as Arrow takes it."""
    if types.is_boolean(kind) and type(value) is int and value in (0, 1):
        return bool(value)
    if types.is_floating(kind) and isinstance(value, Decimal):
        made = float(value)
        return value if math.isinf(made) and value.is_finite() else made
    if is_text(kind) and value is not None and not isinstance(value, str):
        return json.dumps(value) if isinstance(value, dict | list) else str(value)
    return value


def table(
    dsn: str,
    table: str,
    schema: pa.Schema,
    column: str,
    finite: bool = False,
    every: Duration = "1s",
    settle: Duration = "1s",
) -> TableSplits:
    """A table of Postgres or SQLite, or the rows of a query: what is there, and then what is added.

    Rows are read in the order of a column whose values grow: a key that the database draws, or a time. The last value is the
    position; a range that is read again, after a failure, has the same rows, or the job waits and says so. For that rows
    must stay as they are once they were added, and a row must be committed within `settle` of a row with a greater value.
    A row that comes later is never read; nor is one whose value is null.

    Parameters:
        dsn: "postgresql://user:${PASSWORD}@host:5432/database", with the name of a variable of driver and workers in place
            of the password (ferry-stream[postgres]); or "sqlite:///orders.db", "sqlite:////data/orders.db", a file
            that every worker sees under the same path.
        table: its name, "orders" or "shop.orders", exactly as the database has it; or a query, "SELECT ...".
        schema: the columns to read. A value that does not fit its type makes its row malformed.
        column: the one whose values grow; an integer, a text, a time, or a decimal. It need not be in the schema.
        finite: the input is what the table held when the job began, and then it ends.
        every: between two looks for new rows.
        settle: how long after a value was seen the rows up to it are read.
    Returns: a source, for what `sources(spark, args)` returns.
    Raises: SpecRefused, if the database is of another kind, its library is not installed, a type is not read from it, or,
        when the job begins, there is no such table or column.
    Example:
        >>> import pyarrow as pa
        >>> columns = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
        >>> ferry.table("sqlite:///shop.db", "orders", columns, column="id")
        table('sqlite:///shop.db', 'orders')
    """
    refuse_unknown(dsn)
    require_name(table, "table: table")
    require_name(column, "table: column")
    checked("table", schema, None)
    return TableSplits(Ordered(dsn, table, column), schema, finite, every, settle)
