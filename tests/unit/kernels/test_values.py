"""Aggregates of columns of every type, each against Python's own arithmetic: the values, and the type that they come out as."""

from __future__ import annotations

import datetime as dt
import statistics
from decimal import Context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.api.pipeline import Build, Input
from ferry.api.stream import Stream
from ferry.contract.descriptors import Aggregate, OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.kernels import columns, values
from ferry.kernels.aggregates import FUNCTIONS, ORDERED
from ferry.spark.tasks import warmup
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.aggregate import AggregateState

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64(),
    pa.bool_(), pa.date32(), pa.time64("us"), pa.time64("ns"), pa.timestamp("s"),
    pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("s"),
    pa.duration("us"), pa.decimal128(1, 0), pa.decimal128(12, 2), pa.decimal128(38, 0), pa.decimal128(38, 18),
    pa.decimal128(38, 38), pa.decimal32(7, 3), pa.decimal64(17, 4),
]  # fmt: skip
FIRST = EpochTimes(-(2**62), -(2**62))
RAW = {1: pa.int8(), 8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def raw(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, as Python has them or as the integers that Arrow keeps: a decimal is its digits, without the point."""
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.one_of(st.integers(-most, most), st.integers(-9, 9))
    if pa.types.is_floating(kind):
        return st.floats(-100, 100, width=32)
    bits = kind.bit_width
    if pa.types.is_time(kind):
        return st.integers(0, 86_399)
    if pa.types.is_unsigned_integer(kind):
        return st.integers(0, min(2**bits - 1, 2**58))
    least = -(2 ** (min(bits, 59) - 1))
    return st.integers(least, -least - 1)


def column_of(kind: pa.DataType, some: list[Any]) -> pa.Array:
    """An Arrow column of what `raw` has drawn."""
    if pa.types.is_temporal(kind):
        return pa.array(some, RAW[kind.bit_width]).view(kind)
    if not pa.types.is_decimal(kind):
        return pa.array(some, kind)
    digits = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in some)
    made = pa.Array.from_buffers(pa.decimal128(kind.precision, kind.scale), len(some), [None, pa.py_buffer(digits)])
    return pc.if_else(pa.array([value is not None for value in some]), made, None).cast(kind)


def digits_of(value: pa.Scalar) -> int | None:
    """Inverse of `column_of` for one decimal."""
    return None if value.as_py() is None else int(value.as_py().scaleb(value.type.scale, Context(prec=99)))


def declared(kind: pa.DataType, **aggregates: Aggregate) -> OperatorDescriptor:
    """The operator of a pipeline that says so, of a stream with a column x of this type and one, y, of integers."""
    build = Build(lambda function, schema, where: schema)
    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", kind), ("y", pa.int64())])
    keyed = Stream(build, Input("in", (), schema, None, 0)).event_time("t").key_by("k")
    keyed.window(ferry.sliding("1s", "500ms")).aggregate("op", **aggregates)
    return build.operators[0].descriptor


Record = tuple[int, Any, int | None]
"""Event time, x, y; all have one key."""


def run(where: Path, one: OperatorDescriptor, kind: pa.DataType, tasks: list[list[Record]]) -> dict[str, pa.Scalar]:
    """The one row that these tasks fire, half of them in a first epoch."""
    one = OperatorDescriptor.from_wire(one.to_wire())
    state = AggregateState(one, 4, where)
    for epoch in (0, 1):
        parts = []
        for records in tasks[epoch::2]:
            f, rows = Fragmenter(one), len(records)
            x = column_of(kind, [None] + [r[1] for r in records]).slice(1)
            times, ys = pa.array([r[0] for r in records], pa.int64()), pa.array([r[2] for r in records], pa.int64())
            batch = pa.record_batch({"k": pa.array([7] * rows, pa.int64()), "t": times, "x": x, "y": ys})
            f.add(batch, ["k"], "t")
            assert not f.malformed()
            parts += f.drain()
        if parts:
            state.apply(state.delta([state.combine(parts)], FIRST)[0])
    (found,) = state.fired(EpochTimes(999, 1000), np.arange(4))
    assert found.num_rows == 1
    return {name: found.column(name)[0] for name in found.schema.names}


def tasks_of(kind: pa.DataType) -> st.SearchStrategy[list[list[Record]]]:
    record = st.tuples(st.integers(0, 999), st.none() | raw(kind), st.none() | st.integers(-3, 3))
    return st.lists(st.lists(record, min_size=1, max_size=8), min_size=1, max_size=4)


def kept(kind: pa.DataType) -> pa.DataType:
    """The type that values of another come out as."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.int64() if pa.types.is_integer(kind) else pa.float64()
    return pa.decimal128(kind.precision, kind.scale) if pa.types.is_decimal(kind) else kind


def chosen(kind: pa.DataType, records: list[Record]) -> dict[str, Any]:
    """What the functions give that take one of the values."""
    known = [r for r in records if r[1] is not None]
    of_both = [r for r in known if r[2] is not None]
    return {
        "lo": min((r[1] for r in known), default=None),
        "hi": max((r[1] for r in known), default=None),
        "a": max(((-r[0], r[1]) for r in known), default=(0, None))[1],
        "z": max(((r[0], r[1]) for r in known), default=(0, None))[1],
        "x_at_y": max(((r[2], r[1]) for r in of_both), default=(0, None))[1],
        "y_at_x": max(((r[1], r[2]) for r in of_both), default=(0, None))[1],
        "x_at_x": max((r[1] for r in known), default=None),
        "n": len(known),
    }


CHOOSING = {
    "lo": ferry.min("x"), "hi": ferry.max("x"), "a": ferry.first("x"), "z": ferry.last("x"), "x_at_y": ferry.arg_max("x", by="y"),
    "y_at_x": ferry.arg_max("y", by="x"), "x_at_x": ferry.arg_max("x", by="x"), "n": ferry.count("x"),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_values_of_every_type_are_chosen_and_keep_their_type(
    kind: pa.DataType, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tasks = data.draw(tasks_of(kind))
    found = run(tmp_path_factory.mktemp("state"), declared(kind, **CHOOSING), kind, tasks)
    expected = chosen(kind, [record for task in tasks for record in task])
    for name, value in expected.items():
        of = pa.int64() if name in ("n", "y_at_x") else kind
        assert found[name].type == kept(of), name
        assert found[name] == column_of(of, [value]).cast(kept(of))[0], name


DECIMALS = [kind for kind in TYPES if pa.types.is_decimal(kind)]


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_sums_and_means_of_decimals_are_exact(
    kind: pa.DataType, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tasks = data.draw(tasks_of(kind))
    known = [record[1] for task in tasks for record in task if record[1] is not None]
    where, wide, narrow = tmp_path_factory.mktemp("state"), values.wider(kind, 10, 0), values.wider(kind, 4, 4)
    assert wide == pa.decimal128(min(38, kind.precision + 10), kind.scale)
    assert narrow == pa.decimal128(min(38, kind.precision + 4), min(38, kind.scale + 4))
    count, total = len(known), sum(known)
    # Rounded half away from zero: twice the digits and one more, cut off.
    mean = (2 * abs(total) * 10 ** (narrow.scale - kind.scale) + max(1, count)) // (2 * max(1, count))
    expected = {"s": (total, wide), "m": (mean if total >= 0 else -mean, narrow)}
    for name, made in (("s", ferry.sum("x")), ("m", ferry.mean("x"))):
        one, (value, into) = declared(kind, **{name: made}, y=ferry.sum("y")), expected[name]
        if abs(value) >= 10**into.precision or abs(total) >= 10**38:
            with pytest.raises(
                SpecRefused, match=rf"operator op, {name}=.*\('x'\): .* of a key in the window from 0 is beyond"
            ):
                run(where / name, one, kind, tasks)
        elif sum(map(abs, known)) < 2**127:  # or 128 bits may not be enough on the way
            found = run(where / name, one, kind, tasks)[name]
            assert found.type == into and digits_of(found) == (value if known else None)


@pytest.mark.parametrize("total", [-73786976285939382435, -73786976285939382434, 73786976285939382435, 4, 3, 1, -1, 0])
@pytest.mark.parametrize("before", [0, 1])
def test_a_mean_is_rounded_half_away_from_zero(total: int, before: int) -> None:
    """Also where Arrow's division of 256 bits is wrong: just below 2^64."""
    kind = pa.decimal128(38, 38)
    mean = values.quotients(column_of(kind, [7, total]).slice(before), pa.array([1, 4]).slice(before), kind)[-1]
    assert digits_of(mean) == (abs(total) + 2) // 4 * (1 if total >= 0 else -1)


def records_of(*some: Any) -> list[list[Record]]:
    """A task for each of these values of x."""
    return [[(i, value, i)] for i, value in enumerate(some)]


CENTS = pa.decimal128(38, 2)
MOST = 10**38 - 1


@pytest.mark.parametrize(
    "some",
    [
        [2**64 - 1, 1],
        [2**63 - 1, 2**63 + 1],
        [-(2**64), -(2**64), 1],
        [2**64 - 1, 1 - 2**64, -1],
        [MOST, MOST, -MOST],
        [-MOST, -1 + 2**64],
    ],
)
def test_a_carry_and_a_sign_go_over_the_low_word(tmp_path: Path, some: list[int]) -> None:
    assert digits_of(run(tmp_path, declared(CENTS, s=ferry.sum("x")), CENTS, records_of(*some))["s"]) == sum(some)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_decimals_beyond_38_digits_is_an_error_that_names_it(tmp_path: Path, sign: int) -> None:
    one = declared(CENTS, low=ferry.min("y"), much=ferry.sum("x"))
    for number, some in enumerate([[MOST, 1], [MOST, MOST], [MOST] * 3, [MOST] * 5, [MOST, -MOST, MOST]]):
        with pytest.raises(SpecRefused, match=r"too large: operator op, much=sum\('x'\).*make the column a double"):
            run(tmp_path / str(number), one, CENTS, records_of(*(sign * value for value in some)))


def test_a_sum_that_is_beyond_38_digits_on_the_way_is_one_when_it_is_back(tmp_path: Path) -> None:
    found = run(tmp_path, declared(CENTS, s=ferry.sum("x")), CENTS, [[(0, MOST, 0), (1, 5, 0)], [(2, -MOST, 0)]])
    assert digits_of(found["s"]) == 5


@pytest.mark.parametrize(("some", "expected"), [([1, 0, 0], 3333), ([-2, 0, 0], -6667), ([-1] + [0] * 31, -313)])
def test_a_mean_is_rounded_once_half_away_from_zero(tmp_path: Path, some: list[int], expected: int) -> None:
    kind = pa.decimal128(5, 0)
    assert digits_of(run(tmp_path, declared(kind, m=ferry.mean("x")), kind, records_of(*some))["m"]) == expected


def test_a_variance_of_decimals_is_a_double(tmp_path: Path) -> None:
    found = run(
        tmp_path, declared(CENTS, v=ferry.variance("x"), sd=ferry.stddev("x")), CENTS, records_of(110, -225, None, 700)
    )
    known = [1.1, -2.25, 7.0]
    assert found["v"].as_py() == pytest.approx(statistics.variance(known))
    assert found["sd"].as_py() == pytest.approx(statistics.stdev(known))


def test_durations_are_added(tmp_path: Path) -> None:
    kind = pa.duration("ms")
    found = run(tmp_path, declared(kind, s=ferry.sum("x")), kind, records_of(1500, None, -200))
    assert found["s"].as_py() == dt.timedelta(milliseconds=1300) and found["s"].type == kind


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2, 1], pa.int64()).cast(pa.decimal128(38, 4)),
        pa.array([1, -1, 1]).view(pa.time64("us")),
        pa.array([1, -1, 1]).view(pa.duration("us")),
    ],
    ids=lambda column: str(column.type),
)
def test_distinct_values_of_these_are_counted(tmp_path: Path, column: pa.Array) -> None:
    one = declared(column.type, d=ferry.approx_count_distinct("x"))
    f, state = Fragmenter(one), AggregateState(one, 4, tmp_path)
    f.add(pa.record_batch({"k": [1] * 3, "t": [1] * 3, "x": column, "y": [1] * 3}), ["k"], "t")
    state.apply(state.delta(f.drain(), FIRST)[0])
    assert [b["d"].to_pylist() for b in state.fired(EpochTimes(999, 1000), np.arange(4))] == [[2]]


def test_hashes_of_decimals_are_those_of_their_digits_and_fixed_for_ever() -> None:
    narrow = column_of(pa.decimal128(5, 2), [150, -1, 150])
    for kind in (pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(30, 2), pa.decimal32(5, 2)):
        assert columns.value_hashes(narrow.cast(kind)).tolist() == [
            6910702355520508096,
            4584895980945039819,
            6910702355520508096,
        ]
    great = column_of(CENTS, [2**64 * i for i in range(-1000, 1000)])
    assert len(set(columns.value_hashes(great).tolist())) == len(great)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_what_a_function_does_not_take_is_refused_by_name(kind: pa.DataType) -> None:
    for name, function in FUNCTIONS.items():
        if name in ("count", "approx_count_distinct", "count_distinct"):
            continue
        made = Aggregate("", name, "x", "y" if name == "arg_max" else None)
        value = values.value_type(kind)
        assert value is not None and values.family(value) in ORDERED
        if values.family(value) in function.takes:
            declared(kind, out=made)
            continue
        with pytest.raises(SpecRefused) as refused:
            declared(kind, out=made)
        assert f"aggregate 'op': out: column 'x' is {kind}, and {name} takes integers, " in str(refused.value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.decimal256(50, 2),
        pa.decimal128(9, -2),
        pa.null(),
        pa.date64(),
        pa.time32("s"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_is_refused_by_name(kind: pa.DataType) -> None:
    for made in (
        ferry.min("x"),
        ferry.last("x"),
        ferry.sum("x"),
        ferry.arg_max("y", by="x"),
        ferry.arg_max("x", by="y"),
    ):
        with pytest.raises(SpecRefused, match=r"out: column 'x' is .* make it one of these before"):
            declared(kind, out=made)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_worker_warms_up_with_every_type(kind: pa.DataType) -> None:
    warmup.load([(declared(kind, **CHOOSING), None)])


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_type_has_a_name_that_says_all_of_it(kind: pa.DataType) -> None:
    value = values.value_type(kind)
    assert value is not None and values.arrow_type(value) == kept(kind)
    assert values.value_type(pa.dictionary(pa.int32(), kind)) == value


def test_descriptors_of_released_versions_mean_what_they_meant() -> None:
    """As a run of version 0.1.0 has them in its registry."""
    aggregates = [
        {"name": "n", "function": "count", "column": None, "by": None, "number": "int", "by_number": "int"},
        {"name": "top", "function": "arg_max", "column": "x", "by": "y", "number": "float", "by_number": "int"},
        {"name": "s", "function": "sum", "column": "y", "by": None, "number": "int", "by_number": "int"},
    ]
    document = {
        "name": "op", "index": 0, "kind": "aggregate", "key": [["k", "int"]], "window": {"size_ms": 1000, "slide_ms": 500},
        "aggregates": aggregates, "left": None, "right": None,
    }  # fmt: skip
    said = declared(pa.float64(), n=ferry.count(), top=ferry.arg_max("x", by="y"), s=ferry.sum("y"))
    assert OperatorDescriptor.from_wire(document) == said
