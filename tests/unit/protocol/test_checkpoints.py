"""Durable checkpoints, and jobs that begin with one: what is written when, and what of another life counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import Attempt, CommitId, Step, Term
from ferry.contract.results import StepResult
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from ferry.protocol.coordinator.checkpoints import AGAIN_MS
from tests.unit.protocol.table_top import A, B, C, Top

LABEL = CommitId(Step(3, 0), Attempt(2, 9))
RESTORE = m.Commit(LABEL, 0, (StepResult(LABEL.attempt, 10, 30),), b"notes", "s3://store/j/manifests/7#2")

LOAD = replace(RESTORE, generation=2)


def of(top: Top, kind: type) -> list[Any]:
    """Messages and effects of a kind, with whom they are for."""
    return [x for x in top.done if isinstance(x[1] if isinstance(x, tuple) else x, kind)]


def answered(top: Top, number: int = -1, chains: bytes = b"chains") -> m.Checkpointed:
    """What a leader says that was told to write."""
    me, write = of(top, i.WriteCheckpoint)[number]
    return m.Checkpointed(me, write.number, write.version, write.epoch, chains)


def restored(version: Version, *groups: tuple[Any, ...], initial: bool = True) -> m.Install:
    made = tuple(Group(Term(1, 1), in_sync) for in_sync in groups)
    return m.Install(Table(version, made, initial, RESTORE.origin))


# ---- writing
def test_a_checkpoint_is_written_when_its_epoch_is_final_and_published_when_all_have() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.tell(c.TakeCheckpoint(1))
    top.epoch(0)
    assert not of(top, m.Freeze), "its rows may not be with the sinks yet"
    top.tell(c.EpochBegun(1))
    assert {to for to, _ in of(top, m.Freeze)} == {A, B}
    assert [w.watermarks for _, w in of(top, i.WriteCheckpoint)] == [(0,), (0,)]
    top.tell(answered(top, 0, b"a"))
    top.ingested(A)
    top.tell(c.EpochEnded(1))
    assert not of(top, c.Publish)
    top.tell(answered(top, 1, b"b"))
    published = top.last(c.Publish)
    assert (published.number, published.commit_id.step, published.chains) == (1, Step(0, 0), (b"a", b"b"))
    top.tell(c.Published(1))
    top.epoch(2)
    assert len(of(top, m.Freeze)) == 2, "nobody asked for another one"


def test_what_was_written_for_a_checkpoint_that_was_given_up_counts_for_no_other() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.tell(c.TakeCheckpoint(1))
    top.epoch(1)
    late, no = answered(top, 0), answered(top, 1, b"")
    top.tell(no)
    top.wait(AGAIN_MS)
    top.epoch(2)
    top.tell(late)
    top.tell(answered(top, 3))
    assert not of(top, c.Publish), "of one leader there is what it had an epoch ago"
    top.tell(answered(top, 2))
    assert top.last(c.Publish).commit_id.step == Step(1, 0)


def test_a_leader_that_is_lost_takes_its_part_along() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.tell(c.TakeCheckpoint(1))
    top.tell(c.EpochBegun(1))
    lost = answered(top, 1)
    top.crash(B)
    top.tell(lost)
    top.tell(answered(top, 0))
    assert not of(top, c.Publish)
    assert any("was lost" in x.text for x in of(top, c.Note))


def test_a_job_that_is_to_be_suspended_begins_no_epoch_and_tries_until_it_is_published() -> None:
    top = Top([(A,)], (A,))
    top.epoch(0)
    ingests = len(of(top, c.StartIngest))
    top.tell(c.TakeCheckpoint(4, hold=True))
    top.tell(c.EpochBegun(1))
    assert len(of(top, c.StartIngest)) == ingests
    top.tell(answered(top))
    top.tell(c.Published(4, "the store is away"))
    assert len(of(top, m.Freeze)) == 2


def test_a_leader_writes_only_what_the_driver_believes_it_to_have() -> None:
    top = Top([(A,)], (A,))
    top.epoch(0)
    version = top.driver.table.version
    for message in (m.Freeze(1, version, 1), m.Freeze(1, Version(1, 0), 0)):
        (sent,) = top.members[A].step(message)
        assert isinstance(sent, i.Send) and isinstance(sent.message, m.Checkpointed) and sent.message.chains == b""


# ---- restoring
def test_a_job_begins_with_a_checkpoint() -> None:
    top = Top([(A, B), (B, C)], (A, B, C), restore=RESTORE)
    assert {me: x.vnodes for me, x in of(top, i.Restore)} == {A: (0,), B: (0, 1), C: (1,)}
    assert set(top.committed().values()) == {LABEL}
    assert top.last(c.Ready) == c.Ready(LABEL, b"notes", True)
    assert top.journal is not None and not top.journal.initial and top.journal.origin == RESTORE.origin
    begun = [x.vnodes for me, x in of(top, i.Archive) if me == B]
    assert begun == [(), (1,)], "nothing is written of what is still to be loaded"
    top.epoch(4)
    assert {x.step for x in top.committed().values() if x is not None} == {Step(4, 0)}


def test_a_restore_goes_to_those_who_are_there_once_the_others_were_waited_for() -> None:
    """Everybody can load a checkpoint: whose disk stays full, or whose node is gone, is not needed for that."""
    top = Top([(A, B), (C,), (C,), (B,), (C,)], (A, B), restore=RESTORE)
    top.wait(top.settings.return_ms - 1000)
    assert not of(top, i.Restore) and not of(top, c.Halt), "C may still come"
    top.wait(2000)
    assert {me: x.vnodes for me, x in of(top, i.Restore)} == {A: (0, 1, 4), B: (0, 2, 3)}
    assert top.journal is not None
    assert [group.in_sync for group in top.journal.groups] == [(A, B), (A,), (B,), (B,), (A,)]
    top.members[C] = i.Instance(C, i.InstanceRecord())
    top.tell(c.Connected(C))
    top.epoch(4)
    assert {x.step for x in top.committed().values() if x is not None} == {Step(4, 0)}


def test_a_restore_waits_for_whoever_is_there() -> None:
    top = Top([(A,), (B,)], (), restore=RESTORE)
    top.wait(3 * top.settings.return_ms)
    assert not of(top, c.Halt) and top.journal is not None and top.journal.groups[1].in_sync == (B,)
    top.members[C] = i.Instance(C, i.InstanceRecord())
    top.tell(c.Connected(C))
    top.wait(top.settings.return_ms - 1000)
    assert not of(top, i.Restore), "they come one by one"
    top.wait(2000)
    assert {me: x.vnodes for me, x in of(top, i.Restore)} == {C: (0, 1)}


def test_a_restore_is_begun_once_and_told_as_often_as_it_is_asked_for() -> None:
    member = i.Instance(A, i.InstanceRecord())
    member.step(restored(Version(2, 1), (A,)))
    assert [x for x in member.step(LOAD) if isinstance(x, i.Restore)] == [i.Restore(LOAD, (0,))]
    assert member.step(LOAD) == []
    assert not [x for x in member.step(restored(Version(2, 2), (A,))) if isinstance(x, i.Erase)]
    said = i.Send(i.DRIVER, m.Committed(A, LABEL))
    assert member.step(i.Restored(LOAD))[-1] == said
    assert member.step(LOAD) == [said]


def test_what_a_commit_will_ask_for_is_loaded_ahead_also_in_the_next_life() -> None:
    member = i.Instance(A, i.InstanceRecord(3, committed=LABEL, holds=(0,)))
    effects = member.step(restored(Version(3, 1), (A,)))
    ahead = i.LoadAhead(RESTORE.origin, (0,))
    kinds = [type(x) for x in effects]
    saves = [x.saved for x in effects[: kinds.index(i.Erase)] if isinstance(x, i.Save)]
    assert saves[-1] == i.InstanceRecord(3, holds=(0,), origin=RESTORE.origin), (
        "the process may be another one behind Erase"
    )
    assert effects[-1] == ahead
    again = i.Instance(A, saves[-1])
    assert again.start() == [ahead]
    assert [x for x in again.step(restored(Version(4, 0), (A,))) if isinstance(x, i.Drop | i.Erase)] == []
    load = replace(LOAD, generation=4)
    again.step(load)
    again.step(i.Restored(load))
    assert i.Instance(A, again.saved).start() == []


def test_who_is_left_out_while_it_loads_is_no_copy() -> None:
    member = i.Instance(A, i.InstanceRecord())
    member.step(restored(Version(2, 1), (A, B)))
    member.step(LOAD)
    member.step(restored(Version(2, 2), (B,), initial=False))
    assert member.step(i.Restored(LOAD)) == [] and member.saved.committed is None


@pytest.mark.parametrize("initial", [True, False])
def test_what_was_held_in_another_life_is_no_copy_in_this_one(initial: bool) -> None:
    """Be it of the very step: nobody knows what it is made of. Also who comes when the job has begun."""
    member = i.Instance(A, i.InstanceRecord(1, LABEL, RESTORE.results, b"", (0,), 3))
    effects = member.step(restored(Version(2, 1), (A,) if initial else (B,), initial=initial))
    assert i.Erase() in effects
    assert (member.saved.committed, member.saved.origin, member.saved.released) == (None, RESTORE.origin, -1)


def test_chains_of_the_life_before_do_not_outdo_those_of_this_one() -> None:
    """Acknowledgements of a higher step: steps begin again."""
    top = Top([(A,)], (A,))
    for epoch in range(6):
        top.epoch(epoch)
    member, version = top.members[A], Version(2, 0)
    member.step(restored(version, (A,)))
    member.step(LOAD)
    member.step(i.Restored(LOAD))
    member.step(restored(Version(2, 1), (A,), initial=False))
    step, attempt = Step(4, 0), Attempt(2, 1)
    member.step(m.Prepare(step, attempt, Version(2, 1), (), 30, 40))
    effects = member.step(i.Computed(step, attempt, (((A,), (0,), 0, 0),)))
    assert i.Send(i.DRIVER, m.Prepared(step, attempt, (0,), (0,), (0,))) in effects


def test_steps_of_another_life_are_not_the_newest() -> None:
    """Files of an older day come back after a restore: they are of a step that the job has not reached again."""
    top = Top([(A, B)], (A, B), restore=RESTORE)
    ahead = i.InstanceRecord(1, CommitId(Step(9, 0), Attempt(1, 4)), RESTORE.results, b"old", (0,), 9)
    top.crash(B)
    top.members[B] = i.Instance(B, ahead)
    top.new_driver()
    assert top.last(c.Ready).committed == LABEL
    assert top.journal is not None and top.journal.groups[0].in_sync == (A,)


def test_a_driver_that_has_not_read_the_checkpoint_does_not_begin_with_nothing() -> None:
    top = Top([(A,)], (A,), restore=RESTORE)
    driver = c.Coordinator(top.settings, top.initial, None)
    driver.start()
    driver.step(c.Journaled(Version(1, 0)))
    driver.step(c.Connected(A))
    with pytest.raises(Bug, match="the driver has not read the checkpoint of s3://store"):
        driver.step(m.Answer(A, 1, None, (), b"", (), ()))


def test_a_driver_that_has_looked_before_the_job_was_restored_looks_again() -> None:
    top = Top([(A,)], (A,))
    driver = c.Coordinator(top.settings, top.initial, top.journal)
    driver.start()
    (halt,) = driver.step(c.JournalRefused("1.9", restored(Version(1, 9), (A,)).table))
    assert isinstance(halt, c.Halt) and halt.kind == "failed" and "read it again" in halt.reason


def test_a_checkpoint_that_cannot_be_loaded_stops_the_job() -> None:
    top = Top([(A,), (B,)], (A,), restore=RESTORE)
    top.tell(m.Unrestorable(A, "another one", "a zombie says so"))
    top.tell(m.Unrestorable(A, RESTORE.origin, "files/3 is missing"))
    halts = [x for x in of(top, c.Halt) if isinstance(x, c.Halt)]
    assert [x.kind for x in halts] == ["unrestorable"] and "files/3 is missing" in halts[0].reason
