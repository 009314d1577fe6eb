"""Columns of random types for hostile jobs: values with their extremes, how JSON writes them, and what is no value of theirs.

A value is what Arrow is told: an integer for a time, in the unit of its type. `plain` makes all of them comparable.
"""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

Value = Any
SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR_1, YEAR_1970, YEAR_2262, YEAR_10000 = -62_135_596_800, 0, 9_223_372_036, 253_402_300_800
"""Seconds since 1970 of the begin of these years, in UTC; nanoseconds go up to some time in 2262."""

WORDS = [
    "", "ann", "Ünal", "x" * 300, "null", '"', "\t", "\x00", "a\nb", "\x1b[2J", "\U0001f600", "\ufeff", "NaN", "\\", "\u2028",
]  # fmt: skip
BYTES = [b"", b"\0\xff", b"null", b"\x1b[2J", b"x" * 500]


@dataclass(frozen=True)
class Kind:
    """A type of columns."""

    code: str
    draw: Callable[[random.Random], Value]
    text: Callable[[random.Random, Value], str]
    """how JSON may write it"""
    bad: tuple[str, ...]
    """JSON that is no value of the type"""
    tame: Callable[[random.Random], Value] | None = None
    """draws values whose sums are exact in any order; None: they have no sums"""
    ordered: bool = True
    """can be a key, and has a least and a greatest"""

    @property
    def type(self) -> pa.DataType:
        """The Arrow type."""
        return eval(self.code, {"pa": pa})


def _whole(bits: int, signed: bool = True) -> Kind:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    bad = ('"1"', "1.0", "1e3", "[1]", "{}", "true", "NaN", str(high + 1), str(low - 1), "9" * 400, "0x1", "1_0")
    least, most = max(low, -(2**40)), min(high, 2**40)
    return Kind(
        f"pa.{'' if signed else 'u'}int{bits}()",
        lambda draw: draw.choice([low, high, 0, 1, draw.randint(low, high), draw.randint(0, 5)]),
        lambda draw, value: str(value),
        bad,
        tame=lambda draw: draw.randint(least, most),
    )


def _float(bits: int) -> Kind:
    info = np.finfo(f"f{bits // 8}")
    special = [math.nan, math.inf, -math.inf, -0.0, 0.0, *map(float, (info.max, info.min, info.smallest_subnormal))]
    words = {"nan": ["NaN", '"NaN"'], "inf": ["Infinity", '"Infinity"'], "-inf": ["-Infinity", '"-Infinity"']}
    return Kind(
        f"pa.float{bits}()",
        lambda draw: draw.choice([*special, draw.randint(-999, 999) / 8]),
        lambda draw, value: draw.choice(words.get(repr(value), [repr(value)])),
        ("true", '"x"', '"1"', "[]", "1e999", "-1e999" if bits == 64 else "1e39", "nan", "+1", "."),
        tame=lambda draw: draw.randint(-(2**20), 2**20) / 8,
    )


def _decimal(precision: int, scale: int) -> Kind:
    def draw_one(draw: random.Random) -> Decimal:
        digits = draw.choice([0, 1, 10**precision - 1, draw.randrange(10**precision)])
        return Decimal((draw.randint(0, 1), tuple(map(int, str(digits))), -scale))

    bad = ("true", '"x"', "[]", f"1e{precision - scale}", f"1e-{scale + 1}", "9" * (precision - scale + 1), '""', "NaN")
    return Kind(
        f"pa.decimal128({precision}, {scale})",
        draw_one,
        lambda draw, value: draw.choice([f"{value:f}", f'"{value:f}"']),
        bad,
        tame=lambda draw: Decimal((draw.randint(0, 1), tuple(map(int, str(draw.randrange(10**6)))), -scale)),
    )


def _timestamp(unit: str, zone: str | None) -> Kind:
    factor, year = SECOND[unit], YEAR_2262 if unit == "ns" else YEAR_10000
    low, high = (-year if unit == "ns" else YEAR_1) * factor, year * factor - 1

    def text(draw: random.Random, value: int) -> str:
        hours = draw.choice([0, 0, 0, 1, -5, 14]) if low + 10**5 * factor < value < high - 10**5 * factor else 0
        local = str(np.array(value + hours * 3600 * factor, f"M8[{unit}]")).replace("T", draw.choice("T "))
        return f'"{local}{f"{hours:+03d}:00" if hours else draw.choice(["", "Z", "+00:00"])}"'

    bad = ('"yesterday"', '"2024-13-01"', '"2024-02-30T00:00"', '"2024-01-01T25:00"', '""', "5", "true", "[]", '"5"')
    return Kind(
        f"pa.timestamp({unit!r}, {zone!r})",
        lambda draw: draw.choice([low, high, -1, 0, draw.randint(low, high), draw.randrange(10**6) * factor]),
        text,
        bad,
    )


def _date_text(draw: random.Random, value: int) -> str:
    return draw.choice([f'"{np.datetime64(value, "D")}"', str(value)])


