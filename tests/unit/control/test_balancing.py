"""When load moves by itself, and when it does not: rows of the rule, and replays of hours of noisy looks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry.contract.status import Status
from ferry_operator.control import balancing
from ferry_operator.control import decide as d
from ferry_operator.control.balancing import Advice, BalancePolicy
from ferry_operator.control.observed import Basis, Observed, Submitted, Wanted, Worker
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.control.timers import LookTimers
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.quantities import Duration
from ferry_operator.job.size import Size
from ferry_operator.placement.planner import Slot
from ferry_operator.placement.strategies import HandoverPolicy
from tests.unit.statuses import status_of, with_fields

AUTO = BalancePolicy("auto", gain=0.1, horizon=600.0)
Rates = list[float]


def zipf(vnodes: int, s: float = 1.5, keys: int = 20_000, seed: int = 1) -> Rates:
    """Records per second of each virtual node when keys are so skewed and lie anywhere."""
    weights, where = [1 / k**s for k in range(1, keys + 1)], random.Random(seed)
    rates, whole = [0.0] * vnodes, sum(weights)
    for weight in weights:
        rates[where.randrange(vnodes)] += 30_000 * weight / whole
    return rates


def slots(workers: int) -> list[Slot]:
    return [Slot(f"{k}.0", k, f"node {k}") for k in range(workers)]


def spread(vnodes: int, workers: int) -> Submitted:
    """As a new job is placed: by number."""
    placements = tuple((InstanceId(f"{v % workers}.0"), InstanceId(f"{(v + 1) % workers}.0")) for v in range(vnodes))
    return Submitted(Plan(1, placements), 1, Basis(tuple(InstanceId(f"{k}.0") for k in range(workers)), 1, ()))


def at_rest(rates: Rates, submitted: Submitted, size: float = 1e6, **changes: Any) -> Status:
    groups = [(list(map(str, placement)), list[str]()) for placement in submitted.plan.placements]
    loads = [(rate, size) for rate in rates]
    told: dict[str, Any] = {"vnodes": loads, "desired": submitted.plan.number, "quiet_seconds": 1e6, **changes}
    return status_of(groups, sorted(submitted.basis.usable), **told)


def seen(rates: Rates, workers: int, policy: BalancePolicy = AUTO, **changes: Any) -> Observed:
    submitted = spread(len(rates), workers)
    return Observed(
        wanted=Wanted(Size(workers, 1), 1, balance=policy),
        workers=tuple(Worker(k, 1, True, seconds=1000.0) for k in range(workers)),
        driver=True,
        status=at_rest(rates, submitted, **changes),
        submitted=submitted,
    )


def advised(rates: Rates, workers: int, policy: BalancePolicy = AUTO, **changes: Any) -> Advice:
    found = d.advice(seen(rates, workers, policy, **changes))
    assert found is not None
    return found


def levels(rates: Rates, advice: Advice) -> dict[str, float]:
    by_leader: dict[str, float] = {}
    for rate, placement in zip(rates, advice.placements, strict=True):
        by_leader[placement[0]] = by_leader.get(placement[0], 0.0) + rate
    return by_leader


# ---- the rule
def test_skew_is_evened_out_as_far_as_one_virtual_node_can_be_led_by_one_instance_only() -> None:
    rates = zipf(64)
    found = advised(rates, 3)
    least = max(1.0, 3 * max(rates) / sum(rates))
    assert found.worth and found.before > 1.25 and found.after < 1.2 and found.after < 1.02 * least
    assert max(levels(rates, found).values()) / (sum(rates) / 3) == pytest.approx(found.after)
    assert f"{found.before:.2f} to {found.after:.2f}" in found.reason


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_hot_virtual_node_ends_on_an_instance_of_its_own(workers: int) -> None:
    rates = [10.0] * 64
    rates[7] = 3 * sum(rates) / workers
    found = advised(rates, workers)
    hot = found.placements[7][0]
    assert found.worth and [v for v, p in enumerate(found.placements) if p[0] == hot] == [7]
    others = [level for i, level in levels(rates, found).items() if i != hot]
    assert max(others) <= 1.1 * sum(others) / len(others)


def test_a_worker_that_can_do_more_gets_more() -> None:
    one = seen([100.0] * 60, 3)
    weak, *others = one.workers
    found = d.advice(replace(one, workers=(replace(weak, capacity=0.5), *others)))
    assert found is not None and found.worth and found.before == pytest.approx(20 / 0.5 / (60 / 2.5))
    shares = levels([1.0] * 60, found)
    assert shares == {"0.0": 12.0, "1.0": 24.0, "2.0": 24.0} and found.after == pytest.approx(1.0)


def test_what_costs_more_than_it_gains_is_not_done() -> None:
    rates = [150.0] * 16 + [50.0] * 16
    rates = [rates[v // 2 + 16 * (v % 2)] for v in range(32)]  # the even ones, which worker 0 leads, are hot
    free = advised(rates, 2, costs=(0.0, 0.0))
    assert free.before == pytest.approx(1.5) and free.after < 1.04 and free.seconds == 0 and free.vnodes >= 4
    gained = (1 - free.after / free.before) * AUTO.horizon
    just, over = gained / free.vnodes / 1.001, gained / free.vnodes * 1.001
    assert advised(rates, 2, costs=(0.0, just)).worth
    dear = advised(rates, 2, costs=(0.0, over))
    assert not dear.worth and "costs more" in dear.reason and dear.seconds == pytest.approx(gained * 1.001)
    assert not advised(rates, 2, replace(AUTO, horizon=AUTO.horizon / 1.01), costs=(0.0, just)).worth


def test_bytes_that_would_be_copied_cost_what_was_measured_or_supposed() -> None:
    rates = [300.0] + [10.0] * 7
    rates[4] = 300.0
    known, unknown = (advised(rates, 4, size=1e9, costs=costs) for costs in ((1e-9, 0.0), (None, None)))
    assert known.vnodes and known.seconds == pytest.approx(known.bytes * 1e-9)
    supposed = known.bytes * balancing.SECONDS_PER_BYTE + known.vnodes * balancing.SECONDS_PER_SWITCHOVER
    assert unknown.seconds == pytest.approx(supposed)


def test_a_gain_below_what_is_asked_for_is_none() -> None:
    rates = [120.0 if v % 2 == 0 else 80.0 for v in range(32)]
    assert advised(rates, 2).worth
    found = advised(rates, 2, replace(AUTO, gain=0.2))
    assert not found.worth and "20%" in found.reason
    assert not advised([100.0] * 32, 2).worth, "there is nothing to gain"
    assert not advised([rate / 300 for rate in rates], 2).worth, "of some records a second nothing is known"


@pytest.mark.parametrize(("busy", "worth"), [(0, False), (1, False), (2, True), (3, True)])
def test_virtual_nodes_for_which_nothing_comes_are_no_trouble(busy: int, worth: bool) -> None:
    found = advised([1000.0 if v % 4 == 0 and v // 4 < busy else 0.0 for v in range(32)], 4)
    assert found.worth == worth and found.before == (4.0 if busy else 1.0)


rates_of = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.sampled_from([1.0, 1e6])), min_size=1, max_size=40)


@settings(deadline=None)
@given(
    rates_of, st.integers(1, 5), st.lists(st.sampled_from([0.05, 0.25, 1.0, 8.0]), min_size=5, max_size=5), st.data()
)
def test_whatever_comes_an_advice_is_an_improvement_or_none(
    rates: Rates, workers: int, capacities: list[float], data: st.DataObject
) -> None:
    one = seen(rates, workers, size=data.draw(st.sampled_from([0.0, 1e9])))
    one = replace(one, workers=tuple(replace(w, capacity=capacities[w.index]) for w in one.workers))
    found = d.advice(one)
    assert found is not None and found.before >= 1 - 1e-9 and found.seconds >= 0
    if found.worth:
        assert found.after <= 0.9 * found.before * (1 + 1e-9) and found.placements != one.submitted.plan.placements  # type: ignore[union-attr]
        again = d.advice(one, found.placements)
        assert again is not None and again.worth and again.steady
        submitted = replace(one.submitted, plan=Plan(1, found.placements))  # type: ignore[type-var]
        there = d.advice(replace(one, status=at_rest(rates, submitted), submitted=submitted))
        assert there is not None and not there.worth, "there is nothing left to gain"


def test_pins_stay() -> None:
    one = seen(zipf(64), 3)
    assert one.submitted is not None and one.status is not None
    pinned = [(v, InstanceId("2.0")) for v in (2, 5, 8)]
    basis = replace(one.submitted.basis, pins=tuple(pinned))
    found = d.advice(replace(one, pins=tuple(pinned), submitted=replace(one.submitted, basis=basis)))
    assert found is not None and [found.placements[v][0] for v, _ in pinned] == ["2.0"] * 3


def test_the_spec_says_it_in_its_words() -> None:
    assert balancing.policy_of(BalanceSpec()) == BalancePolicy("advise", 0.1, 600.0)
    given = BalanceSpec(mode="auto", gain="25%", horizon=Duration("90s"))
    assert balancing.policy_of(given) == BalancePolicy("auto", 0.25, 90.0)
    assert balancing.policy_of(BalanceSpec(gain="5%"), BalancePolicy("auto", 0.25, 90.0)) == BalancePolicy(
        "auto", 0.05, 90.0
    )


# ---- when it is done
def ripe(one: Observed) -> Observed:
    return replace(one, advice=d.advice(one), uneven=balancing.RIPE_SECONDS)


def submits(one: Observed) -> list[d.Action]:
    return [action for action in d.decide(one) if isinstance(action, d.SubmitDesired)]


UNEVEN = ripe(seen(zipf(64), 3))


def status_with(one: Observed, **changes: Any) -> Observed:
    assert one.status is not None
    return replace(one, status=with_fields(one.status, **changes))


def test_a_ripe_advice_becomes_the_next_plan_cut_as_the_job_says() -> None:
    wanted = replace(UNEVEN.wanted, handover=HandoverPolicy("fluid"))
    (plan,) = d.decide(replace(UNEVEN, wanted=wanted))
    assert isinstance(plan, d.SubmitDesired) and UNEVEN.advice is not None
    assert plan.plan.number == 2 and plan.plan.placements == UNEVEN.advice.placements
    assert all(len({*step.copies, *step.switchovers}) == 1 for step in plan.plan.steps) and len(plan.plan.steps) > 1
    assert plan.why == UNEVEN.advice.reason


def handed_in(one: Observed) -> Observed:
    """Somebody else's placements are in force, and carried out."""
    assert one.submitted is not None
    usable, placements = list(one.submitted.basis.usable), list(map(list, one.submitted.plan.placements))
    size = one.wanted.size
    file = PlanFile(job="counts", size=size, before=size, replicas=1, usable=usable, placements=placements)
    basis = replace(one.submitted.basis, plan_file=file.name)
    return replace(one, plan_file=file, submitted=replace(one.submitted, basis=basis))


