"""A table of Iceberg as a sink: the rows of an epoch and its number are one commit. The only place of its library.

The number is a property of the table, `ferry.JOB.NAME`, and stands in the summary of each snapshot, too. Each commit asks
for the snapshot that the number was read from, so of two drivers one commits. The library would put a refused commit behind
the other one, and try again by itself: that is turned off, for it would be the same epoch twice.
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
"""Property of a table by which the library tries a refused commit again."""

MADE_WITH = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Properties of a table that is made here: each epoch leaves a file of metadata, and old ones are removed."""

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
"""What its errors are of when a catalog or a store does not answer."""


def require() -> None:
    """Raise SpecRefused where the library is not installed."""
    try:
        import pyiceberg  # noqa: F401
    except ImportError as missing:
        raise SpecRefused("iceberg: the package pyiceberg is not installed: ferry-stream[iceberg]") from missing


class IcebergSink(MarkedSink):
    """See `iceberg`."""

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
        """What `ferry.test` calls it."""
        return self._identifier.rpartition(".")[2]

    def identify(self, job: str, run: str = "", before: str | None = None) -> str:
        """As of all; the address is part of it."""
        return f"{super().identify(job, run, before)} {secrets.shown_url(self._properties.get('uri', ''))}"

    def expect(self, schema: pa.Schema) -> None:
        """Know the columns. Raises SpecRefused for a type that Iceberg has not."""
        kinds = frame_schema(schema)
        for field in kinds:
            if holds(field.type, lambda kind: pa.types.is_duration(kind) or pa.types.is_null(kind)):
                raise SpecRefused(
                    f"iceberg: column {field.name!r} is {schema.field(field.name).type}, which Iceberg has not; make it a "
                    "number or a text, in .map_batches(...)"
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
        kept = table.properties.get(name)
        return None if kept is None else SinkMark(**json.loads(kept))

    def _put(self, rows: pa.Table | None, mark: SinkMark, there: SinkMark | None) -> None:
        assert self._schema is not None
        given = self._schema.empty_table() if rows is None else for_readers(rows, of_spark=True)
        with self._errors(), self._commit(mark, there) as transaction:
            # Without rows, too: a snapshot is what the commit of another driver is compared by.
            transaction.append(given, snapshot_properties=self._summary(mark))

    def _take_back(self, epoch: int, mark: SinkMark, there: SinkMark) -> None:
        """Have the table be as it was after this epoch, if nobody else has changed rows since."""
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
        """A transaction on the table that has the mark `there`. Raises Overtaken when it has not, or not any more."""
        table = self._table()
        if self._read(table, self._name) != there:
            raise Overtaken("another driver has changed the mark")
        table.metadata.properties[RETRIES] = "0"  # of what was read alone
        with table.transaction() as transaction:
            transaction.set_properties({self._name: json.dumps(asdict(mark))})
            yield transaction

    def _summary(self, mark: SinkMark) -> dict[str, str]:
        """What the summary of a snapshot says."""
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
        """Around calls of the library: raises our errors in place of its own."""
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
    """Types by column, as both sides have them: Arrow has several texts, and Iceberg no integers of less than 32 bits."""
    kinds = frame_schema(schema)
    return {field.name: re.sub(r"\bint(8|16)\b", "int32", str(field.type)) for field in kinds}


def _line(error: Exception) -> str:
    return one_line(" ".join(str(error).split()))


def iceberg(table: str, *, catalog: str | Mapping[str, str] = "default", name: str | None = None) -> IcebergSink:
    """Rows of a table of Iceberg, one commit an epoch: each epoch is seen at once, and once.

    The table, and its namespace, are made when the job begins, unless they are there. Needs
    `pip install 'ferry-stream[iceberg]'`. The driver writes.

    Parameters:
        table: NAMESPACE.TABLE.
        catalog: the name of one that pyiceberg knows, from ~/.pyiceberg.yaml or PYICEBERG_CATALOG__NAME__URI in the
            environment; or its properties, with "name" (else "default"): {"type": "sql", "uri": "sqlite:////data/catalog.db",
            "warehouse": "file:///data/warehouse"}. A secret is the name of a variable of the environment:
            {"s3.secret-access-key": "${S3_SECRET}"}.
        name: of the sink in its job, by which its epochs are known; None: that of the table.
    Returns: a sink.
    Raises: SpecRefused, if an argument is none of these, or the library is not installed; where the sink is given its
        stream, for a column of durations or nulls; when the job begins, if the table has other columns.
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
