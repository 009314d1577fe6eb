"""AggregateState against a dictionary, through epochs, crashes, snapshots, moves and growth."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract import limits
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Exhausted, RowsGone
from ferry.kernels import columns, hashing, row_codec, schemas, table
from ferry.kernels.columns import split_by_vnode, take_vnodes
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import aggregate, hole_punching, mapped, slice_files, slice_table, slices, table_header
from ferry.store.aggregate import AggregateState
from ferry.store.inventory import Inventory
from ferry.store.slices import Slices

ALL = (
    Aggregate("n", "count"),
    Aggregate("sum_x", "sum", "x"),
    Aggregate("sum_y", "sum", "y", None, "float"),
    Aggregate("min_x", "min", "x"),
    Aggregate("min_y", "min", "y", None, "float"),
    Aggregate("max_x", "max", "x"),
    Aggregate("max_y", "max", "y", None, "float"),
    Aggregate("mean_x", "mean", "x"),
    Aggregate("mean_y", "mean", "y", None, "float"),
    Aggregate("x_at_x", "arg_max", "x", "z", "int", "int"),
    Aggregate("y_at_x", "arg_max", "y", "z", "float", "int"),
    Aggregate("x_at_y", "arg_max", "x", "w", "int", "float"),
    Aggregate("y_at_y", "arg_max", "y", "w", "float", "float"),
)
INT_KEY, TEXT_KEY, PAIR_KEY = (("k", "int"),), (("k", "string"),), (("k", "string"), ("j", "int"))
Record = tuple[int, int, int, int, int]
"""event time, key, x, y in quarters, what is maximised"""


def shape_of(key: Any, window: Window, aggregates: Any = ALL) -> OperatorDescriptor:
    return OperatorDescriptor("op", 0, "aggregate", key, window, aggregates)


def key_of(descriptor: OperatorDescriptor, number: int) -> tuple:
    texts = ["", "é", "a long key of more than eight bytes", "k"]
    return tuple(number if kind == "int" else f"{texts[number % 4]}{number // 4}" for _, kind in descriptor.key)


def partials(descriptor: OperatorDescriptor, records: list[Record]) -> list[pa.RecordBatch]:
    f = Fragmenter(descriptor, groups_max=5)
    if records:
        keys = [key_of(descriptor, r[1]) for r in records]
        data = {name: [k[i] for k in keys] for i, (name, _) in enumerate(descriptor.key)}
        data |= {"t": [r[0] for r in records], "x": [r[2] for r in records], "y": [r[3] / 4 for r in records]}
        data |= {"z": [r[4] for r in records], "w": [r[4] / 2 for r in records]}
        f.add(pa.record_batch(data), [name for name, _ in descriptor.key], "t")
    return f.drain()


def result(records: list[Record]) -> tuple:
    xs, ys = [r[2] for r in records], [r[3] / 4 for r in records]
    best_x = max((r[4], r[2]) for r in records)[1]
    best_y = max((r[4], r[3] / 4) for r in records)[1]
    means = sum(xs) / len(xs), sum(ys) / len(ys)
    return (len(xs), sum(xs), sum(ys), min(xs), min(ys), max(xs), max(ys), *means, best_x, best_y, best_x, best_y)


def contents(state: AggregateState, vnodes: Any = None) -> dict:
    """Everything in the state; asserts that nothing is there twice."""
    every = np.arange(state.virtual_nodes) if vnodes is None else vnodes
    out: dict = {}
    for batch in state.snapshot(every, 700):
        assert batch.schema == schemas.partials_schema(state.descriptor)
        for row in batch.to_pylist():
            assert (row["slice"], row["key"]) not in out
            out[row["slice"], row["key"]] = tuple(row.values())
    return out


def fired(state: AggregateState, low: int, high: int, vnodes: Any = None, max_rows: int = 3) -> dict:
    every = np.arange(state.virtual_nodes) if vnodes is None else vnodes
    out: dict = {}
    for batch in state.fired(EpochTimes(low, high), every, max_rows):
        assert batch.schema == schemas.fired_schema(state.descriptor) and 0 < batch.num_rows <= max_rows
        width = len(state.descriptor.key)
        for row in batch.to_pylist():
            values = tuple(row.values())
            name = (values[width], values[width + 1], values[:width])
            assert name not in out
            out[name] = values[width + 2 :]
    assert len(out) <= state.fired_count(EpochTimes(low, high), every)
    return out


def expected_windows(descriptor: OperatorDescriptor, records: list[Record], low: int, high: int) -> dict:
    w = descriptor.window
    groups: dict = {}
    for r in records:
        first = (r[0] // w.pane_ms * w.pane_ms + w.pane_ms - w.size_ms + w.slide_ms - 1) // w.slide_ms * w.slide_ms
        for start in range(first, r[0] + 1, w.slide_ms):
            if low < start + w.size_ms <= high:
                groups.setdefault((start, start + w.size_ms, key_of(descriptor, r[1])), []).append(r)
    return {name: result(rs) for name, rs in groups.items()}


def epoch(state: AggregateState, records: list[Record], watermark: int) -> tuple[pa.RecordBatch, int]:
    """Two tasks, two helpers, one leader."""
    half = len(records) // 2
    helpers = [state.combine(partials(state.descriptor, half_)) for half_ in (records[:half], records[half:])]
    before = contents(state)
    delta, late = state.delta(helpers, EpochTimes(watermark, watermark))
    assert contents(state) == before, "delta has touched the state"
    vnodes = [h >> 54 for h in delta["hash"].to_pylist()]
    assert vnodes == sorted(vnodes)
    return delta, late


RECORDS = st.lists(
    st.tuples(st.integers(0, 90), st.integers(0, 25), st.integers(-9, 9), st.integers(-9, 9), st.integers(-2, 2)),
    max_size=40,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), RECORDS, st.sampled_from(["once", "twice", "torn"])),
        st.tuples(st.just("advance"), st.integers(0, 30)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("work"), st.integers(1, 5)),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 7), max_size=4)),
        st.tuples(st.just("move"), RECORDS, st.integers(0, 6)),
    ),
    max_size=8,
)


@pytest.fixture
def directory() -> Iterator[Path]:
    """tmp_path is one per test, and hypothesis needs one per example."""
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


@settings(max_examples=50, deadline=None)
@given(
    STEPS,
    st.sampled_from([INT_KEY, TEXT_KEY, PAIR_KEY]),
    st.sampled_from([Window(10, 10), Window(30, 10), Window(60, 1), Window(25, 10)]),
    st.sampled_from([1, 8]),
)
def test_any_history_equals_the_dictionary(steps: list, key: Any, window: Window, virtual_nodes: int) -> None:
    descriptor = shape_of(key, window)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "OPEN_MAX", 8)
        patch.setattr(slices, "EXPIRE_AT_ONCE", 1000)
        patch.setattr(slice_table, "KEYS_BYTES", 10)
        patch.setattr(slice_files, "_HEAP_BYTES_MIN", 64)
        patch.setattr(slice_files, "_ROWS_MIN", 8)
        patch.setattr(slice_table, "GRANT_BYTES", 8)
        state = AggregateState(descriptor, virtual_nodes, Path(root, "0"))
        kept: list[Record] = []
        watermark, low = limits.WATERMARK_NONE, limits.WATERMARK_NONE
        for number, step in enumerate(steps):
            if step[0] in ("epoch", "move"):
                timely = [r for r in step[1] if window.last_end(r[0] // window.pane_ms * window.pane_ms) > watermark]
                delta, late = epoch(state, step[1], watermark)
                assert late == len(step[1]) - len(timely)
                kept += timely
            match step:
                case ("epoch", _, how):
                    if how == "torn":
                        state.apply(delta.slice(0, delta.num_rows // 2), hints=state.hints[: delta.num_rows // 2])
                    state.apply(delta, hints=state.hints)
                    if how == "twice":
                        state.apply(delta)
                case ("advance", by):
                    watermark = max(watermark, 0) + by
                    assert fired(state, low, watermark) == expected_windows(descriptor, kept, low, watermark)
                    state.release(0, watermark)
                    low = watermark
                    kept = [r for r in kept if window.last_end(r[0] // window.pane_ms * window.pane_ms) > watermark]
                case ("work", pieces):
                    before = contents(state)
                    for _ in range(pieces):
                        state.work()
                    assert contents(state) == before
                case ("reopen",):
                    before = contents(state)
                    state = AggregateState(descriptor, virtual_nodes, state.directory)
                    state.release(0, watermark)
                    assert contents(state) == before
                case ("drop", vnodes):
                    dropped = {v % virtual_nodes for v in vnodes}
                    state.drop(np.array(sorted(dropped), np.int64))
                    kept = [r for r in kept if vnode_of(descriptor, r[1], virtual_nodes) not in dropped]
                case ("move", _, after):
                    state = move(state, delta, after, Path(root, str(number + 1)))
                    state.release(0, watermark)
            every = np.arange(virtual_nodes)
            assert state.statistics()["entries"].sum() == len(contents(state))
            assert state.statistics(every[:1])["entries"][0] == len(contents(state, every[:1]))
        assert fired(state, low, limits.WATERMARK_END) == expected_windows(descriptor, kept, low, limits.WATERMARK_END)


def vnode_of(descriptor: OperatorDescriptor, number: int, virtual_nodes: int) -> int:
    (batch,) = partials(descriptor, [(0, number, 0, 0, 0)])
    return int(np.flatnonzero(np.diff(split_by_vnode(batch, virtual_nodes)))[0])


def move(origin: AggregateState, delta: pa.RecordBatch, after: int, directory: Path) -> AggregateState:
    """Warm a learner while a delta is applied to both, `after` so many chunks; the learner goes on instead of the origin."""
    target = AggregateState(origin.descriptor, origin.virtual_nodes, directory)
    for count, chunk in enumerate(origin.snapshot(np.arange(origin.virtual_nodes), 300)):
        if count == after:
            origin.apply(delta)
            target.apply(delta)
        target.apply_absent(chunk)
    origin.apply(delta)
    target.apply(delta)
    assert contents(target) == contents(origin)
    return target


COUNT = shape_of(INT_KEY, Window(10, 10), (Aggregate("n", "count"),))


def counts(keys: Any, n: Any = 1, slice_start: int = 0) -> pa.RecordBatch:
    keys = np.asarray(keys, np.int64)
    data = [np.full(keys.size, slice_start), hashing.hash_ints(keys), keys, np.full(keys.size, n)]
    return pa.RecordBatch.from_arrays([pa.array(c) for c in data], schema=schemas.partials_schema(COUNT)).sort_by(
        "hash"
    )


def test_growth_during_a_snapshot_misses_nothing(directory: Path) -> None:
    state = AggregateState(COUNT, 4, directory)
    state.apply(counts(range(1000)))
    seen: set = set()
    for number, chunk in enumerate(state.snapshot(np.arange(4), 800)):
        seen |= set(chunk["key"].to_pylist())
        if number == 3:
            state.apply(counts(range(1000, 9000)))
    assert seen >= set(range(1000))
    assert state.statistics()["entries"].sum() == 9000 and len(list(directory.glob("*.table"))) == 1
    assert set(contents(AggregateState(COUNT, 4, directory))) == {(0, k) for k in range(9000)}


@pytest.mark.usefixtures("undivided")
@pytest.mark.parametrize("part", [100, 333, 500, 640, 777, 901, 1100, 1234])
def test_rows_that_growth_moves_back_behind_the_scan_come_out(directory: Path, part: int) -> None:
    """Growth lets displaced rows go back towards their home, past the place where the scan stands."""
    state = AggregateState(COUNT, 1, directory)
    state.apply(counts(range(1400)))
    bits = int(state._slices.table(0).places[0]) & 63
    scan = state.snapshot(np.arange(1), 32 * part)
    seen = set(next(scan)["key"].to_pylist())
    added = 1400
    while int(state._slices.table(0).places[0]) & 63 == bits:
        state.apply(counts(range(added, added + 50)))
        added += 50
    for chunk in scan:
        seen |= set(chunk["key"].to_pylist())
    assert seen >= set(range(1400))


def moved_by(state: AggregateState, keys: range) -> list[int]:
    """How many regions each of the puts moves that bring these keys."""
    moved = []
    for first in keys:
        before = state._slices.table(0).places.copy()
        state.apply(counts(range(first, first + keys.step)))
        moved.append(int(np.count_nonzero(state._slices.table(0).places != before)))
    return moved


@pytest.mark.usefixtures("undivided")
def test_a_put_makes_few_regions_grow(directory: Path) -> None:
    """Not all at once: what a put costs depends on its own rows, not on how many there are."""
    state = AggregateState(COUNT, 256, directory)
    state.apply(counts(range(20_000)))
    moved = moved_by(state, range(20_000, 60_000, 1000))
    assert sum(moved) >= 256 and max(moved) < 256 / 4
    assert state.statistics()["entries"].sum() == 60_000 == len(contents(AggregateState(COUNT, 256, directory)))


@pytest.mark.usefixtures("undivided")
def test_large_regions_do_not_grow_at_one_time(directory: Path) -> None:
    """Though they have about as many rows: the larger they are the less they differ."""
    state = AggregateState(COUNT, 16, directory)
    state.apply(counts(range(250_000)))
    moved = moved_by(state, range(250_000, 380_000, 10_000))
    assert sum(moved) == 16 and max(moved) <= 5, moved


@pytest.mark.usefixtures("undivided")
def test_a_scan_that_growth_overtakes_goes_on(directory: Path) -> None:
    """It repeats the region it is in, and none before it."""
    state = AggregateState(COUNT, 256, directory)
    state.apply(counts(range(20_000)))
    scan, rows, keys = state.snapshot(np.arange(256), 16_000), 0, 20_000
    seen: set = set()
    for chunk in scan:
        seen |= set(chunk["key"].to_pylist())
        rows += chunk.num_rows
        state.apply(counts(range(keys, keys + 500)))
        keys += 500
    assert seen >= set(range(20_000)) and rows <= keys * 1.1


@pytest.mark.parametrize(("watermark", "late"), [(9, 0), (10, 3), (11, 3), (19, 3), (20, 5)])
def test_late_is_when_the_last_window_has_ended(directory: Path, watermark: int, late: int) -> None:
    state = AggregateState(COUNT, 1, directory)
    delta, found = state.delta(
        [counts([1], 3, 0), counts([1], 2, 10), counts([1], 1, 20)], EpochTimes(watermark, watermark)
    )
    assert (found, sum(delta["n"].to_pylist())) == (late, 6 - late)


def test_expired_slices_are_left_out_of_a_running_snapshot_and_never_come_back(directory: Path) -> None:
    state = AggregateState(COUNT, 4, directory)
    for s in (0, 10, 20):
        state.apply(counts(range(100), slice_start=s))
    scan = state.snapshot(np.arange(4), 100)
    first = next(scan)
    state.release(0, 20)
    state.apply(counts([1], slice_start=10))
    state.apply_absent(first)
    assert {s for chunk in scan for s in chunk["slice"].to_pylist()} == {20}
    assert {s for s, _ in contents(state)} == {20} and len(list(directory.glob("*.table"))) == 1
    with pytest.raises(RowsGone):
        list(state.fired(EpochTimes(0, 30), np.arange(4)))
    assert sum(b.num_rows for b in state.fired(EpochTimes(20, 30), np.arange(4))) == 100


def test_rows_expired_while_they_are_read_are_an_error(directory: Path) -> None:
    state = AggregateState(COUNT, 4, directory)
    state.apply(counts(range(100)))
    reading = state.fired(EpochTimes(0, 10), np.arange(4), 30)
    next(reading)
    state.release(0, 10)
    with pytest.raises(RowsGone):
        list(reading)


def test_apply_absent_never_overwrites_what_is_newer(directory: Path) -> None:
    state = AggregateState(COUNT, 1, directory)
    state.apply(counts([1, 2], 7))
    state.apply_absent(counts([1, 3], 5))
    assert {k: v[3] for (_, k), v in contents(state).items()} == {1: 7, 2: 7, 3: 5}


@pytest.mark.usefixtures("undivided")
def test_growth_that_was_torn_leaves_the_region_where_it_was(directory: Path) -> None:
    """The end is moved first, then the rows are copied, then the region's place is written."""
    state = AggregateState(COUNT, 1, directory)
    state.apply(counts(range(50)))
    before, inside = contents(state), state._slices.table(0)
    place, end = int(inside.places[0]), int(inside.files.end[0])
    inside.files.grant(256)
    inside.files.end[0] += 128
    inside.slots[end : end + 100] = inside.slots[:100]
    inside.files.header[table_header.DIRTY] = 1
    again = AggregateState(COUNT, 1, directory)
    assert contents(again) == before and int(again._slices.table(0).places[0]) == place
    again.apply(counts(range(5000)))
    assert len(contents(AggregateState(COUNT, 1, directory))) == 5000
    Inventory(directory).begins(10)
    (directory / "10.table").write_bytes(bytes(8192))
    assert AggregateState(COUNT, 1, directory).statistics()["slices"] == 1 and not (directory / "10.table").exists()


