"""Exact counts of distinct values against Python's sets: of every type, in windows, sessions and without, with late records."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.errors import DataRefused, SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels import value_sets
from ferry.process.distinct_values import DistinctFunctions, functions_of
from ferry.process.harness import ProcessHarness
from ferry.process.row_windows import RowWindows
from ferry.process.sessions import SessionAggregate
from ferry.process.windowed import KeyAggregate, WindowAggregate
from tests.unit.kernels.test_values import TYPES
from tests.unit.process.queries import rows_of
from tests.unit.process.test_distinct import streams

OTHERS = [
    pa.uint64(), pa.float32(), pa.date64(), pa.time32("s"), pa.large_string(), pa.binary(3), pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.float64()), pa.decimal128(5, 1),
]  # fmt: skip
KINDS = [kind for kind in dict.fromkeys([*TYPES, *OTHERS]) if value_sets.hashable(kind)]


def column_of(kind: pa.DataType, numbers: list[int | None]) -> pa.Array:
    """Small numbers as values of a type: equal ones are equal, and others are not; of booleans two are there."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(plain):
        made = pa.array([None if n is None else n % 2 == 1 for n in numbers], plain)
    elif pa.types.is_floating(plain):
        odd = {0: 0.0, 1: -0.0, 2: float("nan"), 3: float("inf")}
        made = pa.array([None if n is None else odd.get(n, n / 4) for n in numbers], plain)
    elif value_sets.element_type(plain) == pa.binary():
        texts = [None if n is None else ("" if n == 0 else "é" * n).encode()[:3] or b"" for n in numbers]
        width = plain.byte_width if pa.types.is_fixed_size_binary(plain) else 0
        made = (
            pa.array([None if t is None else t.ljust(width, b"-") for t in texts], pa.binary())
            if width
            else pa.array([None if n is None else "é" * n for n in numbers], pa.string())
        )
        made = made.cast(plain)
    elif pa.types.is_decimal(plain):
        made = pa.array([None if n is None else Decimal(n).scaleb(-plain.scale) for n in numbers], plain)
    elif pa.types.is_date64(plain):
        made = pa.array(numbers, pa.int32()).cast(pa.date32()).cast(plain)
    else:
        width = pa.int32() if getattr(plain, "bit_width", 64) == 32 and not pa.types.is_integer(plain) else pa.int64()
        made = pa.array(numbers, width).cast(plain)
    return made.dictionary_encode().cast(kind) if plain is not kind else made


def same(kind: pa.DataType, number: int) -> int:
    """The same for numbers of one value."""
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(plain):
        return number % 2
    if pa.types.is_floating(plain):
        return max(number, 1)
    return min(number, 2) if pa.types.is_fixed_size_binary(plain) else number


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=10, deadline=None)
@example([(0, 0), (0, 1), (0, 2), (0, 2), (0, None)])
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9)), max_size=40))
def test_sets_of_every_type_are_pythons(kind: pa.DataType, given_: Any) -> None:
    group = np.sort(np.array([g for g, _ in given_], np.int64))
    column = column_of(kind, [n for _, n in given_])
    element = value_sets.element_type(kind)
    half = len(given_) // 2
    parts = [
        value_sets.united(value_sets.elements(column.slice(begin, size)), group[begin : begin + size], 4)
        for begin, size in ((0, half), (half, len(given_)))
    ]
    found = [value_sets.values_of(part, element) for part in parts]
    both = value_sets.united(
        pa.concat_arrays([each for each, _ in found]), np.concatenate([number for _, number in found]), 4
    )
    expected: list[set[int]] = [set() for _ in range(4)]
    for g, number in zip(group.tolist(), (n for _, n in given_), strict=True):
        if number is not None:
            expected[g].add(same(kind, number))
    assert value_sets.sizes(both, element).tolist() == [len(some) for some in expected]


RECORDS = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("x", pa.int64()), ("t", pa.string())])
FUNCTIONS = {
    "set0": ferry.count_distinct("x"), "n": ferry.count(), "s0": ferry.count_distinct("t"), "s1": ferry.max("t"),
    "entry": ferry.sum("x"),
}  # fmt: skip

record = st.tuples(st.sampled_from("ab"), st.integers(-20, 60), st.none() | st.integers(0, 4))
epochs = st.lists(st.tuples(st.lists(record, max_size=8), st.integers(0, 25)), max_size=6)


