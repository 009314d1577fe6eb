"""Aggregates without a window against a dictionary: what changed in an epoch is found by every member, until it is final."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import RowsGone
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels import schemas
from ferry.kernels.columns import split_by_vnode, take_vnodes
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import slice_files, slice_table, unbounded
from ferry.store.unbounded import UnboundedAggregateState

SOME = (
    Aggregate("n", "count"),
    Aggregate("about", "approx_count_distinct", "x"),
    Aggregate("sum_x", "sum", "x"),
    Aggregate("max_x", "max", "x"),
)
COUNT = (Aggregate("n", "count"),)
KEYS = {"int": (("k", "int"),), "text": (("k", "string"),), "pair": (("k", "string"), ("j", "int"))}
Record = tuple[int, int]
Rows = dict[tuple[Any, ...], tuple[int, int, int]]


def shape_of(key: str, emit: Emit, aggregates: tuple[Aggregate, ...] = SOME) -> OperatorDescriptor:
    return OperatorDescriptor("op", 0, "aggregate", KEYS[key], GLOBAL, aggregates, emit=emit)  # type: ignore[arg-type]


def key_of(descriptor: OperatorDescriptor, number: int) -> tuple[Any, ...]:
    return tuple(number if kind == "int" else f"key {number // 3}" * (number % 3) for _, kind in descriptor.key)


def partials(descriptor: OperatorDescriptor, records: list[Record]) -> list[pa.RecordBatch]:
    f = Fragmenter(descriptor, groups_max=5)
    if records:
        keys = [key_of(descriptor, k) for k, _ in records]
        data = {name: [k[i] for k in keys] for i, (name, _) in enumerate(descriptor.key)}
        f.add(pa.record_batch(data | {"x": [x for _, x in records]}), [name for name, _ in descriptor.key], None)
    return f.drain()


def times(epoch: int, low: int = WATERMARK_NONE, high: int = WATERMARK_NONE) -> EpochTimes:
    return EpochTimes(low, high, epoch)


def opened(descriptor: OperatorDescriptor, virtual_nodes: int, directory: Path) -> UnboundedAggregateState:
    return UnboundedAggregateState(descriptor, virtual_nodes, directory)


def every(state: UnboundedAggregateState) -> np.ndarray:
    return np.arange(state.virtual_nodes)


def fired(state: UnboundedAggregateState, at: EpochTimes, max_rows: int = 3) -> dict[Any, Any]:
    """Rows by key; asserts that none is there twice."""
    out: dict[Any, Any] = {}
    width = len(state.descriptor.key)
    for batch in state.fired(at, every(state), max_rows):
        assert batch.schema == schemas.fired_schema(state.descriptor) and batch.num_rows <= max_rows
        for row in batch.to_pylist():
            values = tuple(row.values())
            assert values[:width] not in out
            out[values[:width]] = (row["n"], row.get("sum_x", 0), row.get("max_x", 0))
    return out


def expected(descriptor: OperatorDescriptor, kept: dict[int, list[int]], keys: Any) -> Rows:
    groups: dict[Any, list[int]] = {}
    for k in kept:
        groups.setdefault(key_of(descriptor, k), []).extend(kept[k])
    wanted = {key_of(descriptor, k) for k in keys}
    return {key: (len(xs), sum(xs), max(xs)) for key, xs in groups.items() if key in wanted}


RECORDS = st.lists(st.tuples(st.integers(0, 30), st.integers(-9, 9)), max_size=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), RECORDS, st.sampled_from(["once", "twice", "torn", "reopened"])),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("release")),
        st.tuples(st.just("work")),
        st.tuples(st.just("learn"), st.integers(0, 6), RECORDS),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 7), max_size=4)),
    ),
    max_size=10,
)


def vnode_of(descriptor: OperatorDescriptor, number: int, virtual_nodes: int) -> int:
    (batch,) = partials(descriptor, [(number, 0)])
    return int(np.flatnonzero(np.diff(split_by_vnode(batch, virtual_nodes)))[0])


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(sorted(KEYS)), st.sampled_from([1, 8]))
def test_what_changed_is_found_by_leader_replica_and_learner(steps: list[Any], key: str, virtual_nodes: int) -> None:
    descriptor = shape_of(key, "changes")
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_files, "_HEAP_BYTES_MIN", 64)
        patch.setattr(slice_files, "_ROWS_MIN", 8)
        patch.setattr(slice_table, "GRANT_BYTES", 8)
        members = [opened(descriptor, virtual_nodes, Path(root, name)) for name in ("leader", "replica")]
        kept: dict[int, list[int]] = {}
        changed: set[int] = set()
        epoch, released = -1, -1

        def begin(records: list[Record]) -> pa.RecordBatch:
            nonlocal epoch, changed
            for member in members:
                member.release(epoch, WATERMARK_NONE)
            epoch += 1
            half = len(records) // 2
            parts = [members[0].combine(partials(descriptor, some)) for some in (records[:half], records[half:])]
            delta, late = members[0].delta(parts, times(epoch))
            assert not late and set(delta["s3"].to_pylist()) <= {epoch}
            assert members[0].will_fire(delta, times(epoch), every(members[0])) == delta.num_rows
            changed = {k for k, _ in records}
            for k, x in records:
                kept.setdefault(k, []).append(x)
            return delta

        for number, step in enumerate(steps):
            match step:
                case ("epoch", records, how):
                    delta = begin(records)
                    released = epoch - 1
                    for i, member in enumerate(members):
                        if how in ("torn", "reopened"):
                            member.apply(delta.slice(0, delta.num_rows // 2), epoch, "a")
                        if how == "reopened":
                            members[i] = opened(descriptor, virtual_nodes, member.directory)
                            members[i].release(released, WATERMARK_NONE)
                        members[i].apply(delta, epoch, "a")
                        if how == "twice":
                            members[i].apply(delta, epoch, "a")
                case ("reopen",):
                    members = [opened(descriptor, virtual_nodes, member.directory) for member in members]
                    for member in members:
                        member.release(released, WATERMARK_NONE)
                case ("release",):
                    released = epoch
                    for member in members:
                        member.release(epoch, WATERMARK_NONE)
                case ("work",):
                    while any(member.work() for member in members):
                        pass
                case ("learn", after, records):
                    learner = opened(descriptor, virtual_nodes, Path(root, str(number)))
                    learner.release(released, WATERMARK_NONE)
                    chunks = list(members[0].snapshot(every(learner), 300))
                    for chunk in chunks[:after]:
                        learner.apply_absent(chunk)
                    if len(chunks) > after:
                        delta = begin(records)
                        released = epoch - 1
                        for member in (*members, learner):
                            member.apply(delta, epoch, "a")
                    for chunk in chunks[after:]:
                        learner.apply_absent(chunk)
                    members = [learner, members[1]]
                case ("drop", vnodes):
                    gone = {v % virtual_nodes for v in vnodes}
                    for member in members:
                        member.drop(np.array(sorted(gone), np.int64))
                    kept = {k: xs for k, xs in kept.items() if vnode_of(descriptor, k, virtual_nodes) not in gone}
                    changed &= set(kept)
            for member in members:
                if epoch > released:
                    assert fired(member, times(epoch)) == expected(descriptor, kept, changed)
                if epoch >= 0 and released >= 0:
                    with pytest.raises(RowsGone, match=f"changes of epoch {released} are requested"):
                        fired(member, times(released))


@pytest.mark.parametrize("key", sorted(KEYS))
def test_at_the_end_all_keys_come_out_once_in_pieces(tmp_path: Path, key: str) -> None:
    descriptor = shape_of(key, "final")
    state = opened(descriptor, 4, tmp_path)
    kept: dict[int, list[int]] = {}
    for epoch in range(3):
        records = [(k, k % 7) for k in range(epoch * 100, epoch * 100 + 500)]
        delta, _ = state.delta([state.combine(partials(descriptor, records))], times(epoch))
        assert state.will_fire(delta, times(epoch, 10**15, 10**15), every(state)) == 0
        state.apply(delta, epoch)
        for k, x in records:
            kept.setdefault(k, []).append(x)
        assert fired(state, times(epoch, 10**15, 10**15)) == {}
        state.release(epoch, 10**15)
    end = times(3, 10**15, WATERMARK_END)
    empty = state.delta([], end)[0]
    state = opened(descriptor, 4, tmp_path)
    found = fired(state, end)
    assert found == expected(descriptor, kept, kept) and len(found) == state.will_fire(empty, end, every(state))
    reading = state.fired(end, every(state), 3)
    next(reading)
    state.release(3, WATERMARK_END)
    with pytest.raises(RowsGone):
        next(reading)


def test_remembered_keys_and_a_look_at_all_rows_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has applied all deltas of an epoch does not look at all rows."""
    descriptor = shape_of("int", "changes", COUNT)
    state = opened(descriptor, 4, tmp_path)
    for epoch, keys in enumerate((range(1000), range(10, 20), range(15, 25))):
        state.release(epoch - 1, WATERMARK_NONE)
        delta, _ = state.delta([state.combine(partials(descriptor, [(k, 0) for k in keys]))], times(epoch))
        state.apply(delta, epoch)
    monkeypatch.setattr(UnboundedAggregateState, "_found", lambda *_: pytest.fail("all rows were looked at"))
    expected_counts = {(k,): (3 if k < 20 else 2, 0, 0) for k in range(15, 25)}
    assert fired(state, times(2)) == expected_counts
    monkeypatch.undo()
    assert fired(opened(descriptor, 4, tmp_path), times(2)) == expected_counts


