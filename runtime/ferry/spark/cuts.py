"""What tasks read of a split: all of it, or a part, as the driver asks for while it looks for a record that kills them.

    {"ferry.cut": [low, high, [numbers]], "split": ...}    records low to high of the split, without those of these numbers

Records of a split are numbered from 0 in the order in which its source reads them, which is always the same. A cut goes
wherever a split does: to tasks, through Spark's SQL, to whoever reads late records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ferry.spark.splits import Flow, Malformed, Splits
from ferry.spark.user_functions import is_ferrys, source_code

CUT = "ferry.cut"

PARTS = 8
"""Into so many parts what kills its task is cut: each part that does costs a process, the others cost little."""

FIRST_PART = 64
"""Records of the first part of a split of which nobody knows the length; each further one is `PARTS` times as large."""


_END = object()


@dataclass(frozen=True, slots=True)
class Aside:
    """Records of a split that are set aside, for a task dies of each."""

    records: pa.RecordBatch


def read(name: str, source: Splits, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[Any]:
    """What a split, or a part of it, has: batches, Malformed, Flow, Aside. Raises UserCodeFailed for a user's own source."""
    if CUT not in split:
        yield from _read(name, source, split, columns)
        return
    low, high, aside = split[CUT]
    at = 0
    for records in _read(name, source, split["split"], columns):
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


def cut(split: str, low: int, high: int | None, aside: Sequence[int] = ()) -> str:
    """A part of a split, both as JSON."""
    return json.dumps({CUT: [low, high, list(aside)], "split": json.loads(split)})


def opened(split: str) -> tuple[str, int, int | None]:
    """The split that this is a part of, and the numbers of its records."""
    doc = json.loads(split)
    if CUT not in doc:
        return split, 0, None
    low, high, _ = doc[CUT]
    return json.dumps(doc["split"]), low, high


def pieces(split: str) -> list[str]:
    """The pieces of files or partitions of a split of Ferry's own sources, each as a split; none if there is one only."""
    doc = json.loads(split)
    found = doc.get("pieces", ()) if CUT not in doc else ()
    return [json.dumps({"pieces": [one]}) for one in found] if len(found) > 1 else []


def without(split: str, numbers: Mapping[str, Sequence[int]]) -> list[str]:
    """A split, but for records of these numbers of it, or of its pieces."""
    if split in numbers:
        return [cut(split, 0, None, numbers[split])]
    alone = pieces(split)
    if not any(one in numbers for one in alone):
        return [split]
    return [cut(one, 0, None, numbers[one]) if one in numbers else one for one in alone]


def parts(split: str) -> list[str]:
    """The same records in at most `PARTS` parts; none when it is a single record."""
    whole, low, high = opened(split)
    if high is None:
        edges: list[int | None] = [low, *(low + FIRST_PART * PARTS**i for i in range(PARTS - 1)), None]
    elif high - low > 1:
        edges = sorted({low + (high - low) * i // PARTS for i in range(PARTS + 1)})  # type: ignore[assignment]
    else:
        return []
    return [cut(whole, a, b) for a, b in pairwise(edges) if a is not None]


def _part(records: pa.RecordBatch, at: int, low: int, high: int | None, aside: Sequence[int]) -> Iterator[Any]:
    """Of the records from number `at` on: those from low to high, without some."""
    end = at + records.num_rows if high is None else min(high, at + records.num_rows)
    begin = max(low, at)
    for number in (*(n for n in sorted(aside) if begin <= n < end), end):
        if number > begin:
            yield records.slice(begin - at, number - begin)
        if number < end:
            yield Aside(records.slice(number - at, 1))
        begin = number + 1


def _read(name: str, source: Splits, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[Any]:
    if is_ferrys(source):
        yield from source.read(split, columns)
        return
    what = f"source {name!r}"
    with source_code(what, source):
        schema = source.schema()
        wanted = [(one, schema.field(one).type) for one in (schema.names if columns is None else columns)]
        batches = iter(source.read(split, columns))
    while True:
        with source_code(what, source):
            if (records := next(batches, _END)) is _END:
                return
            _require(records, wanted)
        yield records


def _require(records: Any, wanted: list[tuple[str, pa.DataType]]) -> None:
    """Raises TypeError unless there are these columns; nothing but nulls may have no type."""
    if isinstance(records, Malformed | Flow):
        texts = [records.name] if isinstance(records, Flow) else [records.reason, *records.records, *records.reasons]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"read() gave a {type(records).__name__} with what is no text: {records!r}")
        return
    if not isinstance(records, pa.RecordBatch):
        raise TypeError(f"read() gave {type(records).__name__}; it has to give batches (pyarrow.RecordBatch)")
    schema = records.schema
    for name, kind in wanted:
        found = schema.field(name).type if name in schema.names else None
        if found != kind and found != pa.null():
            has = f"is {found}" if found is not None else "is missing"
            raise TypeError(f"read() gave a batch in which column {name!r} {has}; its schema() says {kind}")
