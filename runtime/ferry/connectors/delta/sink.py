"""A Delta Lake table as a sink: one commit holds the rows of an epoch and the sink's mark. The only import of `deltalake`.

The mark is a set of `txn` actions, by which Delta records the progress of applications. Delta refuses the second of two
commits with the same `txn` on the same version of the table. Must never commit rows without the mark.

    ferry.JOB.NAME             the epoch
    ferry.JOB.NAME.generation  the generation of the driver
    ferry.JOB.NAME.run, .life  hashes of the names of the run and of the life
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from ferry.connectors import secrets
from ferry.connectors.marked_sinks import MarkedSink, Overtaken, SinkMark
from ferry.contract.errors import Fault, Final, SpecRefused, Unreachable
from ferry.contract.one_line import one_line
from ferry.contract.texts import require_name
from ferry.kernels.frame_types import frame_schema, holds, require_names
from ferry.system import files

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""Terminal colours in the library's errors."""

FILE = "file://"

INVALID = "Invalid data found"
"""Prefix of an error whose text goes on with values of rows."""

OWN_WORK = {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "CREATE TABLE"}
"""Operations of other writers that neither add nor remove rows."""


def require() -> None:
    """Raise SpecRefused if the library is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("delta: the package deltalake is not installed: ferry-stream[delta]") from missing


class DeltaSink(MarkedSink):
    """The sink of `delta`."""

    def __init__(self, table: str, name: str, storage: Mapping[str, str]) -> None:
        super().__init__(name)
        self.declared = table
        self._url = table
        self._storage = storage
        self._schema: pa.Schema | None = None

    def __repr__(self) -> str:
        return f"delta({secrets.shown_url(self.declared)!r})"

    @property
    def label(self) -> str:
        """The sink's name in `ferry.test`."""
        return secrets.shown_url(self.declared).rstrip("/").rpartition("/")[2]

    @property
    def directory(self) -> str:
        """The table's address, without secrets."""
        return secrets.shown_url(self._url)

    def expect(self, schema: pa.Schema) -> None:
        """Take the columns of the rows. Raises SpecRefused for a type that Delta does not have."""
        require_names(schema, "delta")
        kinds = frame_schema(schema)
        for field in kinds:
            if holds(field.type, lambda kind: pa.types.is_time(kind) or pa.types.is_duration(kind)):
                raise SpecRefused(
                    f"delta: column {field.name!r} is {schema.field(field.name).type}, which Delta does not have; make it a "
                    "number or a text, in .map_batches(...)"
                )
        self._schema = kinds

    def place(self, base: str | None) -> Path | None:
        """The table's directory: `base`/NAME, as for a parquet sink. A URL is unchanged; None unless it is a file URL."""
        if self.declared.startswith(FILE):
            return Path(self.declared.removeprefix(FILE))
        if "://" in self.declared:
            return None
        directory = (Path(self.declared) if base is None else Path(base) / Path(self.declared).name).absolute()
        self._url = str(directory)
        return directory

    def _marked_as(self, name: str) -> str:
        """A hash of the name, because Delta stores numbers."""
        return str(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7]) if name else 0)

    def _words_of(self, there: SinkMark) -> str:
        """The name of the mark's run, in brackets. Empty if the table's log no longer has it."""
        with self._errors():
            for commit in self._table().history(100):
                if (
                    commit.get("ferry.sink") == self._name
                    and self._marked_as(str(commit.get("ferry.run"))) == there.run
                ):
                    return f" ({commit['ferry.run']})"
        return ""

    def _prepare(self) -> None:
        from deltalake import DeltaTable

        assert self._schema is not None
        with self._errors():
            DeltaTable.create(self._url, self._schema, mode="ignore", storage_options=self._filled())
            misfit = self._misfit(self._table())
        if misfit:
            raise SpecRefused(f"sink: {self!r}: {misfit}")

    def _misfit(self, table: Any) -> str:
        """The reason why the rows do not fit the table. Empty if they fit."""
        from deltalake import Schema

        assert self._schema is not None
        there = {field.name: field for field in table.schema().fields}
        mine = {field.name: field.type for field in Schema.from_arrow(self._schema).fields}
        for name, kind in mine.items():
            if name not in there:
                return f"the table has no column {name!r}; it has {', '.join(there)}"
            if there[name].type != kind:
                return (
                    f"column {name!r} is {_word(there[name].type)} in the table, and {_word(kind)} in the rows; cast it in "
                    ".map_batches(...)"
                )
        for field in there.values():
            if field.name not in mine and not field.nullable:
                return f"the rows have no column {field.name!r}, which must not be null in the table"
        return ""

    def _marked(self, name: str) -> SinkMark | None:
        with self._errors():
            return self._read(self._table(), name)

    def _read(self, table: Any, name: str) -> SinkMark | None:
        epoch, generation, run, life = (table.transaction_version(key) for key in _applications(name))
        return None if epoch is None else SinkMark(epoch, generation, str(run), str(life))

    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        from deltalake import write_deltalake

        assert self._schema is not None
        with self._errors():
            table = self._at(there)
            if misfit := self._misfit(table):  # The library would drop these columns without an error.
                raise Unreachable(f"{self!r}: the table was changed: {misfit}")
            written = rows if rows is not None else self._schema.empty_table()
            columns = table.schema().to_arrow()
            for field in columns:
                if field.name not in written.column_names:
                    written = written.append_column(field.name, pa.nulls(written.num_rows, pa.field(field).type))
            written = written.select([field.name for field in columns])
            write_deltalake(table, written, mode="append", commit_properties=self._properties(mark))

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Restore the table's version before the first later epoch. Raises SpecRefused if another writer changed rows."""
        with self._errors():
            table = self._at(there)
            first: int | None = None
            for commit in table.history():
                ours = commit.get("ferry.sink") == self._name
                if ours and int(commit["ferry.epoch"]) <= epoch:
                    break
                if not ours and commit["operation"] not in OWN_WORK:
                    why = f": version {commit['version']} of the table, {commit['operation']}, is another writer's"
                    raise SpecRefused(self._no_way_back(epoch, there, why))
                first = commit["version"] if ours else first
            else:
                first = None
            if first is None:
                raise SpecRefused(
                    self._no_way_back(epoch, there, ": the table's log does not reach back to that epoch")
                )
            try:
                table.restore(first - 1, commit_properties=self._properties(mark))
            except Exception as error:
                if "missing file" not in str(error):
                    raise
                gone = ": files of that version were removed (VACUUM)"
                raise SpecRefused(self._no_way_back(epoch, there, gone)) from error

    def _at(self, there: SinkMark | None) -> Any:
        """The table's current version, which has the mark `there`. Raises Overtaken if the mark has changed."""
        table = self._table()
        if self._read(table, self._name) != there:
            raise Overtaken("another driver has changed the mark")
        return table

    def _properties(self, mark: SinkMark) -> Any:
        from deltalake import CommitProperties, Transaction

        numbers = mark.epoch, mark.generation, int(mark.run), int(mark.life)
        summary = {"ferry.sink": self._name, "ferry.epoch": str(mark.epoch), "ferry.run": self._run}
        transactions = [Transaction(*pair) for pair in zip(_applications(self._name), numbers, strict=True)]
        return CommitProperties(custom_metadata=summary, app_transactions=transactions)

    def _table(self) -> Any:
        """The table's current version. Loaded anew each time, so a removed or replaced table is noticed."""
        from deltalake import DeltaTable

        return DeltaTable(self._url, storage_options=self._filled())

    def _filled(self) -> dict[str, str] | None:
        return secrets.filled(self._storage) or None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the library's errors into Ferry's errors."""
        from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

        try:
            yield
        except (SpecRefused, Fault):
            raise
        except CommitFailedError as error:
            raise Overtaken(f"{self!r}: {_line(error)}") from error
        except Exception as error:
            if not isinstance(error, DeltaError | OSError) and type(error) is not Exception:
                raise
            if INVALID in str(error):
                raise Final(f"{self!r}: rows violate a constraint of the table, or lack a required value") from None
            text = f"{self!r}: {secrets.masked(_line(error), self._storage.values())}"
            final = isinstance(error, DeltaProtocolError | SchemaMismatchError)
            raise (SpecRefused if final else Unreachable)(text) from None


def _applications(name: str) -> tuple[str, str, str, str]:
    """The `txn` applications of a mark's four values."""
    return name, f"{name}.generation", f"{name}.run", f"{name}.life"


