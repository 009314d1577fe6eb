"""Attempts that do not end: who is to blame, and what is done about it. Nobody else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.protocol import coordinator as c
from ferry.protocol.coordinator.groups import GroupChange
from tests.unit.protocol.table_top import A, B, C, Top

SECOND_DEADLINE = 10_000 + 20_000 + 2_000


def apart(*pairs: tuple[InstanceId, InstanceId]) -> set[frozenset[InstanceId]]:
    return {frozenset(pair) for pair in pairs}


def notes(top: Top, kind: str) -> list[Any]:
    return [x for x in top.done if isinstance(x, c.Note) and x.kind == kind]


def members(top: Top) -> list[tuple[InstanceId, ...]]:
    return [g.members for g in top.driver.table.groups]


def test_a_helper_that_a_leader_cannot_hear_helps_no_more_until_a_while_has_passed() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A, B, C), c.CoordinatorSettings(retry_ms=60_000))
    top.epoch(0)
    top.apart = apart((A, C))
    top.ingest(1, helper=C)
    top.wait(SECOND_DEADLINE)
    assert top.driver.phase is c.Phase.INGEST and top.last(c.StartIngest).helpers == (A, B)
    assert notes(top, "apart")[0].text == "0.0 and 2.0 cannot reach each other: kept apart for 60 s"
    top.ingested(B)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)
    assert members(top) == groups, "no replica is touched"
    top.tell(c.EpochEnded(1))
    top.epoch(2)
    assert C not in top.last(c.StartIngest).helpers, "no epoch pays for it again"
    top.wait(60_000)
    top.apart = set()
    top.epoch(3)
    assert C in top.last(c.StartIngest).helpers


@pytest.mark.parametrize(
    ("chain", "cut", "left"), [((A, B), (A, B), (A,)), ((A, B, C), (B, C), (A, B)), ((A, B, C), (A, B), (A, C))]
)
def test_a_replica_that_cannot_be_reached_leaves_its_group_and_only_it(
    chain: tuple[InstanceId, ...], cut: tuple[InstanceId, InstanceId], left: tuple[InstanceId, ...]
) -> None:
    top = Top([chain, (C, A)], (A, B, C))
    top.epoch(0)
    top.apart = apart(cut)
    top.ingest(1)
    top.wait(10_001)
    assert members(top) == [chain, (C, A)], "once more with all of them"
    top.wait(22_000)
    assert members(top) == [left, (C, A)]
    assert notes(top, "apart")[0].text == f"{cut[0]} and {cut[1]} cannot reach each other: kept apart for 60 s"
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


def test_where_no_helper_reaches_every_leader_others_lead() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.apart = apart((A, B))
    top.ingest(1)
    top.wait(SECOND_DEADLINE)
    assert members(top) in ([(A,), (A,)], [(B,), (B,)])
    top.wait(1)
    if top.driver.phase is c.Phase.INGEST:
        top.ingested(top.driver.table.groups[0].leader)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


def test_pairs_that_are_found_one_after_the_other_are_worked_around_together() -> None:
    """Each is tried again before the next is found, at first: patience begins anew with what was not known."""
    others = tuple(InstanceId(f"{worker}.0") for worker in range(2, 8))
    top = Top([(A,), (B,)], (A, B, *others))
    top.epoch(0)
    top.apart = apart(*((B, x) for x in (A, *others[:-1])))
    top.ingest(1, helper=C)
    for _ in range(60):
        top.wait(15_000)
        assert "Halt" not in top.kinds()
        if top.driver.phase is c.Phase.INGEST:
            top.ingested(top.last(c.StartIngest).helpers[0])
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


def test_a_pair_is_not_tried_again_before_all_pairs_of_the_step_are_known() -> None:
    """The pause of a pair is shorter than an attempt here. Only D reaches B and C, and only if B leads."""
    d = InstanceId("3.0")
    top = Top([(A, B), (C,)], (A, B, C, d), c.CoordinatorSettings(retry_ms=1000))
    top.epoch(0)
    top.apart = apart((A, C), (B, C), (A, d))
    top.ingest(1, helper=A)
    for _ in range(60):
        top.wait(15_000)
        assert "Halt" not in top.kinds()
        if top.driver.phase is c.Phase.INGEST:
            top.ingested(top.last(c.StartIngest).helpers[0])
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)
    assert top.driver.table.groups[0].leader == B


def test_where_every_helper_is_apart_from_a_leader_the_connection_that_failed_first_is_tried_again() -> None:
    """It may be repaired before its pause ends: the pauses of all pairs of a step end together."""
    top = Top([(A,), (B,)], (A, B, C), c.CoordinatorSettings(retry_ms=60_000, apart_ms=300_000))
    top.epoch(0)
    top.apart = apart((A, B))
    top.ingest(1, helper=A)
    top.wait(SECOND_DEADLINE)
    assert top.last(c.StartIngest).helpers == (C,)
    top.apart = apart((A, C))
    top.ingested(C)
    top.wait(SECOND_DEADLINE)
    assert top.last(c.StartIngest).helpers == (A, B)
    assert top.driver.phase is c.Phase.INGEST, "the attempt of C is given up"
    top.ingested(A)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


def test_when_nothing_helps_the_job_stops_with_the_names() -> None:
    top = Top([(A,), (B,)], (A, B), c.CoordinatorSettings(apart_ms=300_000))
    top.epoch(0)
    top.apart = apart((A, B))
    top.ingest(1)
    top.wait(320_000)
    assert "Halt" not in top.kinds()
    for _ in range(10):
        if top.driver.phase is c.Phase.INGEST:
            top.ingested(A)
        top.wait(100_000)
    halt = top.last(c.Halt)
    assert halt.kind == "failed"
    assert halt.reason == (
        "0.0 and 1.0 cannot reach each other, and no other leader or helper has worked around it for 300 s: repair the network between them"
    )


def test_pairs_that_take_turns_do_not_keep_a_job_waiting_for_ever() -> None:
    """However long an ingest takes: each pair is tried again, and found again, in the same step."""
    top = Top([(A,), (B,)], (A, B, C))
    top.epoch(0)
    top.apart = apart((A, B), (A, C))
    top.ingest(1)
    for _ in range(60):
        if top.driver.phase is c.Phase.INGEST:
            top.wait(1_000_000)
            top.ingested(top.last(c.StartIngest).helpers[0])
        top.wait(15_000)
    assert top.last(c.Halt).reason.startswith("0.0 and ")


def test_a_slow_replica_is_demoted_and_comes_back_when_it_keeps_up() -> None:
    groups = [(A, B), (C, A)]
    top = Top(groups, (A, B, C))
    top.epoch(0)
    top.deaf = {(B, m.Delta)}
    top.ingest(1)
    top.wait(10_001, {B: 5000})
    assert members(top) == groups and top.driver.attempts.deadlines == 1, "once more with all of them"
    top.wait(22_000, {B: 5000})
    assert [(g.in_sync, g.learners) for g in top.driver.table.groups] == [((A,), (B,)), ((C, A), ())]
    assert top.last(c.Note).changes == (GroupChange(0, "demoted", B),)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0), "the epoch ends without it"
    top.tell(c.EpochEnded(1))
    top.epoch(2)
    assert top.driver.table.groups[0].learners == (B,)
    top.deaf = set()
    for epoch in range(3, 6):
        top.epoch(epoch)
    assert [g.in_sync for g in top.driver.table.groups] == groups


def test_a_leader_that_computes_has_all_the_time_it_needs() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A, B))
    top.epoch(0)
    top.deaf = {(A, m.Prepare), (A, m.Delta)}
    top.ingest(1, helper=B)
    for busy in range(0, 600_000, 100_000):
        top.wait(100_000, {A: busy + 1, B: 0})
    assert top.driver.attempts.deadlines == 0 and members(top) == groups
    top.wait(11_002, {A: 0, B: 0})
    assert top.driver.attempts.deadlines == 1, "and not a moment more, once it has stopped"


def test_who_is_at_work_and_has_no_time_to_answer_is_not_gone() -> None:
    top = Top([(A,)], (A,), c.CoordinatorSettings(return_ms=60_000))
    top.epoch(0)
    files = top.crash(A)
    top.deaf = {(A, m.Ask)}
    top.back(A, files)
    top.wait(100_000, {A: 1000})
    assert "Halt" not in top.kinds()
    top.new_driver()
    top.wait(100_000, {A: 1000})
    assert "Halt" not in top.kinds()
    top.wait(10_000)
    assert top.last(c.Halt).kind == "away"


def test_a_message_that_can_never_be_sent_stops_the_job_with_its_reason() -> None:
    top = Top([(A, B)], (A, B))
    top.tell(m.Unsendable(A, "1.0", "a message of 2 GiB is larger than MESSAGE_BYTES_MAX"))
    assert top.last(c.Halt) == c.Halt(
        "failed", "instance 0.0 cannot send to 1.0: a message of 2 GiB is larger than MESSAGE_BYTES_MAX"
    )


def test_an_instance_that_stands_still_is_lost() -> None:
    top = Top([(A, B), (B, A)], (A, B), c.CoordinatorSettings(silence_ms=2500))
    top.epoch(0)
    top.tell(c.Tick(1000))
    for x in (A, B):
        top.tell(m.Pulse(x, 0))
    for now in (2000, 3000):
        top.tell(c.Tick(now))
        top.tell(m.Pulse(B, 0))
    assert A in top.driver.alive
    top.tell(c.Tick(3501))
    assert c.Close(A, "it is at a standstill: no message for 2.5 s") in top.done
    assert members(top) == [(B,), (B,)]


def test_who_stands_still_before_the_first_answer_is_lost_too() -> None:
    top = Top([(A, B), (B, A)], (A, B), c.CoordinatorSettings(silence_ms=2500))
    top.epoch(0)
    top.tell(c.Tick(1000))
    top.deaf = {(A, m.Ask)}
    top.tell(c.Connected(A))  # again, and its former connection was never seen to end
    for now in (2000, 3000):
        top.tell(c.Tick(now))
        top.tell(m.Pulse(B, 0))
    assert members(top) == [(A, B), (B, A)]
    top.tell(c.Tick(3501))
    assert c.Close(A, "it is at a standstill: no message for 2.5 s") in top.done
    assert members(top) == [(B,), (B,)]


def test_a_driver_that_stood_still_itself_blames_nobody() -> None:
    top = Top([(A, B)], (A, B), c.CoordinatorSettings(silence_ms=2500))
    top.tell(c.Tick(1000))
    top.tell(m.Pulse(A, 0))
    top.tell(c.Tick(60_000))
    assert A in top.driver.alive
