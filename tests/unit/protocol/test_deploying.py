"""A deploy: loaded by all, then in force from one epoch on; refused, and nothing has changed; or given to the next driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.names import InstanceId, Step
from ferry.contract.plans import Plan
from ferry.contract.programs import ProgramVersion
from ferry.protocol import coordinator as c
from tests.unit.protocol.table_top import A, B, C, Top

DEPLOY = c.Deploy(2, (1, 0), b"text")
FIRST = ProgramVersion(1, 0, (0,))


def top(**settings: Any) -> Top:
    out = Top([(A, B), (B, A)], (A, B), c.CoordinatorSettings(**settings))
    out.stop = (m.LoadProgram,)
    out.epoch(0)
    return out


def loads(out: Top) -> list[InstanceId]:
    return [x[0] for x in out.done if isinstance(x, tuple) and isinstance(x[1], m.LoadProgram)]


def deployed(out: Top) -> list[c.Deployed]:
    return [x for x in out.done if isinstance(x, c.Deployed)]


def load(out: Top, *instances: InstanceId) -> None:
    for x in instances:
        out.tell(m.ProgramLoaded(x, 2))


def epoch(out: Top, number: int, operators: int) -> None:
    """An epoch with this number of operators."""
    out.tell(c.EpochBegun(number))
    for position in range(operators):
        assert out.last(c.StartIngest).step == Step(number, position)
        out.ingested(A)
    assert out.last(c.Emit).step == Step(number, operators - 1)
    out.tell(c.EpochEnded(number))


def test_a_program_is_in_force_from_the_epoch_after_all_have_loaded_it() -> None:
    one = top()
    one.tell(DEPLOY)
    assert loads(one) == [A, B]
    load(one, A)
    epoch(one, 1, operators=1)
    load(one, B)
    assert not deployed(one)
    epoch(one, 2, operators=2)
    assert deployed(one) == [c.Deployed(2)]
    assert one.journal is not None and one.journal.programs == (FIRST, ProgramVersion(2, 2, (1, 0)))
    assert all(member.saved.programs == one.journal.programs for member in one.members.values())
    results = one.driver.commits.results
    assert (results[0].attempt, results[0].high, results[1].high) == (one.driver.attempts.attempt, 20, 20)


def test_instances_are_told_of_a_program_that_is_given_up_if_they_derive_state_for_it() -> None:
    for altered, told in (((), False), (((1, 0),), True)):
        one = top()
        one.tell(replace(DEPLOY, operators=(1,), altered=altered))
        one.tell(c.Withdraw(2))
        ends = [x for x in one.done if isinstance(x, tuple) and x[1] == m.LoadProgram(2, b"", given_up=True)]
        assert [to for to, _ in ends] == ([A, B] if told else [])


def test_the_operators_that_stay_go_on_where_they_were() -> None:
    one = top()
    one.tell(DEPLOY)
    load(one, A, B)
    one.tell(c.EpochBegun(1))
    assert one.last(c.StartIngest).step == Step(1, 0)
    prepares = []
    for _ in range(2):
        one.ingested(A)
        prepares.append(next(x[1] for x in reversed(one.done) if isinstance(x, tuple) and isinstance(x[1], m.Prepare)))
    assert [p.low for p in prepares] == [one.driver.commits.results[1].low, 0]
    assert prepares[0].low < 0, "the introduced operator has seen nothing"


def test_nothing_begins_before_the_journal_has_the_program() -> None:
    one = top()
    one.tell(DEPLOY)
    load(one, A, B)
    one.tell(c.JournalReachable(False))
    epoch(one, 1, operators=1)
    one.tell(c.JournalReachable(True))
    one.done.clear()
    effects = one.driver.step(c.EpochBegun(2))
    assert [type(x) for x in effects] == [c.Journal], "no StartIngest: the epoch waits for the journal"
    assert effects[0].table.programs[-1].since == 2
    one.obey(effects)
    assert one.last(c.StartIngest).step == Step(2, 0)


def test_a_program_waits_for_its_epoch() -> None:
    one = top()
    one.tell(c.Deploy(2, (1, 0), b"", at=3))
    load(one, A, B)
    for number in (1, 2):
        epoch(one, number, operators=1)
    epoch(one, 3, operators=2)


def test_a_program_waits_for_an_event_time() -> None:
    """The watermark of the epoch before has to be there."""
    one = top()
    one.tell(c.Deploy(2, (1, 0), b"", at_time=10))
    load(one, A, B)
    assert one.driver.commits.watermark < 10
    epoch(one, 1, operators=1)
    assert one.driver.commits.watermark == 10
    epoch(one, 2, operators=2)


def test_an_instance_that_cannot_load_it_refuses_it_for_all() -> None:
    one = top()
    one.tell(DEPLOY)
    load(one, A)
    one.tell(m.ProgramLoaded(B, 2, "SyntaxError: invalid syntax"))
    assert deployed(one) == [c.Deployed(2, "1.0: SyntaxError: invalid syntax")]
    load(one, B)
    epoch(one, 1, operators=1)
    assert one.driver.table.programs == (FIRST,)


def test_who_does_not_answer_is_asked_again_and_named_at_the_deadline() -> None:
    one = top(load_ms=5_000, load_again_ms=2_000)
    one.tell(DEPLOY)
    load(one, A)
    one.wait(4_500)
    assert loads(one) == [A, B, B]
    one.wait(1_000)
    assert deployed(one) == [c.Deployed(2, "it was not loaded after 5 s by 1.0 (of 1)")]


def test_an_instance_that_comes_back_loads_it_before_the_switch() -> None:
    one = top(load_again_ms=500)
    one.tell(DEPLOY)
    load(one, A, B)
    files = one.crash(B)
    one.back(B, files)
    epoch(one, 1, operators=1)
    one.wait(1_000)
    assert loads(one)[-1] == B
    load(one, B)
    epoch(one, 2, operators=2)


def test_an_instance_that_comes_while_a_program_waits_for_its_epoch_has_the_whole_time() -> None:
    one = top(load_ms=5_000, load_again_ms=500)
    one.tell(c.Deploy(2, (1, 0), b"", at=3))
    load(one, A, B)
    one.wait(20_000)
    one.back(B, one.crash(B))
    one.wait(2_000)
    assert not deployed(one) and loads(one)[-1] == B
    one.wait(4_000)
    assert deployed(one) == [c.Deployed(2, "it was not loaded after 5 s by 1.0 (of 1)")]


def test_one_deploy_replaces_another() -> None:
    one = top()
    one.tell(DEPLOY)
    one.tell(c.Deploy(3, (0, 1), b""))
    assert deployed(one) == [c.Deployed(2, "program 3 was deployed instead")]
    load(one, A, B)
    epoch(one, 1, operators=1)
    for x in (A, B):
        one.tell(m.ProgramLoaded(x, 3))
    epoch(one, 2, operators=2)
    assert one.driver.table.programs[-1] == ProgramVersion(3, 2, (0, 1))


def test_a_deploy_can_be_withdrawn_until_it_is_in_force() -> None:
    one = top()
    one.tell(DEPLOY)
    one.tell(c.Withdraw(2))
    load(one, A, B)
    epoch(one, 1, operators=1)
    assert deployed(one) == [c.Deployed(2, "it was withdrawn")]


def test_a_program_is_not_taken_back_to_one_without_a_text() -> None:
    """After a restore under another program the job stood without either, and the user's error was lost."""
    for stays in (0, 2):
        one = top()
        one.tell(DEPLOY)
        load(one, A, B)
        one.tell(c.EpochBegun(1))
        one.driver.deploying.stays = stays
        assert one.driver.deploying.may_take_back(2) == (stays == 0)
        one.tell(c.Withdraw(2, "no"))
        assert one.driver.table.programs[-1].number == (1 if stays == 0 else 2)