def one_epoch(state: UnboundedAggregateState, epoch: int, keys: range) -> pa.RecordBatch:
    return state.delta([state.combine(partials(state.descriptor, [(k, 0) for k in keys]))], times(epoch))[0]


def test_changes_that_came_before_the_state_was_opened_are_found(tmp_path: Path) -> None:
    state = opened(shape_of("int", "changes", COUNT), 4, tmp_path)
    state.apply(one_epoch(state, 0, range(5)), 0)
    delta = one_epoch(state, 1, range(3, 40))
    state.apply(delta.slice(0, 20), 1, "a leader")
    state = opened(state.descriptor, 4, tmp_path)
    state.apply(delta.slice(20), 1, "another leader")
    assert set(fired(state, times(1))) == {(k,) for k in range(3, 40)}


def test_changes_that_came_in_a_snapshot_are_found_beside_those_of_deltas(tmp_path: Path) -> None:
    """A replica of some virtual nodes becomes one of others, too, before the epoch is final."""
    leader = opened(shape_of("int", "changes", COUNT), 4, tmp_path / "leader")
    replica = opened(leader.descriptor, 4, tmp_path / "replica")
    for epoch, keys in enumerate((range(50), range(40, 90))):
        delta = one_epoch(leader, epoch, keys)
        leader.apply(delta, epoch)
        replica.apply(take_vnodes(delta, split_by_vnode(delta, 4), np.array([0, 2])), epoch)
    for chunk in leader.snapshot(np.array([1, 3])):
        replica.apply_absent(chunk)
    assert fired(replica, times(1)) == fired(leader, times(1)) and len(fired(leader, times(1))) == 50


