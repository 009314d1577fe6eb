"""The protocol told by example: one coordinator and some instances on a perfect table top, no clock, no network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step, Term
from ferry.contract.plans import Plan
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from tests.unit.protocol.table_top import A, B, C, Top


def test_a_normal_epoch() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    assert top.kinds() == ["Ready"]
    top.epoch(0)
    (rows,) = top.last(c.Emit).rows
    assert rows.commit_id.step == Step(0, 0) and rows.readers == ((A, (0,)), (B, (1,))) and rows.fired == 2
    assert set(top.committed().values()) == {rows.commit_id}
    top.epoch(1)
    assert top.last(c.Emit).rows[-1].low == 0 and top.last(c.Emit).rows[-1].high == 10
    assert top.driver.phase is c.Phase.IDLE


def test_the_first_commit_of_a_job_is_journaled_before_it_is_sent() -> None:
    top = Top([(A, B)], (A, B))
    assert top.journal is not None and top.journal.initial
    top.ingest(0)
    assert top.journal is not None and not top.journal.initial
    # From now on a member without state is no copy: a driver that finds only such members stops.
    top.members = {x: i.Instance(x, i.InstanceRecord()) for x in (A, B)}
    top.new_driver()
    assert top.last(c.Halt).kind == "unavailable"


def test_a_leader_lost_in_prepare_means_a_new_attempt_without_a_new_ingest() -> None:
    top = Top([(A, C), (C, A)], (A, B, C))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1, helper=B)
    before = top.kinds().count("StartIngest")
    top.stop = ()
    top.crash(C)
    assert top.kinds().count("StartIngest") == before
    assert top.journal is not None and [g.in_sync for g in top.journal.groups] == [(A,), (A,)]
    commit_id = top.last(c.Emit).rows[-1].commit_id
    assert commit_id.step == Step(1, 0) and commit_id.attempt == Attempt(1, 4)


def test_a_lost_helper_means_that_ingest_runs_again() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1, helper=B)
    # No member of any group: no table changes, and still nothing may wait for its partials.
    top.crash(B)
    assert top.driver.phase is c.Phase.INGEST and top.last(c.StartIngest).step == Step(1, 0)
    top.stop = ()
    top.ingested(A)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


def test_who_is_leaving_helps_no_more_until_it_comes_again() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    assert top.last(c.StartIngest).helpers == (A, B)
    top.tell(m.Leaving(B))
    top.epoch(1)
    assert top.last(c.StartIngest).helpers == (A,)
    top.back(B, top.crash(B))
    top.epoch(2)
    assert top.last(c.StartIngest).helpers == (A, B)
    for x in (A, B):
        top.tell(m.Leaving(x))
    top.epoch(3)
    assert top.last(c.StartIngest).helpers == (A, B), "better one that leaves than none"


def test_a_new_driver_finishes_what_one_member_committed() -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    top.stop = (m.Commit,)
    top.ingest(1)
    commit = next(x[1] for x in reversed(top.done) if isinstance(x, tuple) and isinstance(x[1], m.Commit))
    top.driver = c.Coordinator(c.CoordinatorSettings(), top.initial, top.journal)  # the old one is dead
    top.give(B, commit)
    top.stop = ()
    top.new_driver()
    assert set(top.committed().values()) == {commit.commit_id}
    assert top.last(c.Ready).committed == commit.commit_id and top.driver.commits.watermark == 10
    top.tell(c.EpochBegun(1))  # Spark had not committed it: the same rows again
    assert top.last(c.Emit).rows[-1].commit_id == commit.commit_id
    zombie = replace(commit, generation=1)
    top.done = []
    assert top.members[A].step(zombie) == [i.Send(i.DRIVER, m.Refused(A, 2))]


@pytest.mark.parametrize("prepared", [False, True], ids=["only begun", "prepared"])
def test_a_new_driver_hears_whether_the_rows_of_the_last_epoch_were_given_up(prepared: bool) -> None:
    top = Top([(A, B), (B, A)], (A, B))
    top.epoch(0)
    if prepared:
        top.deaf = {(A, m.Commit), (B, m.Commit), (A, m.Prepare)}  # B alone has heard of epoch 1
        top.ingest(1, helper=B)
    else:
        top.tell(c.EpochBegun(1))
    top.deaf = set()
    top.new_driver()
    ready = top.last(c.Ready)
    assert ready.committed.step == Step(0, 0)
    assert ready.final is prepared, "then Spark has seen its end, and nobody can read them any more"


def test_what_was_being_computed_for_the_old_driver_is_dropped_with_the_answer() -> None:
    member = i.Instance(A, i.InstanceRecord())
    table = Table(Version(1, 1), (Group(Term(1, 1), (A,)),), initial=True)
    member.step(m.Install(table))
    prepare = m.Prepare(Step(0, 0), Attempt(1, 1), table.version, (), 0, 0)
    assert any(isinstance(x, i.Compute) for x in member.step(prepare))
    member.step(m.Ask(2))
    assert member.step(i.Computed(Step(0, 0), Attempt(1, 1), (((A,), (0,), 0, 0),))) == []


def test_a_learner_becomes_in_step_is_cut_to_and_the_origin_cleaned() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((B,),)))
    seen = []
    for epoch in range(1, 6):
        assert top.driver.moves.pending() == (epoch <= 3)
        top.epoch(epoch)
        assert top.journal is not None
        seen.append((top.journal.groups[0].in_sync, top.journal.groups[0].learners))
    assert seen == [((A,), (B,)), ((B, A), ()), ((B,), ()), ((B,), ()), ((B,), ())]
    assert (A, i.Drop((0,))) in top.done and not top.driver.moves.pending()


@pytest.mark.parametrize("missed", [False, True], ids=["told of every table", "told of a later table only"])
def test_a_learner_that_alone_heard_of_a_commit_does_not_go_on_from_it(missed: bool) -> None:
    """The driver dies while it tells of a commit; no member heard of it, so the next one gives that attempt up."""
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((A, B),)))
    top.deaf, top.apart = {(A, m.Commit)}, {frozenset((A, B))}
    top.ingest(1)
    given_up = top.committed()[B]
    assert given_up is not None and given_up.step == Step(1, 0)
    if missed:
        top.deaf |= {(B, m.Install)}  # the first tables of the next driver
    top.new_driver()
    top.deaf, top.apart = set(), set()
    assert top.committed()[A] != given_up
    if missed:
        assert top.journal is not None
        wanted = replace(top.journal.groups[0], learners=(B,))
        version = Version(top.journal.version.generation, top.journal.version.number + 1)
        top.give(B, m.Install(replace(top.journal, version=version, groups=(wanted,))))
        assert (B, i.Drop((0,))) in top.done
    assert top.committed()[B] is None and top.members[B].saved.results == ()
    top.done = []
    top.tell(Plan(1, ((A, B),)))
    for epoch in range(1, 5):
        top.epoch(epoch)
        assert top.committed()[B] == top.committed()[A]
    assert top.driver.table.groups[0].in_sync == (A, B)


def test_the_sole_copy_comes_back_with_its_files() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.stop = (m.Commit,)
    top.ingest(1, helper=B)
    files = top.crash(A)
    assert top.driver.phase is c.Phase.COMMIT  # it waits: only that attempt can be finished
    top.stop = ()
    top.back(A, files)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(1, 0)


@pytest.mark.parametrize("waited", [50_000, 70_000])
def test_the_sole_copy_without_files_stops_the_job(waited: int) -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    files = top.crash(A)
    top.tell(c.Tick(waited))
    if waited < 60_000:
        files.state.saved = i.InstanceRecord()
        files.log.by_commit_id.clear()
        top.back(A, files)
    assert top.last(c.Halt).kind == ("unavailable" if waited < 60_000 else "away")


def test_a_new_job_waits_for_its_first_workers_as_long_as_they_take() -> None:
    top = Top([(A, B)], ())
    top.tell(c.Tick(70_000))
    assert top.driver.phase is c.Phase.ASK
    top.back(A, i.Instance(A, i.InstanceRecord()))
    top.epoch(0)
    top.crash(A)
    top.new_driver()
    top.tell(c.Tick(70_000))
    assert top.last(c.Halt).kind == "away", "from then on there is something to lose"


def test_a_learner_whose_delta_comes_after_the_commit_is_in_step_all_the_same() -> None:
    top = Top([(A,)], (A, B))
    top.epoch(0)
    top.tell(Plan(1, ((A, B),)))
    late: list[m.Delta] = []
    give = top.give
    loads = 0

    def give_late(to: InstanceId, event: i.Event) -> None:
        """The learner's delta is large: it arrives when the driver's Commit is long there."""
        nonlocal loads
        loads += isinstance(event, m.Chunk)
        if isinstance(event, m.Delta) and not event.chain:
            late.append(event)
            return
        give(to, event)
        while isinstance(event, m.Commit) and to == B and late:
            give(B, late.pop())

    top.give = give_late  # type: ignore[method-assign]
    for epoch in range(1, 6):
        top.epoch(epoch)
    assert top.driver.table.groups[0].in_sync == (A, B)
    assert loads == 2, "one that was ahead of a learner without any epoch, and one that is enough"


def test_a_read_is_refused_for_what_is_not_there() -> None:
    top = Top([(A, B)], (A, B))
    top.epoch(0)
    commit_id = top.last(c.Emit).rows[-1].commit_id
    assert top.members[A].may_read(1, commit_id, (0,))
    assert not top.members[A].may_read(0, commit_id, (0,))
    assert not top.members[A].may_read(1, commit_id, (0, 1))
    top.stop = (m.Commit,)
    top.ingest(1)
    assert not top.members[A].may_read(1, commit_id, (0,))  # the first Prepare of the next epoch has released them


def test_an_instance_speaks_once_for_all_chains_that_end_there() -> None:
    groups = [(leader, *((C,) if leader != C else ())) for leader in (A, B, C)] * 2 + [(A, B)]
    top = Top(groups, (A, B, C))
    said: list[m.Prepared] = []
    tell = top.tell
    top.tell = lambda event: (said.append(event) if isinstance(event, m.Prepared) else None, tell(event))[1]  # type: ignore[method-assign]
    top.epoch(0)
    said.clear()
    top.epoch(1)
    order = top.driver.journaling.view.order
    assert sorted(sorted(order[n] for n in ack.chains) for ack in said) == [[(A, B)], [(A, C), (B, C), (C,)]]
    assert top.driver.commits.results[0][3:] == (0, 4), "of each chain, once"


def test_chains_that_are_complete_do_not_wait_for_the_others_beyond_a_tick() -> None:
    member = i.Instance(C, i.InstanceRecord())
    table = Table(Version(1, 1), (Group(Term(1, 1), (A, C)), Group(Term(1, 1), (B, C))), initial=True)
    member.step(m.Install(table))
    step, attempt = Step(0, 0), Attempt(1, 1)
    first, second = (
        m.Delta(step, attempt, table.version, g.leader, g.in_sync, (v,), v, 5) for v, g in enumerate(table.groups)
    )

    def acks(event: i.Event) -> list[object]:
        return [x.message for x in member.step(event) if isinstance(x, i.Send) and isinstance(x.message, m.Prepared)]

    assert acks(first) == []
    assert acks(i.Tick(50)) == [m.Prepared(step, attempt, (0,), (0,), (5,))]
    assert acks(i.Tick(100)) == [], "once"
    whole = m.Prepared(step, attempt, (0, 1), (0, 1), (5, 5))
    assert acks(second) == [whole]
    assert acks(second) == [whole], "said again to who may not have heard it"
    late = replace(first, attempt=Attempt(1, 2))
    assert acks(late) == [] and acks(first) == []
    assert acks(i.Tick(150)) == [m.Prepared(step, Attempt(1, 2), (0,), (0,), (5,))]
