"""Keys with a time to live against a dictionary that forgets: what is forgotten is as if it had never been, for all members."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Emit, OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.kernels.table import FREE, HELD, PLACE_BITS, REMOVED, USED
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import mapped, slice_files, slice_table, table_header, unbounded
from ferry.store.unbounded import UnboundedAggregateState
from tests.unit.store.test_unbounded import COUNT, KEYS, SOME, every, fired, key_of, opened, shape_of

TTL = 10
Record = tuple[int, int, int]
"""event time, key, value"""
Kept = dict[Any, tuple[int, int, int, int]]
"""Of a key: its newest event time, number, sum and maximum."""


def with_ttl(key: str, emit: Emit, aggregates: Any = SOME) -> OperatorDescriptor:
    return replace(shape_of(key, emit, aggregates), ttl_ms=TTL)


def partials(descriptor: OperatorDescriptor, records: list[Record]) -> list[pa.RecordBatch]:
    f = Fragmenter(descriptor, groups_max=5)
    if records:
        keys = [key_of(descriptor, k) for _, k, _ in records]
        data = {name: [k[i] for k in keys] for i, (name, _) in enumerate(descriptor.key)}
        batch = pa.record_batch(data | {"t": [t for t, _, _ in records], "x": [x for _, _, x in records]})
        f.add(batch, [name for name, _ in descriptor.key], "t")
    return f.drain()


class Model:
    """What one process would keep."""

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        self.descriptor = descriptor
        self.kept: Kept = {}
        self.changed: set[Any] = set()
        self.low = WATERMARK_NONE

    def forget(self) -> None:
        self.kept = {key: row for key, row in self.kept.items() if row[0] + TTL > self.low}

    def epoch(self, records: list[Record]) -> None:
        self.forget()
        self.changed = set()
        for t, number, x in records:
            key = key_of(self.descriptor, number)
            newest, n, total, most = self.kept.get(key, (t, 0, 0, x))
            self.kept[key] = max(newest, t), n + 1, total + x, max(most, x)
            self.changed.add(key)

    def rows(self, keys: Any) -> dict[Any, Any]:
        return {key: self.kept[key][1:] for key in keys}


RECORDS = st.lists(st.tuples(st.integers(-8, 4), st.integers(0, 25), st.integers(-9, 9)), max_size=30)
"""Event times as they lie before or behind the greatest one so far"""
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("epoch"),
            RECORDS,
            st.sampled_from([0, 3, 12, 40]),
            st.sampled_from(["once", "twice", "torn", "reopened"]),
        ),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("work")),
        st.tuples(st.just("learn"), st.integers(0, 6), RECORDS),
    ),
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(sorted(KEYS)), st.sampled_from([1, 8]), st.sampled_from(["changes", "final"]))
def test_any_history_equals_a_dictionary_that_forgets(steps: Any, key: str, virtual_nodes: int, emit: Emit) -> None:
    descriptor = with_ttl(key, emit)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_files, "_HEAP_BYTES_MIN", 64)
        patch.setattr(slice_files, "_ROWS_MIN", 8)
        patch.setattr(slice_table, "GRANT_BYTES", 8)
        patch.setattr(slice_table, "KEYS_BYTES", 64)
        patch.setattr(unbounded, "FORGET_ROWS", 1)
        members = [opened(descriptor, virtual_nodes, Path(root, name)) for name in ("leader", "replica")]
        model, epoch, greatest = Model(descriptor), -1, 100

        def begin(records: list[Record], on: int) -> tuple[pa.RecordBatch, EpochTimes]:
            """An epoch; its watermark comes with the records of the next one."""
            nonlocal epoch, greatest
            for member in members:
                member.release(epoch, model.low)
            epoch += 1
            mine = [(greatest + t, k, x) for t, k, x in records]
            greatest = max([greatest, *(t for t, _, _ in mine)]) + on
            at = EpochTimes(model.low, max(model.low, greatest - 5), epoch)
            model.epoch(mine)
            half = len(mine) // 2
            parts = [members[0].combine(partials(descriptor, some)) for some in (mine[:half], mine[half:])]
            delta, late = members[0].delta(parts, at)
            assert not late and delta.num_rows == len(model.changed)
            return delta, at

        def applied(
            delta: pa.RecordBatch, at: EpochTimes, to: list[UnboundedAggregateState], how: str = "once"
        ) -> None:
            for i, member in enumerate(to):
                if how in ("torn", "reopened"):
                    member.apply(delta.slice(0, delta.num_rows // 2), epoch, "a")
                if how == "reopened":
                    to[i] = opened(descriptor, virtual_nodes, member.directory)
                    to[i].release(epoch - 1, at.low)
                to[i].apply(delta, epoch, "a")
                if how == "twice":
                    to[i].apply(delta, epoch, "a")
            if emit == "changes":
                for member in to:
                    assert fired(member, at) == model.rows(model.changed)
            model.low = at.high

        for number, step in enumerate(steps):
            match step:
                case ("epoch", records, on, how):
                    applied(*begin(records, on), members, how)
                case ("reopen",):
                    members = [opened(descriptor, virtual_nodes, member.directory) for member in members]
                    for member in members:
                        member.release(epoch, model.low)
                case ("work",):
                    while any(member.work() for member in members):
                        pass
                case ("learn", after, records):
                    learner = opened(descriptor, virtual_nodes, Path(root, str(number)))
                    scan = members[0].snapshot(every(learner), 300)
                    for _, chunk in zip(range(after), scan, strict=False):
                        learner.apply_absent(chunk)
                    delta, at = begin(records, 7)
                    learner.release(epoch - 1, at.low)
                    members = [*members, learner]
                    for member in members:
                        member.apply(delta, epoch, "a")
                    for chunk in scan:
                        learner.apply_absent(chunk)
                    applied(delta, at, members)
                    members = [learner, members[1]]
        if emit == "final":
            end = EpochTimes(model.low, WATERMARK_END, epoch + 1)
            model.forget()
            for member in members:
                assert fired(member, end) == model.rows(model.kept)


def run(state: UnboundedAggregateState, epoch: int, records: list[Record], low: int, high: int) -> EpochTimes:
    at = EpochTimes(low, high, epoch)
    state.release(epoch - 1, low)
    state.apply(state.delta([state.combine(partials(state.descriptor, records))], at)[0], epoch)
    return at


def test_a_key_lives_until_the_watermark_before_an_epoch_has_reached_its_end(tmp_path: Path) -> None:
    state = opened(with_ttl("int", "changes"), 4, tmp_path)
    run(state, 0, [(100, 1, 5), (90, 2, 5), (98, 3, 5)], WATERMARK_NONE, 95)
    assert fired(state, run(state, 1, [(101, 1, 5), (101, 2, 5)], 95, 107)) == {(1,): (2, 10, 5), (2,): (2, 10, 5)}
    at = run(state, 2, [(112, 1, 5), (112, 3, 5)], 107, 111)
    assert fired(state, at) == {(1,): (3, 15, 5), (3,): (2, 10, 5)}, "107 < 98 + 10: what is forgotten is said before"
    at = run(state, 3, [(111, 2, 7), (80, 9, 1)], 111, 112)
    assert fired(state, at) == {(2,): (1, 7, 7), (9,): (1, 1, 1)}, "111 = 101 + 10; and nothing is late, however old"
    assert fired(state, run(state, 4, [(120, 9, 1)], 112, 112)) == {(9,): (1, 1, 1)}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_keys_that_come_and_go_leave_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(unbounded, "FORGET_ROWS", 1)
    monkeypatch.setattr(slice_table, "KEYS_BYTES", 1024)
    state = opened(with_ttl(key, "changes", COUNT), 64, tmp_path)
    files, most = [tmp_path / "0.table", tmp_path / "0.heap"], []
    for epoch in range(200):
        run(state, epoch, [(epoch, k, 0) for k in range(100 * epoch, 100 * epoch + 100)], epoch - 1, epoch)
        while state.work() or not state.is_tidy:
            pass
        most.append((int(state.statistics()["entries"].sum()), sum(mapped.allocated_bytes(file) for file in files)))
    entries, size = (max(each) for each in zip(*most[30:], strict=True))
    assert 600 <= entries <= 3 * 10 * 100, "those of ten epochs, some texts alike, and what is on its way"
    assert size <= 2 * max(size for _, size in most[:30]) and mapped.allocated_bytes(files[1]) <= 80 * 1024
    assert state._slices.table(0).counts.sum() == state.statistics()["entries"].sum()
    for epoch in range(200, 260):
        run(state, epoch, [], 1000, 1000)
    assert not state.statistics()["entries"].any()


@pytest.mark.parametrize("emit", ["changes", "final"])
def test_what_comes_in_the_last_epoch_is_given_out_however_old(tmp_path: Path, emit: Emit) -> None:
    state = opened(with_ttl("int", emit), 4, tmp_path)
    run(state, 0, [(100, 1, 5)], WATERMARK_NONE, 111)
    end = run(state, 1, [(80, 9, 1), (111, 2, 2)], 111, WATERMARK_END)
    assert fired(state, end) == {(9,): (1, 1, 1), (2,): (1, 2, 2)}


@pytest.mark.usefixtures("undivided")
def test_places_become_free_again_however_long_keys_come_and_go(tmp_path: Path) -> None:
    """Else searches for keys that are not there would go through whole regions."""
    state = opened(with_ttl("int", "changes", COUNT), 1, tmp_path)
    free = []
    for epoch in range(80):
        run(state, epoch, [(epoch, k, 0) for k in range(700 * epoch, 700 * epoch + 700)], epoch - 1, epoch)
        table = state._slices.table(0)
        place = int(table.places[0])
        used = table.slots[place >> PLACE_BITS :, USED][: 1 << (place & 63)]
        free.append((used == FREE).mean())
    assert used.size == 1 << 14 and 0.4 < int(table.counts[0]) / used.size < 0.6
    assert min(free[20:]) > 0.25, free
    kept = fired(state, EpochTimes(79, 79, 79))
    assert len(kept) == 700


def test_what_an_epoch_has_to_give_out_stays_until_it_is_final(tmp_path: Path) -> None:
    state = opened(with_ttl("int", "changes", COUNT), 1, tmp_path)
    at = run(state, 0, [(80, k, 0) for k in range(9)], 111, 111)
    state = opened(state.descriptor, 1, tmp_path)
    state.release(-1, 111)
    assert len(fired(state, at)) == 9
    state.release(0, 111)
    assert not state.statistics()["entries"].any()


def test_what_was_torn_while_it_was_forgotten_is_counted_again(tmp_path: Path) -> None:
    state = opened(with_ttl("text", "final", COUNT), 4, tmp_path)
    run(state, 0, [(t, k, 0) for t, k in enumerate(range(60))], WATERMARK_NONE, 0)
    table = state._slices.table(0)
    table.files.counts[:] = 7
    table.files.header[table_header.DIRTY] = 1
    state = opened(state.descriptor, 4, tmp_path)
    assert fired(state, EpochTimes(40, WATERMARK_END, 1)).keys() == {key_of(state.descriptor, k) for k in range(31, 60)}


@pytest.mark.usefixtures("undivided")
def test_without_room_for_a_smaller_region_the_large_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = opened(with_ttl("int", "final", COUNT), 1, tmp_path)
    run(state, 0, [(k // 800, k, 0) for k in range(20_000)], WATERMARK_NONE, 0)
    place = int(state._slices.table(0).places[0])
    for room in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(mapped, "has_room", lambda *_, room=room: room)
            state.release(0, 33)
        assert state.statistics()["entries"].sum() == len(fired(state, EpochTimes(33, WATERMARK_END, 1))) == 800
        assert (state._slices.table(0).places[0] == place) is not room
        assert (state._slices.table(0).slots[:, USED] == REMOVED).sum() < 800, "nothing is searched behind the others"
        size = mapped.allocated_bytes(tmp_path / "0.table")
        while state.work() or not state.is_tidy:
            pass
    assert mapped.allocated_bytes(tmp_path / "0.table") < size // 4


@pytest.mark.usefixtures("undivided")
def test_searches_go_on_behind_rows_that_were_removed(tmp_path: Path) -> None:
    """Also where a region has no free place any more, but only removed rows."""
    state = opened(with_ttl("int", "changes", COUNT), 1, tmp_path)
    for epoch in range(3):
        run(state, epoch, [(epoch, k, 0) for k in range(epoch, epoch + 10)], WATERMARK_NONE, 0)
    table = state._slices.table(0)
    place = int(table.places[0])
    base, capacity = place >> PLACE_BITS, 1 << (place & 63)
    free = [i for i in range(base, base + capacity) if table.slots[i, USED] == FREE]
    table.slots[free, USED] = REMOVED
    rows = [(20, k, 0) for k in (0, 11, 500, 501)]
    at = run(state, 3, rows, WATERMARK_NONE, 0)
    assert fired(state, at) == {(0,): (2, 0, 0), (11,): (2, 0, 0), (500,): (1, 0, 0), (501,): (1, 0, 0)}
    assert table.places[0] == place and (table.slots[free, USED] == HELD).sum() == 2


def test_a_scan_during_which_rows_are_removed_misses_no_other(tmp_path: Path) -> None:
    state = opened(with_ttl("int", "final", COUNT), 2, tmp_path)
    run(state, 0, [(0 if k % 4 else 20, k, 0) for k in range(400)], WATERMARK_NONE, 0)
    scan = state.snapshot(every(state), 500)
    chunks = [next(scan)]
    state.release(0, 15)
    chunks += scan
    found = np.concatenate([chunk.column("key").to_numpy() for chunk in chunks])
    assert set(range(0, 400, 4)) <= set(found.tolist()) and found.size < 400