def test_a_program_with_operators_beside_their_origins_waits_for_copies() -> None:
    one = Top([(A, B)], (A, B, C), c.CoordinatorSettings())
    one.stop = (m.LoadProgram, m.Chunk)
    one.epoch(0)
    one.tell(c.Deploy(2, (1, 0), b"", altered=((1, 0),), silent=(1,)))
    load(one, A, B, C)
    table = one.driver.table
    learning = replace(table, groups=(replace(table.groups[0], learners=(C,)),))
    one.driver.journaling.table = learning
    assert not one.driver.deploying.is_due(1), "a chunk of operator 0 would not tell what operator 1 has"
    one.driver.journaling.table = table
    assert one.driver.deploying.is_due(1)
    epoch(one, 1, operators=2)
    assert one.driver.table.programs[-1] == ProgramVersion(2, 1, (1, 0), ((1, 0),), (1,))


def test_a_program_that_has_committed_nothing_is_not_replaced() -> None:
    """An altered operator would lose the watermark of the operator before it."""
    one = top()
    one.tell(c.Deploy(2, (1,), b"", altered=((1, 0),)))
    load(one, A, B)
    one.tell(c.EpochBegun(1))
    one.tell(c.Deploy(3, (1,), b"", base=2))
    for x in (A, B):
        one.tell(m.ProgramLoaded(x, 3))
    one.tell(c.EpochBegun(1))
    assert one.driver.table.programs[-1].number == 2
    epoch(one, 1, operators=1)
    epoch(one, 2, operators=1)
    assert one.driver.table.programs[-1] == ProgramVersion(3, 2, (1,))


