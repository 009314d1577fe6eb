"""A table of Delta Lake as a sink: the rows of an epoch and its number are one commit. The only place of its library.

The number is the version of a `txn` action, by which Delta keeps what an application has written. Of two commits with the
same one, on the same version of the table, Delta refuses the second. Must never commit rows without it.

    ferry.JOB.NAME             the epoch
    ferry.JOB.NAME.generation  of the driver
    ferry.JOB.NAME.run, .life  their names, as numbers
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
"""In errors of the library."""

FILE = "file://"

INVALID = "Invalid data found"
"""The library then goes on with values of rows."""

OWN_WORK = {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "CREATE TABLE"}
"""Commits of others that add and remove no rows."""


def require() -> None:
    """Raise SpecRefused where the library is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("delta: the package deltalake is not installed: ferry-stream[delta]") from missing


class DeltaSink(MarkedSink):
    """See `delta`."""

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
        """What `ferry.test` calls it."""
        return secrets.shown_url(self.declared).rstrip("/").rpartition("/")[2]

    @property
    def directory(self) -> str:
        """Where the table is."""
        return secrets.shown_url(self._url)

    def expect(self, schema: pa.Schema) -> None:
        """Know the columns. Raises SpecRefused for a type that Delta has not."""
        require_names(schema, "delta")
        kinds = frame_schema(schema)
        for field in kinds:
            if holds(field.type, lambda kind: pa.types.is_time(kind) or pa.types.is_duration(kind)):
                raise SpecRefused(
                    f"delta: column {field.name!r} is {schema.field(field.name).type}, which Delta has not; make it a "
                    "number or a text, in .map_batches(...)"
                )
        self._schema = kinds

    def place(self, base: str | None) -> Path | None:
        """As of a parquet sink; a URL stays, and is None if it is not that of a directory."""
        if self.declared.startswith(FILE):
            return Path(self.declared.removeprefix(FILE))
        if "://" in self.declared:
            return None
        directory = (Path(self.declared) if base is None else Path(base) / Path(self.declared).name).absolute()
        self._url = str(directory)
        return directory

    def _marked_as(self, name: str) -> str:
        """Delta keeps numbers."""
        return str(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7]) if name else 0)

    def _words_of(self, there: SinkMark) -> str:
        """The name of its run, if the log still has it."""
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
        """Why rows do not fit the table; empty: they do."""
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
        epoch, generation, run, life = (table.transaction_version(one) for one in _applications(name))
        return None if epoch is None else SinkMark(epoch, generation, str(run), str(life))

    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        from deltalake import write_deltalake

        assert self._schema is not None
        with self._errors():
            table = self._at(there)
            if misfit := self._misfit(table):  # The library would leave these columns out.
                raise Unreachable(f"{self!r}: the table was changed: {misfit}")
            given = rows if rows is not None else self._schema.empty_table()
            kept = table.schema().to_arrow()
            for field in kept:
                if field.name not in given.column_names:
                    given = given.append_column(field.name, pa.nulls(given.num_rows, pa.field(field).type))
            given = given.select([field.name for field in kept])
            write_deltalake(table, given, mode="append", commit_properties=self._properties(mark))

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Have the table be as it was before the first later epoch, if nobody else has changed rows since."""
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
                raise SpecRefused(self._no_way_back(epoch, there, ": the log does not go back so far"))
            try:
                table.restore(first - 1, commit_properties=self._properties(mark))
            except Exception as error:
                if "missing file" not in str(error):
                    raise
                gone = ": files of before were removed (VACUUM)"
                raise SpecRefused(self._no_way_back(epoch, there, gone)) from error

    def _at(self, there: SinkMark | None) -> Any:
        """The table as it is now; what is written to it is refused where its marks have changed. Raises Overtaken."""
        table = self._table()
        if self._read(table, self._name) != there:
            raise Overtaken("another driver has changed the mark")
        return table

    def _properties(self, mark: SinkMark) -> Any:
        from deltalake import CommitProperties, Transaction

        numbers = mark.epoch, mark.generation, int(mark.run), int(mark.life)
        summary = {"ferry.sink": self._name, "ferry.epoch": str(mark.epoch), "ferry.run": self._run}
        transactions = [Transaction(*one) for one in zip(_applications(self._name), numbers, strict=True)]
        return CommitProperties(custom_metadata=summary, app_transactions=transactions)

    def _table(self) -> Any:
        """Looked up anew: one that was removed, or is another by now, is noticed."""
        from deltalake import DeltaTable

        return DeltaTable(self._url, storage_options=self._filled())

    def _filled(self) -> dict[str, str] | None:
        return secrets.filled(self._storage) or None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Around calls of the library: raises our errors in place of its own."""
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
                raise Final(
                    f"{self!r}: rows do not keep a constraint of the table, or lack a value that it needs"
                ) from None
            text = f"{self!r}: {secrets.masked(_line(error), self._storage.values())}"
            final = isinstance(error, DeltaProtocolError | SchemaMismatchError)
            raise (SpecRefused if final else Unreachable)(text) from None


def _applications(name: str) -> tuple[str, str, str, str]:
    """Names of the numbers of a mark."""
    return name, f"{name}.generation", f"{name}.run", f"{name}.life"


def _line(error: Exception) -> str:
    return one_line(" ".join(COLOURS.sub("", str(error)).split()))


def _word(kind: Any) -> str:
    """Of a type, as Delta calls it."""
    return str(getattr(kind, "type", kind))


def delta(
    table: str | PathLike[str], *, name: str | None = None, storage_options: Mapping[str, str] | None = None
) -> DeltaSink:
    """Rows of a table of Delta Lake, one commit an epoch: each epoch is seen at once, and once.

    The table is made when the job begins, unless it is there. Needs `pip install 'ferry-stream[delta]'`. The driver writes.

    Parameters:
        table: a directory, or a URL ("s3://bucket/sales", "abfss://..."); `ferry run --output DIR` puts the last name of a
            directory below DIR instead.
        name: of the sink in its job, by which its epochs are known; None: the last name of the table.
        storage_options: for the store of a URL, as deltalake takes them; a secret is the name of a variable of the
            environment, {"aws_secret_access_key": "${S3_SECRET}"}. Without them it is what the environment says (AWS_...).
    Returns: a sink.
    Raises: SpecRefused, if an argument is none of these, or the library is not installed; where the sink is given its
        stream, for a column of times of the day or durations; when the job begins, if the table has other columns.
    Example:
        >>> output = counts.sink(ferry.delta("/data/counts"))
    """
    require()
    where = files.path_of(table, "delta: table").rstrip("/")
    secrets.require_no_login(where, "delta: table")
    if ("://" not in where or where.startswith(FILE)) and "%" in where:
        raise SpecRefused(f"delta: table {where!r}: the library takes % for an encoded character; use another name")
    if name is not None:
        require_name(name, "delta: name=")
    options = secrets.require_references(storage_options, "delta: storage_options")
    if unsafe := [one for one in options if one.lower().endswith("allow_unsafe_rename")]:
        raise SpecRefused(
            f"delta: storage_options {unsafe[0]!r}: two drivers could commit the same version; leave it out"
        )
    return DeltaSink(where, name or secrets.shown_url(where).rpartition("/")[2], options)
