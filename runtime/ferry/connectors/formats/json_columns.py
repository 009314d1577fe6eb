"""Columns of a schema from values of JSON: which texts and numbers each type takes (docs/jobs.md has the table).

A value that does not fit its column makes its whole text no record. Must never judge one text by another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ferry.contract.errors import SpecRefused
from ferry.kernels import json_grammar, json_scan, json_times, json_values
from ferry.kernels.columns import taken
from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import ARRAY, ESCAPED, NULL, OBJECT, STRING, Slots
from ferry.kernels.json_scan import LEAF, LIST, MAP, STRUCT
from ferry.kernels.json_values import Flags

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""By a unit of time, how many are in a second."""

SHOWN = 60
"""Bytes of a value that a reason shows."""

Built: TypeAlias = tuple[pa.Array, Flags]
"""A column, and which of its values do not fit it."""


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A column, or what is inside of one."""

    path: str
    field: pa.Field
    children: tuple[int, ...]
    per_second: int
    """of numbers that are times since 1970; 0: they are none"""
    is_name: bool = False
    """The key of a map, which is a name in an object."""


@dataclass(frozen=True, slots=True)
class JsonFault:
    """What is wrong with a text."""

    text: int
    """its number"""
    verdict: int
    """of the scan; FINE: a value does not fit"""
    place: int
    """byte of the text"""
    node: JsonNode
    """what is read there"""
    reason: str = ""
    """of a value that does not fit"""


class JsonColumns:
    """See the head of this file. `epoch` says by column in which unit numbers are times since 1970."""

    def __init__(self, schema: pa.Schema, epoch: Mapping[str, str]) -> None:
        """Raises SpecRefused for what no JSON value can be."""
        self._schema = schema
        self._nodes: list[JsonNode] = []
        self._kinds: list[int] = []
        self._sizes: list[int] = []
        for name, unit in epoch.items():
            if name not in schema.names or unit not in UNITS:
                raise SpecRefused(
                    f"epoch={{{name!r}: {unit!r}}}: give a column of the schema ({', '.join(schema.names)}) and one of "
                    f"{', '.join(UNITS)}"
                )
            if not _has_timestamp(schema.field(name).type):
                raise SpecRefused(
                    f"epoch={{{name!r}: {unit!r}}}: the column is {schema.field(name).type}, no timestamp"
                )
        depth = self._add(pa.field("", pa.struct(list(schema)), nullable=False), "", dict(epoch), 0)
        names = [node.field.name.encode() for node in self._nodes]
        heap, name_at = np.frombuffer(b"".join(names), np.uint8), np.cumsum([0, *map(len, names)])
        self._tree = np.array(self._kinds), np.array(self._sizes), heap, name_at, depth

    def _add(self, field: pa.Field, path: str, epoch: Mapping[str, str], per_second: int, is_name: bool = False) -> int:
        """Number a field and what is inside of it; how many objects and arrays are open in it at most."""
        inside = _inside(field.type, path)
        node, kind = len(self._nodes), node_kind(field.type)
        self._nodes.append(JsonNode(path, field, (), per_second))
        self._kinds.append(kind)
        self._sizes.append(1)
        children, depth = [], 0
        for k, child in enumerate(inside):
            name = child.name if kind == STRUCT else f"{path}[]" if kind == LIST else f"{path}.{('key', 'value')[k]}"
            below = f"{path}.{name}" if path and kind == STRUCT else name
            children.append(len(self._nodes))
            of = per_second if path else UNITS.get(epoch.get(child.name, ""), 0)
            depth = max(depth, self._add(child, below, epoch, of, kind == MAP and k == 0))
        self._nodes[node] = JsonNode(path, field, tuple(children), per_second, is_name)
        self._sizes[node] = len(self._nodes) - node
        return depth + (kind != LEAF)

    def read(self, data: Bytes, starts: Ints, stops: Ints) -> tuple[pa.Table, list[JsonFault]]:
        """(records, what is wrong with the others) of the texts data[starts[i]:stops[i]]."""
        verdicts, places = json_grammar.judge(data, starts, stops)
        fine = np.flatnonzero(verdicts == json_grammar.FINE)
        tape, top, verdicts[fine], places[fine], unfit = json_scan.scan(data, starts[fine], stops[fine], *self._tree)
        nodes = np.zeros(len(starts), np.int64)
        nodes[fine] = unfit
        reading = _Reading(self._nodes, data, *json_scan.sorted_by_node(tape, top, len(self._nodes)))
        columns = [reading.column(child, None) for child in self._nodes[0].children]
        bad = np.flatnonzero(verdicts)
        faults = [JsonFault(int(i), int(verdicts[i]), int(places[i]), self._nodes[nodes[i]]) for i in bad]
        if not reading.wrong:
            rows = len(starts) - len(bad)
            return pa.Table.from_arrays(columns, schema=self._schema) if columns else _no_columns(
                self._schema, rows
            ), faults
        # Not all types can be filtered, so what fits is read again alone.
        faults += [
            JsonFault(int(fine[i]), json_grammar.FINE, 0, self._nodes[0], why) for i, why in reading.wrong.items()
        ]
        fit = np.setdiff1d(np.arange(len(starts)), [fault.text for fault in faults])
        return self.read(data, starts[fit], stops[fit])[0], faults


def _no_columns(schema: pa.Schema, rows: int) -> pa.Table:
    struct = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)], schema)


class _Reading:
    """One pass over the values of one scan."""

    def __init__(self, nodes: list[JsonNode], data: Bytes, slots: Slots, begins: Ints) -> None:
        self._nodes = nodes
        self._data = data
        self._slots = slots
        self._begins = begins
        self.wrong: dict[int, str] = {}
        """what is wrong with texts, the first thing of each"""

    def slots(self, number: int) -> Slots:
        """(kinds, starts, stops, texts) of the values of a node."""
        return self._slots[:, self._begins[number] : self._begins[number + 1]]

    def column(self, number: int, within: Flags | None) -> pa.Array:
        """The values of a node; `within` are those whose object is there, None: all."""
        node = self._nodes[number]
        kinds, starts, stops, texts = self.slots(number)
        there = kinds != NULL
        kind = node_kind(node.field.type)
        if node.is_name and not (is_text(node.field.type) or is_bytes(node.field.type)):
            kinds = json_grammar.unquoted(self._data, kinds, starts, stops)
        if kind == LEAF:
            made, unfit = leaf(node, self._data, kinds, starts, stops)
        else:
            made, unfit = self._nested(node, kind, kinds, starts)
        if not node.field.nullable:
            lacking = ~there if within is None else ~there & within
            for k in np.flatnonzero(lacking):
                self.wrong.setdefault(int(texts[k]), f"field {node.path!r} is missing or null")
        for k in np.flatnonzero(unfit):
            found = _shown(self._data, kinds[k], starts[k], stops[k])
            self.wrong.setdefault(int(texts[k]), f"field {node.path!r}: {found} does not fit {wanted(node, kinds[k])}")
        return made

    def _nested(self, node: JsonNode, kind: int, kinds: Slots, starts: Slots) -> Built:
        there, type_ = kinds != NULL, node.field.type
        bitmap = _bitmap(there)
        nulls = len(kinds) - int(there.sum())
        if kind == STRUCT:
            children = [self.column(child, there) for child in node.children]
            return pa.Array.from_buffers(type_, len(kinds), [bitmap], nulls, children=children), np.zeros(
                len(kinds), np.bool_
            )
        counts = np.where(there, starts, 0).astype(np.int64)
        children = [self.column(child, None) for child in node.children]
        if types.is_fixed_size_list(type_):
            return _fixed(type_, there, counts, children[0])
        offsets = np.zeros(len(kinds) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        if not types.is_large_list(type_):
            offsets = offsets.astype(np.int32)
        if kind == MAP:
            if children[0].null_count:  # A key does not fit: the texts are read again without its own.
                return pa.nulls(len(kinds), type_), np.zeros(len(kinds), np.bool_)
            entries = pa.struct([type_.key_field.with_nullable(False), type_.item_field])
            children = [pa.Array.from_buffers(entries, len(children[0]), [None], 0, children=children)]
        made = pa.Array.from_buffers(type_, len(kinds), [bitmap, pa.py_buffer(offsets)], nulls, children=children)
        return made, np.zeros(len(kinds), np.bool_)


def _fixed(type_: pa.DataType, there: Flags, counts: Ints, values: pa.Array) -> Built:
    """Lists of a fixed size: of those that are none, the elements are null."""
    size = type_.list_size
    fine = there & (counts == size)
    firsts = np.cumsum(counts) - counts
    places = firsts[:, None] + np.arange(size)
    at = pa.array(places.reshape(-1), pa.int64(), mask=np.repeat(~fine, size))
    made = pa.Array.from_buffers(
        type_, len(there), [_bitmap(fine)], len(there) - int(fine.sum()), children=[taken(values, at)]
    )
    return made, there & ~fine


def leaf(node: JsonNode, data: Bytes, kinds: Slots, starts: Slots, stops: Slots) -> Built:
    """A column of plain values, and which of them do not fit it."""
    type_ = node.field.type
    there = kinds != NULL
    if types.is_dictionary(type_):
        plain = JsonNode(node.path, pa.field("", type_.value_type), (), node.per_second)
        made, unfit = leaf(plain, data, kinds, starts, stops)
        return made.dictionary_encode().cast(type_), unfit
    if types.is_null(type_):
        return pa.nulls(len(kinds)), there
    if types.is_boolean(type_):
        fit = (kinds == json_grammar.TRUE) | (kinds == json_grammar.FALSE)
        return pa.array(kinds == json_grammar.TRUE, mask=~fit), there & ~fit
    if types.is_integer(type_):
        limits = json_values.limits(type_.bit_width, types.is_signed_integer(type_))
        values, fit = json_values.integers(data, kinds, starts, stops, *limits)
        return _plain(type_, values, fit, there)
    if types.is_floating(type_):
        return _floats(type_, data, kinds, starts, stops, there)
    if types.is_decimal(type_):
        bytes_, offsets = json_scan.texts(data, kinds, starts, stops, True)
        limbs, fit = json_values.decimals(bytes_, offsets, type_.precision, type_.scale, type_.byte_width // 4)
        return _from(type_, limbs, fit), there & ~fit
    bytes_, offsets = json_scan.texts(data, kinds, starts, stops, False)
    text = (kinds == STRING) | (kinds == ESCAPED)
    if is_text(type_):
        return _strings(type_, bytes_, offsets, text), there & ~text
    if is_bytes(type_):
        bytes_, offsets, fit = json_values.base64(bytes_, offsets)
        fit &= text
        if types.is_fixed_size_binary(type_):
            fit &= np.diff(offsets) == type_.byte_width
            return _strings(pa.binary(), bytes_, offsets, fit).cast(type_), there & ~fit
        return _strings(type_, bytes_, offsets, fit), there & ~fit
    return _times(node, bytes_, offsets, text, (data, kinds, starts, stops))


def _times(node: JsonNode, bytes_: Bytes, offsets: Ints, text: Flags, slots: Any) -> Built:
    """Texts of ISO 8601, and numbers where those have a meaning."""
    type_ = node.field.type
    there = slots[1] != NULL
    if types.is_date(type_):
        values, fit = json_times.dates(bytes_, offsets)
        if type_ == pa.date64():
            fit &= np.abs(values) < 2**63 // 86_400_000
            values = np.where(fit, values, 0) * 86_400_000
        else:
            fit &= (values >= -(2**31)) & (values < 2**31)
            days, whole = json_values.integers(*slots, *json_values.limits(32, True))
            values, fit = np.where(whole, days, values), fit | whole
        return _plain(type_, values, fit, there)
    unit = UNITS[type_.unit]
    if types.is_timestamp(type_):
        values, fit = json_times.timestamps(bytes_, offsets, unit)
        if node.per_second:
            since, whole = json_times.epochs(*slots, node.per_second, unit)
            values, fit = np.where(whole, since, values), fit | whole
    elif types.is_time(type_):
        values, fit = json_times.clocks(bytes_, offsets, unit)
    else:
        values, fit = json_times.durations(bytes_, offsets, unit)
        many, whole = json_values.integers(*slots, *json_values.limits(64, True))
        values, fit = np.where(whole, many, values), fit | whole
    return _plain(type_, values, fit, there)


def _floats(type_: pa.DataType, data: Bytes, kinds: Slots, starts: Slots, stops: Slots, there: Flags) -> Built:
    number = (kinds == json_grammar.INTEGER) | (kinds == json_grammar.DECIMAL)
    bytes_, offsets = json_scan.texts(data, np.where(number, kinds, NULL), starts, stops, True)
    wide = pa.float32() if type_ == pa.float32() else pa.float64()
    texts = _strings(pa.string(), bytes_, offsets, number)
    values = np.array(texts.cast(wide).fill_null(0))
    if type_ == pa.float16():
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    fit = number & np.isfinite(values)
    special = {json_grammar.NAN: np.nan, json_grammar.INFINITE: np.inf, json_grammar.MINUS_INFINITE: -np.inf}
    for kind, value in special.items():
        values[kinds == kind] = value
        fit |= kinds == kind
    if not fit.all() and (kinds == STRING).any():
        bytes_, offsets = json_scan.texts(data, kinds, starts, stops, False)
        words = _strings(pa.string(), bytes_, offsets, kinds == STRING)
        for word, value in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)):
            same = np.array(pc.equal(words, word).fill_null(False))
            values[same] = value
            fit |= same
    return _from(type_, values, fit), there & ~fit


def _plain(type_: pa.DataType, values: Ints, fit: Flags, there: Flags) -> Built:
    """A column of numbers of the type's own width from those of 64 bits."""
    return _from(type_, values.astype(f"i{type_.bit_width // 8}"), fit), there & ~fit