def begun_but_not_journaled(one: Top) -> list[Any]:
    """The first epoch of program 2 waits for the journal."""
    one.tell(DEPLOY)
    load(one, A, B)
    effects: list[Any] = one.driver.step(c.EpochBegun(1))
    assert [type(x) for x in effects] == [c.Journal]
    return effects


@pytest.mark.parametrize("given_up", [c.Withdraw(2, "no"), m.ProgramLoaded(B, 2, "no")])
def test_what_gives_a_deploy_up_while_the_journal_gets_it_takes_the_program_back(given_up: Any) -> None:
    one = top()
    effects = begun_but_not_journaled(one)
    one.tell(given_up)
    assert not deployed(one), "the journal may have it"
    one.obey(effects)
    assert [x.number for x in deployed(one)] == [2, 2] and deployed(one)[-1].refused.endswith("no")
    assert one.driver.table.programs == (FIRST,) and one.last(c.StartIngest).step == Step(1, 0)


def test_a_program_that_is_being_taken_back_is_not_told_in_force() -> None:
    one = top()
    one.obey(begun_but_not_journaled(one))
    one.done.clear()
    effects = one.driver.step(c.Withdraw(2, "no"))
    assert [type(x) for x in effects] == [c.Journal]
    assert not one.driver.step(c.Deploy(2, (1, 0), b"")), "the journal may be without it"
    one.obey(effects)
    assert deployed(one) == [c.Deployed(2, "no")]


def test_a_deploy_that_the_journal_gets_is_not_replaced() -> None:
    """The other one was compared with a program that will be over."""
    one = top()
    effects = begun_but_not_journaled(one)
    one.tell(c.Deploy(3, (0, 1), b"", base=1))
    one.obey(effects)
    assert deployed(one) == [c.Deployed(3, "program 2 begins now: deploy it again"), c.Deployed(2)]
    assert one.driver.table.programs[-1].number == 2


def test_a_new_driver_goes_on_with_what_the_journal_has() -> None:
    """The old one dies between the journal and the first step of the program."""
    one = top()
    one.tell(DEPLOY)
    load(one, A, B)
    for effect in one.driver.step(c.EpochBegun(1)):
        if isinstance(effect, c.Journal):
            one.journal = effect.table
    one.new_driver()
    epoch(one, 1, operators=2)
    one.tell(DEPLOY)
    assert deployed(one) == [c.Deployed(2)], "whoever asks for it again hears that it is in force"
    one.tell(c.Deploy(1, (0,), b""))
    assert deployed(one)[-1] == c.Deployed(1, "program 2 is in force")


def test_a_step_that_a_crash_cut_short_is_finished_as_a_step_of_its_own_program() -> None:
    """B begins to apply the last step of the first program's epoch and dies; its next life finishes it by the record."""
    one = top()
    one.tell(DEPLOY)
    load(one, A, B)
    epoch(one, 1, operators=2)
    files = one.crash(B)
    saved = files.saved
    assert saved.programs[-1].number == 2 and saved.committed is not None and saved.committed.step == Step(1, 1)
    one.back(B, files)
    load(one, B)
    epoch(one, 2, operators=2)
    assert {x.step for x in one.committed().values() if x} == {Step(2, 1)}


@pytest.mark.parametrize("waits", [True, False])
def test_a_copy_without_a_snapshot_is_whole_before_a_switch(waits: bool) -> None:
    one = Top([(A,)], (A, B, C))
    one.stop = (m.LoadProgram,)
    one.epoch(0)
    one.tell(Plan(1, ((B,),), at_window=(0,) if waits else ()))
    epoch(one, 1, operators=1)
    one.tell(DEPLOY)
    load(one, A, B, C)
    assert bool(one.driver.table.at_window) == waits
    if waits:
        epoch(one, 2, operators=1)
        one.end_windows()
        epoch(one, 3, operators=1)
    number = one.driver.commits.following.epoch
    epoch(one, number, operators=2)


def test_a_job_that_goes_back_halts_when_the_journal_has_the_table() -> None:
    one = top()
    one.tell(c.Rewind("it goes back"))
    one.driver.journaling.writing = one.driver.table
    one.wait(2_000)
    assert not any(isinstance(x, c.Halt) for x in one.done)
    one.driver.journaling.writing = None
    one.wait(1_000)
    assert one.last(c.Halt) == c.Halt("rewind", "it goes back")
