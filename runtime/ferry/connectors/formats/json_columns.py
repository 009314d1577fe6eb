"""Columns of a schema from JSON values (docs/reference/types.md has the table of types).

A value that does not fit its column makes its whole text malformed. Must never let one text influence another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as types

from ferry.connectors.formats.json_leaves import Built, bitmap, leaf
from ferry.connectors.formats.json_nodes import (
    UNITS,
    JsonNode,
    fields_inside,
    has_timestamp,
    is_bytes,
    is_text,
    node_kind,
    wanted,
)
from ferry.contract.errors import SpecRefused
from ferry.kernels import json_grammar, json_scan
from ferry.kernels.columns import taken
from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import ARRAY, ESCAPED, NULL, OBJECT, STRING, Slots
from ferry.kernels.json_scan import LEAF, LIST, MAP, STRUCT
from ferry.kernels.json_values import Flags

SHOWN = 60
"""Greatest number of bytes of a value in a reason."""


@dataclass(frozen=True, slots=True)
class JsonFault:
    """The fault of a malformed text."""

    text: int
    """Index of the text."""
    verdict: int
    """Verdict of the scan. FINE: valid JSON with an unfit value."""
    place: int
    """Byte offset in the text."""
    node: JsonNode
    """The node that is read at this offset."""
    reason: str = ""
    """Reason of an unfit value."""


class JsonColumns:
    """The reader of JSON texts for a schema. `epoch`: by timestamp column, the unit of its numbers since 1970."""

    def __init__(self, schema: pa.Schema, epoch: Mapping[str, str]) -> None:
        """Raises SpecRefused for a type that JSON values cannot have."""
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
            if not has_timestamp(schema.field(name).type):
                raise SpecRefused(
                    f"epoch={{{name!r}: {unit!r}}}: the column is {schema.field(name).type}, not a timestamp"
                )
        depth = self._add(pa.field("", pa.struct(list(schema)), nullable=False), "", dict(epoch), 0)
        names = [node.field.name.encode() for node in self._nodes]
        heap, name_at = np.frombuffer(b"".join(names), np.uint8), np.cumsum([0, *map(len, names)])
        self._tree = np.array(self._kinds), np.array(self._sizes), heap, name_at, depth

    def _add(self, field: pa.Field, path: str, epoch: Mapping[str, str], per_second: int, is_name: bool = False) -> int:
        """Number a field and its inner fields. Returns the depth of nested objects and arrays."""
        inside = fields_inside(field.type, path)
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
        """(records, faults) of the texts data[starts[i]:stops[i]]."""
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
        # Arrow cannot filter columns of all types, so the fitting texts are read again.
        faults += [
            JsonFault(int(fine[i]), json_grammar.FINE, 0, self._nodes[0], why) for i, why in reading.wrong.items()
        ]
        fit = np.setdiff1d(np.arange(len(starts)), [fault.text for fault in faults])
        return self.read(data, starts[fit], stops[fit])[0], faults


def _no_columns(schema: pa.Schema, rows: int) -> pa.Table:
    struct = pa.Array.from_buffers(pa.struct([]), rows, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(struct)], schema)


class _Reading:
    """A pass over the values of a scan."""

    def __init__(self, nodes: list[JsonNode], data: Bytes, slots: Slots, begins: Ints) -> None:
        self._nodes = nodes
        self._data = data
        self._slots = slots
        self._begins = begins
        self.wrong: dict[int, str] = {}
        """The first reason of each malformed text, by index."""

    def slots(self, number: int) -> Slots:
        """(kinds, starts, stops, texts) of the values of a node."""
        return self._slots[:, self._begins[number] : self._begins[number + 1]]

    def column(self, number: int, within: Flags | None) -> pa.Array:
        """The values of a node. `within`: flags of the values whose object is not null. None: all."""
        node = self._nodes[number]
        kinds, starts, stops, texts = self.slots(number)
        there = kinds != NULL
        kind = node_kind(node.field.type)
        if node.is_name and not (is_text(node.field.type) or is_bytes(node.field.type)):
            kinds = json_grammar.unquoted(self._data, kinds, starts, stops)
        if kind == LEAF:
            values, unfit = leaf(node, self._data, kinds, starts, stops)
        else:
            values, unfit = self._nested(node, kind, kinds, starts)
        if not node.field.nullable:
            lacking = ~there if within is None else ~there & within
            for k in np.flatnonzero(lacking):
                self.wrong.setdefault(int(texts[k]), f"field {node.path!r} is missing or null")
        for k in np.flatnonzero(unfit):
            text = _shown(self._data, kinds[k], starts[k], stops[k])
            self.wrong.setdefault(int(texts[k]), f"field {node.path!r}: {text} does not fit {wanted(node, kinds[k])}")
        return values

    def _nested(self, node: JsonNode, kind: int, kinds: Slots, starts: Slots) -> Built:
        there, type_ = kinds != NULL, node.field.type
        valid = bitmap(there)
        nulls = len(kinds) - int(there.sum())
        if kind == STRUCT:
            children = [self.column(child, there) for child in node.children]
            return pa.Array.from_buffers(type_, len(kinds), [valid], nulls, children=children), np.zeros(
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
            if children[0].null_count:  # An unfit key: the other texts are read again.
                return pa.nulls(len(kinds), type_), np.zeros(len(kinds), np.bool_)
            entries = pa.struct([type_.key_field.with_nullable(False), type_.item_field])
            children = [pa.Array.from_buffers(entries, len(children[0]), [None], 0, children=children)]
        lists = pa.Array.from_buffers(type_, len(kinds), [valid, pa.py_buffer(offsets)], nulls, children=children)
        return lists, np.zeros(len(kinds), np.bool_)


def _fixed(type_: pa.DataType, there: Flags, counts: Ints, values: pa.Array) -> Built:
    """(lists of a fixed size, flags of the lists with another length). The elements of the latter are null."""
    size = type_.list_size
    fine = there & (counts == size)
    firsts = np.cumsum(counts) - counts
    places = firsts[:, None] + np.arange(size)
    at = pa.array(places.reshape(-1), pa.int64(), mask=np.repeat(~fine, size))
    lists = pa.Array.from_buffers(
        type_, len(there), [bitmap(fine)], len(there) - int(fine.sum()), children=[taken(values, at)]
    )
    return lists, there & ~fine


def _shown(data: Bytes, kind: int, start: int, stop: int) -> str:
    """The beginning of a value's text."""
    if kind in (OBJECT, ARRAY):
        return "an array of this length"
    word = {json_grammar.TRUE: "true", json_grammar.FALSE: "false", json_grammar.NAN: "NaN"}.get(int(kind))
    if word is not None or kind in (json_grammar.INFINITE, json_grammar.MINUS_INFINITE):
        return word or "an infinity"
    text = data[start : min(stop, start + SHOWN)].tobytes().decode("utf-8", "replace")
    text += "..." if stop - start > SHOWN else ""
    return f'"{text}"' if kind in (STRING, ESCAPED) else text
