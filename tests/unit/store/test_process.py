"""ProcessState against a process that is run in dictionaries: epochs, snapshots, moves, restarts, timers, both inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
from ferry.contract.errors import RowsGone, SpecRefused, UserCodeFailed
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels import schemas
from ferry.kernels.kinds import type_of
from ferry.process.shapes import process_of, shape_of
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store.process import ProcessState
from tests.unit.store.processes import COLUMNS, Both, Everything, Fragile

VNODES = 8
EVERY = np.arange(VNODES)
INT_KEY, TEXT_KEY = (("k", "int"),), (("s", "string"), ("k", "int"))
INPUT = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.int64()), ("seq", pa.int64()), *COLUMNS])

Record = tuple[int, int, int, str | None]
"""key, event time, n, text"""


def descriptor_of(key: Any = INT_KEY, process: Any = None, inputs: int = 1) -> OperatorDescriptor:
    columns = pa.schema([(name, type_of(kind)) for name, kind in key])
    shape = shape_of("p", process or Everything(), columns, [COLUMNS] * inputs, "seq")
    made = OperatorDescriptor("p", 0, "process", key, Window(1, 1), process=shape)
    assert OperatorDescriptor.from_wire(made.to_wire()) == made
    return made


def opened(descriptor: OperatorDescriptor, directory: Path) -> ProcessState:
    return ProcessState(descriptor, lambda: process_of(descriptor), VNODES, directory)


def table_of(records: Sequence[Record], begin: int = 0) -> pa.RecordBatch:
    numbered = enumerate(records, begin)
    rows = [
        {"k": k, "s": f"{k % 2}" * (300 if k == 3 else 1), "t": t, "seq": i, "n": n, "text": text}
        for i, (k, t, n, text) in numbered
    ]
    return pa.RecordBatch.from_pylist(rows, INPUT)


def fragments(descriptor: OperatorDescriptor, batch: pa.RecordBatch, side: int = 0) -> list[pa.RecordBatch]:
    found = []
    for part in (batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)):
        fragmenter = Fragmenter(descriptor, side)
        fragmenter.add(part, [name for name, _ in descriptor.key], "t")
        found += fragmenter.drain()
    return found


def rows_of(batches: Sequence[pa.RecordBatch] | pa.Table) -> Counter[str]:
    found = batches.to_batches() if isinstance(batches, pa.Table) else batches
    return Counter(str(row) for batch in found for row in batch.to_pylist())


records = st.tuples(
    st.integers(0, 5), st.integers(0, 60), st.integers(-3, 3), st.sampled_from(["a", "b", None, "x" * 250, "x" * 251])
)
epochs = st.lists(st.tuples(st.lists(records, max_size=8), st.integers(0, 30)), max_size=5)


@given(epochs, st.sampled_from([INT_KEY, TEXT_KEY]), st.data())
@settings(max_examples=20, deadline=None)
def test_as_in_dictionaries(tmp_path_factory: pytest.TempPathFactory, given_: Any, key: Any, data: Any) -> None:
    """Two instances lead half of the virtual nodes each and are replicas of the others; they change roles and restart."""
    descriptor = descriptor_of(key)
    paths = [tmp_path_factory.mktemp("state") for _ in range(2)]
    states = [opened(descriptor, path) for path in paths]
    for state in states:
        state.whole(EVERY)
    harness = ferry.ProcessHarness(Everything(), INPUT, [n for n, _ in key], time="t", order="seq")
    low = WATERMARK_NONE
    seq = 0
    for epoch, (rows, step) in enumerate([*given_, ([], None)]):
        high = WATERMARK_END if step is None else max(low, 0) + step
        batch = table_of(rows, seq)
        seq += len(rows)
        missed_before = harness.late
        expected = harness.epoch(batch, watermark=high, now=epoch * 12)
        leads = data.draw(st.lists(st.booleans(), min_size=VNODES, max_size=VNODES))
        halves = [EVERY[np.array(leads)], EVERY[~np.array(leads)]]
        times = EpochTimes(low, high, epoch, epoch * 12)
        merged = states[0].combine(fragments(descriptor, batch))
        deltas = [state.delta([share(merged, half)], times, half) for state, half in zip(states, halves, strict=True)]
        fired, late = Counter[str](), 0
        for delta, missed in deltas:
            late += missed
            assert delta.schema.equals(schemas.state_schema(descriptor))
            for state in states:
                state.apply(delta, epoch, "x")
                state.apply(delta, epoch, "x")
        assert states[0].will_fire(deltas[0][0], times, halves[0]) + states[1].will_fire(
            deltas[1][0], times, halves[1]
        ) == (expected.num_rows)
        if data.draw(st.booleans()):
            move(states, descriptor)
        if data.draw(st.booleans()):
            states = restarted(states, descriptor, paths)
        for state, half in zip(states, halves, strict=True):
            fired += rows_of(list(state.fired(times, half)))
        assert fired == rows_of(expected)
        assert late == harness.late - missed_before
        low = high
        for state in states:
            state.release(epoch, low)
    assert sum(state.statistics()["entries"].sum() for state in states) == 2 * entries_of(harness)
    close(states)


def share(batch: pa.RecordBatch, vnodes: np.ndarray) -> pa.RecordBatch:
    of = batch.column("hash").to_numpy() >> np.uint64(61)
    return batch.filter(pa.array(np.isin(of, vnodes)))


def move(states: list[ProcessState], descriptor: OperatorDescriptor) -> None:
    """The second one loses its copy of some, and learns it again."""
    lost = EVERY[::3]
    states[1].drop(lost)
    for chunk in states[0].snapshot(lost, 200):
        states[1].apply_absent(chunk)
    states[1].whole(lost)
    states[1].work()


def restarted(states: list[ProcessState], descriptor: OperatorDescriptor, paths: list[Path]) -> list[ProcessState]:
    close(states)
    return [opened(descriptor, path) for path in paths]


def close(states: list[ProcessState]) -> None:
    for state in states:
        state._entries.close()


def entries_of(harness: ferry.ProcessHarness) -> int:
    tables = sum(len(harness.rows(name)) for name in Everything.tables)
    return tables + len(harness.timers()) + len(harness.processing_timers())


def test_both_inputs(tmp_path: Path) -> None:
    descriptor = descriptor_of(process=Both(), inputs=2)
    state = opened(descriptor, tmp_path)
    for epoch, expected in enumerate(([(0, 0)] * 2 + [(1, 0)], [(0, 1)] * 2 + [(1, 2)])):
        left, right = table_of([(1, 1, 0, "a"), (1, 2, 0, "b")]), table_of([(1, 3, 0, "c")])
        parts = [*fragments(descriptor, left), *fragments(descriptor, right, 1)]
        times = EpochTimes(0, 0, epoch)
        delta, _ = state.delta([state.combine(parts)], times)
        state.apply(delta, epoch, "x")
        fired = pa.Table.from_batches(list(state.fired(times, EVERY)))
        assert sorted(zip(*fired.to_pydict().values(), strict=True)) == expected


def test_a_process_that_is_not_here_is_missed_by_its_first_epoch(tmp_path: Path) -> None:
    """So the instance can tell the driver, and gives out what it holds."""
    descriptor = descriptor_of()
    gone = replace(descriptor, process=replace(descriptor.shape, made_of="ferry_pipeline_mine_0123:Everything"))
    state = opened(gone, tmp_path)
    assert not state.delta([], EpochTimes(0, 0))[0].num_rows
    assert not [chunk for chunk in state.snapshot(EVERY) if chunk.num_rows]
    with pytest.raises(SpecRefused, match="operator 'p': there is no ferry_pipeline_mine_0123:Everything here"):
        state.delta([state.combine(fragments(descriptor, table_of([(1, 1, 0, "a")])))], EpochTimes(0, 0))


def test_a_process_that_raises_changes_nothing_and_says_its_operator(tmp_path: Path) -> None:
    descriptor = descriptor_of(process=Fragile())
    state = opened(descriptor, tmp_path)
    good, bad, final = ([state.combine(fragments(descriptor, table_of([(1, 1, n, "a")])))] for n in (5, 0, -1))
    state.apply(state.delta(good, EpochTimes(0, 0, 1))[0], 1, "x")
    held = rows_of(list(state.snapshot(EVERY)))
    for _ in range(2):
        with pytest.raises(UserCodeFailed) as failed:
            state.delta(bad, EpochTimes(0, 0, 2))
        line = str(failed.value)
        assert line.startswith("user code: ZeroDivisionError: integer division or modulo by zero (processes.py:")
        assert line.endswith("process() of Fragile, operator 'p'") and "100 // n" in line
        assert rows_of(list(state.snapshot(EVERY))) == held
    with pytest.raises(ferry.Final, match="it is of no use"):
        state.delta(final, EpochTimes(0, 0, 2))
    assert state.delta(good, EpochTimes(0, 0, 2))[0].num_rows == 2


def test_rows_that_were_released_are_an_error(tmp_path: Path) -> None:
    descriptor = descriptor_of()
    state = opened(descriptor, tmp_path)
    times = EpochTimes(WATERMARK_NONE, 100, 3)
    delta, _ = state.delta([state.combine(fragments(descriptor, table_of([(1, 1, 0, "a")])))], times)
    state.apply(delta, 3, "x")
    assert sum(b.num_rows for b in state.fired(times, EVERY))
    state.release(3, 100)
    with pytest.raises(RowsGone, match="rows of epoch 3 are released"):
        list(state.fired(times, EVERY))


def test_a_process_that_cannot_be_made_anew_is_refused() -> None:
    class Local(Everything):
        pass

    key = pa.schema([("k", pa.int64())])
    with pytest.raises(SpecRefused, match="define the class at the top level"):
        shape_of("p", Local(), key, [COLUMNS], None)
    with pytest.raises(SpecRefused, match="would come back from JSON"):
        shape_of("p", Everything((1, 2)), key, [COLUMNS], None)  # type: ignore[arg-type]
    with pytest.raises(SpecRefused, match="values that JSON can hold"):
        shape_of("p", Everything(object()), key, [COLUMNS], None)  # type: ignore[arg-type]


def test_a_class_that_is_not_here_or_not_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = descriptor_of()
    with monkeypatch.context() as patched:
        patched.setattr(Everything, "tables", {"count": Everything.tables["count"]})
        with pytest.raises(SpecRefused, match="same program on every host"):
            process_of(descriptor)
    monkeypatch.delattr("tests.unit.store.processes.Everything")
    with pytest.raises(SpecRefused, match="has to be the same on every host"):
        process_of(descriptor)