def _from(type_: pa.DataType, values: npt.NDArray[Any], fit: Flags) -> pa.Array:
    return pa.Array.from_buffers(type_, len(fit), [_bitmap(fit), pa.py_buffer(values)])


def _strings(type_: pa.DataType, bytes_: Bytes, offsets: Ints, fit: Flags) -> pa.Array:
    """Texts or bytes of which those that are fit are values."""
    view = type_ in (pa.string_view(), pa.binary_view())
    large = types.is_large_string(type_) or types.is_large_binary(type_)
    kind = (pa.string() if type_ == pa.string_view() else pa.binary()) if view else type_
    edges = pa.py_buffer(offsets if large else offsets.astype(np.int32))
    made = pa.Array.from_buffers(kind, len(fit), [_bitmap(fit), edges, pa.py_buffer(bytes_)])
    return made.cast(type_) if view else made


def _bitmap(valid: Flags) -> pa.Buffer | None:
    return None if valid.all() else pa.array(valid).buffers()[1]


def _shown(data: Bytes, kind: int, start: int, stop: int) -> str:
    """The beginning of a value, as it stands in its text."""
    if kind in (OBJECT, ARRAY):
        return "an array of this length"
    word = {json_grammar.TRUE: "true", json_grammar.FALSE: "false", json_grammar.NAN: "NaN"}.get(int(kind))
    if word is not None or kind in (json_grammar.INFINITE, json_grammar.MINUS_INFINITE):
        return word or "an infinity"
    text = data[start : min(stop, start + SHOWN)].tobytes().decode("utf-8", "replace")
    text += "..." if stop - start > SHOWN else ""
    return f'"{text}"' if kind in (STRING, ESCAPED) else text


