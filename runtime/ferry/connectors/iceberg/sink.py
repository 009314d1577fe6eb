"""An Iceberg table as a sink: one commit holds the rows of an epoch and the sink's mark. The only import of `pyiceberg`.

The mark is a property of the table, `ferry.JOB.NAME`; the summary of each snapshot repeats its epoch. Each commit requires
the snapshot from which the mark was read, so only one of two drivers commits. The library's own retry is turned off: it
would rebase a refused commit onto the other one and write the same epoch twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from ferry.connectors import secrets
from ferry.connectors.formats.parquet_encodings import for_readers
from ferry.connectors.marked_sinks import Disallowed, MarkedSink, Overtaken, SinkMark
from ferry.contract.errors import Fault, Refusal, SpecRefused, Unreachable
from ferry.contract.one_line import one_line
from ferry.contract.texts import require_name
from ferry.kernels.frame_types import frame_schema, holds

RETRIES = "commit.retry.num-retries"
"""Table property with the number of the library's retries of a refused commit."""

MADE_WITH = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Properties of a new table: each epoch adds a metadata file; the library removes old files."""

LIBRARIES = {
    "pyiceberg",
    "sqlalchemy",
    "requests",
    "botocore",
    "adlfs",
    "gcsfs",
    "s3fs",
    "sqlite3",
    "psycopg",
    "thrift",
}
"""Packages whose errors mean that a catalog or a store does not answer."""


def require() -> None:
    """Raise SpecRefused if the library is not installed."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("iceberg: the package pyiceberg is not installed: ferry-stream[iceberg]") from missing