def _learners(one: Observed) -> Observed:
    assert one.status is not None
    (in_sync, _), *others = one.status.groups
    return status_with(one, groups=[(in_sync, ["2.0"]), *others], settled=False)


def _weak(one: Observed) -> Observed:
    assert one.status is not None
    (in_sync, _), *others = one.status.groups
    return status_with(one, groups=[(in_sync[:1], []), *others])


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(lambda one: replace(one, advice=None), id="nobody has looked"),
        pytest.param(lambda one: replace(one, uneven=balancing.RIPE_SECONDS - 0.1), id="not for long enough"),
        pytest.param(lambda one: status_with(one, quiet_seconds=599.0), id="groups changed within the horizon"),
        pytest.param(lambda one: status_with(one, settled=False), id="a plan is under way"),
        pytest.param(lambda one: _learners(one), id="a copy is made"),
        pytest.param(lambda one: _weak(one), id="a group lacks a copy"),
        pytest.param(lambda one: status_with(one, prepared="plan 2 begins with epoch 900"), id="a plan is prepared"),
        pytest.param(lambda one: status_with(one, given_up=1), id="moves were given up"),
        pytest.param(lambda one: status_with(one, members_gone=1), id="members are gone"),
        pytest.param(lambda one: status_with(one, desired=3), id="a plan is in force that is not known here"),
        pytest.param(lambda one: status_with(one, finished=True), id="the input has ended"),
        pytest.param(lambda one: replace(one, missing={InstanceId("1.0"): 1.0}), id="an instance was away"),
        pytest.param(
            lambda one: replace(one, wanted=replace(one.wanted, balance=BalancePolicy("advise"))), id="advise"
        ),
        pytest.param(lambda one: replace(one, wanted=replace(one.wanted, balance=BalancePolicy("off"))), id="off"),
    ],
)
def test_nothing_moves_for_balance(held: Callable[[Observed], Observed]) -> None:
    assert submits(UNEVEN) and not any(isinstance(one, d.SubmitDesired) and one.why for one in d.decide(held(UNEVEN)))


