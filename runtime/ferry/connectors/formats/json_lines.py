"""JSON texts to records of a schema. A malformed text gets its own reason and never stops the job.

Each text and its values are checked by their own bytes alone (`ferry.kernels.json_grammar`, `json_scan`,
`ferry.connectors.formats.json_columns`). Must never touch files. Must never call a parser that a text could crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ferry.connectors.formats.json_columns import JsonColumns, JsonFault
from ferry.contract.errors import SpecRefused
from ferry.kernels import json_grammar
from ferry.kernels.grouping import Bytes, Ints

PIECE_BYTES = 256 << 20
"""Greatest size of a piece with several texts, because offsets in a piece have 32 bits."""

TEXT_MAX = 1 << 30
"""Greatest number of bytes of a text."""

Epochs = tuple[tuple[str, str], ...]
"""(column, unit) of the columns whose numbers are times since 1970."""

VERDICTS = {
    json_grammar.BLANK: "no value",
    json_grammar.ENDS: "the text ends within the JSON object",
    json_grammar.NO_OBJECT: "not a JSON object",
    json_grammar.UNEXPECTED: "not JSON: unexpected {byte!r} at byte {place}",
    json_grammar.CONTROL: "not JSON: a control character, {byte!r}, in a string at byte {place}",
    json_grammar.ESCAPE: "not JSON: a wrong escape in a string at byte {place}",
    json_grammar.SURROGATE: "not Unicode: half of a surrogate pair in a string at byte {place}",
    json_grammar.TWICE: "field {field!r} comes twice in an object",
    json_grammar.UNFIT: "field {field!r}: {found} at byte {place} does not fit {type}",
    json_grammar.MORE: "more than a JSON object: {byte!r} at byte {place}",
}

FOUND = {"{": "an object", "[": "an array", '"': "a text", "t": "true", "f": "false", "N": "NaN", "I": "an infinity"}
"""The kind of a value by its first byte. Any other first byte begins a number."""

OF_LINE = " of the line"
"""Suffix of a byte offset in a reason: the offset counts from the beginning of the line."""


class BadLine(NamedTuple):
    """A malformed line."""

    at: int
    """Byte offset of its beginning."""
    line: bytes
    reason: str


@lru_cache(64)
def columns_of(schema: pa.Schema, epochs: Epochs = ()) -> JsonColumns:
    """The reader of JSON texts for a schema. Raises SpecRefused for a type that JSON values cannot have."""
    return JsonColumns(schema, dict(epochs))


def checked(source: str, schema: pa.Schema, epoch: Mapping[str, str] | None) -> Epochs:
    """`epoch` for `parse`. Raises SpecRefused, with the name of the source, if schema or epoch does not fit JSON."""
    if not isinstance(schema, pa.Schema):
        raise SpecRefused(f"{source}: schema {schema!r}; give a pyarrow.schema")
    if not isinstance(epoch, Mapping | None):
        raise SpecRefused(f"{source}: epoch={epoch!r}; give the unit of columns by their names, such as {{'ts': 'ms'}}")
    epochs = tuple(sorted((epoch or {}).items()))
    try:
        columns_of(schema, epochs)
    except SpecRefused as refused:
        raise SpecRefused(f"{source}: {refused}") from None
    return epochs


def parse(data: bytes, schema: pa.Schema, epochs: Epochs = ()) -> tuple[pa.Table, list[BadLine]]:
    """(records of whole lines, malformed lines). Blank lines are ignored."""
    whole = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(whole == ord("\n"))
    starts, stops = np.append(0, ends + 1), np.append(ends, len(data))
    if len(data) > PIECE_BYTES:
        lines = [data[begin:end] for begin, end in zip(starts, stops, strict=True)]
        table, bad = parse_each(lines, schema, epochs, OF_LINE)
    else:
        table, bad = _judged(whole, starts, stops, columns_of(schema, epochs), OF_LINE)
    malformed = [(i, why) for i, why in bad.items() if why != VERDICTS[json_grammar.BLANK]]
    return table, [BadLine(int(starts[i]), data[starts[i] : stops[i]], why) for i, why in malformed]


def parse_each(
    values: Sequence[bytes | None], schema: pa.Schema, epochs: Epochs = (), of: str = ""
) -> tuple[pa.Table, dict[int, str]]:
    """(records, reasons of the malformed values by index). A value may contain line breaks."""
    columns = columns_of(schema, epochs)
    tables, bad = [schema.empty_table()], {}
    for first, piece in _pieces(values):
        held = pa.array([b"" if text is None or len(text) > TEXT_MAX else text for text in piece], pa.binary())
        _, offsets, data = held.buffers()
        edges = np.frombuffer(offsets, np.int32)[: len(piece) + 1].astype(np.int64)
        whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        table, wrong = _judged(whole, edges[:-1], edges[1:], columns, of)
        tables.append(table)
        for i, why in wrong.items():
            long = len(piece[i] or b"") > TEXT_MAX
            bad[first + i] = f"longer than {TEXT_MAX} bytes" if long else why
    return pa.concat_tables(tables), bad


def _pieces(values: Sequence[bytes | None]) -> Iterator[tuple[int, Sequence[bytes | None]]]:
    """(index of the first value, values) of pieces of at most `PIECE_BYTES`, or of a single value."""
    begin = size = 0
    for i, value in enumerate(values):
        more = len(value or b"")
        if size + more > PIECE_BYTES and i > begin:
            yield begin, values[begin:i]
            begin, size = i, 0
        size += more
    if begin < len(values):
        yield begin, values[begin:]


def _judged(data: Bytes, starts: Ints, stops: Ints, columns: JsonColumns, of: str) -> tuple[pa.Table, dict[int, str]]:
    """(records, reasons of the malformed texts by index)."""
    bad: dict[int, str] = {}
    texts = np.arange(len(starts))
    data.flags.writeable = False  # so that numba compiles functions for one kind of array
    if not _is_utf8(data):
        for i in range(len(starts)):
            if not _is_utf8(data[starts[i] : stops[i]]):
                bad[i] = "not UTF-8"
        texts = np.setdiff1d(texts, [*bad])
    table, faults = columns.read(data, starts[texts], stops[texts])
    for fault in faults:
        i = int(texts[fault.text])
        bad[i] = fault.reason or _reason(fault, data[starts[i] + fault.place : stops[i]], of)
    return table, dict(sorted(bad.items()))


def _reason(fault: JsonFault, rest: Bytes, of: str) -> str:
    """The reason of a fault. `rest`: the text from the fault on. `of`: suffix of the byte offset."""
    begin = chr(rest[0]) if len(rest) else ""
    return VERDICTS[fault.verdict].format(
        byte=begin,
        place=f"{fault.place}{of}",
        field=fault.node.path,
        type=fault.node.field.type,
        found=FOUND.get(begin, "a number"),
    )


def _is_utf8(data: Bytes) -> bool:
    try:
        data.tobytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
