"""RowState against a naive join, through epochs, crashes, snapshots, moves and merging of segments."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract import limits
from ferry.contract.descriptors import OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import Bug, Exhausted, RowsGone, StateUnavailable
from ferry.kernels import columns, schemas
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import joining, mapped, rows, segments
from ferry.store.inventory import Inventory
from ferry.store.rows import RowState

LEFT, RIGHT = Side((("who", "k", "int64"), ("a", "a", "string"))), Side((("b", "b", "int64"), ("f", "f", "double")))
INT_KEY, PAIR_KEY = (("k", "int"),), (("text", "string"), ("k", "int"))
Record = tuple[int, int, int, int]
"""side, event time, key, number"""


def shape_of(key: Any = INT_KEY, window: Window = Window(10, 10)) -> OperatorDescriptor:  # noqa: B008
    return OperatorDescriptor("j", 0, "join", key, window, (), LEFT, RIGHT)


def fragments(descriptor: OperatorDescriptor, records: list[Record]) -> list[pa.RecordBatch]:
    out = []
    for side in (0, 1):
        mine = [r for r in records if r[0] == side]
        if mine:
            data = {"t": [r[1] for r in mine], "k": [r[2] for r in mine], "text": [f"é{r[2] % 3}" for r in mine]}
            data |= {"a": [None if r[3] == 0 else str(r[3]) for r in mine], "b": [r[3] for r in mine]}
            data |= {"f": [r[3] / 2 for r in mine]}
            f = Fragmenter(descriptor, side)
            f.add(pa.record_batch(data), [name for name, _ in descriptor.key], "t")
            out += f.drain()
    return out


def naive_join(descriptor: OperatorDescriptor, records: list[Record], low: int, high: int) -> Counter:
    w, out = descriptor.window, Counter()
    for _, t, k, a in (r for r in records if r[0] == 0):
        for _, u, m, b in (r for r in records if r[0] == 1):
            for start in range((t - w.size_ms) // w.slide_ms * w.slide_ms, t + 1, w.slide_ms):
                end = start + w.size_ms
                if k == m and start <= t < end and start <= u < end and low < end <= high:
                    out[start, end, k, None if a == 0 else str(a), b, b / 2] += 1
    return out


def fired(state: RowState, low: int, high: int, max_rows: int = 3) -> Counter:
    out: Counter = Counter()
    for batch in state.fired(EpochTimes(low, high), np.arange(state.virtual_nodes), max_rows):
        assert batch.schema == schemas.fired_schema(state.descriptor) and batch.num_rows <= max_rows
        out.update(tuple(row.values()) for row in batch.to_pylist())
    assert state.fired_count(EpochTimes(low, high), np.arange(state.virtual_nodes)) == sum(out.values())
    return out


def contents(state: RowState, vnodes: Any = None) -> Counter:
    every = np.arange(state.virtual_nodes) if vnodes is None else vnodes
    out: Counter = Counter()
    for batch in state.snapshot(every, 400):
        assert batch.schema == schemas.rows_schema(state.descriptor)
        out.update(tuple(row.values()) for row in batch.to_pylist())
    return out


RECORDS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 6), st.integers(0, 5)), max_size=25)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), RECORDS),
        st.tuples(st.just("advance"), st.integers(0, 30)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("work"), st.integers(1, 30)),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 7), max_size=4)),
        st.tuples(st.just("move"), RECORDS, st.integers(0, 4)),
    ),
    max_size=9,
)


@settings(max_examples=40, deadline=None)
@given(
    STEPS, st.sampled_from([INT_KEY, PAIR_KEY]), st.sampled_from([Window(10, 10), Window(30, 10), Window(25, 10)]),
    st.sampled_from([1, 8]),
)  # fmt: skip
def test_any_history_equals_the_naive_join(steps: list, key: Any, window: Window, virtual_nodes: int) -> None:
    descriptor = shape_of(key, window)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "TIER", 3)
        patch.setattr(segments, "PART_BYTES", 200)
        patch.setattr(rows, "_FUEL", 1)
        patch.setattr(joining, "READ_BYTES_MAX", 300)
        state = RowState(descriptor, virtual_nodes, Path(root, "0"))
        kept: list[Record] = []
        watermark = low = limits.WATERMARK_NONE
        for number, step in enumerate(steps):
            if step[0] in ("epoch", "move"):
                timely = [r for r in step[1] if window.last_end(r[1] // window.pane_ms * window.pane_ms) > watermark]
                before = contents(state)
                delta, late = state.delta(
                    [state.combine(fragments(descriptor, step[1]))], EpochTimes(watermark, watermark)
                )
                assert late == len(step[1]) - len(timely) and contents(state) == before
                kept += timely
            match step:
                case ("epoch", _):
                    state.apply(delta, number, "a")
                    state.apply(delta, number, "a")
                case ("advance", by):
                    watermark = max(watermark, 0) + by
                    assert fired(state, low, watermark) == naive_join(descriptor, kept, low, watermark)
                    state.release(0, watermark)
                    low = watermark
                    kept = [r for r in kept if window.last_end(r[1] // window.pane_ms * window.pane_ms) > watermark]
                case ("work", pieces):
                    before = contents(state)
                    for _ in range(pieces):
                        state.work()
                    assert contents(state) == before
                case ("reopen",):
                    before = contents(state)
                    state = RowState(descriptor, virtual_nodes, state.directory)
                    state.release(0, watermark)
                    assert contents(state) == before
                case ("drop", vnodes):
                    dropped = {v % virtual_nodes for v in vnodes}
                    state.drop(np.array(sorted(dropped), np.int64))
                    kept = [r for r in kept if vnode_of(descriptor, r[2], virtual_nodes) not in dropped]
                case ("move", _, after):
                    target = RowState(descriptor, virtual_nodes, Path(root, str(number + 1)))
                    target.release(0, watermark)
                    for count, chunk in enumerate(state.snapshot(np.arange(virtual_nodes), 300)):
                        if count == after:
                            state.apply(delta, number, "a")
                            target.apply(delta, number, "a")
                        target.apply_absent(chunk)
                        state.work()
                        target.work()
                    state.apply(delta, number, "a")
                    target.apply(delta, number, "a")
                    assert contents(target) == contents(state)
                    state = target
            assert state.statistics()["entries"].sum() >= contents(state).total()
        assert fired(state, low, limits.WATERMARK_END) == naive_join(descriptor, kept, low, limits.WATERMARK_END)


def vnode_of(descriptor: OperatorDescriptor, key: int, virtual_nodes: int) -> int:
    (batch,) = fragments(descriptor, [(0, 0, key, 1)])
    return int(np.flatnonzero(np.diff(columns.split_by_vnode(batch, virtual_nodes)))[0])


def some(first: int, count: int = 20, time: int = 5) -> pa.RecordBatch:
    descriptor = shape_of()
    records = [(i % 2, time, first + i // 2, i) for i in range(count)]
    return RowState.combine(RowState.__new__(RowState), fragments(descriptor, records))


def upkeep(state: RowState) -> None:
    while state.work():
        pass


def test_segments_are_merged_in_tiers_and_the_last_epoch_is_known(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    count = rows.TIER**2 + 3
    for i in range(count):
        state.apply(some(100 * i), i // 3, f"leader/{i % 3}")
    upkeep(state)
    assert state.statistics()["segments"] == 4 == len(list(tmp_path.glob("*.arrow")))
    before = contents(state)
    assert before.total() == 20 * count
    for again in (state, RowState(shape_of(), 8, tmp_path)):
        for i in range((count - 1) // 3 * 3, count):
            again.apply(some(100 * i), i // 3, f"leader/{i % 3}")
        assert contents(again) == before and again.statistics()["entries"].sum() == before.total()
        with pytest.raises(Bug, match="are applied after epoch"):
            again.apply(some(0), 0, "leader/0")


def test_what_was_put_is_one_number_however_many_puts(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER):
        state.apply(some(100 * i), i, f"of epoch {i}")
    upkeep(state)
    (merged,) = state._segments
    assert merged.about.sources == ("of epoch 15",) and state._sources == {"of epoch 15"}


@pytest.mark.parametrize("pieces", range(0, 42, 7))
def test_crash_at_any_piece_of_upkeep_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(segments, "PART_BYTES", 600)
    monkeypatch.setattr(rows, "_FUEL", 0)
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER):
        state.apply(some(100 * i), i, "a")
    state.drop(np.array([3]))
    state.apply_absent(some(10**6))
    for _ in range(pieces):
        state.work()
    state.drop(np.array([5]))
    before = contents(state)
    again = RowState(shape_of(), 8, tmp_path)
    assert contents(again) == before
    upkeep(again)
    assert contents(again) == before == contents(RowState(shape_of(), 8, tmp_path))
    assert again.statistics()["entries"].sum() == before.total()


def test_crash_between_merge_and_removal_changes_nothing(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER - 1):
        state.apply(some(100 * i), i, "a")
    saved = {p: p.read_bytes() for p in tmp_path.glob("*.arrow")}
    state.apply(some(10**6), 99, "a")
    upkeep(state)
    assert not any(p.exists() for p in saved)
    for path, content in saved.items():
        path.write_bytes(content)
    (tmp_path / "000000000099.0.tmp").write_bytes(b"half a segment")
    assert contents(RowState(shape_of(), 8, tmp_path)) == contents(state)
    assert len(list(tmp_path.glob("*.arrow"))) == 1


def test_a_merge_is_a_series_of_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_FUEL", 0)
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER):
        state.apply(some(1000 * i, 400), i, "a")
    size = state._segments[0].bytes
    monkeypatch.setattr(segments, "PART_BYTES", size)
    written: list[int] = []
    add = segments.Writer.add
    monkeypatch.setattr(segments.Writer, "add", lambda self, batch: (written.append(batch.nbytes), add(self, batch)))
    before, pieces = contents(state), 0
    while len(state._segments) > 1:
        state.work()
        pieces += 1
    assert max(written) <= 2 * size and sum(written) >= 15 * size and pieces > len(written) > 12
    assert contents(state) == before
    assert len(state._segments[0].parts) >= len(written)
    assert all(bool(np.all(np.diff(p.hashes.astype(object)) >= 0)) for p in state._segments[0].parts)


def test_of_large_segments_as_many_are_merged_as_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(some(0), 0, "a")
    monkeypatch.setattr(rows, "MERGE_BYTES_MAX", 6 * state._segments[0].bytes)
    for i in range(1, rows.TIER):
        state.apply(some(100 * i), i, "a")
    before = contents(state)
    upkeep(state)
    assert len(state._segments) == rows.TIER - 5 and contents(state) == before


def test_a_drop_writes_no_row_anew(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(5):
        state.apply(some(1000 * i, 400), i, "a")
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.glob("*.arrow")}
    every = contents(state)
    state.drop(np.array([2, 6]))
    assert {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.glob("*.arrow")} == before
    left = contents(state)
    assert left == contents(state, np.array([0, 1, 3, 4, 5, 7])) and left.total() < every.total()
    assert not contents(state, np.array([2, 6])) and state.statistics()["entries"][[2, 6]].tolist() == [0, 0]
    assert not fired(RowState(shape_of(), 8, tmp_path), 0, 10) - fired(state, 0, 10)
    state.drop(np.arange(7))
    assert {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.glob("*.arrow")} == before, (
        "also when hardly anything is left: that waits for upkeep"
    )


def test_what_is_mostly_dropped_leaves_the_disk(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(some(0, 4000), 1, "a")
    full = sum(p.stat().st_size for p in tmp_path.glob("*.arrow"))
    state.drop(np.arange(6))
    upkeep(state)
    left = contents(state)
    assert sum(p.stat().st_size for p in tmp_path.glob("*.arrow")) < full / 2 and left.total() > 0
    state.drop(np.arange(8))
    upkeep(state)
    assert {p.name for p in tmp_path.iterdir()} == {"drops", "inventory"} and not contents(state)


def test_dropped_rows_do_not_come_back_when_they_are_put_again(tmp_path: Path) -> None:
    state = RowState(shape_of(), 2, tmp_path)
    rows_of_e1 = some(0)
    state.apply(rows_of_e1, 1, "a")
    arriving = list(state.snapshot(np.array([0])))
    state.drop(np.array([0, 1]))
    upkeep(state)
    for opened in (state, RowState(shape_of(), 2, tmp_path)):
        opened.apply(rows_of_e1, 1, "a")
        assert not contents(opened)
    for chunk in arriving:
        opened.apply_absent(chunk)
    assert contents(opened) == Counter(tuple(r.values()) for c in arriving for r in c.to_pylist())
    opened.apply(some(100), 2, "a")
    assert contents(RowState(shape_of(), 2, tmp_path)) == contents(opened)


def test_a_virtual_node_that_goes_and_comes_back_has_only_what_came_back(tmp_path: Path) -> None:
    """Also when its old rows were in a merge that had begun, and ended after it had come back."""
    state = RowState(shape_of(), 2, tmp_path)
    for i in range(rows.TIER - 1):
        state.apply(some(100 * i), i, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "_FUEL", 0)
        patch.setattr(segments, "PART_BYTES", 500)
        state.apply(some(10**6), 99, "a")
        state.work()
        assert state._merges
        state.drop(np.array([1]))
        back = list(state.snapshot(np.array([0])))
        state.drop(np.array([0]))
        for chunk in back:
            state.apply_absent(chunk)
        expected = Counter(tuple(r.values()) for c in back for r in c.to_pylist())
        assert contents(state) == expected
        upkeep(state)
    assert contents(state) == expected == contents(RowState(shape_of(), 2, tmp_path))


def test_a_snapshot_holds_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    state = RowState(shape_of(), 2, tmp_path)
    state.apply(some(0), 1, "a")
    before = contents(state)
    asked = state.snapshot(np.arange(2))
    state.apply(some(100), 2, "a")
    assert Counter(tuple(r.values()) for c in asked for r in c.to_pylist()) == before


def test_dead_segments_are_unlinked_and_dead_rows_filtered(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(some(0, time=5), 1, "dead")
    state.apply(state.combine([some(100, time=5), some(200, time=15)]), 2, "half dead")
    scan = state.snapshot(np.arange(8), 10**6)
    reading = state.fired(EpochTimes(0, 20), np.arange(8), 4)
    next(reading)
    state.release(0, 10)
    with pytest.raises(RowsGone):
        list(reading)
    assert {s for chunk in scan for s in chunk["slice"].to_pylist()} == {10}
    upkeep(state)
    assert [p.name for p in tmp_path.glob("*.arrow")] == ["000000000002.0.arrow"]
    state.apply(some(0, time=5), 2, "dead")
    assert len(list(tmp_path.glob("*.arrow"))) == 1
    with pytest.raises(RowsGone):
        list(state.fired(EpochTimes(0, 20), np.arange(8)))


def test_hot_key_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(state.combine(fragments(shape_of(), [(i % 2, 5, 1, i) for i in range(4000)])), 1, "hot")
    assert state.fired_count(EpochTimes(0, 10), np.arange(8)) == 4_000_000
    reading = state.fired(EpochTimes(0, 10), np.arange(8), 1000)
    assert [next(reading).num_rows for _ in range(5)] == [1000] * 5


def test_groups_of_virtual_nodes_are_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 64, tmp_path)
    state.apply(some(0, 400), 1, "a")
    whole = fired(state, 0, 10, 1000)
    monkeypatch.setattr(joining, "READ_BYTES_MAX", 500)
    assert fired(state, 0, 10, 1000) == whole and whole.total() == 200


def test_pieces_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one virtual node, and however wide the rows are."""
    state = RowState(shape_of(), 1, tmp_path)
    state.apply(some(0, 2000), 1, "a")
    whole, rows_bytes = fired(state, 0, 10, 1000), state._segments[0].bytes
    joined: list[int] = []
    concatenated = columns.concatenated
    monkeypatch.setattr(
        columns, "concatenated", lambda found: (joined.append(sum(b.nbytes for b in found)), concatenated(found))[1]
    )
    monkeypatch.setattr(joining, "READ_BYTES_MAX", rows_bytes // 10)
    monkeypatch.setattr(joining, "FIRED_BYTES_MAX", 20)
    assert max(b.num_rows for b in state.fired(EpochTimes(0, 10), np.arange(1))) < 20
    assert len(joined) >= 10 and max(joined) < rows_bytes / 5
    assert fired(state, 0, 10, 1000) == whole and whole.total() == 1000


def test_more_text_than_32_bits_can_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, other = (RowState(shape_of(PAIR_KEY), 8, tmp_path / name) for name in "ab")
    parts = fragments(state.descriptor, [(i % 2, 5, i // 4, i) for i in range(200)])
    monkeypatch.setattr(columns, "BINARY_BYTES_MAX", 1000)
    merged = state.combine(parts)
    assert merged.schema.field("l_a").type == pa.large_string()
    delta, _ = state.delta([merged, merged], EpochTimes(0, 0))
    state.apply(delta, 1, "a")
    offsets = columns.split_by_vnode(merged, 8)
    for vnode in range(8):
        share = columns.narrowed(
            columns.take_vnodes(merged, offsets, np.array([vnode])), schemas.rows_schema(state.descriptor)
        )
        for source in "ab":
            other.apply(share, 1, f"{source} of {vnode}")
    assert contents(state) == contents(other)
    monkeypatch.setattr(columns, "BINARY_BYTES_MAX", 2**31 - 1)
    assert fired(state, 0, 10, 1000).total() == fired(other, 0, 10, 1000).total() == 50 * 4 * 4
    with pytest.raises(Exhausted, match=r"lower epoch\.maxRows"):  # values that do not fit, as so much text would not
        columns.narrowed(pa.record_batch({"a": [300]}), pa.schema([("a", pa.int8())]))


def test_full_disk_and_damage_are_said_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.apply(some(0), 1, "a")
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "RESERVE_BYTES", 1 << 62)
        with pytest.raises(Exhausted, match="kept in reserve"):
            state.apply(some(0), 2, "a")
    state.apply(some(0), 2, "a")
    assert state.statistics()["entries"].sum() == 40
    path = min(tmp_path.glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StateUnavailable, match="not a segment"):
        segments.read_all(tmp_path, 8, Inventory(tmp_path), segments.Adoptions(), schemas.rows_schema(shape_of()))
