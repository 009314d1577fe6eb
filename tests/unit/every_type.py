"""Columns of every Arrow type with the extremes of their values, alone and inside of others, and what is seen of them."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.reading.tables import rows_of, table_of
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState

SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEAR_1, YEAR_10000 = -62_135_596_800, 253_402_300_800
"""Seconds since 1970 of the begin of these years, in UTC."""

LONG = "ü" * 70_000


def whole(bits: int, signed: bool = True) -> list[int]:
    """The least and the greatest integers of so many bits, and some about zero."""
    least, greatest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [least, least + 1, greatest - 1, greatest, 0, 1, *([-1] if signed else [])]


def instants(unit: str) -> list[int]:
    """About the ends of the years 1 and 9999, also in zones far in the east and west, about 1970, and the extremes."""
    ends = [(end + 3600 * hours) * SECONDS[unit] for end in (YEAR_1, YEAR_10000) for hours in (-14, 0, 14)]
    of_years = [value + d for value in ends for d in (-1, 0)]
    return [v for v in (*of_years, 0, -1, 999, -999, *whole(64)) if -(2**63) <= v < 2**63 and v != -(2**63)]


FLOATS = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan]
NUMBERS: dict[pa.DataType, list[Any]] = {
    **{pa.type_for_alias(f"int{n}"): whole(n) for n in (8, 16, 32, 64)},
    **{pa.type_for_alias(f"uint{n}"): whole(n, signed=False) for n in (8, 16, 32, 64)},
    pa.float16(): [*FLOATS, 65504.0, 2.0**-24],
    pa.float32(): [*FLOATS, float(np.finfo("f4").max), 2.0**-149],
    pa.float64(): [*FLOATS, float(np.finfo("f8").max), 5e-324, -1e300],
}
TEXTS = ["", "a", "é\U0001f600", "nul\0", LONG]
BYTES = [b"", b"\0\xff", b"x" * 70_000]
TIMES: dict[pa.DataType, list[int]] = {
    **{pa.timestamp(u, z): instants(u) for u in SECONDS for z in (None, "UTC", "Pacific/Kiritimati", "Etc/GMT+12")},
    **{pa.duration(u): instants(u) for u in SECONDS},
    pa.date32(): [*whole(32), YEAR_1 // 86400, YEAR_10000 // 86400 - 1],
    pa.date64(): [day * 86_400_000 for day in (YEAR_1 // 86400, YEAR_10000 // 86400 - 1, 0, -1)],
    pa.time32("s"): [0, 86_399], pa.time32("ms"): [0, 86_399_999], pa.time64("us"): [0, 86_399_999_999],
    pa.time64("ns"): [0, 1, 999, 86_399_999_999_999],
}  # fmt: skip
DECIMALS: dict[pa.DataType, list[Any]] = {
    kind: [Decimal((0, (9,) * kind.precision, -kind.scale)), Decimal((1, (9,) * kind.precision, -kind.scale)), Decimal(0)]
    for kind in (
        pa.decimal32(9, 2), pa.decimal64(18, 18), pa.decimal128(1, 0), pa.decimal128(38, 0), pa.decimal128(38, 38),
        pa.decimal256(38, 10), pa.decimal256(76, 3),
    )
}  # fmt: skip
OTHERS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False], pa.null(): [],
    pa.string(): TEXTS, pa.large_string(): TEXTS, pa.string_view(): TEXTS,
    pa.binary(): BYTES, pa.large_binary(): BYTES, pa.binary_view(): BYTES, pa.binary(3): [b"abc", b"\0\0\0"],
    pa.month_day_nano_interval(): [(1, 2, 3), (-1, 0, 2**62)],
}  # fmt: skip
COLUMNS: dict[str, pa.Array] = {}
for kind, some in {**NUMBERS, **OTHERS, **DECIMALS}.items():
    given = [np.float16(v) for v in some] if kind == pa.float16() else some
    COLUMNS[str(kind)] = pa.array([*given, None, *given[:2]], kind)
for kind, some in TIMES.items():
    raw = pa.int32() if kind.bit_width == 32 else pa.int64()
    COLUMNS[str(kind)] = pa.array([*some, None, *some[:2]], raw).view(kind)
for name in ("string", "int64", "timestamp[ms, tz=UTC]"):
    COLUMNS[f"dictionary of {name}"] = COLUMNS[name].dictionary_encode()


def nested(column: pa.Array) -> dict[str, pa.Array]:
    """The same values inside of others: null, empty and full ones."""
    n = len(column)
    every, alone = pa.array([0, n, n, n]), pa.array(range(n + 1))
    mask = pa.array([False, False, True])
    texts = pa.array([f"k{i}" for i in range(n)])
    inner = pa.StructArray.from_arrays([column, texts], ["a", "b"])
    lists = pa.ListArray.from_arrays(every.cast(pa.int32()), column, mask=mask)
    return {
        "list": lists,
        "large_list": pa.LargeListArray.from_arrays(every, column, mask=mask),
        "fixed_list": pa.FixedSizeListArray.from_arrays(column, n),
        "struct": inner,
        "map": pa.MapArray.from_arrays(every.cast(pa.int32()), texts, column),
        "list of struct": pa.ListArray.from_arrays(alone.cast(pa.int32()), inner),
        "list of list": pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), lists),
        "struct of list": pa.StructArray.from_arrays([lists], ["l"]),
        "struct of map": pa.StructArray.from_arrays(
            [pa.MapArray.from_arrays(every.cast(pa.int32()), texts, column)], ["m"]
        ),
    }


def seen(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values that can be compared, without Python's datetime: times are integers of their unit, NaN is a word."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in seen(chunk)]
    kind = column.type
    if pa.types.is_dictionary(kind):
        return seen(column.dictionary_decode())
    if pa.types.is_struct(kind):
        fields = [seen(child) for child in column.flatten()]
        return [
            None if not ok else row
            for ok, row in zip(column.is_valid().to_pylist(), map(list, zip(*fields)), strict=True)
        ]
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        return [None if one.as_py_is_none else one.rows for one in map(_Listed, column)]
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        return column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_floating(kind):
        return ["nan" if v is not None and math.isnan(v) else v for v in map(_number, column.to_pylist())]
    return column.to_pylist()


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


class _Listed:
    """A list or a map as a list of what is in it."""

    def __init__(self, scalar: pa.Scalar) -> None:
        self.as_py_is_none = not scalar.is_valid
        if scalar.is_valid:
            inside = scalar.values
            self.rows = seen(inside)


def stream_of(column: pa.Array, **more: pa.Array) -> tuple[Build, Stream, pa.RecordBatch]:
    n = len(column)
    rows = {"k": pa.array([1] * n, pa.int64()), "t": pa.array(range(n), pa.int64()), "x": column, **more}
    batch = pa.record_batch(rows)
    build = Build(lambda function, schema, where: schema)
    return build, Stream(build, Input("in", (), batch.schema, None, 0)), batch


def fired_of(
    build: Build, batch: pa.RecordBatch, key: str, where: Path
) -> tuple[pa.RecordBatch, pa.RecordBatch, int, OperatorDescriptor]:
    """Fired rows, the same state as it is read, and how many records were malformed."""
    descriptor = OperatorDescriptor.from_wire(build.operators[-1].descriptor.to_wire())
    state, parts, malformed = AggregateState(descriptor, 4, where), [], 0
    for half in (batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)):
        fragmenter = Fragmenter(descriptor)
        fragmenter.add(half, [key], "t")
        malformed += sum(refused.num_rows for refused, _ in fragmenter.malformed())
        parts += fragmenter.drain()
    delta = state.delta([state.combine(parts)], EpochTimes(-(2**62), -(2**62)))[0]
    state.apply(delta)
    read = rows_of(descriptor, delta, table_of(descriptor, None), -(2**62))
    fired = [b for b in state.fired(EpochTimes(-1000, 10**8), np.arange(4)) if b.num_rows]
    rows = pa.Table.from_batches(fired).combine_chunks().to_batches()[0]
    return rows, read, malformed, descriptor
