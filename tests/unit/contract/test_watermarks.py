"""Watermarks of flows, inputs and operators equal a model that keeps every record, in whatever order receipts come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.notes import EpochNotes, Receipt
from ferry.contract.watermarks import FlowClock, advanced, input_watermark, next_idle, operator_watermark

DELAY = 10
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Epoch:
    """What one epoch brings: records as (input, flow, event time), which flows have more, and how long it took to come."""

    records: list[tuple[int, str, int]]
    waiting: list[tuple[int, str]]
    passed: int


@dataclass
class Model:
    """Every record and every sign of life of two inputs with flows, remembered with the time of its epoch."""

    idle_ms: int | None
    low: int = WATERMARK_NONE
    now: int = 0
    signs: list[tuple[int, str, int]] = field(default_factory=list)
    times: list[tuple[int, str, int]] = field(default_factory=list)

    def after(self, epoch: Epoch) -> int:
        self.now += epoch.passed
        if not self.signs:
            self.signs += [(side, flow, self.now) for side in (0, 1) for flow in NAMES]
        self.signs += [(side, flow, self.now) for side, flow in epoch.waiting]
        self.signs += [(side, flow, self.now) for side, flow, _ in epoch.records]
        self.times += epoch.records
        highs = [high for side in (0, 1) if (high := self.high(side)) is not None]
        self.low = max(self.low, min(highs)) if highs else self.low
        return self.low

    def high(self, side: int) -> int | None:
        last = {flow: max(at for s, f, at in self.signs if (s, f) == (side, flow)) for flow in NAMES}
        awake = [flow for flow in NAMES if self.idle_ms is None or self.now - last[flow] < self.idle_ms]
        brought = [[t for s, f, t in self.times if (s, f) == (side, flow)] for flow in awake]
        return min((max(times) - DELAY if times else WATERMARK_NONE for times in brought), default=None)


FLOW = st.tuples(st.sampled_from([0, 1]), st.sampled_from(NAMES))
EPOCHS = st.lists(
    st.builds(
        Epoch,
        st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from(NAMES), st.integers(-100, 100)), max_size=6),
        st.lists(FLOW, max_size=2),
        st.integers(0, 9),
    ),
    max_size=12,
)


def receipts_of(epoch: Epoch, chance: random.Random) -> list[Receipt]:
    """What any division of the records among tasks says, in any order; the flows go with one of them."""
    flows = {side: dict.fromkeys(NAMES, False) for side in (0, 1)}
    for side, flow in epoch.waiting:
        flows[side][flow] = True
    maxima: list[dict[int, dict[str, int]]] = [{} for _ in range(3)]
    for side, flow, at in epoch.records:
        mine = chance.choice(maxima).setdefault(side, {})
        mine[flow] = max(mine.get(flow, at), at)
    made = [Receipt(i, maxima=one) for i, one in enumerate(maxima)]
    made.append(Receipt(9, flows=flows))
    chance.shuffle(made)
    return made


@given(EPOCHS, st.sampled_from([None, 1, 5, 20]), st.randoms(use_true_random=False))
def test_the_watermark_is_that_of_a_model_that_remembers_everything(
    epochs: list[Epoch], idle_ms: int | None, chance: random.Random
) -> None:
    model, notes, low, now = Model(idle_ms), EpochNotes(), WATERMARK_NONE, 0
    idle = {} if idle_ms is None else {0: idle_ms, 1: idle_ms}
    for epoch in epochs:
        now += epoch.passed
        notes = EpochNotes.load(notes.add(0, receipts_of(epoch, chance), [], now, idle).dump())
        clocks = [notes.maxima[0].get(side, {}) for side in (0, 1)]
        before, high = low, operator_watermark([input_watermark(c, DELAY, idle_ms, now) for c in clocks])
        low = max(low, high)  # as the coordinator does
        assert low == model.after(epoch) and low >= before


@given(EPOCHS, st.sampled_from([None, 5]), st.randoms(use_true_random=False))
def test_how_records_are_divided_among_tasks_does_not_matter(
    epochs: list[Epoch], idle_ms: int | None, chance: random.Random
) -> None:
    one = other = EpochNotes()
    idle = {} if idle_ms is None else {0: idle_ms}
    for now, epoch in enumerate(epochs):
        one = one.add(0, receipts_of(epoch, chance), [], now, idle)
        other = other.add(0, receipts_of(epoch, random.Random(1)), [], now, idle)
        assert one.dump() == other.dump()


def test_a_source_without_flows_is_one() -> None:
    clocks = advanced({"a": FlowClock(5), "b": FlowClock(None)}, {"": 7}, None, None, 0)
    assert clocks == {"": FlowClock(7)} and advanced(clocks, {}, None, None, 1) == clocks
    assert advanced(clocks, {"x": 8, "y": 9}, None, None, 1) == {"": FlowClock(9)}, "markers of nobody's flows"
    assert advanced({}, {}, None, None, 1) == {} and input_watermark({}, 0, None, 1) == WATERMARK_NONE
    flows = advanced(clocks, {"a": 3}, {"a": False}, None, 2)
    assert flows == {"a": FlowClock(3)}, "a source that got flows does not wait for what it was before"


def test_a_flow_that_is_not_listed_any_more_is_forgotten_when_it_is_idle() -> None:
    clocks = advanced({}, {"a": 5, "b": 6}, {"a": False, "b": False}, 100, 0)
    clocks = advanced(clocks, {"b": 7}, {"b": False}, 100, 99)
    assert clocks == {"a": FlowClock(5, 0), "b": FlowClock(7, 99)}
    assert advanced(clocks, {"b": 8}, {"b": False}, 100, 100).keys() == {"b"}
    assert advanced(clocks, {"b": 8}, {"a": False, "b": False}, 100, 100).keys() == {"a", "b"}
    assert advanced(clocks, {"b": 8}, {"b": False}, None, 100).keys() == {"a", "b"}, "without a timeout none is"


def test_an_input_of_which_no_flow_is_known_has_a_timeout_too() -> None:
    clocks = advanced({}, {}, {}, 100, 0)
    assert [input_watermark(clocks, 0, 100, now) for now in (99, 100)] == [WATERMARK_NONE, None]
    assert advanced(clocks, {}, {}, 100, 50) == clocks
    assert advanced(clocks, {}, {"a": False}, 100, 60) == {"a": FlowClock(None, 60)}


def test_the_last_flows_of_which_nobody_keeps_a_list_stay_idle() -> None:
    clocks = advanced({}, {"a": 5, "b": 6}, {}, 100, 0)
    for now in (100, 150, 500):
        clocks = advanced(clocks, {}, {}, 100, now)
        assert clocks == {"a": FlowClock(5, 0), "b": FlowClock(6, 0)} and input_watermark(clocks, 0, 100, now) is None
    assert advanced(clocks, {"c": 7}, {}, 100, 600) == {"c": FlowClock(7, 600)}


def test_a_clock_that_was_put_back_makes_a_flow_idle_no_later_than_its_timeout_from_then_on() -> None:
    clocks = advanced({"": FlowClock(5, 1000)}, {}, None, 100, 300)
    assert clocks == {"": FlowClock(5, 300)}


@pytest.mark.parametrize(
    ("highs", "high"), [([], WATERMARK_NONE), ([None, None], WATERMARK_NONE), ([None, 9], 9), ([8, 9, None], 8)]
)
def test_inputs_that_are_idle_do_not_count(highs: list[int | None], high: int) -> None:
    assert operator_watermark(highs) == high


def test_the_next_flow_to_become_idle_is_the_one_heard_first_of_those_awake() -> None:
    clocks = {"a": FlowClock(1, 100), "b": FlowClock(2, 150), "c": FlowClock(None, 200)}
    assert [next_idle(clocks, 50, then) for then in (149, 150, 200, 250)] == [150, 200, 250, None]
    assert next_idle({"": FlowClock(1)}, 50, 0) is None
