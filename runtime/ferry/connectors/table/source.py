"""A database table as a source: rows in the order of a growing column, read inside the ingest tasks.

    greatest value now -> `settle` later -> about as many rows as an epoch may have -> position with their number

A position has the value up to which rows were read, and the number of rows of its epoch. Every later plan or read of the
range counts the rows and fails if the number differs. Must never skip a row that was visible when its value was reached.
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
from ferry.connectors.splits import Malformed, Position, Split, malformed, require_end
from ferry.connectors.table.databases import Misfit, Ordered, kept, refuse_unknown
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable
from ferry.contract.texts import require_name

SHOWN = 60
"""Greatest number of characters of a value in a reason."""

CUT_ROWS = 20_000
"""Least number of rows in a split when a range is divided among tasks."""


class TableSplits:
    """The source of `table`.

    A position: {"after": the last read value, "rows": number of rows of the epoch that ends there}. The position of a finite
    input also has "end", the greatest value when the job began.
    """

    sets_aside = True

    def __init__(self, rows: Ordered, schema: pa.Schema, finite: bool, every: Duration, settle: Duration) -> None:
        self._rows = rows
        self._schema = schema
        self.finite = finite
        self._every = milliseconds(every, "table: every") / 1000
        self._settle = milliseconds(settle, "table: settle") / 1000
        self._seen: list[tuple[float, Any]] = []
        """(monotonic time, greatest value at that time), oldest first."""
        self._empty: tuple[Any, Any] | None = None
        """(low, high): a range without rows."""
        self._own: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for tasks, without the driver's connection."""
        return {**self.__dict__, "_own": None, "_seen": [], "_empty": None}

    def __repr__(self) -> str:
        return f"table({shown_url(self._rows.dsn)!r}, {self._rows.table!r})"

    def schema(self) -> pa.Schema:
        """The declared schema."""
        return self._schema

    def start(self) -> Position:
        """The position before the first row. Raises SpecRefused for a missing table or column."""
        try:
            with self._connected() as connection:
                end = kept(self._rows.greatest(connection))
                self._rows.require(connection, self._schema.names)
        except (Misfit, TypeError) as wrong:
            raise SpecRefused(f"{self!r}: {wrong}") from wrong
        return {"after": None, "rows": 0, **({"end": end} if self.finite else {})}

    def latest(self, start: Position, max_rows: int) -> Position:
        """The position after about `max_rows` further rows among the rows that were visible `settle` ago."""
        if self.ended(start):
            return start
        high = start["end"] if self.finite else self._settled()
        if high is None or (start["after"], high) == self._empty:
            return start
        with self._connected() as connection:
            last, rows = self._rows.after(connection, start["after"], high, max_rows)
        if not rows:
            self._empty = start["after"], high
            return {**start, "after": high, "rows": 0} if self.finite else start
        return {**start, "after": kept(last), "rows": rows}

    def _settled(self) -> Any:
        """The greatest value seen at least `settle` ago. None before the first such value."""
        if not self._seen or time.monotonic() - self._seen[-1][0] >= self._every:
            with self._connected() as connection:
                value = kept(self._rows.greatest(connection))
            self._seen.append((time.monotonic(), value))
        now = time.monotonic()
        settled = [i for i, (at, _) in enumerate(self._seen) if now - at >= self._settle]
        if not settled:
            return None
        del self._seen[: settled[-1]]
        return self._seen[0][1]

    def ended(self, position: Position) -> bool:
        """Whether a finite input was read up to its greatest value when the job began."""
        if not self.finite:
            return False
        require_end(self, position)
        return bool(position["after"] == position["end"])

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """Ranges of values. Raises RowsGone if the number of rows differs from the first plan of the epoch."""
        low, high, rows = start["after"], stop["after"], stop["rows"]
        splits: list[Split] = []
        if low == high:
            return splits
        with self._connected() as connection:
            self._require(low, high, self._rows.count(connection, low, high), rows)
            each = max(-(-rows // max(tasks, 1)), CUT_ROWS)
            while rows > 0:
                last, count = self._rows.after(connection, low, high, each) if rows > each else (high, rows)
                splits.append({"low": low, "high": kept(last), "rows": count})
                low, rows = kept(last), rows - count
        return splits

    def _require(self, low: Any, high: Any, count: int, rows: int) -> None:
        if count != rows:
            raise RowsGone(
                f"{self!r}: {count} rows have {self._rows.column} in ({low}, {high}], but the epoch was planned with {rows}:"
                " read rows must not be deleted, must not change that column, and no row may be committed later than "
                "settle= after a greater value; restore the rows"
            )

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Malformed]:
        """The rows of a range. Raises RowsGone if their number differs from the plan."""
        low, high, count = split["low"], split["high"], 0
        wanted = self._schema if columns is None else pa.schema([self._schema.field(name) for name in columns])
        for rows in self._rows.rows(self._schema.names, low, high):
            count += len(rows)
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
        self._require(low, high, count, split["rows"])

    def _connected(self) -> _Lent:
        return _Lent(self)


class _Lent:
    """The driver's kept connection. A failed connection is closed; the next use opens a new one."""

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
    """(records of the rows, reasons of the malformed rows by index)."""
    bad: dict[int, str] = {}
    columns = []
    for k, field in enumerate(schema):
        column, unfit = _column(field, [row[k] for row in rows])
        columns.append(column)
        for i, why in unfit.items():
            bad.setdefault(i, why)
    if not bad:
        return pa.RecordBatch.from_arrays(columns, schema=schema), {}
    fit = [row for i, row in enumerate(rows) if i not in bad]
    return records(fit, schema)[0], dict(sorted(bad.items()))


def _column(field: pa.Field, values: list[Any]) -> tuple[pa.Array | None, dict[int, str]]:
    """(a column, {}), or (None, reasons of the unfit values by index)."""
    plain = [_plain(value, field.type) for value in values]
    unfit: dict[int, str] = {}
    if not field.nullable:
        unfit = {i: f"column {field.name!r} is null" for i, value in enumerate(plain) if value is None}
    if not unfit and not any(_is_of_another(value, field.type) for value in plain):
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            return pa.array(plain, field.type), {}
    arrays: list[Any] = []
    for i, value in enumerate(plain):
        if (array := _single(value, field)) is None:
            unfit.setdefault(i, f"column {field.name!r}: {str(values[i])[:SHOWN]!r} does not fit {field.type}")
        else:
            arrays.append(array)
    return (None, unfit) if unfit else (pa.concat_arrays(arrays), {})


def _single(value: Any, field: pa.Field) -> pa.Array | None:
    """An array of one value. None for an unfit value. Texts in columns of other types, as in SQLite, are read as CSV."""
    with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
        if isinstance(value, str) and not is_text(field.type):
            array, unfit = column_of(JsonNode(field.name, field, (), 0), pa.array([value]))
            return None if np.any(unfit) else array
        return None if _is_of_another(value, field.type) else pa.array([value], field.type)
    return None


def _is_of_another(value: Any, kind: pa.DataType) -> bool:
    """Whether Arrow would change the value: it converts numbers to times, and truncates fractions."""
    return (types.is_temporal(kind) and isinstance(value, int | float)) or is_cut(value, kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A value of a database's library for Arrow."""
    if types.is_boolean(kind) and type(value) is int and value in (0, 1):
        return bool(value)
    if types.is_floating(kind) and isinstance(value, Decimal):
        number = float(value)
        return value if math.isinf(number) and value.is_finite() else number
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
    """A table of PostgreSQL or SQLite, or the rows of a query, as a source. Added rows are new records.

    The source reads rows in the order of a growing column, such as a sequence or a time. The last read value is the
    position. After a failure a range is read again and must have the same rows; otherwise the job stops reading and reports
    the difference. Therefore rows must not change after they are added, and a row must be committed within `settle` after a
    row with a greater value. A row that is committed later, and a row with a null in this column, are never read.

    Parameters:
        dsn: "postgresql://user:${PASSWORD}@host:5432/database", where the password is a reference to an environment variable
            of driver and workers (needs ferry-stream[postgres]); or "sqlite:///orders.db", "sqlite:////data/orders.db", a
            file with the same path on every worker.
        table: name of the table, "orders" or "shop.orders", in the database's spelling; or a query, "SELECT ...".
        schema: the columns to read. A value that does not fit its type makes its row malformed.
        column: the growing column: integers, texts, times or decimals. It need not be in the schema.
        finite: True: the input ends with the rows that the table held when the job began.
        every: time between two queries for new rows: text such as "1s", or a timedelta.
        settle: the rows up to a value are read this time after the value was seen: text or a timedelta.
    Returns: a source, for the dict that `sources(spark, args)` returns.
    Raises: SpecRefused, if the database or a type is not supported, or the library is not installed. The job raises
        SpecRefused at its start, if the table or a column is missing.
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
