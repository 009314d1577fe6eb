"""Files of an older day, and messages that come late or twice: what such an instance has is no more than it says."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, Term
from ferry.contract.results import StepResult
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from tests.unit.protocol.table_top import A, B, C, Top

VERSION = Version(1, 1)


def copy_of(member: i.Instance) -> i.Instance:
    """Its files as they are now."""
    deltas = tuple(delta for entries in member.log.by_commit_id.values() for delta in entries)
    return i.Instance(member.me, member.saved, deltas)


def commit_id(epoch: int) -> CommitId:
    return CommitId(Step(epoch, 0), Attempt(1, epoch + 1))


def delta(epoch: int, chain: tuple[InstanceId, ...], *vnodes: int, version: Version = VERSION) -> m.Delta:
    return m.Delta(*commit_id(epoch), version, A, chain, vnodes, 0, 0)


def commit(epoch: int) -> m.Commit:
    return m.Commit(commit_id(epoch), 1, (StepResult(commit_id(epoch).attempt, 0, 0),))


def table(version: Version, *groups: tuple[tuple[InstanceId, ...], tuple[InstanceId, ...]]) -> Table:
    """Of groups (in sync, learners)."""
    return Table(version, tuple(Group(Term(1, 1), in_sync, learners) for in_sync, learners in groups))


def messages(effects: list[i.Effect]) -> list[m.Message]:
    return [x.message for x in effects if isinstance(x, i.Send)]


def test_an_attempt_of_which_a_delta_is_missing_is_not_prepared() -> None:
    deltas = delta(1, (A, B), 0), delta(1, (C, B), 1)
    for logged, prepared in ((deltas[:1], ()), (deltas, (commit_id(1),))):
        member = i.Instance(B, i.InstanceRecord(1, commit_id(0), holds=(0, 1)), logged)
        (answer,) = messages(member.step(m.Ask(2)))
        assert isinstance(answer, m.Answer) and answer.prepared == prepared


def test_what_was_learned_is_not_there_when_what_was_prepared_since_lacks_it() -> None:
    """Files of the day on which it had learned virtual node 1; since then the journal made it a member for that, too."""
    deltas = delta(1, (A, B), 0), delta(1, (A,), 1)
    for logged, holds in ((deltas[:1], (0,)), (deltas, (0, 1)), ((), (0, 1))):
        member = i.Instance(B, i.InstanceRecord(1, commit_id(0), holds=(0,), learned=(1,)), logged)
        (answer,) = messages(member.step(m.Ask(2)))
        assert isinstance(answer, m.Answer) and answer.holds == holds
        assert answer.prepared == ((commit_id(1),) if logged else ())


def test_the_only_copy_whose_files_lack_the_last_apply_does_it_from_its_log() -> None:
    top = Top([(A,)], (A,))
    top.epoch(0)
    top.stop = (m.Commit,)
    top.ingest(1)
    old = copy_of(top.members[A])
    top.stop = ()
    top.wait(2_001)
    top.tell(c.EpochEnded(1))
    committed = top.committed()[A]
    assert committed is not None and committed.step == Step(1, 0)
    top.crash(A)
    top.back(A, old)
    assert top.committed() == {A: committed}
    top.epoch(2)
    assert top.last(c.Emit).rows[-1].commit_id.step == Step(2, 0)


def test_who_is_silent_may_have_what_spark_has_seen_the_end_of() -> None:
    top = Top([(A, B)], (A, B), c.CoordinatorSettings(start_ms=15_000, return_ms=60_000, ended=1))
    top.epoch(0)
    old, epoch = copy_of(top.members[A]), top.last(c.Emit).rows[-1].commit_id
    top.epoch(1)
    late = top.members[B]
    top.members = {A: old}
    top.new_driver()
    top.wait(59_000)
    assert top.journal is not None and top.journal.groups[0].in_sync == (A, B), "nothing is decided without it"
    top.back(B, late)
    ready = top.last(c.Ready)
    assert ready.committed.step == Step(1, 0) and ready.committed > epoch
    assert top.driver.table.groups[0].in_sync == (B,)


def test_what_a_member_said_before_it_was_lost_is_not_begun_anew() -> None:
    """Found by seed 3200124154: both come back with one older day's files after one had told the new driver of more."""
    top = Top([(A, B)], (A, B))
    top.epoch(0)
    old = {x: copy_of(top.members[x]) for x in (A, B)}
    top.ingest(1)
    top.members = {B: top.members[B]}
    top.new_driver()
    top.crash(B)
    for x in (A, B):
        top.back(x, old[x])
    assert top.last(c.Halt).kind == "unavailable"


