"""Records of Kafka as Arrow batches, and rows as records. Must never import Kafka's library."""

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
"""Columns that a record has beside its value, if they are asked for."""

PLAIN = {"bytes": pa.binary(), "string": pa.string()}
"""Kinds of values that are one column, `value`."""


Outgoing: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""(key, value, headers) of a record to be written."""


SHOWN = 80
"""Bytes of a key that an error shows."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What is committed with an epoch's records: offset `epoch` + 1 of a consumer group that has no consumers."""

    epoch: int
    generation: int
    run: str = ""
    """That has published it; empty: nobody has said."""

    def about(self) -> str:
        """What stands beside the offset."""
        return json.dumps({"generation": self.generation, "run": self.run})

    @classmethod
    def read(cls, offset: int, about: str | None) -> Marker:
        """Inverse of `about`."""
        known = json.loads(about or "{}")
        return cls(offset - 1, int(known.get("generation", -1)), str(known.get("run", "")))


class Record(Protocol):
    """What is used of a record of the library."""

    def value(self) -> bytes | None: ...
    def key(self) -> bytes | None: ...
    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...


class Decoder:
    """Makes batches of one schema; a value that does not fit is set aside."""

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
            raise SpecRefused(f"kafka: epoch={epoch!r} with value={value!r}: it is for columns of JSON values")
        self._epochs = () if isinstance(value, str) else checked("kafka", value, epoch)
        self._registry = registry
        self._plain: str | None = value if isinstance(value, str) else None
        self._fields: pa.Schema = pa.schema([("value", PLAIN[value])]) if isinstance(value, str) else value
        if unknown := [one for one in beside if one not in BESIDE]:
            raise SpecRefused(f"kafka: beside={unknown}: there are {', '.join(BESIDE)}")
        if twice := [one for one in beside if one in self._fields.names]:
            raise SpecRefused(
                f"kafka: {', '.join(twice)}: the value has a field of this name, so it cannot be beside it"
            )
        self._beside = tuple(dict.fromkeys(beside))
        self.schema = pa.schema([*self._fields, *((one, BESIDE[one]) for one in self._beside)])

    @property
    def sets_aside(self) -> bool:
        """Whether there are values that do not fit."""
        return self._plain != "bytes"

    def decode(self, records: Sequence[Record], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch | Malformed]:
        """A batch of the records whose values fit, and what does not."""
        all_ = records
        bad: dict[int, str] = {}
        headers: list[Any] = []
        if "headers" in self._beside:
            headers, bad = _headers(records)
            records = [one for i, one in enumerate(records) if i not in bad]
        table, wrong = self._values([one.value() for one in records])
        if wrong:
            places = [i for i in range(len(all_)) if i not in bad]
            bad |= {places[i]: why for i, why in wrong.items()}
            records = [one for i, one in enumerate(records) if i not in wrong]
            headers = [one for i, one in enumerate(headers) if i not in wrong]
        wanted = self.schema.names if columns is None else list(columns)
        for name in self._beside:
            if name in wanted:
                column = pa.array(headers, BESIDE[name]) if name == "headers" else _beside(name, records)
                table = table.append_column(self.schema.field(name), column)
        if table.num_rows:
            yield from table.select(wanted).combine_chunks().to_batches()
        if bad:
            aside = [(all_[i], bad[i]) for i in sorted(bad)]
            yield malformed([one.value() for one, _ in aside], [f"{_place(one)}: {why}" for one, why in aside])

    def _values(self, values: Sequence[bytes | None]) -> tuple[pa.Table, dict[int, str]]:
        """(what the values hold, what is wrong with the others by their place)."""
        if self._registry is not None:
            return self._registry.table(values, self._fields, self._epochs)
        if self._plain is None:
            return parse_each(values, self._fields, self._epochs)
        bad: dict[int, str] = {}
        if self._plain == "string":
            bad = {i: "no UTF-8" for i, one in enumerate(values) if one is not None and not _is_text(one)}
        fitting = [one for i, one in enumerate(values) if i not in bad]
        return pa.table([pa.array(fitting, pa.binary()).cast(PLAIN[self._plain])], schema=self._fields), bad


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _place(record: Record) -> str:
    """Where a record lies, for people."""
    return f"topic {record.topic()}, partition {record.partition()}, offset {record.offset()}"


def _headers(records: Sequence[Record]) -> tuple[list[list[dict[str, Any]]], dict[int, str]]:
    """(headers of the records that have readable ones, what is wrong with the others by their place)."""
    made: list[list[dict[str, Any]]] = []
    bad: dict[int, str] = {}
    for i, one in enumerate(records):
        try:
            made.append([{"name": name, "value": value} for name, value in one.headers() or ()])
        except (SystemError, UnicodeDecodeError):  # The library has not foreseen it, and is not to be asked again.
            bad[i] = "the name of a header is no UTF-8"
    return made, bad


def _beside(name: str, records: Sequence[Record]) -> pa.Array:
    """One column of what is beside the value."""
    if name == "timestamp":  # -1 in Kafka's own format, too: there is none.
        found: list[Any] = [at if kind and at != -1 else None for kind, at in (one.timestamp() for one in records)]
        return pa.array(found, pa.int64()).cast(BESIDE[name])
    return pa.array([getattr(one, name)() for one in records], BESIDE[name])


class Encoder:
    """Makes keys and values of rows."""

    def __init__(self, key: str | None, value: str) -> None:
        if value not in ("json", *PLAIN):
            raise SpecRefused(f"kafka_sink: value={value!r}; it is one of json, {', '.join(PLAIN)}")
        self._key = key
        self._value = value

    def described(self, record: Outgoing) -> str:
        """Which row can never be written: its key, size, and the column that has most of it."""
        key, value, _ = record
        shown = "no key" if key is None else f"key {key[:SHOWN].decode('utf-8', 'backslashreplace')!r}"
        sizes = {} if key is None else {self._key: len(key)}
        if self._value == "json":
            sizes |= {name: len(json.dumps(held)) for name, held in json.loads(value or b"{}").items()}
        else:
            sizes["value"] = len(value or b"")
        return (
            f"the row with {shown} has {len(key or b'') + len(value or b'')} bytes, most of them in column "
            f"{max(sizes, key=sizes.__getitem__)!r}, and can never be written so"
        )

    def encode(self, rows: pa.Table) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of each row. Raises SpecRefused when it lacks a column, or has two of one name."""
        names = rows.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecRefused(
                f"kafka_sink: the rows have two columns {twice[0]!r}; rename one of them with .transform(...)"
            )
        wanted = [self._key] if self._key is not None else []
        wanted += [] if self._value == "json" else ["value"]
        if missing := [one for one in wanted if one not in rows.column_names]:
            raise SpecRefused(f"kafka_sink: the rows have no column {missing[0]!r}; they have {rows.column_names}")
        keys = [None] * rows.num_rows if self._key is None else _bytes(rows.column(self._key))
        if self._value == "json":
            return list(zip(keys, map(str.encode, json_text(rows)), strict=True))
        return list(zip(keys, _bytes(rows.column("value")), strict=True))


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    """Values as a key, or as what a record holds: bytes as they are, others as text."""
    raw = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    values: list[bytes | None] = (column if raw else plain_text(column).cast(pa.large_binary())).to_pylist()
    return values
