"""CSV lines to records of a schema. Each line is checked by its own bytes; each malformed line has its own reason.

    lines -> lines with valid quotes, ends and field count -> Arrow's reader, as texts -> values as in JSON (`json_leaves`)

Arrow's reader continues an open quote in the next line, so it must never see an unchecked line.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as types

from ferry.connectors.formats.json_columns import SHOWN
from ferry.connectors.formats.json_leaves import leaf
from ferry.connectors.formats.json_lines import TEXT_MAX, BadLine, Epochs
from ferry.connectors.formats.json_nodes import UNITS, JsonNode, is_bytes, is_text, wanted
from ferry.contract.errors import SpecRefused
from ferry.kernels import json_grammar
from ferry.kernels.grouping import Ints
from ferry.kernels.json_values import Flags

LONG, ENCODED, RETURN, QUOTES, FIELDS = range(1, 6)
"""Faults of a whole line."""

BLANKS = (r"^[ \t]+|[ \t]+$", "")
"""(blanks around a value, their replacement)."""

NUMBERS = (BLANKS, (r"^\+([0-9.])", r"\1"), (r"^(-?)0+([0-9])", r"\1\2"), (r"^(-?)\.([0-9])", r"\10.\2"))
"""(notation that JSON does not have, replacement): a plus sign, leading zeros, a missing zero before the point."""

OTHER = r"^[ \t+.]|^-?0[0-9]|^-\.|[ \t]$"
"""Texts to which one of `NUMBERS` applies."""


@dataclass(frozen=True, slots=True)
class CsvShape:
    """The dialect of a file, as for `csv_files`."""

    delimiter: str
    null: str


@dataclass(frozen=True, slots=True)
class CsvFields:
    """The fields of each line of a file."""

    shape: CsvShape
    schema: pa.Schema
    epochs: Epochs
    names: Sequence[str]
    """Column names in the order of the fields. Columns outside of the schema are ignored."""

    def parse(self, data: bytes) -> tuple[pa.Table, list[BadLine]]:
        """(records of whole lines, malformed lines). Empty lines are ignored."""
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        rest = [len(data)] if data and not data.endswith(b"\n") else []
        edges = np.concatenate([[0], ends, rest]).astype(np.int64)
        lines = pa.Array.from_buffers(
            pa.large_binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)]
        )
        blank = np.asarray(pc.is_in(lines, pa.array([b"\n", b"\r\n", b"\r"], lines.type)))
        verdicts = np.where(blank, 0, self._verdicts(lines, data))
        fit = np.flatnonzero((verdicts == 0) & ~blank)
        table, wrong = self._read(lines.take(pa.array(fit)))
        reasons = {int(i): self._reason(int(verdicts[i]), lines[i].as_py()) for i in np.flatnonzero(verdicts)}
        reasons |= {int(fit[i]): why for i, why in wrong.items()}
        bad = sorted(reasons.items())
        return table, [BadLine(int(edges[i]), lines[i].as_py().removesuffix(b"\n"), why) for i, why in bad]

    def _verdicts(self, lines: pa.Array, data: bytes) -> Ints:
        """The fault of each line of `data`; 0 for a valid line."""
        split = re.escape(self.shape.delimiter)
        field = rf'("([^"]|"")*"|[^"{split}\r\n]*)'
        verdicts = np.zeros(len(lines), np.int64)
        plain = lines
        if b'"' in data:
            quoted = np.asarray(pc.match_substring(lines, '"'))
            places = pa.array(np.flatnonzero(quoted))
            verdicts[quoted] = np.where(_matches(lines.take(places), rf"^{field}({split}{field})*\r?\n?$"), 0, QUOTES)
            plain = pc.replace_substring_regex(lines, r'"([^"]|"")*"', "")
        many = np.asarray(pc.count_substring(plain, self.shape.delimiter)) + 1
        verdicts[(verdicts == 0) & (many != len(self.names))] = FIELDS
        if b"\r" in data:
            verdicts[_matches(plain, r"\r[^\n]")] = RETURN
        if not _is_utf8(data):
            verdicts[[not _is_utf8(line.as_buffer()) for line in lines]] = ENCODED
        verdicts[np.asarray(pc.binary_length(lines)) > TEXT_MAX] = LONG
        return verdicts

    def _reason(self, verdict: int, line: bytes) -> str:
        if verdict == FIELDS:
            plain = re.sub(rb'"([^"]|"")*"', b"", line)
            return f"{plain.count(self.shape.delimiter.encode()) + 1} fields; {len(self.names)} are needed"
        return {
            LONG: f"longer than {TEXT_MAX} bytes",
            ENCODED: "not UTF-8",
            RETURN: "a carriage return within the line",
            QUOTES: 'a quote that is not closed in its line, or not doubled in a field: write "a ""word"""',
        }[verdict]

    def _read(self, lines: pa.Array) -> tuple[pa.Table, dict[int, str]]:
        """(records, reasons of the lines with unfit values, by index)."""
        texts, units = self._texts(lines), dict(self.epochs)
        columns, wrong = [], dict[int, str]()
        for field in self.schema:
            node, mine = JsonNode(field.name, field, (), UNITS.get(units.get(field.name, ""), 0)), texts[field.name]
            column, unfit = column_of(node, mine)
            columns.append(column)
            for i in np.flatnonzero(unfit):
                wrong.setdefault(int(i), _unfit(node, mine[int(i)].as_py()))
            for i in [] if field.nullable else np.flatnonzero(np.asarray(mine.is_null())):
                wrong.setdefault(int(i), f"field {field.name!r} is empty, and must not be null")
        if not wrong:
            return pa.Table.from_arrays(columns, schema=self.schema), {}
        # Arrow cannot filter columns of all types, so the fitting lines are read again.
        fit = np.setdiff1d(np.arange(len(lines)), [*wrong])
        return self._read(lines.take(pa.array(fit)))[0], wrong

    def _texts(self, lines: pa.Array) -> dict[str, pa.Array]:
        """The fields of the schema's columns as texts, without quotes."""
        places = {name: f"{self.names.index(name)}" for name in self.schema.names}
        head = self.shape.delimiter.join(map(str, range(len(self.names))))
        _, edges, data = lines.buffers()
        begin, end = np.frombuffer(edges, np.int64)[[lines.offset, lines.offset + len(lines)]] if len(lines) else (0, 0)
        body = memoryview(data)[begin:end] if len(lines) else b""
        # A line of names comes first, because Arrow would skip a byte order mark before the first record. A line end comes
        # last, because Arrow would treat an unterminated last field as quoted if an earlier field is quoted.
        whole = b"".join([f"{head}\n".encode(), body, b"\n"])
        read = csv.read_csv(
            io.BytesIO(whole),
            csv.ReadOptions(use_threads=False, block_size=len(whole) + 1),
            csv.ParseOptions(delimiter=self.shape.delimiter),
            csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(places.values(), pa.string()),
                include_columns=[*dict.fromkeys(places.values())],
                null_values=["", self.shape.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        assert read.num_rows == len(lines)
        return {name: _whole(read.column(place)) for name, place in places.items()}


def names_of(line: bytes, delimiter: str) -> list[str]:
    """The column names in the first line of a file. Raises SpecRefused if the line cannot be parsed."""
    text = line.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    try:
        read = csv.read_csv(
            io.BytesIO(text + b"\n"),
            csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(text.count(delimiter.encode()) + 1)}),
        )
    except pa.ArrowInvalid as wrong:
        raise SpecRefused(f"its first line {text[:SHOWN]!r} names no columns") from wrong
    return [str(column[0].as_py()).strip() for column in read.columns]


