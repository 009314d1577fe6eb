"""Reads the records of a split, or of a part of it, in a task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ferry.connectors.splits import Flow, Malformed, Splits
from ferry.connectors.users import is_ferrys, source_code
from ferry.spark.cuts import CUT
from ferry.spark.tasks import flight

_END = object()


@dataclass(frozen=True, slots=True)
class Aside:
    """Records of a split that are set aside, because each kills a task."""

    records: pa.RecordBatch | None
    """None: the records cannot be read"""
    split: str = ""


def read(name: str, source: Splits | None, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[Any]:
    """The contents of a split, or of a part of it: batches, Malformed, Flow, Aside. `source`: None for fired rows.

    Raises UserCodeFailed for a user's source.
    """
    if CUT not in split:
        yield from _read(name, source, split, columns)
        return
    low, high, aside = split[CUT]
    if min(aside, default=0) < 0:
        yield Aside(None, json.dumps(split["split"]))
    at = 0
    for records in _read(name, source, split["split"], columns) if high != 0 else ():
        if isinstance(records, Flow):
            yield records
        elif isinstance(records, Malformed):
            if at >= low:
                yield records
        else:
            yield from _part(records, at, low, high, aside)
            at += records.num_rows
        if high is not None and at >= high:
            return


def _part(records: pa.RecordBatch, at: int, low: int, high: int | None, aside: Sequence[int]) -> Iterator[Any]:
    """The records from low to high, without those aside; the first record of the batch has number `at`."""
    end = at + records.num_rows if high is None else min(high, at + records.num_rows)
    begin = max(low, at)
    for number in (*(n for n in sorted(set(aside)) if begin <= n < end), end):
        if number > begin:
            yield records.slice(begin - at, number - begin)
        if number < end:
            yield Aside(records.slice(number - at, 1))
        begin = number + 1


def _read(name: str, source: Splits | None, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[Any]:
    if source is None:
        yield from flight.read_rows(split)
        return
    if is_ferrys(source):
        yield from source.read(split, columns)
        return
    place = f"source {name!r}"
    with source_code(place, source):
        schema = source.schema()
        wanted = [(column, schema.field(column).type) for column in (schema.names if columns is None else columns)]
        batches = iter(source.read(split, columns))
    while True:
        with source_code(place, source):
            if (records := next(batches, _END)) is _END:
                return
            taken = _taken(records, wanted)
        yield taken


def _counts(malformed: Malformed) -> bool:
    """Whether the count covers the records, and the reasons are empty or one per record."""
    held, reasons = len(malformed.records), len(malformed.reasons)
    return isinstance(malformed.count, int) and malformed.count >= held and reasons in (0, held)


def _taken(records: Any, wanted: list[tuple[str, pa.DataType]]) -> Any:
    """These columns of a batch, in this order. Raises TypeError for a type other than declared or null."""
    if isinstance(records, Malformed | Flow):
        texts = [records.name] if isinstance(records, Flow) else [records.reason, *records.records, *records.reasons]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"read() gave a {type(records).__name__} with a value that is not a text: {records!r}")
        if isinstance(records, Malformed) and not _counts(records):
            raise TypeError(
                f"read() gave a Malformed whose count, records and reasons do not fit each other: {records!r}"
            )
        return records
    if not isinstance(records, pa.RecordBatch):
        raise TypeError(f"read() gave {type(records).__name__}; it must give batches (pyarrow.RecordBatch)")
    schema = records.schema
    for name, kind in wanted:
        actual = schema.field(name).type if name in schema.names else None
        if actual != kind and actual != pa.null():
            has = f"is {actual}" if actual is not None else "is missing"
            raise TypeError(f"read() gave a batch in which column {name!r} {has}; its schema() says {kind}")
    names = [name for name, _ in wanted]
    return records if names == schema.names else records.select(names)
