"""Columns of plain values from JSON: the texts and numbers that each type accepts."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ferry.connectors.formats.json_nodes import UNITS, JsonNode, is_bytes, is_text
from ferry.kernels import json_grammar, json_scan, json_times, json_values
from ferry.kernels.grouping import Bytes, Ints
from ferry.kernels.json_grammar import ESCAPED, NULL, STRING, Slots
from ferry.kernels.json_values import Flags

Built: TypeAlias = tuple[pa.Array, Flags]
"""(a column, flags of its unfit values)."""


def leaf(node: JsonNode, data: Bytes, kinds: Slots, starts: Slots, stops: Slots) -> Built:
    """(a column of plain values, flags of the unfit values)."""
    type_ = node.field.type
    there = kinds != NULL
    if types.is_dictionary(type_):
        plain = JsonNode(node.path, pa.field("", type_.value_type), (), node.per_second)
        values, unfit = leaf(plain, data, kinds, starts, stops)
        return values.dictionary_encode().cast(type_), unfit
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
    """(a column of dates or times, flags of the unfit values) from ISO 8601 texts, and from numbers with a unit."""
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
        counts, whole = json_values.integers(*slots, *json_values.limits(64, True))
        values, fit = np.where(whole, counts, values), fit | whole
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
    """(a column of numbers, flags of the unfit values) from 64-bit numbers, in the type's own width."""
    return _from(type_, values.astype(f"i{type_.bit_width // 8}"), fit), there & ~fit


def _from(type_: pa.DataType, values: npt.NDArray[Any], fit: Flags) -> pa.Array:
    return pa.Array.from_buffers(type_, len(fit), [bitmap(fit), pa.py_buffer(values)])


def _strings(type_: pa.DataType, bytes_: Bytes, offsets: Ints, fit: Flags) -> pa.Array:
    """A column of texts or bytes. Unfit values are null."""
    view = type_ in (pa.string_view(), pa.binary_view())
    large = types.is_large_string(type_) or types.is_large_binary(type_)
    kind = (pa.string() if type_ == pa.string_view() else pa.binary()) if view else type_
    edges = pa.py_buffer(offsets if large else offsets.astype(np.int32))
    column = pa.Array.from_buffers(kind, len(fit), [bitmap(fit), edges, pa.py_buffer(bytes_)])
    return column.cast(type_) if view else column


def bitmap(valid: Flags) -> pa.Buffer | None:
    """Arrow's validity bitmap. None if all values are valid."""
    return None if valid.all() else pa.array(valid).buffers()[1]