def wanted(node: JsonNode, kind: int) -> str:
    """What a node takes, with what to do where that is likely."""
    type_ = node.field.type
    if types.is_timestamp(type_) and kind in (json_grammar.INTEGER, json_grammar.DECIMAL) and not node.per_second:
        return f'{type_}: a number needs its unit, epoch={{"{node.path.split(".")[0].split("[")[0]}": "ms"}}'
    return str(type_)


def is_text(type_: pa.DataType) -> bool:
    """Whether it is a type of texts."""
    return types.is_string(type_) or types.is_large_string(type_) or type_ == pa.string_view()


def is_bytes(type_: pa.DataType) -> bool:
    """Whether it is a type of bytes."""
    binary = types.is_binary(type_) or types.is_large_binary(type_) or type_ == pa.binary_view()
    return binary or types.is_fixed_size_binary(type_)


def node_kind(type_: pa.DataType) -> int:
    """STRUCT, MAP, LIST or LEAF."""
    if types.is_struct(type_):
        return STRUCT
    if types.is_map(type_):
        return MAP
    return LIST if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_) else LEAF


def _has_timestamp(type_: pa.DataType) -> bool:
    if types.is_dictionary(type_):
        return _has_timestamp(type_.value_type)
    if types.is_timestamp(type_):
        return True
    return node_kind(type_) != LEAF and any(_has_timestamp(type_.field(i).type) for i in range(type_.num_fields))