def _line(error: Exception) -> str:
    return one_line(" ".join(COLOURS.sub("", str(error)).split()))


def _word(kind: Any) -> str:
    """Delta's name of a type."""
    return str(getattr(kind, "type", kind))


def delta(
    table: str | PathLike[str], *, name: str | None = None, storage_options: Mapping[str, str] | None = None
) -> DeltaSink:
    """Append rows to a Delta Lake table, one commit per epoch, exactly once.

    The job creates the table if it does not exist. Needs `pip install 'ferry-stream[delta]'`. The driver writes the rows.

    Parameters:
        table: a directory or a URL ("s3://bucket/sales", "abfss://..."). `ferry run --output DIR` replaces the parent of a
            directory with DIR.
        name: name of the sink in its job, which identifies its commits. None: the last part of the table's path.
        storage_options: deltalake's options for the store of a URL. A secret is a reference to an environment variable:
            {"aws_secret_access_key": "${S3_SECRET}"}. None: the environment's settings (AWS_...).
    Returns: a sink.
    Raises: SpecRefused, if an argument is invalid, or the library is not installed. `.sink(...)` raises SpecRefused for a
        column of times of day or durations. The job raises SpecRefused at its start, if the columns of the table differ.
    Example:
        >>> output = counts.sink(ferry.delta("/data/counts"))
    """
    require()
    where = files.path_of(table, "delta: table").rstrip("/")
    secrets.require_no_login(where, "delta: table")
    if ("://" not in where or where.startswith(FILE)) and "%" in where:
        raise SpecRefused(f"delta: table {where!r}: the library decodes % as an escape; use another name")
    if name is not None:
        require_name(name, "delta: name=")
    options = secrets.require_references(storage_options, "delta: storage_options")
    if unsafe := [option for option in options if option.lower().endswith("allow_unsafe_rename")]:
        raise SpecRefused(
            f"delta: storage_options {unsafe[0]!r}: two drivers could commit the same version; leave it out"
        )
    return DeltaSink(where, name or secrets.shown_url(where).rpartition("/")[2], options)
