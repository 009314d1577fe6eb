"""The aggregate functions of pipelines in processes: what a table gives of the same records, and texts, which it cannot keep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.descriptors import OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import SpecRefused
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels import contributions, values
from ferry.kernels.aggregates import FUNCTIONS
from ferry.process import groups, row_windows, running, windowed
from ferry.process.aggregator import Functions
from ferry.process.harness import ProcessHarness
from ferry.process.row_windows import RowWindows
from ferry.process.running import RunningAggregate
from ferry.process.sessions import SessionAggregate
from ferry.process.shapes import process_of, shape_of
from ferry.process.windowed import KeyAggregate, WindowAggregate
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.process_rows import condensing
from ferry.store.process import ProcessState
from tests.unit.kernels.test_values import CHOOSING, TYPES, Record, chosen, column_of, declared, run, tasks_of
from tests.unit.process.queries import rows_of

KEY = pa.schema([("k", pa.int64())])


def input_of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("k", pa.int64()), ("t", pa.int64()), ("x", kind), ("y", pa.int64())])


def rows(kind: pa.DataType, records: list[Record], x: pa.Array | None = None) -> pa.Table:
    """Records of one key."""
    t, y = (pa.array([r[i] for r in records], pa.int64()) for i in (0, 2))
    found = pa.array([r[1] for r in records], kind) if x is None else x
    return pa.table([pa.array([7] * len(records), pa.int64()), t, found, y], schema=input_of(kind))


def same(one: Any, other: Any) -> bool:
    """Floats are added in no certain order."""
    if not isinstance(one, float) or not isinstance(other, float):
        return one == other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != pa.uint64()], ids=str)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_process_gives_what_a_table_gives(
    kind: pa.DataType, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every function that takes a column of this type; sums that are too great are errors of both."""
    tasks = data.draw(tasks_of(kind))
    known = [r[1] for task in tasks for r in task if r[1] is not None]
    value = values.value_type(kind)
    assert value is not None
    exact = not pa.types.is_decimal(kind) or sum(map(abs, known)) < 2**127  # or it depends on the order
    in_tables = {name: function for name, function in FUNCTIONS.items() if not function.gathers}
    of = {name: function for name, function in in_tables.items() if exact or name not in ("sum", "mean")}
    words: dict[str, Any] = {
        name: getattr(ferry, name)("x", **({"by": "y"} if name == "arg_max" else {}))
        for name, function in of.items()
        if not function.takes or values.family(value) in function.takes
    }
    rig = ProcessHarness(WindowAggregate(1000, 1000, Functions(words)), input_of(kind), "k", time="t")

    def process() -> dict[str, pa.Scalar]:
        for part in (tasks[0::2], tasks[1::2]):
            records = [record for task in part for record in task]
            rig.epoch(rows(kind, records, column_of(kind, [r[1] for r in records])))
        found = rig.end()
        (at,) = np.flatnonzero(found.column("window_start").to_numpy() == 0)
        return {name: found.column(name)[int(at)] for name in found.column_names}

    try:
        expected = run(tmp_path_factory.mktemp("state"), declared(kind, **words), kind, tasks)
    except SpecRefused:
        with pytest.raises(SpecRefused, match=r"too large: a sum is beyond .* make the column a double"):
            process()
        return
    found = process()
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert found[name].type == one.type, name
        assert found[name] == one or same(found[name].as_py(), one.as_py()), name


GAP, SIZE = 100, 3


def grouped(epochs: list[list[Record]]) -> Iterator[tuple[str, list[Record]]]:
    """Records that each kind of process puts together, group by group."""
    every: list[Record] = []
    for records in epochs:
        for record in sorted(records, key=lambda r: r[0]):
            every.append(record)
            yield "running", every[:]
            yield "rows", every[-SIZE:]
    if every:
        yield "key", every
    for start in (-500, 0, 500):
        if some := [r for r in every if start <= r[0] < start + 1000]:
            yield "window", some
    session: list[Record] = []
    for record in sorted(every, key=lambda r: r[0]):
        if session and record[0] - session[-1][0] > GAP:
            yield "session", session
            session = []
        session.append(record)
    if session:
        yield "session", session


def processes(functions: Functions) -> dict[str, Any]:
    return {
        "window": WindowAggregate(1000, 500, functions),
        "key": KeyAggregate(functions, "end"),
        "session": SessionAggregate(GAP, functions),
        "rows": RowWindows(SIZE, functions, {}, order=["t"]),
        "running": RunningAggregate(functions, {}, ["t"]),
    }


TEXT = st.text(max_size=2) | st.sampled_from(["\uffff", "\U0001f600", "é", "e", "\0"])
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.binary(), st.binary(max_size=2)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
]


