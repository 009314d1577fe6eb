"""`decide`: one row of the table for each rule, and a small world in which its actions must come to rest."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.plans import Plan
from ferry_operator.control import decide as d
from ferry_operator.control import driver_client
from ferry_operator.control.observed import Basis, Observed, Submitted, Wanted, Worker
from ferry_operator.job.size import Size
from ferry_operator.placement.strategies import HandoverPolicy
from tests.unit.statuses import status_of

Groups = list[tuple[list[str], list[str]]]


def worker(index: int, running: bool = True, instances: int = 1, failures: int = 0, seconds: float = 100.0) -> Worker:
    return Worker(index, instances, running, failures, seconds)


ALIVE = ["0.0", "1.0"]
GROUPS: Groups = [(["0.0", "1.0"], []), (["1.0", "0.0"], [])]
PLACEMENTS: Any = (("0.0", "1.0"), ("1.0", "0.0"))
BASIS: Any = Basis(("0.0", "1.0"), 1, ())  # type: ignore[arg-type]
REST = Observed(
    wanted=Wanted(Size(2, 1), replicas=1),
    workers=(worker(0), worker(1)),
    driver=True,
    status=status_of(GROUPS, ALIVE),
    submitted=Submitted(Plan(1, PLACEMENTS), 1, BASIS),
)
"""A job in which nothing has to be done."""


def kinds(actions: list[d.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def test_nothing_is_done_when_all_is_as_it_should_be() -> None:
    assert d.decide(REST) == []


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(
            replace(REST, workers=(), status=None, submitted=None, driver=False),
            [d.StartWorker(0, 1), d.StartWorker(1, 1), d.StartDriver()],
            id="a new job: everything is started at once",
        ),
        pytest.param(replace(REST, workers=(worker(0),)), [d.StartWorker(1, 1)], id="a worker that is not there"),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, running=False, instances=3)), wanted=Wanted(Size(2, 2), 1)),
            [d.SetInstances(0, 2), d.StartWorker(1, 2)],
            id="a dead worker comes back with the wanted number of instances",
        ),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, running=False, failures=3, seconds=0.7))),
            [],
            id="a worker that fails again and again waits (0.2, 0.4, 0.8 s)",
        ),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, running=False, failures=3, seconds=0.8))),
            [d.StartWorker(1, 1)],
            id="and is started after that",
        ),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, running=False, failures=30, seconds=5.0))),
            [d.StartWorker(1, 1)],
            id="at most 5 s",
        ),
        pytest.param(replace(REST, driver=False, status=None), [d.StartDriver()], id="no driver"),
        pytest.param(replace(REST, driver=False, status=None, driver_may_start=False), [], id="its back-off is not over"),
        pytest.param(
            replace(REST, status=None, submitted=None), [], id="a driver that does not answer yet is told nothing"
        ),
        pytest.param(
            replace(REST, status=None, workers=(worker(0), worker(1), worker(4, running=False))),
            [],
            id="a dead worker that nobody wants stays dead",
        ),
        pytest.param(
            replace(REST, status=None, submitted=None, workers=(*REST.workers, worker(4, running=False, instances=2))),
            [d.StartWorker(4, 2)],
            id="unless a job is resumed: its state may be the last copy",
        ),
        pytest.param(
            replace(
                REST,
                workers=(*REST.workers, worker(4, running=False, instances=3)),
                status=status_of([*GROUPS, (["4.1"], [])], ALIVE),
                submitted=replace(REST.submitted, plan=Plan(1, (*PLACEMENTS, ("0.0", "1.0")))),  # type: ignore[type-var]
            ),
            [d.StartWorker(4, 2)],
            id="or a group has nobody else",
        ),
        pytest.param(
            replace(
                REST,
                workers=(worker(0), worker(1, running=False, instances=2)),
                status=status_of([*GROUPS, (["1.1"], [])], [*ALIVE, "1.1"]),
                submitted=replace(REST.submitted, plan=Plan(1, (*PLACEMENTS, ("0.0", "1.0")))),  # type: ignore[type-var]
            ),
            [d.StartWorker(1, 2)],
            id="also when the status is older than the end of the worker",
        ),
        pytest.param(
            replace(
                REST,
                status=status_of([*GROUPS, (["1.1"], [])], ALIVE),
                submitted=replace(REST.submitted, plan=Plan(1, (*PLACEMENTS, ("0.0", "1.0")))),  # type: ignore[type-var]
            ),
            [d.SetInstances(1, 2)],
            id="or when it was started with fewer instances before there was a status",
        ),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, running=False)), drains=(1,), status=status_of(GROUPS, ["0.0"])),
            ["SubmitDesired"],
            id="a drained worker that died is not started again",
        ),
        pytest.param(
            replace(REST, status=status_of(GROUPS, ["0.0"]), missing={"1.0": 9.9}),  # type: ignore[dict-item]
            [],
            id="an instance that is missing for a moment is waited for",
        ),
        pytest.param(
            replace(REST, status=status_of(GROUPS, ["0.0"]), missing={"1.0": 10.0}),  # type: ignore[dict-item]
            ["SubmitDesired"],
            id="and planned without after 10 s",
        ),
        pytest.param(
            replace(REST, workers=(worker(0), worker(1, seconds=59)), status=status_of(GROUPS, ["0.0"]), missing={"1.0": 50.0}),  # type: ignore[dict-item]
            [],
            id="but not while its worker may still be compiling",
        ),
        pytest.param(replace(REST, submitted=None), ["SubmitDesired"], id="nothing was submitted yet"),
        pytest.param(
            replace(REST, status=status_of(GROUPS, ALIVE, generation=2, desired=0)),
            ["SubmitDesired"],
            id="a new driver knows of no placement",
        ),
        pytest.param(
            replace(REST, wanted=Wanted(Size(2, 1), 0)), ["SubmitDesired"], id="another number of copies is wanted"
        ),
        pytest.param(replace(REST, pins=((0, "1.0"),)), ["SubmitDesired"], id="a virtual node was pinned"),  # type: ignore[arg-type]
        pytest.param(
            replace(REST, pins=((0, "7.0"),)), [], id="a pin on an instance that is not there waits"  # type: ignore[arg-type]
        ),
        pytest.param(replace(REST, drains=(1,)), ["SubmitDesired"], id="a worker was drained"),
        pytest.param(
            replace(REST, status=status_of([(["0.0"], []), (["1.0", "0.0"], [])], ALIVE, settled=False)),
            [],
            id="a group under strength is left alone while groups change",
        ),
        pytest.param(
            replace(
                REST,
                status=status_of([(["0.0"], []), (["1.0", "0.0"], [])], ALIVE),
                submitted=Submitted(Plan(1, (("0.0",), ("1.0", "0.0"))), 1, BASIS),  # type: ignore[arg-type]
            ),
            ["SubmitDesired"],
            id="and is filled when nobody else will",
        ),
        pytest.param(
            replace(
                REST,
                status=status_of([(["0.0"], []), (["1.0", "0.0"], [])], ALIVE, settled=False, given_up=1),
                submitted=Submitted(Plan(1, (("0.0",), ("1.0", "0.0"))), 1, BASIS),  # type: ignore[arg-type]
            ),
            ["SubmitDesired"],
            id="or when the driver has given up what it was about",
        ),
        pytest.param(replace(REST, status=status_of(GROUPS, ALIVE, finished=True), drains=(1,)), [], id="a finished job"),
    ],
)  # fmt: skip
def test_one_rule(observed: Observed, expected: list[Any]) -> None:
    actions = d.decide(observed)
    assert (kinds(actions) if expected and isinstance(expected[0], str) else actions) == expected
    assert d.decide(observed) == actions, "the same observation gives the same answer"


def test_workers_are_the_lowest_numbers_without_the_gaps() -> None:
    three = replace(REST, workers=(*REST.workers, worker(2)), gaps=(1,), status=status_of(GROUPS, [*ALIVE, "2.0"]))
    assert three.expected() == ["0.0", "2.0"]
    found = submitted(three)
    assert {i for placement in found.plan.placements for i in placement} == {"0.0", "2.0"}
    empty = status_of([(["0.0", "2.0"], []), (["2.0", "0.0"], [])], [*ALIVE, "2.0"], desired=2)
    moved = replace(three, submitted=found.accepted(), status=empty)
    assert d.decide(moved) == [d.StopWorker(1)]
    assert d.decide(replace(moved, workers=(worker(0), worker(2)))) == []
    assert d.decide(replace(moved, workers=(worker(0),))) == [d.StartWorker(2, 1)]


def submitted(observed: Observed) -> d.SubmitDesired:
    (found,) = [a for a in d.decide(observed) if isinstance(a, d.SubmitDesired)]
    return found


def test_a_pinned_vnode_is_led_where_it_is_pinned_and_keeps_its_former_leader() -> None:
    found = submitted(replace(REST, pins=((0, "1.0"),)))  # type: ignore[arg-type]
    assert found.plan.placements[0] == ("1.0", "0.0")


def test_a_virtual_node_waits_for_a_window_only_where_that_holds_up_no_repair() -> None:
    three: Any = (*ALIVE, "2.0")
    one = replace(
        REST, wanted=Wanted(Size(3, 1), 1), workers=(*REST.workers, worker(2)), status=status_of(GROUPS, list(three)),
        submitted=Submitted(Plan(1, PLACEMENTS), 1, replace(BASIS, usable=three)), pins=((0, "2.0"), (1, "1.0")),  # type: ignore[arg-type]
        at_window=(0, 1),
    )  # fmt: skip
    found = submitted(one)
    assert found.plan.at_window == (0,), "the other one is there already"
    assert found.plan.placements[0] == ("2.0", "0.0") and found.basis.at_window == (0, 1)
    assert driver_client.from_wire(driver_client.to_wire(found, 1), 1) == found.accepted(), "by the next one, too"
    assert submitted(replace(one, at_window=())).plan.at_window == ()
    weak: Groups = [(["0.0"], []), GROUPS[1]]
    assert submitted(replace(one, status=status_of(weak, list(three)))).plan.at_window == (), "a copy is missing"
    kept = replace(one, status=status_of(GROUPS, list(three), unbounded="operator n has no window"))
    assert submitted(kept).plan.at_window == ()
    assert d.decide(replace(one, submitted=found.accepted(), status=status_of(GROUPS, list(three), desired=2))) == []


def test_a_new_number_is_above_what_the_driver_and_the_last_placement_have() -> None:
    assert submitted(replace(REST, drains=(1,))).plan.number == 2
    assert submitted(replace(REST, drains=(1,), status=status_of(GROUPS, ALIVE, desired=9))).plan.number == 10


LATER = HandoverPolicy("fluid", gap=2, warm=False, at_epoch=90, at_time=7)


def test_a_plan_is_cut_and_due_as_the_job_wants_it() -> None:
    three = [*ALIVE, "2.0"]
    wanted = Wanted(Size(3, 1), 1, LATER)
    plan = submitted(
        replace(REST, wanted=wanted, workers=(*REST.workers, worker(2)), status=status_of(GROUPS * 3, three))
    ).plan
    assert len(plan.steps) > 1 and (plan.gap, plan.warm, plan.at_epoch, plan.at_time) == (2, False, 90, 7)


def prepared(**changes: Any) -> Observed:
    """A scale to three workers waits for its epoch."""
    usable: Any = (*ALIVE, "2.0")
    waits = Submitted(Plan(2, PLACEMENTS, at_epoch=90, at_time=7), 1, replace(BASIS, usable=usable))
    told = {"prepared": "plan 2 begins with epoch 90", "desired": 2, "settled": False} | changes
    looks = status_of(GROUPS, list(usable), **told)
    three = (*REST.workers, worker(2))
    return replace(REST, wanted=Wanted(Size(3, 1), 1, LATER), workers=three, status=looks, submitted=waits)


def test_what_is_prepared_waits() -> None:
    assert d.decide(prepared()) == []
    assert d.decide(replace(prepared(), submitted=None)) == [], "the driver has not said what it is that waits"


def test_what_repairs_is_due_at_once_and_warm() -> None:
    plan = submitted(prepared(members_gone=1)).plan
    assert (plan.number, plan.at_epoch, plan.at_time, plan.warm) == (3, 0, None, True)
    again = replace(prepared(members_gone=1), submitted=Submitted(Plan(3, PLACEMENTS), 1, prepared().submitted.basis))  # type: ignore[union-attr]
    assert d.decide(again) == [], "it was told"


def test_the_first_plan_and_one_that_empties_a_worker_are_due_at_once() -> None:
    first = replace(REST, wanted=Wanted(Size(2, 1), 1, LATER), submitted=None)
    assert submitted(first).plan.at_epoch == 0
    assert submitted(replace(prepared(), drains=(2,))).plan.at_epoch == 0


def test_a_date_may_be_changed_and_taken_back() -> None:
    for policy, due in ((HandoverPolicy(), (0, None)), (HandoverPolicy(at_epoch=50), (50, None))):
        plan = submitted(replace(prepared(), wanted=Wanted(Size(3, 1), 1, policy))).plan
        assert (plan.number, plan.at_epoch, plan.at_time) == (3, *due)


def test_a_placement_names_only_living_instances_that_stay() -> None:
    three = [*ALIVE, "2.0", "2.1"]
    found = submitted(replace(REST, wanted=Wanted(Size(3, 1), 1), drains=(0,), status=status_of(GROUPS, three)))
    assert {i for p in found.plan.placements for i in p} == {"1.0", "2.0"}


LEAVING = replace(REST, workers=(worker(0), worker(1), worker(2, instances=2)))


@pytest.mark.parametrize(
    ("changes", "stopped"),
    [
        ({}, True),
        ({"status": status_of([*GROUPS, (["0.0", "2.0"], [])], ALIVE)}, False),
        ({"status": status_of([*GROUPS, (["0.0", "1.0"], ["2.1"])], ALIVE)}, False),
        ({"submitted": Submitted(Plan(1, (*PLACEMENTS, ("2.0", "1.0"))), 1, BASIS)}, False),
        ({"status": status_of(GROUPS, ALIVE, desired=0)}, False),
        ({"status": None}, False),
        ({"status": status_of(GROUPS, ALIVE, generation=2, desired=0)}, False),
        ({"status": status_of(GROUPS, ALIVE, generation=2, desired=1)}, True),
    ],
    ids=[
        "holds nothing",
        "replica",
        "learner",
        "in the placement",
        "placement not in force",
        "unknown",
        "new driver",
        "new driver with the plan of the one before",
    ],
)
def test_a_worker_is_released_only_when_it_holds_nothing(changes: dict[str, Any], stopped: bool) -> None:
    actions = d.decide(replace(LEAVING, **changes))
    assert (d.StopWorker(2) in actions) == stopped


def test_instances_end_only_after_they_were_emptied() -> None:
    workers = (worker(0, instances=3), worker(1))
    held = replace(REST, workers=workers, status=status_of([*GROUPS, (["0.1", "1.0"], [])], [*ALIVE, "0.1", "0.2"]))
    assert d.SetInstances(0, 2) in d.decide(held)
    told = replace(held, workers=(worker(0, instances=2), worker(1)))
    assert not any(isinstance(action, d.SetInstances) for action in d.decide(told)), "it was told already"
    assert d.decide(replace(REST, workers=workers)) == [d.SetInstances(0, 1)]


class World:
    """Obeys actions a little late, as a cluster does: starts take a round, groups change step by step."""

    def __init__(self, vnodes: int) -> None:
        self.wanted = Wanted(Size(2, 1), 1)
        self.workers: dict[int, Worker] = {}
        self.alive: set[str] = set()
        self.driver, self.generation, self.desired = False, 0, 0
        self.groups: Groups = [([f"{v % 2}.0"], []) for v in range(vnodes)]
        self.placements: d.Placements | None = None
        self.submitted: Submitted | None = None
        self.drains: tuple[int, ...] = ()
        self.pins: tuple[Any, ...] = ()

    def observed(self) -> Observed:
        now = status_of(
            self.groups, sorted(self.alive), generation=self.generation, desired=self.desired, settled=self.settled()
        )
        workers = tuple(self.workers[k] for k in sorted(self.workers))
        one = Observed(
            self.wanted,
            workers,
            self.driver,
            True,
            now if self.driver else None,
            self.submitted,
            self.drains,
            self.pins,
        )
        return replace(one, missing={i: 0.0 for i in one.expected() if i not in self.alive})

    def settled(self) -> bool:
        wanted = self.placements or [tuple(g) for g, _ in self.groups]
        return all(
            not learners and in_sync == [i for i in want if i in self.alive]
            for (in_sync, learners), want in zip(self.groups, wanted)
        )

    def act(self, action: d.Action) -> None:
        match action:
            case d.StartWorker(k, n) | d.SetInstances(k, n):
                self.workers[k] = Worker(k, n, True)
            case d.StopWorker(k):
                assert not any(i.startswith(f"{k}.") for g, learn in self.groups for i in (*g, *learn)), (
                    "it holds something"
                )
                del self.workers[k]
            case d.StartDriver():
                self.driver, self.generation, self.desired, self.placements = True, self.generation + 1, 0, None
                self.groups = [(g, []) for g, _ in self.groups]
            case d.SubmitDesired(plan):
                number, placements = plan.number, plan.placements
                assert number > self.desired
                assert all(i in self.alive for p in placements for i in p)
                self.desired, self.placements = number, placements
                self.submitted = action.accepted()

    def pass_time(self) -> None:
        self.alive = {f"{k}.{i}" for k, w in self.workers.items() if w.running for i in range(w.instances)}
        if not self.driver:
            return
        for v, (in_sync, learners) in enumerate(self.groups):
            living = [i for i in in_sync if i in self.alive] or in_sync
            if self.placements is None:
                self.groups[v] = (living, [])
                continue
            want = [i for i in self.placements[v] if i in self.alive]
            if not want or living[0] not in self.alive:
                self.groups[v] = (living, [])
                continue
            now = [*living, *(i for i in learners if i in want)]
            missing = [i for i in want if i not in now]
            self.groups[v] = (now, missing) if missing else (want, [])

    def disturb(self, chance: random.Random) -> str:
        what = chance.choice(["scale", "instances", "kill worker", "kill driver", "drain", "undrain", "pin"])
        k = chance.randrange(self.wanted.size.workers)
        match what:
            case "scale":
                self.wanted = replace(self.wanted, size=replace(self.wanted.size, workers=chance.randint(2, 5)))
                self.drains = ()
            case "instances":
                self.wanted = replace(self.wanted, size=replace(self.wanted.size, instances=chance.randint(1, 3)))
            case "kill worker" if k in self.workers:
                self.workers[k] = replace(self.workers[k], running=False)
                self.pass_time()
            case "kill driver":
                self.driver = False
            case "drain":
                self.drains = (k,)
            case "undrain":
                self.drains = ()
            case "pin":
                self.pins = ((chance.randrange(len(self.groups)), f"{k}.0"),)
        return f"{what} {k}"


@pytest.mark.parametrize("seed", range(20))
def test_actions_come_to_rest(seed: int) -> None:
    """After any disturbance a few rounds lead to a job in which nothing is left to do, and it stays so."""
    chance, world, history = random.Random(seed), World(8), list[str]()
    for _ in range(12):
        for turn in range(40):
            actions = d.decide(world.observed())
            assert d.decide(world.observed()) == actions
            history.append(f"{turn}: {actions}")
            for action in actions:
                world.act(action)
            before = [*world.groups]
            world.pass_time()
            if not actions and before == world.groups:
                break
        else:
            raise AssertionError("\n".join(history[-60:]))
        assert world.settled(), history[-20:]
        stay = [k for k in range(world.wanted.size.workers) if k not in world.drains]
        assert {k for k, w in world.workers.items() if w.running} - set(world.drains) == set(stay)
        for in_sync, _ in world.groups:
            assert len(in_sync) == 1 + min(1, len(stay) - 1)
            assert all(int(i.split(".")[0]) in stay for i in in_sync)
        history.append(world.disturb(chance))


def test_a_driver_is_told_what_copies_may_use_when_it_can_be_told() -> None:
    wanted = replace(REST.wanted, bandwidth=1 << 20)
    for told in (-1, 0, 5):
        assert d.decide(replace(REST, wanted=wanted, status=status_of(GROUPS, ALIVE, bandwidth=told))) == [
            d.LimitCopies(1 << 20)
        ]
    assert d.decide(replace(REST, wanted=wanted, status=status_of(GROUPS, ALIVE, bandwidth=1 << 20))) == []
    assert d.decide(replace(REST, wanted=wanted)) == [], "an older one has it in its settings"
    assert d.decide(replace(REST, status=status_of(GROUPS, ALIVE, bandwidth=1 << 20))) == [d.LimitCopies(0)]
