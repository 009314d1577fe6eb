"""Values of columns as cells of a group's state, and back: the types that can be kept, and their words.

Integers of every width are kept as 64 bits and floats as doubles. Every other type is kept as Arrow's bits, and comes
out as the same type: booleans, dates, times, timestamps and durations are one word, a decimal is two: the high word of
its 128 bits, and the low one with its first bit flipped. Compared in this order, as signed words, they order as the
decimals.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from ferry.contract.descriptors import Aggregate, Number, ValueType
from ferry.kernels.grouping import SIGN
from ferry.kernels.kinds import kind_of, type_of

INT_MAX = 2**63 - 1
DIGITS_MAX = 38
"""of a decimal"""

TEXTS = ("string", "binary")
"""Values that have an order, but no words: a process keeps them (`ferry.process.aggregator`)."""

_FAMILIES = {
    "int": "integers", "float": "floats", "decimal128": "decimals", "duration": "durations", "bool": "booleans",
    "date": "dates", "time64": "times", "timestamp": "timestamps", "string": "strings", "binary": "bytes",
}  # fmt: skip


def value_type(kind: pa.DataType) -> ValueType | None:
    """The type in which state keeps values of a type; None: state cannot keep them."""
    if pa.types.is_dictionary(kind):
        return value_type(kind.value_type)
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_decimal(kind):
        known = kind.precision <= DIGITS_MAX and kind.scale >= 0
        return kind_of(pa.decimal128(kind.precision, kind.scale)) if known else None
    if pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return str(kind)
    known = kind_of(kind)
    return known if known in _FAMILIES or pa.types.is_timestamp(kind) else None


def arrow_type(value: ValueType) -> pa.DataType:
    """The type of a column of such values."""
    return named_type(value) if family(value) in ("durations", "times") else type_of(value)


@lru_cache(256)
def named_type(name: str) -> pa.DataType:
    """The Arrow type of this name, its `str`. Raises ValueError when a name does not determine the type."""
    return type_of(name) if name.startswith(("decimal128(", "timestamp[")) else pa.type_for_alias(name)


def family(value: ValueType) -> str:
    """The family of a value's type, in a word for users."""
    return _FAMILIES[re.split(r"[\[(]", value, maxsplit=1)[0]]


def words(value: ValueType) -> tuple[Number, ...]:
    """The words of a value."""
    if value == "float":
        return ("float",)
    return ("int", "int") if family(value) == "decimals" else ("int",)


def cells(column: pa.Array, word: int) -> pa.Array:
    """One word of each value, int64 or double. For a null it is null, or arbitrary."""
    kind = column.type
    if pa.types.is_decimal(kind):
        bits = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return pa.array(bits[0::2] ^ SIGN if word else np.ascontiguousarray(bits[1::2]))
    if pa.types.is_boolean(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.view(pa.int32()).cast(pa.int64())
    return column if kind in (pa.int64(), pa.float64()) else column.view(pa.int64())


def array(value: ValueType, of: Sequence[pa.Array]) -> pa.Array:
    """Inverse of `cells`, from all words; no nulls."""
    kind = arrow_type(value)
    if pa.types.is_decimal(kind):
        bits = np.empty((len(of[0]), 2), np.int64)
        bits[:, 1], bits[:, 0] = of[0].to_numpy(), of[1].to_numpy() ^ SIGN
        return pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits)])
    if pa.types.is_boolean(kind):
        return of[0].cast(kind)
    if pa.types.is_date32(kind):
        return of[0].cast(pa.int32(), safe=False).view(kind)
    return of[0].view(kind)


def wider(decimal: pa.DataType, digits: int, scale: int) -> pa.DataType:
    """A decimal type with this many more digits, and this many more after the point, as far as possible."""
    return pa.decimal128(min(decimal.precision + digits, DIGITS_MAX), min(decimal.scale + scale, DIGITS_MAX))


def quotients(decimals: pa.Array, counts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals divided by integers, rounded half away from zero. Raises Beyond as `fitted` does.

    With Python integers: Arrow's 256-bit decimals sometimes round wrongly, when a quotient is just below 2^64.
    """
    scale, digits = decimals.type.scale, bytearray()
    shift, limit = 2 * 10 ** (kind.scale - scale), 10**kind.precision
    dividends = fitted(decimals, pa.decimal128(DIGITS_MAX, scale))
    bits, begin = memoryview(dividends.buffers()[1]), dividends.offset
    for row, count in enumerate(counts.to_pylist()):
        total = int.from_bytes(bits[16 * (begin + row) : 16 * (begin + row + 1)], "little", signed=True)
        mean = (abs(total) * shift + count) // (2 * count)
        if mean >= limit:
            raise Beyond(f"beyond {kind}", row)
        digits += (mean if total >= 0 else -mean).to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(kind, len(decimals), [None, pa.py_buffer(digits)])


def fitted(decimals: pa.Array, kind: pa.DataType) -> pa.Array:
    """Decimals as another decimal type of no smaller scale. Raises Beyond for a value with more digits than the type
    has."""
    try:
        cast = decimals.cast(kind)
        cast.validate(full=True)
    except pa.ArrowInvalid as e:
        half = len(decimals) // 2
        if half:
            fitted(decimals.slice(0, half), kind)
            try:
                fitted(decimals.slice(half), kind)
            except Beyond as beyond:
                raise Beyond(f"beyond {kind}", half + beyond.row) from e
        raise Beyond(f"beyond {kind}", 0) from e
    return cast


class Beyond(OverflowError):
    """A value of a result is too great for its type; `row` is its group."""

    def __init__(self, what: str, row: int) -> None:
        super().__init__(what)
        self.row = row


def way_on(aggregate: Aggregate) -> str:
    """The user's options when a sum is too great."""
    if aggregate.number == "int":
        return "make the column a double or a decimal(38, 0) before the operator, or take the mean"
    return "make the column a double before the operator"