class IcebergSink(MarkedSink):
    """The sink of `iceberg`."""

    def __init__(self, table: str, catalog: str, properties: Mapping[str, str], name: str) -> None:
        super().__init__(name)
        self._identifier = table
        self._catalog_name = catalog
        self._properties = properties
        self._schema: pa.Schema | None = None
        self._catalog: Any = None

    def __repr__(self) -> str:
        return f"iceberg({self._identifier!r}, catalog={self._catalog_name!r})"

    @property
    def label(self) -> str:
        """The sink's name in `ferry.test`."""
        return self._identifier.rpartition(".")[2]

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """The name of a marked sink, and the catalog's address."""
        return f"{super().identify(job, run, before)} {secrets.shown_url(self._properties.get('uri', ''))}"

    def expect(self, schema: pa.Schema) -> None:
        """Take the columns of the rows. Raises SpecRefused for a type that Iceberg does not have."""
        kinds = frame_schema(schema)
        for field in kinds:
            if holds(field.type, lambda kind: pa.types.is_duration(kind) or pa.types.is_null(kind)):
                raise SpecRefused(
                    f"iceberg: column {field.name!r} is {schema.field(field.name).type}, which Iceberg does not have; make "
                    "it a number or a text, in .map_batches(...)"
                )
        self._schema = for_readers(kinds.empty_table(), of_spark=True).schema

    def _prepare(self) -> None:
        assert self._schema is not None
        with self._errors():
            catalog = self._connected()
            if not catalog.table_exists(self._identifier):
                catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
                catalog.create_table_if_not_exists(self._identifier, schema=self._schema, properties=MADE_WITH)
            there = _words(self._table().schema().as_arrow())
        for name, kind in _words(self._schema).items():
            if name not in there:
                raise SpecRefused(f"sink: {self!r}: the table has no column {name!r}; it has {', '.join(there)}")
            if there[name] != kind:
                raise SpecRefused(
                    f"sink: {self!r}: column {name!r} is {there[name]} in the table, and {kind} in the rows; cast it in "
                    ".map_batches(...)"
                )

    def _marked(self, name: str) -> SinkMark | None:
        with self._errors():
            return self._read(self._table(), name)

    def _read(self, table: Any, name: str) -> SinkMark | None:
        text = table.properties.get(name)
        return None if text is None else SinkMark(**json.loads(text))

    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        assert self._schema is not None
        written = self._schema.empty_table() if rows is None else for_readers(rows, of_spark=True)
        with self._errors(), self._commit(mark, there) as transaction:
            # Also without rows: the catalog compares snapshots to refuse the commit of another driver.
            transaction.append(written, snapshot_properties=self._summary(mark))

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Roll the table back to the snapshot of this epoch. Raises SpecRefused if another writer changed rows since."""
        from pyiceberg.table.update.snapshot import ManageSnapshots

        with self._errors(), self._commit(mark, there) as transaction:
            metadata = transaction.table_metadata
            snapshot = metadata.current_snapshot()
            while snapshot is not None:
                summary = snapshot.summary.additional_properties if snapshot.summary else {}
                ours = summary.get("ferry.sink") == self._name
                if ours and int(summary["ferry.epoch"]) <= epoch:
                    break
                operation = snapshot.summary.operation.value if snapshot.summary else "change"
                if not ours and operation != "replace":
                    why = f": snapshot {snapshot.snapshot_id} of the table, {operation}, is another writer's"
                    raise SpecRefused(self._no_way_back(epoch, there, why))
                before = snapshot.parent_snapshot_id
                snapshot = None if before is None else metadata.snapshot_by_id(before)
            if snapshot is None:
                raise SpecRefused(self._no_way_back(epoch, there, ": older snapshots are expired"))
            ManageSnapshots(transaction=transaction).rollback_to_snapshot(snapshot.snapshot_id).commit()

    @contextmanager
    def _commit(self, mark: SinkMark, there: SinkMark | None) -> Iterator[Any]:
        """A transaction on the table that writes the mark. Raises Overtaken if the table's mark is not `there`."""
        table = self._table()
        if self._read(table, self._name) != there:
            raise Overtaken("another driver has changed the mark")
        table.metadata.properties[RETRIES] = "0"  # in this process only; the table's property is unchanged
        with table.transaction() as transaction:
            transaction.set_properties({self._name: json.dumps(asdict(mark))})
            yield transaction

    def _summary(self, mark: SinkMark) -> dict[str, str]:
        """The properties of a snapshot's summary."""
        return {"ferry.sink": self._name, "ferry.epoch": str(mark.epoch), "ferry.run": self._run}

    def _table(self) -> Any:
        return self._connected().load_table(self._identifier)

    def _connected(self) -> Any:
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            self._catalog = load_catalog(self._catalog_name, **secrets.filled(self._properties))
        return self._catalog

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate the library's errors into Ferry's errors."""
        from pyiceberg import exceptions as its

        try:
            yield
        except (Refusal, Fault):
            raise
        except its.CommitFailedException as error:
            raise Overtaken(f"{self!r}: {_line(error)}") from error
        except Exception as error:
            self._catalog = None
            text = f"{self!r}: {type(error).__name__}: {secrets.masked(_line(error), self._properties.values())}"
            if isinstance(error, its.ForbiddenError | its.UnauthorizedError | its.OAuthError):
                raise Disallowed(text) from None
            if isinstance(error, OSError) or type(error).__module__.split(".")[0] in LIBRARIES:
                raise Unreachable(text) from None
            if isinstance(error, ValueError):
                raise SpecRefused(text) from None
            raise


def _words(schema: pa.Schema) -> dict[str, str]:
    """Type names by column, comparable on both sides: Arrow has several text types; Iceberg has no int8 and int16."""
    kinds = frame_schema(schema)
    return {field.name: re.sub(r"\bint(8|16)\b", "int32", str(field.type)) for field in kinds}


def _line(error: Exception) -> str:
    return one_line(" ".join(str(error).split()))


def iceberg(table: str, *, catalog: str | Mapping[str, str] = "default", name: str | None = None) -> IcebergSink:
    """Append rows to an Iceberg table, one commit per epoch, exactly once.

    The job creates the table and its namespace if they do not exist. Needs `pip install 'ferry-stream[iceberg]'`. The
    driver writes the rows.

    Parameters:
        table: the table's identifier, NAMESPACE.TABLE.
        catalog: name of a catalog in pyiceberg's configuration (~/.pyiceberg.yaml, or PYICEBERG_CATALOG__NAME__URI in the
            environment); or the catalog's properties, with an optional "name" (default: "default"): {"type": "sql",
            "uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"}. A secret is a reference to an
            environment variable: {"s3.secret-access-key": "${S3_SECRET}"}.
        name: name of the sink in its job, which identifies its commits. None: the table's identifier.
    Returns: a sink.
    Raises: SpecRefused, if an argument is invalid, or the library is not installed. `.sink(...)` raises SpecRefused for a
        column of durations or nulls. The job raises SpecRefused at its start, if the columns of the table differ.
    Example:
        >>> output = counts.sink(ferry.iceberg("shop.counts", catalog="prod"))
    """
    require()
    require_name(table, "iceberg: table")
    if not all(parts := table.split(".")) or len(parts) < 2:
        raise SpecRefused(f"iceberg: table {table!r}; give NAMESPACE.TABLE")
    if not isinstance(catalog, str | Mapping) or not catalog:
        raise SpecRefused(f"iceberg: catalog={catalog!r}; give its name, or a dictionary of its properties")
    if name is not None:
        require_name(name, "iceberg: name=")
    known, properties = (catalog, {}) if isinstance(catalog, str) else ("default", dict(catalog))
    properties = secrets.require_references(properties, "iceberg: catalog=")
    known = properties.pop("name", known)
    if "uri" in properties:
        secrets.require_no_login(properties["uri"], "iceberg: catalog= 'uri'")
    return IcebergSink(table, known, properties, name or table)
