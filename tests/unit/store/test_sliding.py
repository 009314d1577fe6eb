"""Windows that end together in large numbers: equal to each window on its own, and at a cost that grows with the panes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.epoch_times import EpochTimes
from ferry.store import aggregate
from ferry.store.aggregate import AggregateState
from ferry.store.slices import Slices
from tests.unit.store import test_aggregate as aggregates
from tests.unit.store.test_aggregate import INT_KEY, PAIR_KEY, RECORDS, TEXT_KEY, expected_windows, fired, partials

EACH_ALONE = 1 << 40


def state_of(descriptor: OperatorDescriptor, records: list[Any], directory: Path, vnodes: int = 4) -> AggregateState:
    state = AggregateState(descriptor, vnodes, directory)
    delta, _ = state.delta(partials(descriptor, records), EpochTimes(-1000, -1000))
    state.apply(delta)
    return state


@settings(max_examples=60, deadline=None)
@given(
    RECORDS,
    st.sampled_from([Window(30, 10), Window(25, 10), Window(7, 3), Window(60, 1), Window(40, 40)]),
    st.sampled_from([INT_KEY, TEXT_KEY, PAIR_KEY]),
    st.integers(-30, 60),
    st.integers(1, 120),
    st.sampled_from([(1, 1), (3, 4)]),
    st.sampled_from([1, 3, 1000]),
    st.booleans(),
)
def test_windows_together_are_the_windows_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[Any],
    window: Window,
    key: Any,
    low: int,
    length: int,
    runs: tuple[int, int],
    max_rows: int,
    gap: bool,
) -> None:
    """In every function, also with gaps between records, in several runs, and with pieces of few rows."""
    if gap:
        records = [(r[0] + (300 if r[1] % 2 else 0), *r[1:]) for r in records]
        length += 300
    descriptor = aggregates.shape_of(key, window)
    state = state_of(descriptor, records, tmp_path_factory.mktemp("s"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregate, "SLID_ROWS", 5)
        patch.setattr(aggregate, "SLIDE_MIN", runs[0])
        patch.setattr(aggregate, "SLIDE_TIMES", runs[1])
        together = fired(state, low, low + length, max_rows=max_rows)
        patch.setattr(aggregate, "SLIDE_MIN", EACH_ALONE)
        assert fired(state, low, low + length, max_rows=max_rows) == together
    assert together == expected_windows(descriptor, records, low, low + length)


COUNT = OperatorDescriptor(
    "op", 0, "aggregate", (("k", "int"),), Window(2000, 2), (Aggregate("n", "count"), Aggregate("s", "sum", "x"))
)


def test_many_panes_of_many_virtual_nodes_take_little_memory(tmp_path: Path) -> None:
    """The totals of all panes were held side by side: of 50,000 panes and 32,768 virtual nodes, 26 GB."""
    window = Window(400, 2)
    descriptor = OperatorDescriptor("op", 0, "aggregate", (("k", "int"),), window, COUNT.aggregates)
    state = state_of(descriptor, [(t, 1, 1, 0, 0) for t in range(0, 400, 2)], tmp_path, vnodes=4096)
    list(state.fired(EpochTimes(0, 8), np.arange(4096)))
    tracemalloc.start()
    try:
        assert sum(batch.num_rows for batch in state.fired(EpochTimes(0, 400), np.arange(4096))) == 200
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_small_slides_cost_by_panes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,500 windows of 1,000 panes: each window read each of its panes, 42 s for 35,000 rows."""
    records = [(t, 1 + t % 3, 1, 0, 0) for t in range(0, 3000, 2)]
    state, looks, read = state_of(COUNT, records, tmp_path), [0], [0]
    table, pane = Slices.table, AggregateState._pane

    def counted_table(self: Slices, start: int) -> Any:
        looks[0] += 1
        return table(self, start)

    def counted_pane(self: AggregateState, *arguments: Any) -> Any:
        rows = pane(self, *arguments)
        read[0] += rows.n.size
        return rows

    monkeypatch.setattr(Slices, "table", counted_table)
    monkeypatch.setattr(AggregateState, "_pane", counted_pane)
    sums: dict[int, int] = {}
    for batch in state.fired(EpochTimes(0, 3000), np.arange(4)):
        for row in batch.to_pylist():
            sums[row["window_start"]] = sums.get(row["window_start"], 0) + row["n"]
    assert sums == {start: (start + 2000 - max(0, start)) // 2 for start in range(-1998, 1001, 2)}
    assert read[0] <= 2 * 1500 and looks[0] <= 4 * 1500
    looks[0] = 0
    assert state.fired_count(EpochTimes(0, 3000), np.arange(4)) >= 1500
    assert looks[0] <= aggregate.COUNT_SLICES_MAX