def test_what_a_lost_member_said_is_applied_by_one_that_has_it_in_its_log() -> None:
    top = Top([(A, B)], (A, B))
    top.epoch(0)
    top.deaf = {(B, m.Commit)}
    top.ingest(1)
    committed, behind = top.members[A].saved.committed, top.members[B]
    assert committed is not None and committed.step == Step(1, 0) and behind.saved.committed != committed
    top.deaf, top.members = set(), {A: top.members[A]}
    top.new_driver()
    top.crash(A)
    top.back(A, i.Instance(A, i.InstanceRecord()))
    top.back(B, behind)
    assert top.last(c.Ready).committed == committed == top.committed()[B]
    assert top.driver.table.groups[0].in_sync == (B,)


def test_what_was_learned_whole_is_known_to_the_next_life_before_the_driver_hears_of_it() -> None:
    member = i.Instance(B, i.InstanceRecord())
    member.step(m.Install(table(VERSION, ((A,), (B,)))))
    member.step(commit(0))
    effects = member.step(m.Chunk(A, 1, 0, commit_id(0), True, 0, 0))
    saved = [at for at, x in enumerate(effects) if isinstance(x, i.Save) and x.saved.learned == (0,)]
    told = [at for at, x in enumerate(effects) if isinstance(x, i.Send) and isinstance(x.message, m.Warm)]
    assert saved and told and saved[0] < told[0]
    again = i.Instance(B, member.saved)
    (answer,) = messages(again.step(m.Ask(2)))
    assert isinstance(answer, m.Answer) and answer.holds == (0,)
    # Whoever was made a member of it meanwhile has it; whoever was not has to learn it anew, and drops it first.
    effects = again.step(m.Install(table(Version(2, 1), ((A, B), ()))))
    assert not messages(effects) and again.saved.holds == (0,) and not again.saved.learned
    again = i.Instance(B, member.saved)
    effects = again.step(m.Install(table(Version(2, 1), ((A,), (B,)))))
    assert i.Drop((0,)) in effects and not again.saved.learned


def test_what_was_learned_is_whole_as_of_its_step_only() -> None:
    member = i.Instance(B, i.InstanceRecord())
    member.step(m.Install(table(VERSION, ((A,), (B,)))))
    member.step(commit(0))
    member.step(m.Chunk(A, 1, 0, commit_id(0), True, 0, 0))
    member.step(commit(1))  # The delta is on its way.
    assert not member.saved.learned


def test_a_delta_that_waits_for_its_table_is_forgotten_with_its_body() -> None:
    member, newer = i.Instance(B, i.InstanceRecord(1, commit_id(0))), Version(1, 2)
    member.step(m.Install(table(VERSION, ((A,), ()))))
    member.step(delta(1, (), 0, version=newer))
    assert i.ForgetLog(Step(1, 0)) in member.step(commit(1))
    effects = member.step(m.Install(table(newer, ((A,), (B,)))))
    assert not any(isinstance(x, i.LogDelta | i.Apply) for x in effects)
    assert any(isinstance(x, m.Fetch) for x in messages(effects))


def test_a_request_that_comes_twice_begins_one_snapshot() -> None:
    member = i.Instance(A, i.InstanceRecord(1, commit_id(0), holds=(0,)))
    member.step(m.Install(table(VERSION, ((A,), (B,)))))

    def scans(session: int) -> list[int]:
        effects = member.step(m.Fetch(B, VERSION, session, (0,)))
        return [x.session for x in effects if isinstance(x, i.BeginSnapshot)]

    assert scans(1) == [1] and scans(3) == [3]
    assert scans(1) == [] and scans(3) == [], "two scans in one session are no snapshot"
    member.step(i.PeerLost(B))
    assert scans(1) == [1], "its next life counts anew"


def test_what_a_former_life_asked_for_is_not_answered() -> None:
    member, newer = i.Instance(A, i.InstanceRecord(1, commit_id(0), holds=(0,))), Version(1, 2)
    member.step(m.Install(table(VERSION, ((A,), ()))))
    member.step(m.Fetch(B, newer, 1, (0,)))
    member.step(i.PeerLost(B))
    effects = member.step(m.Install(table(newer, ((A,), (B,)))))
    assert not any(isinstance(x, i.BeginSnapshot) for x in effects)
