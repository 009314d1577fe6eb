"""What tasks read of a split: all of it, or a part, as the driver asks for while it looks for a record that kills them.

    {"ferry.cut": [low, high, [numbers]], "split": ...}    records low to high of the split, without those of these numbers

Records of a split are numbered from 0 in the order in which its source reads them, which is always the same. A number below
0 leaves out the end of a split, from record -1 - number on: nobody can read it. A cut goes wherever a split does: to tasks,
through Spark's SQL, to whoever reads late records. Splits of Ferry's own sources are ranges of files or partitions, so
records of them are kept as ranges, too: another plan of the same epoch leaves out the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from ferry.spark import flight
from ferry.spark.directory import DirectorySplits
from ferry.spark.splits import PARTS, Flow, Malformed, RangeSplits, Splits, ranges
from ferry.spark.user_functions import is_ferrys, source_code

CUT = "ferry.cut"

FIRST_PART = 64
"""Records of the first part of a split of which nobody knows the length; each further one is `PARTS` times as large."""


_END = object()


@dataclass(frozen=True, slots=True)
class Aside:
    """Records of a split that are set aside, for a task dies of each."""

    records: pa.RecordBatch | None
    """None: of those that cannot be read"""
    split: str = ""


def read(name: str, source: Splits | None, split: dict[str, Any], columns: Sequence[str] | None) -> Iterator[Any]:
    """What a split, or a part of it, has: batches, Malformed, Flow, Aside. `source`: None: of rows that an operator fired.

    Raises UserCodeFailed for a user's own source.
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


def by_file(source: Splits | None, split: dict[str, Any]) -> list[dict[str, Any]]:
    """The same records in splits of a file each, where it is files that they are read from."""
    if not isinstance(source, DirectorySplits) or CUT in split:
        return [split]
    return [{"pieces": [piece]} for piece in split["pieces"]]


def place(source: Splits | None, split: dict[str, Any]) -> str:
    """File or offsets of a split, as the begin of a message; empty: the source does not say them."""
    if not is_ferrys(source) or not isinstance(source, RangeSplits):
        return ""
    return f"{source.place(split['split'] if CUT in split else split)}: "


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
    """The pieces of files or partitions of a split of Ferry's own sources, each as a split."""
    doc = json.loads(split)
    return [] if CUT in doc else [json.dumps({"pieces": [one]}) for one in doc["pieces"]]


def left_out(split: str, numbers: Sequence[int]) -> str:
    """A split without records of these numbers."""
    return cut(split, 0, min((-1 - one for one in numbers if one < 0), default=None), numbers)


def aside_alone(split: str, number: int) -> str:
    """What sets one record of a split aside, and reads no other."""
    return cut(split, 0, 0, [number]) if number < 0 else cut(split, number, number + 1, [number])


def without(split: str, numbers: Mapping[str, Sequence[int]], own: bool) -> list[str]:
    """A split, but for records of these numbers of it, or of its ranges, if it is of one of Ferry's `own` sources."""
    if split in numbers:
        return [left_out(split, numbers[split])]
    doc = json.loads(split)
    if not own or CUT in doc:
        return [split]
    units = {one: json.loads(one)["pieces"][0] for one in numbers}
    rest: list[list[Any]] = []
    made: list[str] = []
    for of, low, high in doc["pieces"]:
        for unit, (mine, begin, end) in sorted(units.items(), key=lambda one: one[1][1]):
            if mine == of and low <= begin and end <= high:
                rest += [[of, low, begin]] if low < begin else []
                made += [json.dumps({"pieces": rest})] if rest else []
                made.append(left_out(unit, numbers[unit]))
                low, rest = end, []
        rest += [[of, low, high]] if low < high else []
    if not made:
        return [split]
    return [*made, json.dumps({"pieces": rest})] if rest else made


def parts(split: str) -> list[str]:
    """The same records in at most `PARTS` parts; none when it is a single record."""
    whole, low, high = opened(split)
    if high is not None:
        return [cut(whole, a, b) for a, b in ranges(low, high)] if high - low > 1 else []
    edges = [low, *(low + FIRST_PART * PARTS**i for i in range(PARTS - 1))]
    return [*(cut(whole, a, b) for a, b in pairwise(edges)), cut(whole, edges[-1], None)]


def _part(records: pa.RecordBatch, at: int, low: int, high: int | None, aside: Sequence[int]) -> Iterator[Any]:
    """Of the records from number `at` on: those from low to high, without some."""
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
    what = f"source {name!r}"
    with source_code(what, source):
        schema = source.schema()
        wanted = [(one, schema.field(one).type) for one in (schema.names if columns is None else columns)]
        batches = iter(source.read(split, columns))
    while True:
        with source_code(what, source):
            if (records := next(batches, _END)) is _END:
                return
            taken = _taken(records, wanted)
        yield taken


def _counts(malformed: Malformed) -> bool:
    """Whether it has as many records as it says, or less, and a reason for each or none."""
    held, reasons = len(malformed.records), len(malformed.reasons)
    return isinstance(malformed.count, int) and malformed.count >= held and reasons in (0, held)


def _taken(records: Any, wanted: list[tuple[str, pa.DataType]]) -> Any:
    """These columns of a batch, in this order. Raises TypeError for other types but that of nothing but nulls."""
    if isinstance(records, Malformed | Flow):
        texts = [records.name] if isinstance(records, Flow) else [records.reason, *records.records, *records.reasons]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"read() gave a {type(records).__name__} with what is no text: {records!r}")
        if isinstance(records, Malformed) and not _counts(records):
            raise TypeError(
                f"read() gave a Malformed whose count, records and reasons do not fit each other: {records!r}"
            )
        return records
    if not isinstance(records, pa.RecordBatch):
        raise TypeError(f"read() gave {type(records).__name__}; it has to give batches (pyarrow.RecordBatch)")
    schema = records.schema
    for name, kind in wanted:
        found = schema.field(name).type if name in schema.names else None
        if found != kind and found != pa.null():
            has = f"is {found}" if found is not None else "is missing"
            raise TypeError(f"read() gave a batch in which column {name!r} {has}; its schema() says {kind}")
    names = [name for name, _ in wanted]
    return records if names == schema.names else records.select(names)