def aggregated(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    x, t = ([row[name] for row in rows if row[name] is not None] for name in ("x", "t"))
    return len({*x}), len(rows), len({*t}), max(t, default=None), sum(x) if x else None


def run_of(given_: Any) -> Any:
    """Records of each epoch, and the watermarks before and after it."""
    low = WATERMARK_NONE
    for records, ahead in [*given_, ([], None)]:
        high = WATERMARK_END if ahead is None else ahead if low == WATERMARK_NONE else low + ahead
        rows = [{"k": k, "ts": ts, "x": x, "t": None if x is None else "é" * x} for k, ts, x in records]
        yield rows, low, high
        low = high


@settings(max_examples=40, deadline=None)
@given(epochs, st.sampled_from([(10, 10), (20, 5), (15, 10)]))
def test_in_windows(given_: Any, window: tuple[int, int]) -> None:
    size, slide = window
    rig = ProcessHarness(WindowAggregate(size, slide, functions_of(FUNCTIONS)), RECORDS, "k")
    windows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    late = 0
    for rows, low, high in run_of(given_):
        for row in rows:
            last = row["ts"] // slide * slide
            ends = [start + size for start in range(last, row["ts"] - size, -slide)]
            late += all(end <= low for end in ends)
            for end in ends:
                if end > low:
                    windows.setdefault((row["k"], end), []).append(row)
        found = rows_of([rig.epoch(rows, watermark=high)])
        fired = {at: windows.pop(at) for at in list(windows) if at[1] <= high}
        assert found == Counter((k, end - size, end, *aggregated(some)) for (k, end), some in fired.items())
        assert rig.late == late
    assert not rig.rows("panes") and not rig.timers()


@settings(max_examples=40, deadline=None)
@given(epochs)
def test_in_sessions_and_of_all_records(given_: Any) -> None:
    gap = 5
    sessions = ProcessHarness(SessionAggregate(gap, functions_of(FUNCTIONS)), RECORDS, "k")
    changes, ends = (
        ProcessHarness(KeyAggregate(functions_of(FUNCTIONS), emit), RECORDS, "k") for emit in ("changes", "end")
    )
    had: dict[str, list[dict[str, Any]]] = {}
    timely: dict[str, list[dict[str, Any]]] = {}
    made: list[pa.Table] = []
    for rows, low, high in run_of(given_):
        for row in rows:
            had.setdefault(row["k"], []).append(row)
            if row["ts"] + gap > low:
                timely.setdefault(row["k"], []).append(row)
        made.append(sessions.epoch(rows, watermark=high))
        expected = Counter((k, *aggregated(some)) for k, some in had.items())
        touched = {row["k"] for row in rows}
        assert rows_of([changes.epoch(rows, watermark=high)]) == Counter({r: 1 for r in expected if r[0] in touched})
        assert rows_of([ends.epoch(rows, watermark=high)]) == (expected if high == WATERMARK_END else Counter())
    want: Counter[Any] = Counter()
    for k, some in timely.items():
        session: list[dict[str, Any]] = []
        for row in [*sorted(some, key=lambda row: row["ts"]), None]:
            if session and (row is None or row["ts"] - session[-1]["ts"] > gap):
                want[k, session[0]["ts"], session[-1]["ts"] + gap, *aggregated(session)] += 1
                session = []
            if row is not None:
                session.append(row)
    found = rows_of(made)
    # A record that is timely may come when the session that it would join is final: then there are two.
    assert found == want or sum(row[4] for row in found.elements()) == sum(map(len, timely.values()))


def test_in_windows_of_rows() -> None:
    window = RowWindows(3, functions_of({"d": ferry.count_distinct("x")}), {"ts": "ts"}, order=["ts"])
    rig = ProcessHarness(window, RECORDS, "k")
    rows = [{"k": "a", "ts": i, "x": x, "t": ""} for i, x in enumerate([1, 1, 2, None, 2, 3])]
    assert rig.epoch(rows[:4]).column("d").to_pylist() == [1, 1, 2, 2]
    assert rig.epoch(rows[4:]).column("d").to_pylist() == [1, 2]


def test_a_set_that_is_too_large_stops_the_job_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_sets, "SET_BYTES_MAX", 80)
    rig = ProcessHarness(KeyAggregate(functions_of({"d": ferry.count_distinct("x")})), RECORDS, "k")
    rows = [{"k": k, "ts": 0, "x": i, "t": ""} for k in "ab" for i in range(10 if k == "a" else 11)]
    rig.epoch(rows[:20])
    with pytest.raises(
        DataRefused, match=r"distinct values: d=count_distinct\('x'\), key 'b'; use approx_count_distinct"
    ):
        rig.epoch(rows[20:])


def test_words_of_a_pipeline() -> None:
    mine = streams(id=pa.int64(), at=pa.timestamp("us"), x=pa.float64(), tags=pa.list_(pa.string()))["orders"]
    keyed = mine.event_time("at").key_by("id")
    for stream in (
        keyed.window(ferry.tumbling("1s")).aggregate("a", d=ferry.count_distinct("x")),
        keyed.window(ferry.session("1s")).aggregate("b", d=ferry.count_distinct("x")),
        keyed.aggregate("c", d=ferry.count_distinct("x"), emit=ferry.changes()),
    ):
        assert stream.input.schema.field("d").type == pa.int64()
    assert isinstance(functions_of({"d": ferry.count_distinct("x")}), DistinctFunctions)
    with pytest.raises(SpecRefused, match=r"d=count_distinct\(\.\.\.\) would keep a set of values for each record"):
        keyed.aggregate("d", d=ferry.count_distinct("x"), emit=ferry.records("id"))
    with pytest.raises(SpecRefused, match=r"ttl= works with .* count_distinct; for these write a process"):
        keyed.aggregate("e", d=ferry.count_distinct("x"), ttl="1h")
    with pytest.raises(SpecRefused, match=r"'tags' is list<item: string>; .*have distinct values that can be counted"):
        keyed.window(ferry.tumbling("1s")).aggregate("f", d=ferry.count_distinct("tags"))