@pytest.mark.parametrize(("kind", "value"), KINDS, ids=lambda k: str(k) if isinstance(k, pa.DataType) else "")
@settings(max_examples=25, deadline=None)
@given(data=st.data(), pieces=st.booleans())
def test_texts_of_all_groups_are_those_of_a_loop(
    kind: pa.DataType, value: st.SearchStrategy[Any], data: st.DataObject, pieces: bool
) -> None:
    """By the order of their bytes, which for strings is that of Python."""
    record = st.tuples(st.integers(0, 999), st.none() | value, st.none() | st.integers(-3, 3))
    epochs = data.draw(st.lists(st.lists(record, max_size=6), min_size=1, max_size=3))
    expected: dict[str, Counter[Any]] = {}
    for name, records in grouped(epochs):
        expected.setdefault(name, Counter())[tuple(chosen(kind, records).values())] += 1
    with pytest.MonkeyPatch.context() as patch:
        if pieces:
            patch.setattr(contributions, "CELLS_BYTES_MAX", 1)
            patch.setattr(windowed, "STATES_AT_ONCE", 2)
            patch.setattr(running, "RECORDS_AT_ONCE", 2)
            patch.setattr(row_windows, "WINDOWS_AT_ONCE", 2)
        for name, process in processes(Functions(CHOOSING)).items():
            rig = ProcessHarness(process, input_of(kind), "k", time="t")
            found = [rig.epoch(rows(kind, records)) for records in epochs]
            out = pa.concat_tables([*found, rig.end()])
            assert rows_of([out], list(CHOOSING)) == expected.get(name, Counter()), name
            of_text = pa.binary() if pa.types.is_fixed_size_binary(kind) or kind == pa.binary() else pa.string()
            assert {out.schema.field(c).type for c in ("lo", "hi", "a", "z", "x_at_y", "x_at_x")} == {of_text}


VNODES = np.arange(4)
FULL: dict[str, Any] = {
    "least": ferry.min("x"), "all": ferry.count(), **CHOOSING, "d": ferry.approx_count_distinct("x"), "v": ferry.variance("y"), "s": ferry.sum("y"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["window", "key", "session", "rows", "running"])
def test_an_instance_keeps_every_function_on_disk(name: str, tmp_path: Path) -> None:
    kind = pa.string()
    process, schema = processes(Functions(FULL))[name], input_of(kind)
    shape = shape_of("p", process, KEY, [schema], None)
    descriptor = OperatorDescriptor("p", 0, "process", (("k", "int"),), Window(1, 1), process=shape)
    rig = ProcessHarness(process, schema, "k", time="t")
    draw = np.random.default_rng(4)
    low, found, expected = WATERMARK_NONE, [], []
    for epoch, high in enumerate([200, 400, 800, WATERMARK_END]):
        records = [
            (int(t), f"é{t % 7}" if t % 5 else None, int(t % 3))
            for t in (draw.integers(max(low, 0), 1000, 30) if high < WATERMARK_END else ())
        ]
        batch = rows(kind, records)
        expected.append(rig.epoch(batch, watermark=high))
        state = ProcessState(descriptor, lambda: process_of(descriptor), VNODES.size, tmp_path)  # opened anew
        state.whole(VNODES)
        fragmenter = Fragmenter(descriptor, 0, condense=condensing(descriptor, low))
        for one in batch.to_batches():
            fragmenter.add(one, ["k"], "t")
        times = EpochTimes(low, high, epoch)
        delta, _ = state.delta([state.combine(fragmenter.drain())], times)
        state.apply(delta, epoch, "leader")
        found += [pa.Table.from_batches([one]) for one in state.fired(times, VNODES)]
        low = high
        del state
    names = list(FULL)
    assert rows_of(found, names) == rows_of(expected, names) and sum(rows_of(found, names).values())


def test_what_a_process_cannot_keep_is_refused_by_name() -> None:
    def opened(process: str, kind: pa.DataType, **words: Any) -> None:
        shape_of("p", processes(Functions(words))[process], KEY, [input_of(kind)], None)

    for made in (ferry.sum("x"), ferry.min("x"), ferry.arg_max("y", by="x"), ferry.variance("x")):
        with pytest.raises(SpecRefused, match="operator 'p': out: column 'x' is uint64; make it an int64 or a double"):
            opened("session", pa.uint64(), out=made)
    opened("session", pa.uint64(), out=ferry.count("x"), d=ferry.approx_count_distinct("x"))
    with pytest.raises(SpecRefused, match="operator 'p': out: column 'x' is string, and sum takes"):
        opened("key", pa.string(), out=ferry.sum("x"))
    with pytest.raises(SpecRefused, match=r"table 'rows': column 'x' cannot be duration\[us\]"):
        opened("rows", pa.duration("us"), out=ferry.sum("x"))
    opened("session", pa.duration("us"), out=ferry.sum("x"))
    with pytest.raises(SpecRefused, match=r"operator 'p': 4 aggregates need .* bytes of state for each key"):
        opened("session", pa.int64(), **{f"d{i}": ferry.approx_count_distinct("x") for i in range(4)})
    timed = input_of(pa.int64()).append(pa.field("_time", pa.int64()))
    for process in processes(Functions({"a": ferry.first("x")})).values():
        with pytest.raises(SpecRefused, match="column '_time': this name is reserved for event times"):
            shape_of("p", process, KEY, [timed], None)


def test_a_great_sum_of_a_process_is_refused_by_name() -> None:
    for name, process in processes(Functions({"n": ferry.count(), "s": ferry.sum("y")})).items():
        rig = ProcessHarness(process, input_of(pa.int64()), "k", time="t")
        with pytest.raises(SpecRefused, match=r"too large: a sum is beyond 64-bit integers: s=sum\('y'\), key 7; make"):
            for _ in range(2):
                rig.epoch(rows(pa.int64(), [(5, 1, 2**62)]))
        assert name


def test_long_texts_are_put_together_in_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "BYTES_AT_ONCE", 1000)
    short, long = (pa.record_batch({"n": [1, 2], "s": ["a", "b" * length]}) for length in (1, 484))
    assert [groups.at_once(rows, 64) for rows in (short, long)] == [58, 2]
    assert groups.at_once(short, 5) == 5