def refuse_columns(source: str, schema: pa.Schema) -> None:
    """Raise SpecRefused for a column whose type a CSV field cannot have. `source`: name of the source for the message."""
    for field in schema:
        if types.is_nested(field.type) or types.is_null(field.type):
            raise SpecRefused(f"{source}: column {field.name!r} is {field.type}; a field of CSV is a plain value")


def column_of(node: JsonNode, texts: pa.Array) -> tuple[pa.Array, Flags]:
    """(the values of a column, flags of the unfit values)."""
    whole = node.field.type
    kind = whole.value_type if types.is_dictionary(whole) else whole
    if is_text(kind):
        return texts.cast(kind).cast(whole), np.zeros(len(texts), np.bool_)
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if pc.any(pc.match_substring_regex(texts, OTHER)).as_py():
        for pattern, replacement in NUMBERS if number else [BLANKS]:
            texts = pc.replace_substring_regex(texts, pattern, replacement)
    if types.is_boolean(kind):
        texts = pc.ascii_lower(texts)
    _, edges, data = texts.buffers()
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    offsets = np.zeros(1, np.int32)
    if len(texts):
        offsets = np.frombuffer(edges, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    kinds = np.where(np.asarray(texts.is_valid()), json_grammar.STRING, json_grammar.NULL).astype(np.int32)
    starts, stops = offsets[:-1].copy(), offsets[1:].copy()
    if not is_bytes(kind):
        kinds = json_grammar.unquoted(held, kinds, starts, stops)
    return leaf(node, held, kinds, starts, stops)


def _unfit(node: JsonNode, text: str) -> str:
    shown = text[:SHOWN] + "..." * (len(text) > SHOWN)
    kind = json_grammar.INTEGER if text.strip().lstrip("-").isdecimal() else json_grammar.STRING
    return f"field {node.path!r}: {shown!r} does not fit {wanted(node, kind)}"


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays([*array.chunks, pa.array([], array.type)])


def _matches(lines: pa.Array, pattern: str) -> Flags:
    return np.asarray(pc.match_substring_regex(lines, pattern))


def _is_utf8(data: bytes | pa.Buffer) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