def test_rows_that_change_while_they_are_read_are_gone(tmp_path: Path) -> None:
    """Never twice: a region that moved is read from its beginning."""
    descriptor = shape_of("int", "final", COUNT)
    state = opened(descriptor, 1, tmp_path)
    end = times(1, 0, WATERMARK_END)
    for epoch, keys in enumerate((range(100), range(1000))):
        delta, _ = state.delta([state.combine(partials(descriptor, [(k, 0) for k in keys]))], times(epoch))
        if epoch:
            reading = state.fired(end, every(state), 10)
            next(reading)
        state.apply(delta, epoch)
    with pytest.raises(RowsGone, match="have changed"):
        next(reading)


def test_an_operator_without_a_window_takes_any_event_time(tmp_path: Path) -> None:
    descriptor = shape_of("int", "final", COUNT)
    f = Fragmenter(descriptor)
    assert f.add(pa.record_batch({"k": [1]}), ["k"], None) == WATERMARK_NONE
    assert f.add(pa.record_batch({"k": [1, 1, 2], "t": [-5, 0, 10**12]}), ["k"], "t") == 10**12
    (batch,) = f.drain()
    assert batch["slice"].to_pylist() == [unbounded.SLICE_START] * 2 and sorted(batch["n"].to_pylist()) == [1, 3]
    state = opened(descriptor, 1, tmp_path)
    delta, late = state.delta([batch], EpochTimes(10**15, 10**15))
    assert (delta.num_rows, late) == (2, 0), "nothing is late without a window"