@pytest.mark.parametrize(
    "open_",
    [
        lambda one: status_with(one, settled=False),
        lambda one: status_with(one, prepared="plan 2 begins with epoch 900"),
        lambda one: status_with(one, finished=True),
        lambda one: replace(one, drains=(3,), wanted=replace(one.wanted, size=Size(4, 1))),
        lambda one: replace(one, wanted=replace(one.wanted, size=Size(4, 1)), missing={InstanceId("3.0"): 0.0}),
        lambda one: status_with(one, rolled_back="no sign of 1.0"),
        lambda one: replace(one, wanted=replace(one.wanted, replicas=2)),
        lambda one: replace(one, pins=((3, InstanceId("1.0")),)),
        lambda one: replace(one, wanted=replace(one.wanted, balance=BalancePolicy("off"))),
        lambda one: handed_in(one),
    ],
    ids=[
        "moving",
        "prepared",
        "over",
        "drained",
        "a worker is to come",
        "rolled back",
        "more copies",
        "a pin",
        "off",
        "a plan that was handed in",
    ],
)
def test_there_is_no_advice_while_something_is_open(open_: Callable[[Observed], Observed]) -> None:
    assert d.advice(UNEVEN) is not None and d.advice(open_(UNEVEN)) is None


# ---- for hours
class Hours:
    """A job whose operator looks every five seconds; plans are carried out at once, and rates are smoothed as drivers do."""

    def __init__(self, rates: Rates, workers: int, policy: BalancePolicy = AUTO) -> None:
        self.policy = policy
        self.timers = LookTimers()
        self.now = self.changed = 0.0
        self.one = seen(rates, workers, policy)
        self.smooth = list(rates)
        self.plans: list[float] = []
        self.advised: list[Advice | None] = []

    def look(self, rates: Rates, seconds: float = 5.0) -> None:
        self.now += seconds
        weight = -math.expm1(-seconds / 20.0)
        self.smooth = [weight * rate + (1 - weight) * old for rate, old in zip(rates, self.smooth, strict=True)]
        assert self.one.submitted is not None
        found = at_rest(self.smooth, self.one.submitted, quiet_seconds=self.now - self.changed)
        self.one = self.timers.timed(replace(self.one, status=found), self.now)
        self.advised.append(self.one.ripe)
        for action in d.decide(self.one):
            assert isinstance(action, d.SubmitDesired) and action.why
            self.one = replace(self.one, submitted=action.accepted())
            self.changed = self.now
            self.plans.append(self.now)

    def imbalance(self, rates: Rates) -> float:
        assert self.one.submitted is not None
        return balancing.imbalance(
            slots(self.one.wanted.size.workers),
            [balancing.Load(rate, 0.0) for rate in rates],
            self.one.submitted.plan.placements,
        )


