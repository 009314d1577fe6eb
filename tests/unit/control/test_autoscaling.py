"""Decisions about the size of a job: what they rest on, that they hold still, and a day of load with as few of them as can be."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.names import InstanceId
from ferry.contract.status import ReportedProblem
from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry_operator.control.autoscaling import AWAITED_SECONDS, History, Hold, ScalingAdvice, advise, held_up
from ferry_operator.control.observed import Worker
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.control.scaling_sizes import LASTING_SECONDS, ScalingPolicy
from ferry_operator.job.size import Size
from tests.unit.control.test_decide import ALIVE, GROUPS, REST
from tests.unit.statuses import status_of

NOTHING = Hold()
POLICY = ScalingPolicy(min=1, max=16, utilisation=0.7, cooldown=180.0)
EACH = 1000.0
"""Records a second that one instance can work on."""


def work(rate: float, backlog: int | None = 0, arriving: float | None = None) -> WorkReport:
    return WorkReport(WORK_SECONDS, rate, rate if arriving is None else arriving, backlog, 0.0, rate / EACH)


def size(workers: int, instances: int = 1) -> Size:
    return Size(workers, instances)


def lasting(found: WorkReport | None, at: Size, policy: ScalingPolicy = POLICY, held: Hold = NOTHING) -> ScalingAdvice:
    """The decision after this load has lasted for long enough."""
    history, seconds = None, policy.cooldown + LASTING_SECONDS
    for now in (0.0, LASTING_SECONDS, seconds):
        advice, history = advise(policy, at, found, held, history, now)
    return advice


# ---- one decision
@pytest.mark.parametrize(
    ("found", "at", "reason", "workers"),
    [
        (work(700), 1, "Fits", 1),
        (work(760), 1, "Fits", 1),
        (work(780), 1, "ScaleOut", 2),
        (work(990, 0, 4000), 1, "ScaleOut", 6),
        (work(1000, None), 1, "ScaleOut", 2),
        (work(1400), 2, "Fits", 2),
        (work(650), 2, "Fits", 2),
        (work(620), 2, "ScaleIn", 1),
        (work(0), 4, "ScaleIn", 1),
        (work(600, 50_000), 1, "Fits", 1),
        (work(1000, 180_000, 1000), 1, "ScaleOut", 2),
        (work(50_000), 16, "AtMaximum", 16),
        (work(2000, 0, 50_000), 2, "ScaleOut", 16),
        (None, 2, "NotMeasured", 2),
        (replace(work(5000), seconds=WORK_SECONDS - 1), 2, "NotMeasured", 2),
        (work(0, 1_000_000), 2, "NotMeasured", 2),
        (None, 20, "Bounds", 16),
    ],
)  # fmt: skip
def test_the_size_follows_the_true_rate(found: WorkReport | None, at: int, reason: str, workers: int) -> None:
    """Offered records are divided by what a worker can work on in the share of its time that is planned with."""
    advice = lasting(found, size(at))
    assert (advice.report.reason, advice.target) == (reason, size(workers)), advice.report.message
    assert advice.acts == (reason in ("ScaleOut", "ScaleIn", "Bounds"))


def test_tasks_and_instances_take_turns() -> None:
    """A worker that is busy with tasks for half of the time has half of it for its instances."""
    both = WorkReport(WORK_SECONDS, 1000.0, 1000.0, None, tasks=2.0, instances=1.0)
    kube = replace(POLICY, slots=2)
    assert lasting(both, size(2), kube).report.used == 1.0
    assert lasting(both, size(2), kube).target == size(3)
    assert lasting(both, size(2), POLICY).report.used == 0.5, "on one machine workers bring no slots"


def test_cores_that_are_free_are_used_first() -> None:
    roomy = replace(POLICY, instances_max=4)
    assert lasting(work(780), size(1), roomy).target == size(1, 2)
    assert lasting(work(2000), size(1), roomy).target == size(1, 3)
    assert lasting(work(3500), size(1, 4), roomy).target == size(2, 4)
    assert lasting(work(4000), size(4, 1), roomy).target == size(2, 3), "also instead of workers"
    assert lasting(work(600), size(3, 2), roomy).target == size(1, 1), "and workers go first"
    assert lasting(work(1500), size(3, 1), roomy).report.reason == "Fits"
    tasks = WorkReport(WORK_SECONDS, 1000.0, 1000.0, None, tasks=1.6, instances=0.0)
    assert lasting(tasks, size(1), replace(roomy, slots=2)).target == size(2, 1), "where instances are not what lacks"
    assert lasting(work(2000), size(1), replace(roomy, virtual_nodes=32)).target == size(2, 2), "each leads something"


def test_nothing_is_decided_while_the_job_is_not_at_rest() -> None:
    advice = lasting(work(5000), size(1), held=Hold("state is on its way"))
    assert (advice.report.reason, advice.acts, advice.target) == ("Waiting", False, size(1))
    assert advice.report.message == "nothing is decided: state is on its way"


def test_the_reason_has_all_inputs() -> None:
    report = lasting(work(990, 1200, 4000), size(1)).report
    for words in (
        "1 x 1 -> 6 x 1",
        "4,000 records/s arrive",
        "1,200 wait",
        "1,000/s at most",
        "needs 400%",
        "target is 70%",
    ):
        assert words in report.message
    assert (report.true_rate, report.busy_instances, report.backlog, report.target) == (1000.0, 0.99, 1200, 0.7)


def test_a_change_waits_for_the_one_before() -> None:
    advice, history = advise(POLICY, size(1), work(900), NOTHING, None, 0.0)
    assert (advice.report.reason, advice.acts) == ("Cooldown", False)
    advice, history = advise(POLICY, size(1), work(900), NOTHING, history, 180.0)
    assert advice.acts
    _, history = advise(POLICY, size(2), work(900), Hold("state is on its way"), history, 181.0)
    advice, history = advise(POLICY, size(2), work(5000, None), NOTHING, history, 200.0)
    assert advice.report.reason == "Cooldown", "whoever has changed it"
    advice, _ = advise(POLICY, size(2), work(5000, None), NOTHING, history, 361.0)
    assert advice.acts


def test_a_short_burst_is_waited_out() -> None:
    history: History | None = None
    for now in range(0, 1000, 5):
        burst = 400 <= now < 400 + LASTING_SECONDS
        advice, history = advise(POLICY, size(2), work(3000 if burst else 1200), NOTHING, history, float(now))
        assert not advice.acts


def test_fewer_only_when_they_were_enough_all_the_time() -> None:
    history: History | None = None
    for now in range(0, 1000, 10):
        rate = 1500 if now == 500 else 100
        advice, history = advise(POLICY, size(3), work(rate), NOTHING, history, float(now))
        assert advice.acts == (200 <= now < 500 or now >= 710), (now, advice.report)
        assert not advice.acts or advice.target == size(1)
    _, history = advise(POLICY, size(3), work(1200), NOTHING, None, 0.0)
    _, history = advise(POLICY, size(3), work(1100), NOTHING, history, 100.0)
    advice, history = advise(POLICY, size(3), work(100), NOTHING, history, 200.0)
    assert advice.target == size(2), "the most that was needed counts"
    _, history = advise(POLICY, size(3), work(100), Hold("a driver starts"), history, 201.0)
    assert advise(POLICY, size(3), work(100), NOTHING, history, 202.0)[0].report.reason == "LoadIsLow"


def test_advice_is_given_once_and_holds_as_if_it_had_been_followed() -> None:
    policy, history, told = replace(POLICY, mode="advise"), None, []
    for now in range(0, 2000, 10):
        load = work(5000) if now < 1000 else work(100)
        advice, history = advise(policy, size(2), load, NOTHING, history, float(now))
        assert not advice.acts
        if advice.report.reason in ("ScaleOut", "ScaleIn"):
            told.append((now, advice.target))
    assert told == [(180, size(8)), (1200, size(1))]
    assert advise(policy, size(3), work(100), NOTHING, history, 2000.0)[0].target == size(3), (
        "the user has chosen another one"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"status": None}, "no driver answers"),
        ({"status": status_of(GROUPS, ALIVE, settled=False)}, "state is on its way"),
        ({"status": status_of(GROUPS, ALIVE, members_gone=1)}, "state is on its way"),
        ({"status": status_of(GROUPS, ALIVE, prepared="plan 3 begins with epoch 90")}, "plan 3 begins with epoch 90"),
        (
            {"status": status_of(GROUPS, ALIVE, rolled_back="nobody is there")},
            "a plan was rolled back: nobody is there",
        ),
        ({"status": status_of(GROUPS, ALIVE, finished=True)}, "all input was read"),
        ({"drains": (1,)}, "workers 1 are emptied"),
        ({"missing": {"1.0": 0.1}}, "worker 1 is awaited"),
        ({"missing": {"0.0": 500.0, "1.0": 500.0}}, "workers 0, 1 are awaited"),
        ({"status": status_of(GROUPS, ALIVE, problems=(ReportedProblem("SinkFailing", "no", 0.0),))},
         "a failing action is tried again: SinkFailing"),
        ({"workers": (Worker(0, 1, True), Worker(1, 1, False))}, "workers come or go"),
        ({"workers": tuple(Worker(k, 1, True) for k in range(3))}, "workers come or go"),
    ],
)  # fmt: skip
def test_what_is_not_at_rest_is_not_judged(changes: dict[str, object], why: str) -> None:
    assert held_up(replace(REST, **changes)).why == why  # type: ignore[arg-type]


def test_bounds_hold_whatever_is_awaited_but_not_against_who_has_the_last_word() -> None:
    assert advise(POLICY, size(20), None, Hold("worker 3 is awaited"), None, 0.0)[0].report.reason == "Bounds"
    paused, _ = advise(POLICY, size(20), None, Hold("the job is paused", "nothing"), None, 0.0)
    assert (paused.report.reason, paused.acts, paused.target) == ("Waiting", False, size(20))


def test_a_worker_that_does_not_come_may_be_let_go() -> None:
    hold = held_up(replace(REST, missing={InstanceId("1.0"): AWAITED_SECONDS}))
    assert hold == Hold("worker 1 is awaited, and may be let go", "shrink")
    assert lasting(work(300), size(2), held=hold).target == size(1)
    more = lasting(work(5000), size(2), held=hold)
    assert (more.report.reason, more.acts) == ("Waiting", False), "another one would not come either"
    assert held_up(replace(REST, missing={InstanceId("0.0"): AWAITED_SECONDS})).may == "bounds", (
        "others would be let go"
    )


def test_workers_with_a_gap_are_all_there() -> None:
    two = replace(REST, workers=(Worker(0, 1, True), Worker(2, 1, True)), gaps=(1,))
    assert held_up(replace(two, gaps=())).why == "workers come or go"
    assert held_up(two) == NOTHING
    assert held_up(replace(two, missing={InstanceId("2.0"): AWAITED_SECONDS})).may == "shrink"


def test_a_submitted_plan_has_its_size_for_itself() -> None:
    usable, placements = ["0.0", "1.0"], [["0.0", "1.0"], ["1.0", "0.0"]]
    plan = PlanFile(job="counts", size=size(2), before=size(3), replicas=1, usable=usable, placements=placements)
    hold = held_up(replace(REST, plan_file=plan))
    assert hold.may == "nothing" and "the submitted plan is for this size" in hold.why
    surged = replace(REST, plan_file=plan, wanted=replace(REST.wanted, size=Size(3, 1)))
    assert held_up(surged).may == "nothing", "while a worker of it is replaced, too"


def test_instances_beyond_the_cores_stay() -> None:
    policy = replace(POLICY, slots=4, instances_max=2, cooldown=30.0)
    full = WorkReport(WORK_SECONDS, 1000.0, 2000.0, 10_000, 0.0, 7.9)
    assert lasting(full, size(2, 4), policy).report.reason == "ScaleOut"
    assert lasting(full, size(2, 4), policy).target.instances == 4
    assert lasting(work(100), size(4, 4), policy).target == size(1, 4)


def test_fewer_never_while_something_is_left_behind_or_all_is_busy_with_epochs() -> None:
    behind = WorkReport(WORK_SECONDS, 500.0, 700.0, 9000, 0.0, 0.1)
    assert lasting(replace(behind, arriving_per_second=500.0, backlog=0), size(4)).report.reason == "ScaleIn"
    assert lasting(behind, size(4)).report.reason == "Fits"
    epochs = WorkReport(WORK_SECONDS, 500.0, 500.0, 0, 0.0, 0.1, epochs=3.0, instance_epochs=3.0)
    assert lasting(epochs, size(4)).report.reason == "Fits"
    assert lasting(replace(epochs, instance_epochs=0.0), size(4)).report.reason == "ScaleIn", (
        "tasks have their own time"
    )


def test_a_backlog_beside_idle_workers_gets_no_more() -> None:
    """A sink that is slow, or `maxRows`: workers would wait for it, too."""
    history, now = None, 0
    for now in range(0, 20_000, 50):
        slow = WorkReport(WORK_SECONDS, 1000.0, 1200.0, 200 * now + 1000, 0.0, 0.2)
        advice, history = advise(POLICY, size(2), slow, NOTHING, history, float(now))
        assert not advice.acts
    assert advice.report.reason == "NotLimitedByWorkers"
    assert lasting(replace(slow, instances=1.9), size(2)).report.reason == "ScaleOut", "these are busy"


def test_what_did_not_help_is_not_done_again() -> None:
    history, at, sizes = None, size(2), []
    for now in range(0, 4000, 10):
        hot = WorkReport(WORK_SECONDS, 1000.0, 1500.0, 500 * now + 1, 0.0, 0.9 * at.workers)
        advice, history = advise(POLICY, at, hot, NOTHING, history, float(now))
        if advice.acts:
            at = advice.target
            sizes.append(at.workers)
    assert len(sizes) == 1 and advice.report.reason == "NotLimitedByWorkers"
    helped = replace(hot, records_per_second=1400.0)
    assert advise(POLICY, at, helped, NOTHING, history, 4000.0)[0].acts


def test_a_maximum_that_is_reached_is_told_when_it_lasts_and_does_not_flutter() -> None:
    noise, history, told = random.Random(1), None, []
    policy = replace(POLICY, max=2, cooldown=60.0)
    for now in range(0, 3600, 5):
        load = work(1540 * noise.uniform(0.95, 1.05))
        advice, history = advise(policy, size(2), load, NOTHING, history, float(now))
        told.append(advice.report.reason)
    assert "AtMaximum" not in told[:4]
    turns = sum(one != other for one, other in pairwise(told))
    assert turns <= 3, told


def test_a_clock_that_is_set_back_and_long_words_do_no_harm() -> None:
    _, history = advise(POLICY, size(2), None, NOTHING, None, 100.0)
    report = advise(POLICY, size(2), None, Hold("x" * 5000), history, 40.0)[0].report
    assert report.size_seconds == 0 and len(report.message) == 4096
    _, history = advise(POLICY, size(2), work(5000), NOTHING, history, 1e6)
    _, history = advise(POLICY, size(2), work(5000), NOTHING, history, 200.0)
    assert advise(POLICY, size(2), work(5000), NOTHING, history, 400.0)[0].acts, "it counts from there"


# ---- laws
loads = st.builds(
    WorkReport,
    seconds=st.just(WORK_SECONDS),
    records_per_second=st.floats(1, 1e6),
    arriving_per_second=st.floats(0, 1e6),
    backlog=st.none() | st.integers(0, 10**9),
    tasks=st.floats(0, 64),
    instances=st.floats(0, 64),
)
policies = st.builds(
    lambda low, more, **values: ScalingPolicy(min=low, max=low + more, **values),
    st.integers(1, 6),
    st.integers(0, 20),
    utilisation=st.floats(0.05, 1.0),
    cooldown=st.floats(1, 1000),
    slots=st.integers(0, 8),
    instances_max=st.integers(1, 4),
)
sizes = st.builds(Size, st.integers(1, 30), st.integers(1, 4))


@given(policies, loads, sizes)
def test_the_size_stays_within_its_bounds(policy: ScalingPolicy, load: WorkReport, at: Size) -> None:
    target = lasting(load, at, policy).target
    assert policy.min <= target.workers <= policy.max
    assert target.instances in range(1, max(policy.instances_max, at.instances) + 1)


def same_load(load: WorkReport) -> WorkReport:
    """As it is measured when it is kept up with: the same records cost the same."""
    grows = load.arriving_per_second / load.records_per_second
    rate = load.arriving_per_second
    return WorkReport(WORK_SECONDS, rate, rate, 0, load.tasks * grows, load.instances * grows)


@given(policies, loads, sizes)
def test_one_step_is_enough(policy: ScalingPolicy, load: WorkReport, at: Size) -> None:
    """DS2's promise: the same load changes nothing after the change."""
    load = same_load(replace(load, arriving_per_second=max(load.arriving_per_second, 1.0)))
    first = lasting(load, at, policy)
    at = lasting(load, first.target, policy).target if first.report.reason == "Bounds" else first.target
    assert lasting(load, at, policy).target == at


