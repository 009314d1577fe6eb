"""An instance that cannot go on is a lost one: the job goes on with the other copies, and stops only without any."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.contract.plans import Plan
from ferry.protocol import coordinator as c
from tests.unit.protocol.table_top import A, B, Top


def fail(top: Top) -> None:
    """A says that it cannot go on, ends, and comes back to its files."""
    top.tell(m.Failed(A, "Exhausted: the disk is full"))
    top.back(A, top.crash(A))


def test_a_failed_instance_is_a_lost_one() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1, helper=B)
    top.stop = ()
    fail(top)
    assert "Halt" not in top.kinds()
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0), "the epoch ends without it"
    note = next(x for x in top.done if isinstance(x, c.Note) and x.kind == "failed")
    assert note.text == "0.0: Exhausted: the disk is full; it is left out for 1 s"


def test_it_is_left_out_for_a_while_the_longer_the_oftener_it_fails() -> None:
    top = Top([(B,)], (A, B), c.CoordinatorSettings(backoff_ms=1000, backoff_max_ms=3000))
    for bar in (1000, 2000, 3000, 3000):
        failed = top.driver.now
        fail(top)
        top.tell(c.Tick(failed + bar - 1))
        assert A not in top.driver.alive
        top.tell(c.Tick(failed + bar))
        assert A in top.driver.alive
    top.tell(c.Tick(top.driver.now + 6001))
    failed = top.driver.now
    fail(top)
    top.tell(c.Tick(failed + 1000))
    assert A in top.driver.alive, "what was long ago is forgiven"


def test_the_only_copy_may_fail_for_as_long_as_one_may_be_gone() -> None:
    top = Top([(A,), (B,)], (A, B), c.CoordinatorSettings(return_ms=60_000))
    top.epoch(0)
    for _ in range(3):
        top.tell(c.Tick(top.driver.now + 19_000))
        fail(top)
        assert A in top.driver.alive, "nobody else has what it has: it is let in at once"
    top.epoch(1)  # it could go on: that ends the row
    top.tell(c.Tick(top.driver.now + 19_000))
    fail(top)
    assert "Halt" not in top.kinds()
    top.tell(c.Tick(top.driver.now + 60_000))
    top.tell(m.Failed(A, "Exhausted: the disk is full"))
    halt = top.last(c.Halt)
    assert halt.kind == "failed"
    assert (
        halt.reason
        == "virtual nodes [0] (of 1) are held only by 0.0 (Exhausted: the disk is full), which failed for 60 s"
    )


def test_who_failed_and_does_not_end_is_asked_again() -> None:
    top = Top([(B,)], (A, B))
    top.tell(m.Failed(A, "it is in sync for what it does not hold"))
    assert A not in top.driver.alive
    top.tell(c.Tick(2_001))
    assert A in top.driver.alive


def test_nobody_waits_for_the_connection_of_a_process_that_has_ended() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A, B), c.CoordinatorSettings(grace_ms=200))
    top.epoch(0)
    top.tell(c.Tick(1000))
    top.tell(c.ProcessEnded(A))
    assert [g.in_sync for g in top.driver.table.groups] == groups, "its connection says that it lives"
    files = top.crash(A)
    top.back(A, files)
    top.crash(A)
    top.tell(c.Connected(A))
    top.tell(c.ProcessEnded(A))
    assert [g.in_sync for g in top.driver.table.groups] == groups, "that was its life before"
    top.tell(c.Lost(A, "its successor ends, too"))
    assert [g.in_sync for g in top.driver.table.groups] == groups
    top.tell(c.ProcessEnded(A))
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]


def test_whose_connection_breaks_for_a_moment_stays_a_member() -> None:
    groups = [(A, B), (B, A)]
    top = Top(groups, (A, B), c.CoordinatorSettings(grace_ms=200))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1, helper=B)
    top.stop = ()
    top.tell(c.Tick(1000))
    files = top.crash(A)
    top.tell(c.Tick(1199))
    top.back(A, files)
    assert [g.in_sync for g in top.driver.table.groups] == groups
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0), "and the epoch goes on with it"
    top.tell(c.EpochEnded(1))
    top.crash(A)
    top.tell(Plan(1, ((B, A), (B, A))))
    top.tell(c.EpochBegun(2))
    assert top.driver.table.groups[0].in_sync == (A, B), "nothing is moved meanwhile"
    top.tell(c.Tick(1399))
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]


def test_who_failed_or_stands_still_is_not_waited_for() -> None:
    top = Top([(A, B), (B, A)], (A, B), c.CoordinatorSettings(grace_ms=200))
    top.epoch(0)
    top.tell(m.Failed(A, "the disk is full"))
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]
    top = Top([(A, B), (B, A)], (A, B), c.CoordinatorSettings(grace_ms=200, silence_ms=2500))
    top.epoch(0)
    for now in (1000, 2000, 2501):
        top.tell(m.Pulse(B, 0))
        top.tell(c.Tick(now))
    assert [g.in_sync for g in top.driver.table.groups] == [(B,), (B,)]


def test_the_last_holder_has_its_own_time_to_come_back() -> None:
    top = Top([(A, B)], (A, B), c.CoordinatorSettings(return_ms=60_000, grace_ms=50_000))
    top.epoch(0)
    top.crash(A)
    top.wait(40_000)
    top.crash(B)
    top.wait(59_000)
    assert "Halt" not in top.kinds(), "A is overdue, B is not"
    top.wait(1_000)
    assert top.last(c.Halt).kind == "away"


@pytest.mark.parametrize("copies", [(A, B), (A,)])
@pytest.mark.parametrize("another_driver", [False, True])
def test_an_apply_whose_log_is_gone_is_no_copy(copies: tuple[InstanceId, ...], another_driver: bool) -> None:
    top = Top([copies], (A, B))
    top.epoch(0)
    top.deaf = {(A, m.Commit)}
    top.ingest(1)
    files = top.crash(A)
    commit = next(x[1] for x in reversed(top.done) if isinstance(x, tuple) and isinstance(x[1], m.Commit))
    assert commit.commit_id in files.log.by_commit_id
    # Of different days: its commit record is of the middle of the Apply, its log is of another time.
    files.state.saved, top.deaf = files.saved.changed(committing=commit), set()
    files.log.by_commit_id.clear()
    if another_driver:
        top.new_driver()
    top.done.clear()
    top.back(A, files)
    if copies == (A,):
        halt = top.last(c.Halt)
        assert halt.kind == "unavailable" and "[0] (of 1)" in halt.reason
        return
    assert [g.in_sync for g in top.driver.table.groups] == [(B,)] and "Halt" not in top.kinds()
    assert top.committed() == {A: None, B: commit.commit_id}


def test_one_that_has_just_come_helps_once_the_others_know_it() -> None:
    top = Top([(A,), (A,)], (A, B), c.CoordinatorSettings(acquaint_ms=1000))
    assert top.driver.members.helpers() == (A, B), "all are new"
    top.tell(c.Tick(top.driver.now + 5000))
    top.back(B, top.crash(B))
    back = top.driver.now
    assert B in top.driver.alive and top.driver.members.helpers() == (A,)
    top.tell(c.Tick(back + 999))
    assert top.driver.members.helpers() == (A,)
    top.tell(c.Tick(back + 1000))
    assert top.driver.members.helpers() == (A, B)
    top.crash(A)
    top.back(B, top.crash(B))
    assert top.driver.members.helpers() == (B,), "better a new one than none"
