"""Paced streams follow the clock: what is due depends on the time alone, and each record says when it was created."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.connectors.splits import Splits
from ferry.contract.errors import SpecRefused
from ferry_workloads import pacing
from ferry_workloads.jobs import arguments
from ferry_workloads.keys import KeysGenerator, KeysSplits
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits
from ferry_workloads.pacing import ArrivalPace, PacedSplits, paced

TRIANGLE = [(2.0, 0.0, 1000.0), (2.0, 1000.0, 0.0)]
STEPS = st.tuples(st.floats(0.1, 30), st.floats(0, 1e5), st.floats(0, 1e5)).filter(lambda one: one[1] + one[2] >= 1)


class Clock:
    """In place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr(pacing.time, "time", lambda: self.now)
        monkeypatch.setattr(pacing.time, "time_ns", lambda: round(self.now * 1e9))


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4), st.floats(0, 200))
def test_what_is_due_was_created_before_and_what_was_created_is_due(steps: list[Any], now: float) -> None:
    pace = ArrivalPace.of(None, steps)
    due = pace.due(now)
    near = np.arange(max(due - 3, 0), due + 4)
    created = pace.seconds(near)
    assert (np.diff(created) >= -1e-9).all()
    slack = 1e-6 * max(now, 1.0)
    assert (created[near < due] <= now + slack).all()
    assert (created[near > due + 1] >= now - slack).all()


def test_a_rate_a_step_and_a_triangle() -> None:
    assert [ArrivalPace.of(100.0, ()).due(t) for t in (-1, 0, 0.5, 2, 1000)] == [0, 0, 50, 200, 100_000]
    assert ArrivalPace.of(100.0, ()).seconds(np.array([0, 50, 150])).tolist() == [0.0, 0.5, 1.5]
    steps = ArrivalPace.of(None, [(10, 100), (1, 5000)])
    assert [steps.due(t) for t in (10, 10.5, 11, 21, 22)] == [1000, 3500, 6000, 7000, 12_000]
    assert [ArrivalPace.of(None, TRIANGLE).due(t) for t in (0, 1, 2, 3, 4, 5)] == [0, 250, 1000, 1750, 2000, 2250]


def test_a_long_epoch_makes_a_backlog_and_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1_800_000_000.0)
    source = paced(KeysSplits(KeysGenerator(rate=1000)))
    at = start = source.start()
    records: list[pa.RecordBatch] = []
    for until, most in ((0.1, 500), (3.1, 500), (3.1, 5000), (3.1, 5000), (3.2, 5000)):
        clock.now = 1_800_000_000.0 + until
        later = source.latest(at, most)
        records += [batch for split in source.plan(at, later, 2) for batch in source.read(split)]
        at = later
    made = pa.Table.from_batches(records)
    assert made["seq"].to_pylist() == [*range(3200)] and at == {**start, "read": 3200}
    assert made["created"].to_pylist() == [1_800_000_000_000 + n for n in range(3200)]
    assert source.latest(at, 5000) == at, "nothing is due before its time"


def test_a_driver_that_begins_again_goes_on_by_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1000.0)
    source = paced(KeysSplits(KeysGenerator()), 10.0)
    clock.now += 5
    planned = source.latest(source.start() | {"since": 1_000_000_000}, 100)
    clock.now += 60
    another = paced(KeysSplits(KeysGenerator()), 10.0)
    begin = another.start()
    assert begin["since"] != planned["since"], "nobody had planned anything"
    (split,) = another.plan(begin, planned, 1)
    assert split["since"] == planned["since"] and another.latest(planned, 10_000)["read"] == 650


def test_columns_are_those_that_are_asked_for() -> None:
    source = paced(NexmarkSplits(NexmarkGenerator(rate=1e5), "bid"))
    assert isinstance(source, Splits) and source.creation_time in source.schema().names
    (split,) = source.plan({"since": 5_000_000, "read": 0}, {"since": 5_000_000, "read": 500}, 1)
    (all_of_them,) = source.read(split)
    assert all_of_them.schema.equals(source.schema())
    for columns in (["created"], ["auction", "created"], ["price"], ["created", "seq", "ts"], []):
        (some,) = source.read(split, columns)
        assert some.schema.names == columns and some.num_rows == all_of_them.num_rows
        assert some.equals(all_of_them.select(columns))
    assert all(a <= b for a, b in pairwise(all_of_them["created"].to_pylist()))


def test_an_end_stays_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 50.0)
    source = paced(KeysSplits(KeysGenerator(events=30)), 10.0)
    begin = source.start()
    clock.now += 2
    now = source.latest(begin, 100)
    assert source.finite and now["read"] == 20 and not source.ended(now)
    clock.now += 10
    assert source.ended(source.latest(now, 100)) and source.latest(now, 100)["read"] == 30


@pytest.mark.parametrize(
    ("rate", "profile"),
    [(0.0, ()), (-1.0, ()), (float("nan"), ()), ("fast", ()), (True, ()), (None, [(0, 5)]), (None, [(5,)]), (1.0, [(1, 1)])],
)  # fmt: skip
def test_what_is_no_pace_is_refused(rate: Any, profile: Any) -> None:
    with pytest.raises(SpecRefused, match=r"^paced: "):
        paced(KeysSplits(KeysGenerator()), rate, profile)


def test_a_source_of_several_flows_is_refused() -> None:
    with pytest.raises(SpecRefused, match="read as one flow"):
        paced(KeysSplits(KeysGenerator(events=10)).in_flows(2))


def test_arguments_of_a_job_make_it_follow_the_clock() -> None:
    def source(**args: Any) -> Any:
        return arguments.paced(NexmarkSplits(arguments.generator(NexmarkGenerator, args), "bid"), args)

    assert isinstance(source(rate=5000.0), NexmarkSplits)
    made = source(pace=2000)
    assert isinstance(made, PacedSplits) and made.pace.due(2.0) == 4000 and made.source.generator.rate == 2000
    assert source(pace=2000, rate=500.0).source.generator.rate == 500
    assert source(profile=[[1, 10], [1, 30]]).pace.due(2.0) == 40


def test_what_is_due_and_not_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 50.0)
    source = paced(KeysSplits(KeysGenerator(events=30)), 10.0)
    begin = source.start()
    clock.now += 2
    assert source.lag(begin) == 20 and source.lag(source.latest(begin, 5)) == 15
    clock.now += 10
    assert source.lag(begin) == 30, "no more than there are"
