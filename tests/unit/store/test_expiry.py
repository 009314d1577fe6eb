"""A copy that only hears of changes: once what was there when it began is over, it holds what its leader holds."""

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

import ferry
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.limits import WATERMARK_NONE
from ferry.process.aggregator import Functions
from ferry.process.interval import IntervalJoin, OuterIntervalJoin
from ferry.process.row_windows import RowWindows
from ferry.process.sessions import SessionAggregate
from ferry.process.shapes import shape_of
from ferry.spark.tasks.fragment import Fragmenter
from ferry.store import expiry
from ferry.store.state import State, open_state

VNODES = 4
EVERY = np.arange(VNODES)
KEY: Any = (("k", "int"),)
COLUMNS = pa.schema([("v", pa.int64())])

Record = tuple[int, int]
"""key, how far its time is behind the newest"""


def process(made: Any, inputs: int = 1) -> OperatorDescriptor:
    shape = shape_of("p", made, pa.schema([("k", pa.int64())]), [COLUMNS] * inputs, None)
    return OperatorDescriptor("p", 0, "process", KEY, Window(1, 1), process=shape)


KINDS = {
    "sliding": OperatorDescriptor("a", 0, "aggregate", KEY, Window(30, 10), (Aggregate("n", "count"),)),
    "join": OperatorDescriptor("j", 0, "join", KEY, Window(20, 20), (), Side((("l", "v", "int64"),)), Side((("r", "v", "int64"),))),
    "interval": process(IntervalJoin({"a": "v"}, {"b": "v"}, -20, 20), 2),
    "outer": process(OuterIntervalJoin({"a": "v"}, {"b": "v"}, -20, 20), 2),
    "rows": process(RowWindows(3, Functions({"n": ferry.count()}), {"v": "v"})),
    "sessions": process(SessionAggregate(10, Functions({"n": ferry.count()}))),
}  # fmt: skip


def fragments(descriptor: OperatorDescriptor, records: list[Record], newest: int) -> list[pa.RecordBatch]:
    found = []
    for side in range(descriptor.inputs):
        mine = records[side :: descriptor.inputs]
        if mine:
            fragmenter = Fragmenter(descriptor, side)
            times = [max(0, newest - late) for _, late in mine]
            batch = {"k": [k for k, _ in mine], "t": times, "v": [newest * 100 + i for i in range(len(mine))]}
            fragmenter.add(pa.record_batch(batch), ["k"], "t")
            found += fragmenter.drain()
    return found


def held(state: State) -> Counter[str]:
    return Counter(str(row) for batch in state.snapshot(EVERY) for row in batch.to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 15)), max_size=6), min_size=4, max_size=14))
@settings(max_examples=15, deadline=None)
def test_a_copy_without_a_snapshot_becomes_whole(kind: str, epochs: list[list[Record]]) -> None:
    descriptor = KINDS[kind]
    with tempfile.TemporaryDirectory() as directory:
        leader, copy = (open_state(descriptor, VNODES, Path(directory) / name, 1 << 20) for name in ("a", "b"))
        low, left = WATERMARK_NONE, None
        for epoch, records in enumerate(epochs):
            high = 10 * epoch - 15
            for state in (leader, copy):
                state.release(epoch - 1, low)
            parts = fragments(descriptor, records, 10 * epoch)
            delta, _ = leader.delta([leader.combine(parts)] if parts else [], EpochTimes(low, high, epoch), EVERY)
            leader.apply(delta, epoch, "a")
            if left is not None:
                copy.apply(delta, epoch, "a")
                if left.over():
                    assert held(copy) == held(leader)
            elif epoch == 2:
                left = leader.prior_state(EVERY)
                assert left is not None
                copy.drop(EVERY)
            low = high


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_there_ends_by_time_or_by_what_comes(kind: str, tmp_path: Path) -> None:
    descriptor = KINDS[kind]
    state = open_state(descriptor, VNODES, tmp_path, 1 << 20)
    empty = state.prior_state(EVERY)
    assert empty is not None and empty.over(), "nothing is waited for"
    low = WATERMARK_NONE
    left, of_none, seen = None, None, []
    for epoch in range(12):
        parts = fragments(descriptor, [(1, 0), (1, 1)], 10 * epoch)
        state.release(epoch - 1, low)
        state.apply(state.delta([state.combine(parts)], EpochTimes(low, 10 * epoch - 5, epoch), EVERY)[0], epoch, "a")
        low = 10 * epoch - 5
        if left is None:
            left = state.prior_state(EVERY)
            assert left is not None and (left.until is None) == (descriptor.kind == "process")
            (mine,) = np.flatnonzero(state.statistics()["entries"])
            of_none = state.prior_state(np.setdiff1d(EVERY, [mine]))
            assert of_none is not None
        seen.append(left.over())
    assert not seen[0] and seen[-1] and sorted(seen) == seen, "once over it stays so"
    assert of_none is not None and of_none.over(), "other virtual nodes have nothing"


def test_too_many_entries_are_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "ENTRIES_MAX", 3)
    state = open_state(KINDS["rows"], VNODES, tmp_path, 1 << 20)
    for epoch, expected in ((0, True), (1, False)):
        records = [(key, 0) for key in range(1 + 4 * epoch)]
        parts = fragments(KINDS["rows"], records, 10 * epoch)
        state.apply(state.delta([state.combine(parts)], EpochTimes(0, 0, epoch), EVERY)[0], epoch, "a")
        assert (state.prior_state(EVERY) is not None) == expected


def test_rows_that_were_emitted_may_be_read_until_their_epoch_is_over(tmp_path: Path) -> None:
    descriptor = KINDS["sessions"]
    state = open_state(descriptor, VNODES, tmp_path, 1 << 20)
    for epoch, (records, high) in enumerate([([(1, 0)], 0), ([], 500)]):
        parts = fragments(descriptor, records, 10)
        state.apply(
            state.delta([state.combine(parts)] if parts else [], EpochTimes(0, high, epoch), EVERY)[0], epoch, "a"
        )
    left = state.prior_state(EVERY)
    assert left is not None and not state.statistics()["entries"].any() and not left.over()
    state.release(1, 500)
    assert left.over()