def _inside(type_: pa.DataType, path: str) -> list[pa.Field]:
    """The fields inside of a type. Raises SpecRefused for one that no JSON value can be."""
    what = f"column {path!r} is {type_}, " if path else ""
    kind = node_kind(type_)
    if kind == STRUCT:
        fields = [type_.field(i) for i in range(type_.num_fields)]
        names = [field.name for field in fields]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SpecRefused(f"{what}{twice[0]!r} is the name of two fields; one of them has to have another name")
        return fields
    if kind == MAP:
        key = type_.key_type
        if node_kind(key) != LEAF or types.is_null(key):
            raise SpecRefused(f"{what}but names in a JSON object are texts; give its keys as a string")
        return [type_.key_field, type_.item_field]
    if kind == LIST:
        return [type_.value_field]
    if types.is_dictionary(type_):
        if type_.index_type.bit_width < 32:
            raise SpecRefused(f"{what}which has room for few values only; give it indices of int32")
        if node_kind(type_.value_type) != LEAF or types.is_null(type_.value_type):
            raise SpecRefused(f"{what}which is not read from JSON; leave the dictionary out")
        return _inside(type_.value_type, path)
    numbers = types.is_boolean, types.is_integer, types.is_floating, types.is_decimal
    others = types.is_date, types.is_time, types.is_timestamp, types.is_duration, types.is_null, is_text, is_bytes
    if isinstance(type_, pa.BaseExtensionType) or not any(is_(type_) for is_ in (*numbers, *others)):
        raise SpecRefused(f"{what}which no JSON value is read as; docs/jobs.md lists the types")
    return []
