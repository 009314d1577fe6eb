"""Kafka records as Arrow batches, and rows as Kafka records. Must never import Kafka's library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from ferry.connectors.formats.json_lines import checked, parse_each
from ferry.connectors.formats.json_text import json_text, plain_text
from ferry.connectors.kafka.registry import SchemaRegistry
from ferry.connectors.splits import Malformed, malformed
from ferry.contract.errors import SpecRefused

BESIDE = {
    "key": pa.binary(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "headers": pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
}
"""Optional columns of a record besides its value."""

PLAIN = {"bytes": pa.binary(), "string": pa.string()}
"""Formats of values with a single column, `value`."""


Outgoing: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""(key, value, headers) of a record to write."""


SHOWN = 80
"""Greatest number of bytes of a key in an error text."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The sink's mark: offset `epoch` + 1 of a consumer group without consumers, committed with the epoch's records."""

    epoch: int
    generation: int
    run: str = ""
    """The run that has published the epoch. Empty if unknown."""

    def about(self) -> str:
        """The metadata of the committed offset."""
        return json.dumps({"generation": self.generation, "run": self.run})

    @classmethod
    def read(cls, offset: int, about: str | None) -> Marker:
        """The marker of a committed offset and its metadata."""
        known = json.loads(about or "{}")
        return cls(offset - 1, int(known.get("generation", -1)), str(known.get("run", "")))


class Record(Protocol):
    """The used methods of a record of the library."""

    def value(self) -> bytes | None: ...
    def key(self) -> bytes | None: ...
    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...


