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
from ferry.contract.errors import Exhausted, RowsGone, StateUnavailable
from ferry.contract.shapes import Shape, Side, Window
from ferry.kernels import columns, schemas
from ferry.spark.fragment import Fragmenter
from ferry.store import mapped, rows, segments
from ferry.store.rows import RowState

LEFT, RIGHT = Side((("who", "k", "int64"), ("a", "a", "string"))), Side((("b", "b", "int64"), ("f", "f", "double")))
INT_KEY, PAIR_KEY = (("k", "int"),), (("text", "string"), ("k", "int"))
Record = tuple[int, int, int, int]
"""side, event time, key, number"""


def shape_of(key: Any = INT_KEY, window: Window = Window(10, 10)) -> Shape:  # noqa: B008
    return Shape("j", 0, "join", key, window, (), LEFT, RIGHT)


def fragments(shape: Shape, records: list[Record]) -> list[pa.RecordBatch]:
    out = []
    for side in (0, 1):
        mine = [r for r in records if r[0] == side]
        if mine:
            data = {"t": [r[1] for r in mine], "k": [r[2] for r in mine], "text": [f"é{r[2] % 3}" for r in mine]}
            data |= {"a": [None if r[3] == 0 else str(r[3]) for r in mine], "b": [r[3] for r in mine]}
            data |= {"f": [r[3] / 2 for r in mine]}
            f = Fragmenter(shape, side)
            f.add(pa.record_batch(data), [name for name, _ in shape.key], "t")
            out += f.drain()
    return out


def naive_join(shape: Shape, records: list[Record], low: int, high: int) -> Counter:
    w, out = shape.window, Counter()
    for _, t, k, a in (r for r in records if r[0] == 0):
        for _, u, m, b in (r for r in records if r[0] == 1):
            for start in range((t - w.size_ms) // w.slide_ms * w.slide_ms, t + 1, w.slide_ms):
                end = start + w.size_ms
                if k == m and start <= t < end and start <= u < end and low < end <= high:
                    out[start, end, k, None if a == 0 else str(a), b, b / 2] += 1
    return out


def fired(state: RowState, low: int, high: int, max_rows: int = 3) -> Counter:
    out: Counter = Counter()
    for batch in state.fired(low, high, np.arange(state.virtual_nodes), max_rows):
        assert batch.schema == schemas.fired_schema(state.shape) and 0 < batch.num_rows <= max_rows
        out.update(tuple(row.values()) for row in batch.to_pylist())
    assert state.fired_count(low, high, np.arange(state.virtual_nodes)) == sum(out.values())
    return out


def contents(state: RowState, vnodes: Any = None) -> Counter:
    every = np.arange(state.virtual_nodes) if vnodes is None else vnodes
    out: Counter = Counter()
    for batch in state.snapshot(every, 400):
        assert batch.schema == schemas.rows_schema(state.shape)
        out.update(tuple(row.values()) for row in batch.to_pylist())
    return out


RECORDS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 6), st.integers(0, 5)), max_size=25)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), RECORDS),
        st.tuples(st.just("advance"), st.integers(0, 30)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("drop"), st.sets(st.integers(0, 7), max_size=4)),
        st.tuples(st.just("move"), RECORDS, st.integers(0, 4)),
    ),
    max_size=9,
)