def test_put_that_was_torn_inside_a_row_is_done_again(directory: Path) -> None:
    """Values, key and hash are written before the used word: without it the row is not there; the put is redone."""
    state = AggregateState(COUNT, 1, directory)
    state.apply(counts(range(20)))
    inside = state._slices.table(0)
    rows = np.flatnonzero(inside.slots[:, table.USED])
    inside.slots[rows[:7], table.USED] = 0
    inside.slots[rows[9], table.COUNT] = 99
    inside.files.header[table_header.DIRTY] = 1
    again = AggregateState(COUNT, 1, directory)
    assert again.statistics()["entries"].tolist() == [13]
    again.apply(counts(range(20)))
    assert {k: v[3] for (_, k), v in contents(again).items()} == dict.fromkeys(range(20), 1)
    assert again.statistics()["entries"].tolist() == [20]


def test_byte_keys_that_collide_are_told_apart(directory: Path) -> None:
    descriptor = shape_of(TEXT_KEY, Window(10, 10), (Aggregate("n", "count"),))
    offsets, data = row_codec.encode_rows([pa.array(["a", "b", "cc"])], ["string"])
    key = columns.binary_array(offsets, data, pa.binary())
    same = pa.RecordBatch.from_arrays(
        [pa.array([0] * 3), pa.array([5] * 3, pa.uint64()), key, pa.array([1, 2, 3])],
        schema=schemas.partials_schema(descriptor),
    )
    state = AggregateState(descriptor, 8, directory)
    for _ in range(2):
        state.apply(state.delta([state.combine([same, same])], EpochTimes(-1, -1))[0])
    assert fired(state, 0, 10) == {(0, 10, (k,)): (n,) for k, n in (("a", 4), ("b", 8), ("cc", 12))}