LONG = _whole(64)
DAY_1, DAY_10000 = YEAR_1 // 86400, YEAR_10000 // 86400
SCALARS = [
    *(_whole(bits, signed) for bits in (8, 16, 32, 64) for signed in (True, False)),
    _float(32),
    _float(64),
    _decimal(9, 2),
    _decimal(20, 0),
    _decimal(38, 10),
    Kind("pa.string()", lambda draw: draw.choice([*WORDS, f"u{draw.randrange(50)}"]), lambda draw, v: _word(draw, v),
         ("5", "true", "{}", "[]", '"\\ud800"', "ann", "'ann'")),
    Kind("pa.binary()", lambda draw: draw.choice([*BYTES, bytes([draw.randrange(9)])]), lambda draw, v: _base64(v),
         ("5", '"***"', '"abc"', "[]", "true")),
    Kind("pa.binary(3)", lambda draw: draw.choice([b"abc", b"\0\0\0", b"\xff\xfe\xfd"]), lambda draw, v: _base64(v),
         ("5", '"YWI="', '""', '"***"')),
    Kind("pa.bool_()", lambda draw: draw.random() < 0.5, lambda draw, v: str(v).lower(),
         ("1", "0", '"true"', "True", "[]", "tru")),
    Kind("pa.date32()", lambda draw: draw.choice([DAY_1, DAY_10000 - 1, 0, -1, draw.randint(DAY_1, DAY_10000 - 1)]), _date_text,
         ('"x"', '"2024-02-30"', "1.5", "true", '""', "[]")),
    *(_timestamp(unit, zone) for unit in SECOND for zone in (None, "UTC", "Asia/Kolkata", "Pacific/Kiritimati")),
]  # fmt: skip


def _word(draw: random.Random, value: str) -> str:
    return json.dumps(value, ensure_ascii=draw.random() < 0.5)


def _base64(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _maybe(draw: random.Random, kind: Kind) -> Value:
    return None if draw.random() < 0.2 else kind.draw(draw)


def _text(draw: random.Random, kind: Kind, value: Value) -> str:
    return "null" if value is None else kind.text(draw, value)


def _list(inner: Kind) -> Kind:
    return Kind(
        f"pa.list_({inner.code})",
        lambda draw: [_maybe(draw, inner) for _ in range(draw.choice([0, 1, 3]))],
        lambda draw, value: f"[{', '.join(_text(draw, inner, one) for one in value)}]",
        ("5", "{}", '"[]"', "[", *(f"[{one}]" for one in inner.bad[:4])),
        ordered=False,
    )


def _struct(inner: Kind) -> Kind:
    return Kind(
        f'pa.struct([("a", {inner.code}), ("b", pa.int64())])',
        lambda draw: {"a": _maybe(draw, inner), "b": draw.choice([None, 1, -(2**63)])},
        lambda draw, v: f'{{"b": {_text(draw, LONG, v["b"])}, "c": [], "a": {_text(draw, inner, v["a"])}}}',
        ("5", "[]", '"{}"', '{"b": 1.5}', '{"a": null, "a": null}', *(f'{{"a": {one}}}' for one in inner.bad[:4])),
        ordered=False,
    )


def _map(inner: Kind) -> Kind:
    return Kind(
        f"pa.map_(pa.string(), {inner.code})",
        lambda draw: [(f"k{i}", _maybe(draw, inner)) for i in range(draw.choice([0, 1, 3]))],
        lambda draw, value: f"{{{', '.join(f'{json.dumps(k)}: {_text(draw, inner, v)}' for k, v in value)}}}",
        ("5", "[]", '"{}"', "{1: 2}", *(f'{{"k": {one}}}' for one in inner.bad[:4])),
        ordered=False,
    )


def kind_of(draw: random.Random, scalars: list[Kind]) -> Kind:
    """A random one, every fourth nested, some of them twice."""
    kind = draw.choice(scalars)
    if draw.random() > 0.25:
        return kind
    nested = draw.choice([_list, _struct, _map])(kind)
    return draw.choice([_list, _struct, _map])(nested) if draw.random() < 0.3 else nested


def array(kind: pa.DataType, values: list[Value]) -> pa.Array:
    """Values as a column."""
    if pa.types.is_list(kind):
        inner = array(kind.value_type, [one for value in values for one in value or ()])
        return pa.ListArray.from_arrays(_offsets(values), inner, mask=_nulls(values))
    if pa.types.is_map(kind):
        pairs = [pair for value in values for pair in value or ()]
        keys, items = array(kind.key_type, [k for k, _ in pairs]), array(kind.item_type, [v for _, v in pairs])
        return pa.MapArray.from_arrays(_offsets(values), keys, items, mask=_nulls(values))
    if pa.types.is_struct(kind):
        parts = [array(field.type, [(value or {}).get(field.name) for value in values]) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(values))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return pa.array(values, pa.int64() if kind.bit_width == 64 else pa.int32()).view(kind)
    return pa.array(values, kind)


def _offsets(values: list[Value]) -> pa.Array:
    return pa.array(np.cumsum([0, *(len(value or ()) for value in values)]), pa.int32())


def _nulls(values: list[Value]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def plain(column: pa.Array, through_spark: bool = False) -> list[Value]:
    """Comparable values: times are nanoseconds since 1970, of which Spark keeps whole microseconds, and NaN is a word."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        factor, step = 10**9 // SECOND[kind.unit], 1000 if through_spark else 1
        return [None if v is None else v * factor // step * step for v in column.view(pa.int64()).to_pylist()]
    if pa.types.is_date32(kind):
        return column.view(pa.int32()).to_pylist()
    if pa.types.is_floating(kind):
        return ["nan" if v is not None and math.isnan(v) else v for v in column.to_pylist()]
    valid = column.is_valid().to_pylist() if pa.types.is_nested(kind) else []
    if pa.types.is_struct(kind):
        parts = [plain(part, through_spark) for part in column.flatten()]
        return [row if ok else None for ok, row in zip(valid, zip(*parts, strict=True), strict=True)]
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ends = column.offsets.to_pylist()
        if pa.types.is_map(kind):
            inside: list[Value] = list(
                zip(plain(column.keys, through_spark), plain(column.items, through_spark), strict=True)
            )
        else:
            inside = plain(column.values, through_spark)
        lists = [tuple(inside[low:high]) for low, high in pairwise(ends)]
        return [one if ok else None for ok, one in zip(valid, lists, strict=True)]
    return column.to_pylist()