@settings(max_examples=50, deadline=None)
@given(
    STEPS, st.sampled_from([INT_KEY, PAIR_KEY]), st.sampled_from([Window(10, 10), Window(30, 10), Window(25, 10)]),
    st.sampled_from([1, 8]),
)  # fmt: skip
def test_any_history_equals_the_naive_join(steps: list, key: Any, window: Window, virtual_nodes: int) -> None:
    shape = shape_of(key, window)
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "TIER", 3)
        state = RowState(shape, virtual_nodes, Path(root, "0"))
        kept: list[Record] = []
        watermark = low = limits.WATERMARK_NONE
        for number, step in enumerate(steps):
            if step[0] in ("epoch", "move"):
                timely = [r for r in step[1] if window.last_end(r[1] // window.pane_ms * window.pane_ms) > watermark]
                before = contents(state)
                delta, late = state.delta([state.combine(fragments(shape, step[1]))], watermark)
                assert late == len(step[1]) - len(timely) and contents(state) == before
                kept += timely
            match step:
                case ("epoch", _):
                    state.put(delta, f"e{number}")
                    state.put(delta, f"e{number}")
                case ("advance", by):
                    watermark = max(watermark, 0) + by
                    assert fired(state, low, watermark) == naive_join(shape, kept, low, watermark)
                    state.expire(watermark)
                    low = watermark
                    kept = [r for r in kept if window.last_end(r[1] // window.pane_ms * window.pane_ms) > watermark]
                case ("reopen",):
                    before = contents(state)
                    state = RowState(shape, virtual_nodes, state.directory)
                    state.expire(watermark)
                    assert contents(state) == before
                case ("drop", vnodes):
                    dropped = {v % virtual_nodes for v in vnodes}
                    state.drop(np.array(sorted(dropped), np.int64))
                    kept = [r for r in kept if vnode_of(shape, r[2], virtual_nodes) not in dropped]
                case ("move", _, after):
                    target = RowState(shape, virtual_nodes, Path(root, str(number + 1)))
                    target.expire(watermark)
                    for count, chunk in enumerate(state.snapshot(np.arange(virtual_nodes), 300)):
                        if count == after:
                            state.put(delta, f"e{number}")
                            target.put(delta, f"e{number}")
                        target.put_absent(chunk, f"snapshot {number} {count}")
                    state.put(delta, f"e{number}")
                    target.put(delta, f"e{number}")
                    assert contents(target) == contents(state)
                    state = target
        assert fired(state, low, limits.WATERMARK_END) == naive_join(shape, kept, low, limits.WATERMARK_END)


def vnode_of(shape: Shape, key: int, virtual_nodes: int) -> int:
    (batch,) = fragments(shape, [(0, 0, key, 1)])
    return int(np.flatnonzero(np.diff(columns.split_by_vnode(batch, virtual_nodes)))[0])


def some(first: int, count: int = 20, time: int = 5) -> pa.RecordBatch:
    shape = shape_of()
    records = [(i % 2, time, first + i // 2, i) for i in range(count)]
    return RowState.combine(RowState.__new__(RowState), fragments(shape, records))


def test_segments_are_merged_in_tiers_and_labels_survive(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER**2 + 3):
        state.put(some(100 * i), f"label/{i}")
    assert state.statistics()["segments"] == 4 == len(list(tmp_path.iterdir()))
    before = contents(state)
    for again in (state, RowState(shape_of(), 8, tmp_path)):
        for i in (0, 20, rows.TIER**2 + 2):
            again.put(some(100 * i), f"label/{i}")
        assert contents(again) == before and again.statistics()["entries"].sum() == before.total()


def test_crash_between_merge_and_removal_changes_nothing(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    for i in range(rows.TIER - 1):
        state.put(some(100 * i), f"{i}")
    saved = {p: p.read_bytes() for p in tmp_path.iterdir()}
    state.put(some(10**6), "last")
    for path, content in saved.items():
        path.write_bytes(content)
    (tmp_path / "000000000099.0.x.tmp").write_bytes(b"half a segment")
    assert contents(RowState(shape_of(), 8, tmp_path)) == contents(state)
    assert len(list(tmp_path.iterdir())) == 1


def test_dropped_rows_do_not_come_back_with_their_label(tmp_path: Path) -> None:
    state = RowState(shape_of(), 2, tmp_path)
    rows_of_e1 = some(0)
    state.put(rows_of_e1, "e1")
    arriving = list(state.snapshot(np.array([0])))
    state.drop(np.array([0, 1]))
    for opened in (state, RowState(shape_of(), 2, tmp_path)):
        opened.put(rows_of_e1, "e1")
        assert not contents(opened)
    for number, chunk in enumerate(arriving):
        opened.put_absent(chunk, f"back {number}")
    assert contents(opened) == Counter(tuple(r.values()) for c in arriving for r in c.to_pylist())


def test_a_snapshot_holds_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    state = RowState(shape_of(), 2, tmp_path)
    state.put(some(0), "e1")
    before = contents(state)
    asked = state.snapshot(np.arange(2))
    state.put(some(100), "e2")
    assert Counter(tuple(r.values()) for c in asked for r in c.to_pylist()) == before


def test_dead_segments_are_unlinked_and_dead_rows_filtered(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.put(some(0, time=5), "dead")
    state.put(state.combine([some(100, time=5), some(200, time=15)]), "half dead")
    scan = state.snapshot(np.arange(8), 10**6)
    reading = state.fired(0, 20, np.arange(8), 4)
    next(reading)
    state.expire(10)
    with pytest.raises(RowsGone):
        list(reading)
    assert {s for chunk in scan for s in chunk["slice"].to_pylist()} == {10}
    assert [p.name for p in tmp_path.iterdir()] == ["000000000002.0.half%20dead.arrow"]
    state.put(some(0, time=5), "dead")
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(RowsGone):
        list(state.fired(0, 20, np.arange(8)))


def test_hot_key_is_read_in_bounded_pieces(tmp_path: Path) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.put(state.combine(fragments(shape_of(), [(i % 2, 5, 1, i) for i in range(4000)])), "hot")
    assert state.fired_count(0, 10, np.arange(8)) == 4_000_000
    reading = state.fired(0, 10, np.arange(8), 1000)
    assert [next(reading).num_rows for _ in range(5)] == [1000] * 5


def test_groups_of_virtual_nodes_are_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 64, tmp_path)
    state.put(some(0, 400), "e1")
    whole = fired(state, 0, 10, 1000)
    monkeypatch.setattr(rows, "READ_ROWS_MAX", 10)
    assert fired(state, 0, 10, 1000) == whole and whole.total() == 200


def test_full_disk_and_damage_are_said_aloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = RowState(shape_of(), 8, tmp_path)
    state.put(some(0), "e1")
    with monkeypatch.context() as patch:
        patch.setattr(mapped, "RESERVE_BYTES", 1 << 62)
        with pytest.raises(Exhausted, match="kept in reserve"):
            state.put(some(0), "e2")
    state.put(some(0), "e2")
    assert state.statistics()["entries"].sum() == 40
    (path, _) = sorted(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StateUnavailable, match="not a segment"):
        segments.read_all(tmp_path, 8)