@pytest.mark.parametrize("seed", range(6))
def test_noise_moves_nothing_once_it_is_balanced(seed: int) -> None:
    """Four hours in which every virtual node gets from half to twice its share of records at any moment."""
    draw, rates = random.Random(seed), zipf(64, seed=seed)
    hours = Hours(rates, 3)
    for _ in range(2880):
        hours.look([rate * math.exp(draw.uniform(-0.7, 0.7)) for rate in rates])
    assert hours.plans == [p for p in hours.plans if p < 3600] and len(hours.plans) <= 2, hours.plans
    assert hours.imbalance(rates) < 1.2 * max(1.0, 3 * max(rates) / sum(rates))


def test_a_hot_spot_that_wanders_is_not_run_after() -> None:
    """Every ten seconds another virtual node has half of all records: what is worth a move now is not in half a minute."""
    draw, hours = random.Random(3), Hours([100.0] * 64, 4)
    for look in range(720):
        if look % 2 == 0:
            hot = draw.randrange(64)
        hours.look([6400.0 if v == hot else 100.0 for v in range(64)])
    assert not hours.plans


def test_a_hot_spot_that_moves_on_for_good_is_followed_and_at_most_once_in_a_horizon() -> None:
    hours = Hours([100.0] * 64, 4)
    for look in range(2160):
        hot = 17 * (look // 360) % 64
        hours.look([2100.0 if v == hot else 100.0 for v in range(64)])
    assert 3 <= len(hours.plans) <= 12
    assert all(later - earlier >= AUTO.horizon for earlier, later in zip(hours.plans, hours.plans[1:]))


def test_another_operator_waits_anew_and_follows_the_same_advice() -> None:
    rates = zipf(64)
    hours = Hours(rates, 3)
    hours.changed = -1000.0
    for _ in range(5):
        hours.look(rates)
    assert not hours.plans
    hours.timers = LookTimers()
    for _ in range(6):
        hours.look(rates)
    assert not hours.plans, "only the old one had seen it for long enough"
    hours.look(rates)
    assert len(hours.plans) == 1


def test_an_advice_is_told_when_it_is_ripe_and_no_more_when_it_is_not() -> None:
    rates, hours = zipf(64), Hours(zipf(64), 3, replace(AUTO, mode="advise"))
    for _ in range(12):
        hours.look(rates)
    assert [one is not None for one in hours.advised] == [False] * 6 + [True] * 6 and not hours.plans
    even = [sum(rates) / 64] * 64
    for _ in range(40):
        hours.look(even)
    assert hours.advised[-1] is None


def test_a_move_that_is_worth_it_only_later_is_ripe_later() -> None:
    """The same placement is the best of few records, which say nothing, and of many."""
    hours, few = Hours([rate / 2000 for rate in zipf(64)], 3), [rate / 2000 for rate in zipf(64)]
    hours.changed = -1000.0
    for _ in range(10):
        hours.look(few)
    assert hours.one.advice is not None and not hours.one.advice.worth and not hours.plans
    for _ in range(20):
        hours.look(zipf(64))
    assert len(hours.plans) == 1


def test_what_was_advised_for_other_instances_counts_no_more() -> None:
    """The job became smaller between two looks."""
    timers, rates = LookTimers(), zipf(64)
    assert timers.timed(seen(rates, 4), 100.0).advice is not None
    assert timers.timed(seen(rates, 4), 120.0).uneven == 20.0
    smaller = timers.timed(seen(rates, 3), 140.0)
    assert smaller.advice is not None and smaller.advice.worth and smaller.uneven == 0.0


def test_looks_in_quick_succession_do_not_plan_again() -> None:
    timers, one = LookTimers(), UNEVEN
    first = timers.timed(one, 100.0).advice
    assert first is timers.timed(status_with(one, vnodes=[(1.0, 1.0)] * 64), 101.9).advice
    assert first is not timers.timed(one, 102.0).advice
    assert timers.timed(status_with(one, version=(2, 1), settled=False), 102.1).advice is None, "another table"
