"""Plans: every way to cut one into steps leads to the same table, and none of them weakens a group on its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract import messages as m
from ferry.contract.names import InstanceId
from ferry.contract.plans import Placement, Plan, PlanStep
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from ferry_operator.placement.strategies import HandoverPolicy, Name, steps
from tests.unit.protocol.table_top import A, B, C, Top

D = InstanceId("3.0")
ALL = (A, B, C, D)


@st.composite
def placements(draw: st.DrawFn, virtual_nodes: int) -> list[Placement]:
    """One of each virtual node, with up to two replicas."""
    return [tuple(draw(st.permutations(ALL))[: draw(st.integers(1, 3))]) for _ in range(virtual_nodes)]


policies = st.builds(
    HandoverPolicy,
    st.sampled_from(get_args(Name)),
    batch=st.integers(1, 3),
    switchovers=st.none() | st.integers(1, 2),
    gap=st.integers(0, 2),
    warm=st.booleans(),
)


def played(
    before: list[Placement],
    after: list[Placement],
    cut: Sequence[PlanStep],
    policy: HandoverPolicy,
    dies: int | None = None,
) -> Top:
    """The table after a plan was carried out; the driver may die after so many epochs."""
    top = Top(before, ALL)
    top.epoch(0)
    plan = Plan(1, tuple(after), tuple(cut), policy.gap, policy.warm)
    top.tell(plan)
    epoch = 0
    while top.driver.moves.pending():
        strength = [len(group.in_sync) for group in top.driver.table.groups]
        begun = top.driver.journaling.plan
        epoch += 1
        top.epoch(epoch)
        for v, group in enumerate(top.driver.table.groups):
            least = min(strength[v], len(after[v]))
            assert len(group.in_sync) >= least, "no step makes a group weaker than it was, and than it is to be"
            now = top.driver.journaling.plan
            assert now is not None
            if begun is not None and now.steps and now.reached < len(now.steps):
                named = {x for step in now.steps[: now.reached] for x in step.switchovers}
                assert group.leader == before[v][0] or v in named, "nobody leads before its step has come"
        if epoch == dies:
            top.new_driver()
        assert epoch < 200
    return top


@given(st.data(), policies)
@settings(max_examples=150, deadline=None)
def test_every_strategy_leads_to_the_same_table(data: st.DataObject, policy: HandoverPolicy) -> None:
    virtual_nodes = data.draw(st.integers(1, 5))
    before, after = data.draw(placements(virtual_nodes)), data.draw(placements(virtual_nodes))
    cut = steps(before, after, policy)
    dies = data.draw(st.none() | st.integers(1, 8))
    groups = played(before, after, cut, policy, dies).driver.table.groups
    assert [(g.leader, sorted(g.in_sync), g.learners) for g in groups] == [(p[0], sorted(p), ()) for p in after]


@given(st.data(), policies)
@settings(max_examples=200, deadline=None)
def test_steps_name_what_moves_and_nothing_else(data: st.DataObject, policy: HandoverPolicy) -> None:
    virtual_nodes = data.draw(st.integers(1, 12))
    before, after = data.draw(placements(virtual_nodes)), data.draw(placements(virtual_nodes))
    cut = steps(before, after, policy)
    switched = [v for step in cut for v in step.switchovers]
    assert sorted(switched) == [v for v in range(virtual_nodes) if before[v][0] != after[v][0]], "each once"
    named = {v for step in cut for part in step for v in part}
    assert named == {v for v in range(virtual_nodes) if before[v][0] != after[v][0] or {*after[v]} - {*before[v]}}
    if policy.switchovers is not None:
        assert all(len(step.switchovers) <= policy.switchovers for step in cut)
    if policy.strategy == "fluid":
        assert all(len({*step.copies, *step.switchovers}) == 1 for step in cut)
    if policy.strategy == "batched":
        assert all(len({*step.copies, *step.switchovers}) <= policy.batch for step in cut)


def test_an_optimized_step_uses_every_origin_and_target_once() -> None:
    before: list[Placement] = [(A,), (A,), (A,), (B,), (B,), (B,)]
    after: list[Placement] = [(C,), (D,), (C,), (C,), (D,), (D,)]
    cut = steps(before, after, HandoverPolicy("optimized"))
    for step in cut:
        origins, targets = [before[v][0] for v in step.switchovers], [after[v][0] for v in step.switchovers]
        assert len({*origins}) == len(origins) and len({*targets}) == len(targets)
    assert [len(step.switchovers) for step in cut] == [2, 2, 2], "as many at one time as can be"


def test_another_driver_goes_on_where_the_plan_was() -> None:
    top = Top([(A,), (A,), (A,)], (A, B))
    top.epoch(0)
    cut = tuple(PlanStep((), (v,)) for v in (2, 0, 1))
    top.tell(Plan(1, ((B,), (B,), (B,)), cut))
    epoch = 0
    while top.driver.table.groups[2].leader != B:
        epoch += 1
        top.epoch(epoch)
    assert top.driver.table.groups[0].leader == A
    top.new_driver()
    assert top.driver.moves.plan is not None and top.driver.moves.plan.reached >= 1, "the journal has told it"
    order = []
    while top.driver.moves.pending():
        epoch += 1
        top.epoch(epoch)
        assert top.driver.table.groups[2].leader == B, "what was switched is not taken back"
        order.append(tuple(v for v in (0, 1) if top.driver.table.groups[v].leader == B))
    assert (0,) in order and order[-1] == (0, 1) and (1,) not in order


def test_what_a_cold_plan_copies_is_waited_for() -> None:
    top = Top([(A,), (A,)], (A, B))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,), (A,)), warm=False))
    top.tell(c.EpochBegun(1))
    assert top.driver.phase == c.Phase.HOLD and not top.driver.moves.pending()
    assert not any(isinstance(x, c.StartIngest) and x.step.epoch == 1 for x in top.done)
    top.wait(3000)
    assert top.driver.phase == c.Phase.HOLD
    top.deaf = set()
    top.wait(10_000)
    assert top.last(c.StartIngest).step.epoch == 1, "it goes on as soon as the copy is in sync"
    assert top.driver.table.groups[0].leader == B
    top.ingested(A)
    top.tell(c.EpochEnded(1))
    assert top.driver.phase == c.Phase.IDLE


@pytest.mark.parametrize("what", ["target", "deadline", "journal"])
def test_an_epoch_does_not_wait_for_a_copy_that_does_not_come(what: str) -> None:
    top = Top([(A,)], (A, B), c.CoordinatorSettings(warm_ms=1000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,),), warm=False))
    top.tell(c.EpochBegun(1))
    assert top.driver.phase == c.Phase.HOLD
    if what == "target":
        top.crash(B)
    elif what == "journal":
        top.tell(c.JournalReachable(False))
    else:
        top.wait(2000)
    assert top.driver.phase == c.Phase.INGEST and top.driver.table.groups[0].leader == A


def test_a_step_of_a_cold_plan_is_followed_by_an_epoch() -> None:
    top = Top([(A,), (A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,), (B,)), (PlanStep((), (0,)), PlanStep((), (1,))), warm=False))
    top.epoch(1)
    assert [group.leader for group in top.driver.table.groups] == [B, A]
    top.epoch(2)
    assert [group.leader for group in top.driver.table.groups] == [B, B]


def test_a_plan_that_replaces_another_leaves_all_where_it_is_until_its_steps() -> None:
    top = Top([(A,), (A,)], (A, B, C))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,), (B,))))
    top.epoch(1)
    assert [group.learners for group in top.driver.table.groups] == [(B,), (B,)]
    top.tell(Plan(2, ((C,), (C,)), (PlanStep((), (1,)), PlanStep((), (0,)))))
    top.epoch(2)
    assert [group.learners for group in top.driver.table.groups] == [(), (C,)], "the copy of the former plan is let go"


@pytest.mark.parametrize(
    ("due", "first"), [({"at_epoch": 4}, 4), ({"at_time": 40}, 5), ({"at_epoch": 3, "at_time": 40}, 5)]
)
@pytest.mark.parametrize("dies", [False, True])
def test_a_plan_is_accepted_early_and_begins_when_it_is_due(due: dict[str, int], first: int, dies: bool) -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(7, ((B,),), **due))
    assert top.driver.moves.pending(), "it is to be written"
    for epoch in range(1, first):
        top.epoch(epoch)
        assert top.driver.table.groups[0].members == (A,)
        assert top.driver.moves.pending() == (epoch == first - 1), "nobody makes epochs for what is to come later"
        assert top.journal is not None and top.journal.prepared is not None
        if dies:
            top.new_driver()
    top.epoch(first)
    assert top.driver.table.groups[0].members == (A, B)
    top.epoch(first + 1)
    assert top.driver.table.groups[0].leader == B and top.journal is not None and top.journal.prepared is None


def test_what_is_prepared_is_replaced_by_what_is_submitted_later() -> None:
    top = Top([(A,)], (A, B, C))
    top.epoch(0)
    top.tell(Plan(1, ((B,),), at_epoch=3))
    top.epoch(1)
    top.tell(Plan(2, ((C,),)))
    for epoch in range(2, 6):
        top.epoch(epoch)
    assert top.driver.table.groups[0].members == (C,)


def test_steps_wait_for_who_is_not_there_and_stay_in_their_order() -> None:
    top = Top([(A,)] * 4, (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,),) * 4, tuple(PlanStep((), (v,)) for v in range(4)), gap=1))
    top.epoch(1)
    same = top.crash(B)
    for epoch in range(2, 6):
        top.epoch(epoch)
    assert not top.driver.moves.pending(), "nobody makes epochs for what cannot be"
    assert top.driver.moves.plan is not None and top.driver.moves.plan.reached == 1
    top.members[B] = same
    top.tell(c.Connected(B))
    for epoch in range(6, 8):
        top.epoch(epoch)
    assert sum(bool(group.learners) or group.leader == B for group in top.driver.table.groups) == 1, "one at a time"
    for epoch in range(8, 30):
        top.epoch(epoch)
    assert [group.in_sync for group in top.driver.table.groups] == [(B,)] * 4


def test_no_epoch_waits_for_a_copy_that_repairs() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B, A),), warm=False))
    for epoch in range(1, 4):
        top.epoch(epoch)
    assert top.driver.table.groups[0].in_sync == (B, A)
    top.crash(A)
    top.deaf = {(A, m.Chunk)}
    top.members[A] = i.Instance(A, i.InstanceRecord())
    top.tell(c.Connected(A))
    top.tell(c.EpochBegun(4))
    assert top.driver.table.groups[0].learners == (A,) and top.driver.phase == c.Phase.INGEST


def test_a_copy_that_was_given_up_makes_the_others_no_less_cold() -> None:
    top = Top([(A,), (A,)], (A, B, C), c.CoordinatorSettings(warm_ms=1000))
    top.epoch(0)
    top.deaf = {(B, m.Chunk), (C, m.Chunk)}
    top.tell(Plan(1, ((B,), (C,)), (PlanStep((), (0,)), PlanStep((), (1,))), warm=False))
    top.tell(c.EpochBegun(1))
    top.wait(2000)
    assert top.driver.phase == c.Phase.INGEST, "nothing came to B"
    top.ingested(A)
    top.tell(c.EpochEnded(1))
    top.tell(c.EpochBegun(2))
    assert top.driver.phase == c.Phase.HOLD and top.driver.table.groups[1].learners == (C,)


def test_copies_may_be_made_ahead_of_their_switchovers() -> None:
    top = Top([(A,), (A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,), (B,)), (PlanStep((0, 1), (0,)), PlanStep((), (1,)))))
    seen = []
    for epoch in range(1, 6):
        top.epoch(epoch)
        seen.append([group.in_sync for group in top.driver.table.groups])
    assert [(B, A), (A, B)] in seen, "both are copied, one is switched"
    assert seen[-1] == [(B,), (B,)]


@pytest.mark.parametrize("strategy", ["at once", "steps"])
def test_a_plan_that_does_not_come_forward_is_rolled_back(strategy: str) -> None:
    settings = c.CoordinatorSettings(warm_ms=600, retry_ms=100, retry_max_ms=200, plan_ms=1500)
    top = Top([(A,), (A,), (A,)], (A, B), settings)
    top.epoch(0)
    steps = (PlanStep((), (0,)), PlanStep((), (1,))) if strategy == "steps" else ()
    top.tell(Plan(1, ((B,), (B,), (A,)), steps))
    if strategy == "steps":
        top.epoch(1)
        top.epoch(2)
        assert top.driver.table.groups[0].leader == B, "the first step is done"
    top.deaf = {(B, m.Chunk), (A, m.Chunk)}
    for epoch in range(1 + len(steps), 12):
        top.epoch(epoch)
        top.wait(300)
    plan = top.driver.table.plan
    assert plan is not None and "no progress for 1.5 s" in plan.undone and "no data from" in plan.undone
    assert plan.placements == ((A,), (A,), (A,)) and plan.number == 1 and not plan.before
    assert not top.driver.table.groups[1].learners
    top.deaf = set()
    for epoch in range(12, 16):
        top.epoch(epoch)
        top.wait(300)
    assert [(group.leader, group.learners) for group in top.driver.table.groups] == [(A, ()), (A, ()), (A, ())]


def test_what_repairs_is_not_rolled_back() -> None:
    top = Top(
        [(A,), (A, B)], (A, B, C), c.CoordinatorSettings(warm_ms=600, retry_ms=100, retry_max_ms=200, plan_ms=1500)
    )
    top.epoch(0)
    top.deaf = {(B, m.Chunk), (C, m.Chunk)}
    top.tell(Plan(1, ((A, B), (A, C))))
    for epoch in range(1, 8):
        top.epoch(epoch)
        top.wait(300)
    plan = top.driver.table.plan
    assert plan is not None and plan.undone and plan.placements == ((A, B), (A, B))
    top.deaf = set()
    for epoch in range(8, 12):
        top.epoch(epoch)
        top.wait(300)
    assert [group.in_sync for group in top.driver.table.groups] == [(A, B), (A, B)], "another copy is still made"


def test_a_plan_that_comes_forward_slowly_is_not_rolled_back() -> None:
    top = Top([(A,)] * 4, (A, B), c.CoordinatorSettings(plan_ms=1000))
    top.epoch(0)
    top.tell(Plan(1, ((B,),) * 4, tuple(PlanStep((), (v,)) for v in range(4)), gap=3))
    for epoch in range(1, 20):
        top.epoch(epoch)
        top.wait(400)
    plan = top.driver.table.plan
    assert plan is not None and not plan.undone and all(group.leader == B for group in top.driver.table.groups)


def test_a_plan_has_its_own_deadline() -> None:
    top = Top([(A,), (A,)], (A, B), c.CoordinatorSettings())
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,), (A,)), deadline=500))
    for epoch in range(1, 12):
        top.epoch(epoch)
        top.wait(300)
    plan = top.driver.table.plan
    assert plan is not None and plan.undone.startswith("no progress for 1.5 s")


def test_what_fails_when_a_plan_is_over_is_not_its_failure() -> None:
    top = Top(
        [(A, B), (B, A)], (A, B, C), c.CoordinatorSettings(warm_ms=600, retry_ms=100, retry_max_ms=200, plan_ms=1500)
    )
    top.epoch(0)
    top.tell(Plan(1, ((A, B), (C, A))))
    for epoch in range(1, 12):
        top.epoch(epoch)
        top.wait(300)
    plan = top.driver.table.plan
    assert top.driver.table.groups[1].leader == C and plan is not None and not plan.before, (
        "it is over, and journaled so"
    )
    top.deaf = {(B, m.Chunk)}
    top.tell(m.Failed(B, "its files are gone"))
    for epoch in range(12, 24):
        top.epoch(epoch)
        top.wait(300)
    plan = top.driver.table.plan
    assert plan is not None and not plan.undone and top.driver.table.groups[1].leader == C


def test_what_empties_a_worker_is_not_rolled_back() -> None:
    plan = Plan(1, ((A,), (A, B)), before=((C,), (A, B)))
    assert plan.rolled_back({A, B, C}, "why").placements == ((A,), (A, B))
    stays = Plan(1, ((A,), (C, A)), before=((C,), (A, B)))
    assert stays.rolled_back({A, B, C}, "why").placements[0] == (C,)


def test_a_copy_that_comes_along_at_the_second_try_is_progress() -> None:
    top = Top([(A,), (A,)], (A, B), c.CoordinatorSettings(warm_ms=600, retry_ms=100, retry_max_ms=200, plan_ms=1500))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,), (A,))))
    for epoch in range(1, 5):
        top.epoch(epoch)
        top.wait(300)
    assert top.driver.moves.refused, "given up once"
    for epoch in range(5, 20):
        top.epoch(epoch)
        top.wait(200)
        top.tell(m.Learned(B, A, epoch))
    plan = top.driver.table.plan
    assert plan is not None and not plan.undone


def test_a_driver_that_has_just_begun_does_not_roll_back_what_it_finds() -> None:
    top = Top([(A,), (A,)], (A, B), c.CoordinatorSettings(plan_ms=1500))
    top.epoch(0)
    top.deaf = {(B, m.Chunk)}
    top.tell(Plan(1, ((B,), (A,)), (PlanStep((), (0,)),)))
    top.epoch(1)
    top.new_driver()
    top.tell(c.Tick(20_000_000))  # the clock of a machine that was started hours ago
    top.epoch(2)
    plan = top.driver.table.plan
    assert plan is not None and plan.before and not plan.undone