def test_full_disk_is_noticed_before_it_kills(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = AggregateState(COUNT, 1, directory)
    state.apply(counts(range(50)))
    before = contents(state)
    monkeypatch.setattr(mapped, "RESERVE_BYTES", 1 << 62)
    with pytest.raises(Exhausted, match="kept in reserve"):
        state.apply(counts(range(100)))
    with pytest.raises(Exhausted, match="kept in reserve"):
        state._slices.table(0).files.grant(1)
    assert contents(state) == before


def upkeep(state: AggregateState) -> None:
    while state.work() or not state.is_tidy:
        pass


def on_disk(directory: Path) -> int:
    return sum(512 * p.stat().st_blocks for p in directory.iterdir())


def test_drop_gives_disk_back_later_and_leaves_the_others(directory: Path) -> None:
    state = AggregateState(COUNT, 4, directory)
    state.apply(counts(range(40_000)))
    before, full = state.statistics(), on_disk(directory)
    entries = before["entries"].tolist()
    written = {p.name: p.stat().st_mtime_ns for p in directory.glob("*.table")}
    state.drop(np.array([1, 2]))
    assert state.statistics()["entries"].tolist() == [entries[0], 0, 0, entries[3]]
    assert {p.name: p.stat().st_mtime_ns for p in directory.glob("*.table")} == written, "a drop is a note"
    again = AggregateState(COUNT, 4, directory)
    for opened in (state, again):
        assert {k for _, k in contents(opened)} == {k for _, k in contents(state)}
        assert len(contents(opened)) == entries[0] + entries[3]
    again = AggregateState(COUNT, 4, directory)
    upkeep(again)
    assert on_disk(directory) < 0.6 * full
    batch = counts(range(40_000))
    again.apply(take_vnodes(batch, split_by_vnode(batch, 4), np.array([2])))
    assert again.statistics()["entries"].tolist()[1:3] == [0, entries[2]]
    assert len(contents(AggregateState(COUNT, 4, directory))) == sum(entries) - entries[1]


TEXT = shape_of(TEXT_KEY, Window(20, 10), (Aggregate("n", "count"),))


def texts(keys: list[str], t: int = 0) -> pa.RecordBatch:
    f = Fragmenter(TEXT)
    f.add(pa.record_batch({"k": keys, "t": [t] * len(keys)}), ["k"], "t")
    return AggregateState.combine(AggregateState(TEXT, 4, Path(tempfile.mkdtemp())), f.drain())


def test_keys_that_come_and_go_do_not_fill_the_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the process ends in the middle of moving those that stay."""
    monkeypatch.setattr(slice_table, "KEYS_BYTES", 40_000)
    state = AggregateState(TEXT, 4, directory)
    batch = texts([f"{i:0500d}" for i in range(1000)])
    offsets = split_by_vnode(batch, 4)
    state.apply(batch)
    full, every = on_disk(directory), contents(state)
    away = np.array([1, 2, 3])
    for turn in range(6):
        state.drop(away)
        for _ in range(turn):
            state.work()
        if turn % 2:
            state = AggregateState(TEXT, 4, directory)
        state.apply(take_vnodes(batch, offsets, away))
        assert contents(state) == every
        upkeep(state)
        assert contents(state) == every == contents(AggregateState(TEXT, 4, directory))
        assert on_disk(directory) < 3 * full
    state.drop(away)
    upkeep(state)
    assert on_disk(directory) < 0.7 * full and len(contents(state)) == offsets[1]


def test_many_long_keys_make_every_heap_grow(directory: Path) -> None:
    descriptor = shape_of(TEXT_KEY, Window(20, 10), (Aggregate("n", "count"),))
    keys = [f"{i:0200d}" for i in range(3000)]
    state = AggregateState(descriptor, 4, directory)
    for t in (0, 10):
        for some in (keys[:100], keys[100:2900], keys[2900:]):
            f = Fragmenter(descriptor)
            f.add(pa.record_batch({"k": some, "t": [t] * len(some)}), ["k"], "t")
            state.apply(state.delta(f.drain(), EpochTimes(-1, -1))[0])
    again = AggregateState(descriptor, 4, directory)
    assert fired(again, 10, 20, max_rows=1000) == {(0, 20, (k,)): (2,) for k in keys}
    assert again.statistics()["bytes"].sum() == 2 * 3000 * (32 + 4 + 5 + 200)


def test_fired_rows_come_in_batches_of_bounded_bytes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = AggregateState(TEXT, 1, directory)
    state.apply(texts([f"{i:0500d}" for i in range(300)]))
    expected = fired(state, 10, 20, max_rows=1000)
    monkeypatch.setattr(aggregate, "FIRED_BYTES_MAX", 20_000)
    batches = list(state.fired(EpochTimes(10, 20), np.arange(1), 1000))
    assert max(b.num_rows for b in batches) <= 40 and len(expected) == 300
    assert fired(state, 10, 20, max_rows=1000) == expected


def test_cold_slices_are_paged_out_and_stay_readable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paged: list = []
    page_out = mapped.page_out
    monkeypatch.setattr(mapped, "page_out", lambda mapping, used: (paged.append(mapping), page_out(mapping, used)))
    state = AggregateState(COUNT, 1, directory, memory_bytes=1)
    for s in (0, 10, 20, 0):
        state.apply(counts(range(50), slice_start=s))
    assert len(paged) == 3, "each once: 0 and 10 when they were left, 20 at the end; 10 is cold and not asked again"
    assert len(contents(state)) == 150


def read_ahead(file: Path) -> list[tuple[int, bool]]:
    """Of each part of the mapping of this file, in order: where it begins, and whether its neighbours are read ahead."""
    found: list[tuple[int, bool]] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if str(file) in line:
            found.append((int(words[2], 16), False))
        elif words[0] == "VmFlags:" and found:
            found[-1] = (found[-1][0], "rr" not in words)
        elif len(words) > 4 and "-" in words[0] and found:
            break
    return sorted(found)


@pytest.mark.parametrize("suffix", ["table", "heap"])
def test_nothing_is_read_ahead_of_what_nobody_has_written(directory: Path, suffix: str) -> None:
    """A disk may have 8 MiB of it: an instance stood 20 ms for a page of zeros."""
    file = directory / f"0.{suffix}"
    state = AggregateState(TEXT, 4, directory, memory_bytes=1)
    state.apply(texts([f"{i:0500d}" for i in range(1000)]))
    begin, ahead = read_ahead(file)[-1]
    assert not ahead and begin < file.stat().st_size
    for t in (10, 20):
        state.apply(texts(["x"], t))
    paged_out = read_ahead(file)
    assert paged_out[-1][0] > begin and not paged_out[-1][1], "what was written meanwhile is wanted as a whole"
    del state
    again = AggregateState(TEXT, 4, directory)
    (_, first), (begin, second) = read_ahead(file)
    assert first and not second and 0 < begin < file.stat().st_size, "what is there, and what is not"
    assert len(contents(again)) == 1002


MANY_SLICES = """
import resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
sys.path.insert(0, str(Path({here!r}).parent))
from test_aggregate import COUNT, AggregateState, EpochTimes, counts
state, slices = AggregateState(COUNT, 2, Path(sys.argv[1])), 600
batch = pa.concat_batches([counts([1, 2, 3], 1, 10 * s) for s in range(slices)]).sort_by("hash")
state.apply(batch)
state.apply(state.delta([batch], EpochTimes(-1, -1))[0])
again = AggregateState(COUNT, 2, state.directory)
assert again.statistics()["slices"] == slices and again.statistics()["entries"].sum() == 3 * slices
found = [b for b in again.snapshot(np.arange(2))]
assert sum(sum(b["n"].to_pylist()) for b in found) == 6 * slices
again.release(0, 10 * slices - 10)
while again.work():
    pass
assert again.statistics()["entries"].sum() == 3 and len(list(state.directory.glob("*.table"))) == 1
"""


def test_more_slices_than_files_may_be_open(directory: Path) -> None:
    program = MANY_SLICES.format(here=str(Path(__file__)))
    subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_system_that_maps_no_more_files_is_said_aloud(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    state = AggregateState(COUNT, 1, directory)
    state.apply(counts([1]))
    monkeypatch.setattr(mapped.mmap, "mmap", refuse)
    with pytest.raises(Exhausted, match=r"vm\.max_map_count"):
        state.apply(counts([1], slice_start=10))


def test_what_expires_at_once_goes_in_pieces(directory: Path) -> None:
    state = AggregateState(COUNT, 1, directory)
    for s in range(100):
        state.apply(counts([1], slice_start=10 * s))
    state.release(0, 10_000)
    left = len(list(directory.glob("*.table")))
    assert 0 < left < 100 and state.statistics()["slices"] == 0 and not contents(state)
    upkeep(state)
    assert [path.name for path in directory.iterdir()] == ["inventory"] and state.statistics()["entries"].tolist() == [
        0
    ]


def test_what_expires_at_once_is_little_also_in_bytes(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = AggregateState(COUNT, 1, directory)
    for s in range(20):
        state.apply(counts(list(range(100)), slice_start=10 * s))
    monkeypatch.setattr(slices, "CUT_BYTES", 3 * state._slices.table(0).mapped_bytes)
    state.release(0, 10_000)
    assert len(list(directory.glob("*.table"))) == 17 and state.statistics()["slices"] == 0
    upkeep(state)
    assert [path.name for path in directory.iterdir()] == ["inventory"] and state.statistics()["entries"].tolist() == [
        0
    ]


def test_of_many_slices_some_are_counted(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, all_of_it = AggregateState(COUNT, 1, directory), (EpochTimes(0, limits.WATERMARK_END), np.arange(1))
    for s in range(21):
        state.apply(counts([1, 2, 3], slice_start=10 * s))
    assert state.fired_count(*all_of_it) == 63
    monkeypatch.setattr(aggregate, "COUNT_SLICES_MAX", 8)
    opened: list[int] = []
    table = Slices.table
    monkeypatch.setattr(Slices, "table", lambda self, s: (opened.append(s), table(self, s))[1])
    assert state.fired_count(*all_of_it) == 63 and len(opened) <= 8
    state.drop(np.arange(1))
    assert state.fired_count(*all_of_it) == 1, "never nothing, where not all was looked at"


def test_disk_is_given_back_in_small_pieces(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system writes what it is to forget, and the loop stands as long."""
    monkeypatch.setattr(hole_punching, "PUNCH_BYTES", 64 * 1024)
    monkeypatch.setattr(slice_files, "CUT_BYTES", 256 * 1024)
    state = AggregateState(COUNT, 4, directory)
    state.apply(counts(range(40_000)))
    punched: list[int] = []
    punch = hole_punching.punch

    def punching(descriptor: int, begin: int, end: int) -> None:
        punched.append(end - begin)
        punch(descriptor, begin, end)

    monkeypatch.setattr(hole_punching, "punch", punching)
    state.drop(np.array([1, 2, 3]))
    assert not punched
    pieces = 0
    while state.work() or not state.is_tidy:
        pieces += 1
    assert sum(punched) > 1_000_000 and max(punched) <= 64 * 1024 and pieces > 10
    (path,) = directory.glob("*.table")
    size = path.stat().st_size
    state.release(0, 1000)
    assert size > path.stat().st_size > size - 1_500_000
    upkeep(state)
    assert not list(directory.glob("*.table"))


def test_keys_are_moved_while_something_is_given_back(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slow to forget always has something to do where keys come and go: the heap must not wait for it."""
    monkeypatch.setattr(slice_table, "KEYS_BYTES", 40_000)
    state = AggregateState(TEXT, 4, directory)
    state.apply(texts([f"{i:0500d}" for i in range(1000)]))
    state.drop(np.array([1, 2, 3]))
    kept = contents(state)
    goes = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(hole_punching, "punch", lambda *_: goes.wait(20))
        while state.work():
            pass
        assert (
            state._slices.table(0)._garbage.is_left
            and int(state._slices.table(0).files.header[table_header.HEAP_BEGIN]) > 0
        )
        goes.set()
        mapped.DISK.submit(lambda: None).result()
    assert contents(state) == kept
    upkeep(state)
    assert contents(state) == kept


def test_no_table_is_opened_while_nothing_can_be_given_back(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loop with a thousand slices that have something to give back would open one after the other, in vain."""
    state = AggregateState(COUNT, 4, directory)
    for s in range(3 * hole_punching.FILES):
        state.apply(counts(range(4000), slice_start=10 * s))
    state.drop(np.arange(4))
    goes, looked = threading.Event(), 0
    with monkeypatch.context() as patch:
        patch.setattr(hole_punching, "punch", lambda *_: goes.wait(20))
        while state.work():
            looked += 1
        assert looked == hole_punching.FILES and hole_punching.is_busy() and not state.is_tidy
        patch.setattr(state._slices, "table", None)
        assert not state.work()
        goes.set()
        mapped.DISK.submit(lambda: None).result()
    upkeep(state)
    assert not hole_punching.is_busy()


def test_a_snapshot_of_nothing_stops_at_times(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "SLICES_A_CHUNK", 5)
    state = AggregateState(COUNT, 2, directory)
    for s in range(20):
        state.apply(counts([1], slice_start=10 * s))
    lonely = np.flatnonzero(state.statistics()["entries"] == 0)
    chunks = list(state.snapshot(lonely))
    assert len(chunks) == 4 and sum(c.num_rows for c in chunks) == 0
    assert len(contents(state)) == 20


def test_empty_batches_are_fine(directory: Path) -> None:
    state = AggregateState(shape_of(PAIR_KEY, Window(10, 10)), 8, directory)
    nothing = state.combine([])
    assert (
        nothing.num_rows == 0
        and state.delta([nothing], EpochTimes(0, 0)) == (nothing, 0)
        and state.delta([], EpochTimes(0, 0)) == (nothing, 0)
    )
    state.apply(nothing)
    assert list(state.fired(EpochTimes(-100, 100), np.arange(8))) == [] and list(state.snapshot(np.arange(8))) == []
    assert (
        state.fired_count(EpochTimes(-100, 100), np.arange(8)) == 0
        and state.statistics()["entries"].tolist() == [0] * 8
    )