class Decoder:
    """Decodes records to batches of a schema. A value that does not fit is malformed."""

    def __init__(
        self,
        value: str | pa.Schema,
        beside: Sequence[str],
        registry: SchemaRegistry | None = None,
        epoch: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(value, pa.Schema) and value not in PLAIN:
            raise SpecRefused(
                f"kafka: value={value!r}: give the schema of JSON objects (pyarrow.schema), or one of {', '.join(PLAIN)}"
            )
        if registry is not None and isinstance(value, str):
            raise SpecRefused(f"kafka: value={value!r} with a registry: give the columns (pyarrow.schema)")
        if epoch is not None and isinstance(value, str):
            raise SpecRefused(f"kafka: epoch={epoch!r} with value={value!r}: it applies to columns of JSON values only")
        self._epochs = () if isinstance(value, str) else checked("kafka", value, epoch)
        self._registry = registry
        self._plain: str | None = value if isinstance(value, str) else None
        self._fields: pa.Schema = pa.schema([("value", PLAIN[value])]) if isinstance(value, str) else value
        if unknown := [name for name in beside if name not in BESIDE]:
            raise SpecRefused(f"kafka: beside={unknown}: there are {', '.join(BESIDE)}")
        if twice := [name for name in beside if name in self._fields.names]:
            raise SpecRefused(
                f"kafka: {', '.join(twice)}: the value has a field of this name, so it cannot be in beside="
            )
        self._beside = tuple(dict.fromkeys(beside))
        self.schema = pa.schema([*self._fields, *((name, BESIDE[name]) for name in self._beside)])

    @property
    def sets_aside(self) -> bool:
        """Whether values can be malformed."""
        return self._plain != "bytes"

    def decode(self, records: Sequence[Record], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch | Malformed]:
        """A batch of the records that fit, and the malformed records."""
        all_ = records
        bad: dict[int, str] = {}
        headers: list[Any] = []
        if "headers" in self._beside:
            headers, bad = _headers(records)
            records = [record for i, record in enumerate(records) if i not in bad]
        table, wrong = self._values([record.value() for record in records])
        if wrong:
            places = [i for i in range(len(all_)) if i not in bad]
            bad |= {places[i]: why for i, why in wrong.items()}
            records = [record for i, record in enumerate(records) if i not in wrong]
            headers = [header for i, header in enumerate(headers) if i not in wrong]
        wanted = self.schema.names if columns is None else list(columns)
        for name in self._beside:
            if name in wanted:
                column = pa.array(headers, BESIDE[name]) if name == "headers" else _beside(name, records)
                table = table.append_column(self.schema.field(name), column)
        if table.num_rows:
            yield from table.select(wanted).combine_chunks().to_batches()
        if bad:
            aside = [(all_[i], bad[i]) for i in sorted(bad)]
            reasons = [f"{_place(record)}: {why}" for record, why in aside]
            yield malformed([record.value() for record, _ in aside], reasons)

    def _values(self, values: Sequence[bytes | None]) -> tuple[pa.Table, dict[int, str]]:
        """(table of the values that fit, reasons of the malformed values by index)."""
        if self._registry is not None:
            return self._registry.table(values, self._fields, self._epochs)
        if self._plain is None:
            return parse_each(values, self._fields, self._epochs)
        bad: dict[int, str] = {}
        if self._plain == "string":
            bad = {i: "not UTF-8" for i, value in enumerate(values) if value is not None and not _is_text(value)}
        fitting = [value for i, value in enumerate(values) if i not in bad]
        return pa.table([pa.array(fitting, pa.binary()).cast(PLAIN[self._plain])], schema=self._fields), bad


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _place(record: Record) -> str:
    """The place of a record, for messages."""
    return f"topic {record.topic()}, partition {record.partition()}, offset {record.offset()}"


def _headers(records: Sequence[Record]) -> tuple[list[list[dict[str, Any]]], dict[int, str]]:
    """(headers of the records with readable headers, reasons of the other records by index)."""
    headers: list[list[dict[str, Any]]] = []
    bad: dict[int, str] = {}
    for i, record in enumerate(records):
        try:
            headers.append([{"name": name, "value": value} for name, value in record.headers() or ()])
        except (SystemError, UnicodeDecodeError):  # The library does not handle it; a second call would crash.
            bad[i] = "the name of a header is not UTF-8"
    return headers, bad


def _beside(name: str, records: Sequence[Record]) -> pa.Array:
    """A column of `BESIDE`."""
    if name == "timestamp":  # -1 means no timestamp, as in Kafka's own format.
        stamps = (record.timestamp() for record in records)
        times: list[Any] = [at if kind and at != -1 else None for kind, at in stamps]
        return pa.array(times, pa.int64()).cast(BESIDE[name])
    return pa.array([getattr(record, name)() for record in records], BESIDE[name])


class Encoder:
    """Encodes rows to keys and values of records."""

    def __init__(self, key: str | None, value: str) -> None:
        if value not in ("json", *PLAIN):
            raise SpecRefused(f"kafka_sink: value={value!r}; give json, {' or '.join(PLAIN)}")
        self._key = key
        self._value = value

    def described(self, record: Outgoing) -> str:
        """The description of a row that the brokers always refuse: its key, its size and its largest column."""
        key, value, _ = record
        shown = "no key" if key is None else f"key {key[:SHOWN].decode('utf-8', 'backslashreplace')!r}"
        sizes = {} if key is None else {self._key: len(key)}
        if self._value == "json":
            sizes |= {name: len(json.dumps(held)) for name, held in json.loads(value or b"{}").items()}
        else:
            sizes["value"] = len(value or b"")
        return (
            f"the row with {shown} has {len(key or b'') + len(value or b'')} bytes, most of them in column "
            f"{max(sizes, key=sizes.__getitem__)!r}, and can never be written"
        )

    def encode(self, rows: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of each row. Raises SpecRefused for a missing or repeated column."""
        names = rows.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecRefused(
                f"kafka_sink: the rows have two columns {twice[0]!r}; rename one of them with .transform(...)"
            )
        wanted = [self._key] if self._key is not None else []
        wanted += [] if self._value == "json" else ["value"]
        if missing := [name for name in wanted if name not in rows.column_names]:
            raise SpecRefused(f"kafka_sink: the rows have no column {missing[0]!r}; they have {rows.column_names}")
        keys = [None] * rows.num_rows if self._key is None else _bytes(rows.column(self._key))
        if self._value == "json":
            return list(zip(keys, map(str.encode, json_text(rows)), strict=True))
        return list(zip(keys, _bytes(rows.column("value")), strict=True))


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    """Values as bytes for a key or value: bytes unchanged, others as text."""
    raw = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    values: list[bytes | None] = (column if raw else plain_text(column).cast(pa.large_binary())).to_pylist()
    return values