@given(policies, loads, sizes, st.floats(1, 10))
def test_more_load_never_gets_less(policy: ScalingPolicy, load: WorkReport, at: Size, factor: float) -> None:
    policy = replace(policy, instances_max=1)
    more = replace(load, arriving_per_second=load.arriving_per_second * factor)
    assert lasting(load, at, policy).target <= lasting(more, at, policy).target


@settings(deadline=None)
@given(st.integers(0, 2**32), st.floats(10, 11_000), st.integers(1, 16))
def test_noise_changes_nothing_twice(seed: int, rate: float, workers: int) -> None:
    """A constant load with 9 % of noise: sizes go up, or down to where they stay."""
    noise, history, chosen = random.Random(seed), None, [workers]
    for now in range(0, 7200, 10):
        load = work(rate * noise.uniform(0.91, 1.09))
        advice, history = advise(POLICY, size(chosen[-1]), load, NOTHING, history, float(now))
        if advice.acts:
            chosen.append(advice.target.workers)
    ups = sum(a < b for a, b in pairwise(chosen))
    assert len(chosen) <= 4 and all(a < b for a, b in pairwise(chosen[: ups + 1])), chosen
    assert all(a > b for a, b in pairwise(chosen[ups:])), "never back to what there was"


# ---- a day
@dataclass
class Replay:
    """A queue before workers that can do EACH records a second; a rescale takes a while, and nothing is measured then."""

    policy: ScalingPolicy
    load: Callable[[float], float]
    workers: int
    noise: random.Random
    now: float = 0.0
    backlog: float = 0.0
    longest: float = 0.0
    """seconds that a record waited"""
    open_until: float = 0.0
    rescales: list[tuple[float, int]] = field(default_factory=list)

    STEP = 5.0
    MOVES = 25.0

    def run(self, seconds: float) -> None:
        history, window = None, deque[tuple[float, float]](maxlen=int(WORK_SECONDS / self.STEP))
        while self.now < seconds:
            offered = self.load(self.now) * self.noise.uniform(0.95, 1.05) * self.STEP
            before, able = self.backlog, self.workers * EACH * self.STEP
            done = min(self.backlog + offered, able)
            self.backlog += offered - done
            self.longest = max(self.longest, self.backlog / (self.workers * EACH))
            self.now += self.STEP
            held = Hold("state is on its way" if self.now < self.open_until else "")
            window = deque(maxlen=window.maxlen) if held.why else window
            window.append((done / self.STEP, (self.backlog - before) / self.STEP))
            rate, grows = (sum(column) / len(window) for column in zip(*window, strict=True))
            busy = rate / EACH * self.noise.uniform(0.98, 1.02)
            found = WorkReport(len(window) * self.STEP, rate, rate + grows, int(self.backlog), 0.0, busy)
            advice, history = advise(self.policy, size(self.workers), found, held, history, self.now)
            if advice.acts:
                self.workers = advice.target.workers
                self.rescales.append((self.now, self.workers))
                self.open_until = self.now + self.MOVES


