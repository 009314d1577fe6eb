"""State of everyday words through moves and restarts, with deltas that come twice, against the same in dictionaries."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ferry
from ferry.contract.descriptors import OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.limits import WATERMARK_END, WATERMARK_NONE
from ferry.process.api import Process
from ferry.process.distinct import Distinct
from ferry.process.distinct_values import functions_of
from ferry.process.sessions import SessionAggregate
from ferry.process.shapes import shape_of
from ferry.process.top import TopRows
from ferry.process.windowed import KeyAggregate, WindowAggregate
from tests.unit.store.test_process import (
    EVERY,
    INPUT,
    VNODES,
    close,
    fragments,
    move,
    opened,
    restarted,
    rows_of,
    share,
    table_of,
)
from tests.unit.store.test_process import epochs as drawn

KEY = (("k", "int"),)
READ = pa.schema([INPUT.field(name) for name in ("k", "t", "seq", "n", "text")])

SETS = functions_of({"texts": ferry.count_distinct("text"), "d": ferry.count_distinct("n"), "most": ferry.max("n")})
WORDS: dict[str, tuple[Process, str | None]] = {
    "distinct": (Distinct(7), "seq"),
    "count_distinct in windows": (WindowAggregate(20, 5, SETS), None),
    "count_distinct in sessions": (SessionAggregate(6, SETS), None),
    "count_distinct": (KeyAggregate(SETS), None),
    "top_n": (TopRows(20, 5, 2, ["n"], {"n": "n", "text": "text"}), None),
}
"""Each with the order of its records."""


@pytest.mark.parametrize("word", WORDS)
@given(drawn, st.data())
@settings(max_examples=15, deadline=None)
def test_as_in_dictionaries(tmp_path_factory: pytest.TempPathFactory, word: str, given_: Any, data: Any) -> None:
    """Two instances lead half of the virtual nodes each and are replicas of the others; they change roles and restart."""
    process, order = WORDS[word]
    shape = shape_of("p", process, pa.schema([("k", pa.int64())]), [READ], order)
    descriptor = OperatorDescriptor("p", 0, "process", KEY, Window(1, 1), process=shape)
    paths = [tmp_path_factory.mktemp("state") for _ in range(2)]
    states = [opened(descriptor, path) for path in paths]
    for state in states:
        state.whole(EVERY)
    harness = ferry.ProcessHarness(process, READ, "k", time="t", order=order)
    low, seq = WATERMARK_NONE, 0
    for epoch, (rows, step) in enumerate([*given_, ([], None)]):
        high = WATERMARK_END if step is None else max(low, 0) + step
        batch = table_of(rows, seq)
        seq += len(rows)
        missed_before = harness.late
        expected = harness.epoch(pa.Table.from_batches([batch]), watermark=high)
        leads = data.draw(st.lists(st.booleans(), min_size=VNODES, max_size=VNODES))
        halves = [EVERY[np.array(leads)], EVERY[~np.array(leads)]]
        times = EpochTimes(low, high, epoch, 0)
        merged = states[0].combine(fragments(descriptor, batch))
        deltas = [state.delta([share(merged, half)], times, half) for state, half in zip(states, halves, strict=True)]
        for delta, _ in deltas:
            for state in states:
                state.apply(delta, epoch, "x")
                state.apply(delta, epoch, "x")
        if data.draw(st.booleans()):
            move(states, descriptor)
        if data.draw(st.booleans()):
            states = restarted(states, descriptor, paths)
        fired = Counter[str]()
        for state, half in zip(states, halves, strict=True):
            fired += rows_of(list(state.fired(times, half)))
        assert fired == rows_of(expected)
        assert sum(late for _, late in deltas) == harness.late - missed_before
        low = high
        for state in states:
            state.release(epoch, low)
    left = sum(state.statistics()["entries"].sum() for state in states)
    assert left == 2 * len(harness.rows("state")) if isinstance(process, KeyAggregate) else not left, (
        "all of it is over"
    )
    close(states)