def diurnal(second: float) -> float:
    """Least at 4 in the morning."""
    return 3000.0 - 2200.0 * math.cos((second / 86_400 - 1 / 6) * 2 * math.pi)


def day(seed: int) -> Callable[[float], float]:
    """With a few bursts of half an hour, and short ones that nobody needs to follow."""
    chance = random.Random(seed)
    long = [(chance.uniform(0, 84_000), 1800.0, chance.uniform(1.5, 2.2)) for _ in range(3)]
    short = [(chance.uniform(0, 86_000), 8.0, 1.6) for _ in range(12)]

    def load(second: float) -> float:
        return diurnal(second) * max([1.0, *(by for at, lasts, by in (*long, *short) if at <= second < at + lasts)])

    return load


def steps(seed: int) -> Callable[[float], float]:
    """Another level every hour."""
    chance = random.Random(seed)
    levels = [chance.uniform(300, 9000) for _ in range(25)]
    return lambda second: levels[int(second // 3600)]


def needed(load: Callable[[float], float], minute: int) -> int:
    """Workers, for what lasts for this minute."""
    steady = min(load(60.0 * minute), load(60.0 * minute + 59))
    return max(1, math.ceil(steady / (EACH * POLICY.utilisation)))


def real_changes(load: Callable[[float], float]) -> int:
    """How often what the load needs becomes another number of workers, noise and short bursts left out."""
    return sum(needed(load, minute) != needed(load, minute + 1) for minute in range(1440))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("trace", [day, steps])
def test_a_day_is_followed_with_few_changes(trace: Callable[[int], Callable[[float], float]], seed: int) -> None:
    load = trace(seed)
    replay = Replay(POLICY, load, needed(load, 0), random.Random(seed))
    replay.run(86_400)
    assert len(replay.rescales) <= real_changes(load) + 2, replay.rescales
    for (at, one), (_, other), (last, third) in zip(
        replay.rescales, replay.rescales[1:], replay.rescales[2:], strict=False
    ):
        assert not (one == third != other and last - at < 3 * POLICY.cooldown), "thrash"
    assert replay.backlog < EACH, "all that came was read"
    assert replay.longest < 240
    hours = sum(load(60.0 * minute) for minute in range(1440)) / 60 / (EACH * POLICY.utilisation)
    print(seed, trace.__name__, len(replay.rescales), real_changes(load), replay.longest, hours)


def test_a_load_that_does_not_change_needs_one_change() -> None:
    replay = Replay(POLICY, lambda second: 4321.0, 2, random.Random(7))
    replay.run(86_400)
    assert [workers for _, workers in replay.rescales] in ([7], [8, 7], [8])
