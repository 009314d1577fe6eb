"""The job goes back from a deployed program by itself: once, with the reason, as the program before."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import Beside, Catalogue, DeployRequest
from ferry.contract.errors import Refusal
from ferry.contract.notes import EpochNotes
from ferry.contract.programs import ProgramVersion
from ferry.driver.probation import WENT_BACK, Passed, deployed, passed
from ferry.protocol import coordinator as core
from tests.unit.driver.test_deploys import COUNTS, MORE, Program, Rig, plan_of

WHY = "expectation 'cents are positive': 3 of 5 rows violate it"


class Violation:
    """As the checks have it."""

    silent = False

    def __str__(self) -> str:
        return WHY

    class expectation:
        name = "cents are positive"

    rows = 3


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = Rig(tmp_path, monkeypatch)
    rig.deployed()
    rig.posted.clear()
    return rig


def test_a_violation_deploys_the_program_before_with_the_reason(rig: Rig) -> None:
    rig.ends(7, EpochNotes())
    assert not rig.posted
    rig.ends(8, EpochNotes(), Violation())
    rig.until(lambda: rig.posted)
    rig.ends(9, EpochNotes(), Violation())
    with pytest.raises(Refusal, match="the job goes back from program 2 already: expectation"):
        rig.deploys.rollback(None)
    (order,) = rig.posted
    record = rig.announcer.catalogue.program(3)
    assert order.number == 3 and (record.back_from, record.because, record.file) == (2, WHY, "job.py")
    assert not record.probation and not record.slower, "nothing goes back from it"
    assert [one.text for one in rig.life.metrics.problems.lasting if one.reason == WENT_BACK] == [
        f"the job goes back from program 2: {WHY}"
    ]
    rig.in_force(3, 10)
    listed = {one["number"]: one for one in rig.deploys.programs()}
    assert listed[2]["wentBack"] == WHY and listed[2]["since"] == 7 and not listed[3]["wentBack"]
    now, left = rig.deploys.brief()
    assert (now.number, left.number, left.state, left.refused) == (3, 2, "refused", WHY), "no operator deploys it again"
    assert [one.number for one in rig.announcer.catalogue.before(3)] == [1]


def test_the_next_deploy_ends_the_warning_and_the_last_epoch_of_an_input_goes_nowhere(rig: Rig) -> None:
    rig.ends(8, EpochNotes(flush=True), Violation())
    assert not rig.posted and rig.life.metrics.problems.lasting
    rig.deploys.request(DeployRequest(file="v3.py"))
    rig.until(lambda: rig.posted)
    rig.in_force(3, 10)
    assert not rig.life.metrics.problems.lasting


def test_a_way_back_that_is_refused_is_not_tried_again(rig: Rig) -> None:
    rig.refuses = "the key has changed"
    for epoch in range(8, 12):
        rig.ends(epoch, EpochNotes(), Violation())
        rig.until(lambda: rig.deploys._under_way is None)
    assert rig.states() == {3: "refused", 2: "in force", 1: "over"}
    assert sum(kind == "warning" and "goes back" in text for kind, text in rig.notes) <= 1


def test_a_program_that_has_passed_is_told_and_nothing_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("ferry.driver.probation.time", SimpleNamespace(monotonic=lambda: clock[0]))
    rig.ends(7, EpochNotes())
    assert rig.announcer.catalogue.program(2).tries == 1
    clock[0] += 31
    rig.ends(8, EpochNotes())
    rig.until(lambda: not rig.announcer.catalogue.program(2).probation)
    assert rig.announcer.catalogue.program(2).tries == 0
    rig.ends(9, EpochNotes(), Violation())
    assert not rig.posted and rig.life.metrics.violations["cents are positive"] == 3


def test_a_violation_of_the_first_program_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.ends(3, EpochNotes(), Violation())
    assert rig.life.metrics.violations["cents are positive"] == 3 and not rig.posted


def test_slow_epochs_take_the_job_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)
    for epoch in range(6):
        rig.ends(epoch, EpochNotes(), seconds=0.3)
    rig.deployed(slower=5.0)
    rig.posted.clear()
    for epoch in range(7, 12):
        assert not rig.posted
        rig.ends(epoch, EpochNotes(), seconds=2.0)
    rig.until(lambda: rig.posted)
    assert "its epochs last 2.0 s" in rig.announcer.catalogue.program(3).because


def begun_again(folder: Path, monkeypatch: pytest.MonkeyPatch, catalogue: Catalogue, program: int, back: bool) -> Rig:
    """The next driver, which begins with this program while program 2 is in force; `back`: it can be taken back."""
    next_one = Rig(folder, monkeypatch, starts=False)
    next_one.announcer.catalogue = catalogue
    next_one.table.programs = (*next_one.table.programs, ProgramVersion(2, 7, (1, 0)))
    next_one.machine.deploying.may_take_back = lambda number: back and number == 2
    next_one.life.program = next_one.deploys._programs[program] = Program(program, plan_of([MORE, COUNTS][:program]))
    return next_one


def with_tries(rig: Rig, tries: int) -> Any:
    return rig.announcer.catalogue.with_program(replace(rig.announcer.catalogue.program(2), tries=tries))


def test_the_driver_after_the_last_try_takes_the_program_back(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for program, tries, withdrawn in ((2, 3, False), (1, 3, True)):
        after = begun_again(tmp_path, monkeypatch, with_tries(rig, tries), program, back=True)
        after.deploys.start()
        assert [isinstance(one, core.Withdraw) for one in after.posted] == [True] * withdrawn
        assert "3 drivers have ended" in after.posted[0].reason if withdrawn else True


def test_what_is_committed_is_gone_back_from_before_an_epoch_begins(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = begun_again(tmp_path, monkeypatch, with_tries(rig, 4), 2, back=False)
    after.machine.deploying.is_due = lambda epoch: bool(after.posted)
    after.deploys.start()
    (order,) = after.posted
    assert order.number == 3 and "3 drivers have ended" in after.announcer.catalogue.program(3).because


def test_a_wanted_program_is_tried_by_three_drivers(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.table.programs = rig.table.programs[:1]
    wanted = replace(rig.announcer.catalogue.program(2), since=None, tries=2)
    for tries in (2, 3):
        after = Rig(tmp_path, monkeypatch, starts=False)
        after.announcer.catalogue = rig.announcer.catalogue.with_program(replace(wanted, tries=tries))
        after.deploys.start()
        after.until(lambda a=after: a.posted or a.announcer.catalogue.program(2).refused)
        assert bool(after.posted) == (tries == 2)
        assert after.announcer.catalogue.program(2).tries == 3
    assert passed(wanted).tries == 0


def test_a_passed_probation_and_another_program_are_both_in_the_journal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last epoch of a probation may also be the last one of a kept program or of retired operators."""
    passes, wanted = threading.Event(), threading.Event()

    def record(catalogue: Catalogue, generation: int) -> None:
        if catalogue.program(3) is not None:
            wanted.set()
        else:
            passes.set()
            wanted.wait(0.3)  # The other thread must not have looked at the journal.
        rig.record(catalogue, generation)

    monkeypatch.setattr(rig.announcer, "record", record)
    rig.deploys._outcomes.tell(Passed(2))
    assert passes.wait(10)
    rig.deploys.request(DeployRequest(file="v3.py"))
    rig.until(lambda: rig.posted)
    assert rig.announcer.catalogue.program(3) is not None and not rig.announcer.catalogue.program(2).probation


def beside(rig: Rig, shadow: int, failed: str = "") -> EpochNotes:
    """Program 2 runs beside program 1; the half that is not written has failed."""
    silent = (1,) if shadow else (0,)
    how = {"beside": Beside(1, shadow, 60.0 * (not shadow)), "silent": silent, "altered": ((1, 0),)}
    both = replace(rig.announcer.catalogue.program(2), **how)
    rig.announcer.catalogue = rig.announcer.catalogue.with_program(both)
    rig.table.programs = (ProgramVersion(2, 7, (1, 0), (), silent),)
    notes = EpochNotes(failed=(2, failed) if failed else None)
    rig.machine.commits = SimpleNamespace(meta=notes.dump())
    return notes


def test_a_program_whose_predecessor_is_not_kept_any_more_goes_back_by_another_deploy(rig: Rig) -> None:
    """The kept state lacks epochs: the new program goes on alone first."""
    notes = beside(rig, shadow=0, failed="user code: it fails")
    rig.ends(8, notes, Violation())
    rig.until(lambda: rig.posted)
    alone = rig.announcer.catalogue.program(3)
    assert (alone.operators, alone.settles, alone.back_from, alone.refused) == ((1,), 2, 0, "")
    rig.in_force(3, 9)
    rig.table.programs = (ProgramVersion(3, 9, (1,)),)
    rig.ends(9, notes)
    rig.until(lambda: len(rig.posted) == 2)
    back = rig.announcer.catalogue.program(4)
    assert (back.back_from, back.because, back.file) == (2, WHY, "job.py")


def test_a_refused_end_of_a_shadow_is_tried_again_and_it_never_goes_on_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = beside(rig, shadow=5)
    violation = Violation()
    violation.silent = True
    rig.ends(8, notes, violation)
    rig.until(lambda: rig.posted)
    assert rig.announcer.catalogue.program(3).settles == 1
    rig.life.loop.on_deployed(core.Deployed(3, "i3 has not loaded it"))
    rig.until(lambda: rig.deploys._under_way is None)
    rig.ends(9, notes)
    assert len(rig.posted) == 1
    monkeypatch.setattr("ferry.driver.probation.AGAIN_SECONDS", -1.0)
    rig.ends(10, notes)
    rig.until(lambda: len(rig.posted) == 2)
    again = rig.announcer.catalogue.program(4)
    assert (again.settles, again.back_from, again.because) == (1, 2, WHY)


def test_no_epoch_begins_while_a_driver_goes_on_with_the_way_back_of_a_dead_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would die of the program in force once more, and the way back would count its deaths."""
    catalogue = with_tries(rig, 3)
    back = replace(catalogue.program(1), number=3, since=None, base=2, back_from=2, because=WHY, tries=1)
    after = begun_again(tmp_path, monkeypatch, catalogue.with_program(back), 1, back=False)
    looks = list[int]()

    def is_due(epoch: int) -> bool:
        looks.append(len(after.posted))
        return bool(after.posted)

    after.machine.deploying.is_due = is_due
    after.deploys.start()
    assert looks and after.posted[0].number == 3


def test_a_late_withdrawal_does_not_undo_the_way_back(rig: Rig) -> None:
    """The operator withdraws what its spec does not name, and the deploy may be over when its request arrives."""
    rig.ends(8, EpochNotes(), Violation())
    rig.until(lambda: rig.posted)
    with pytest.raises(Refusal, match="the job goes back from program 2 already"):
        rig.deploys.rollback(None, withdraw=3)
    rig.in_force(3, 10)
    with pytest.raises(Refusal, match="program 3 is not being deployed any more"):
        rig.deploys.rollback(None, withdraw=3)
    assert len(rig.posted) == 1
    number = rig.deploys.request(DeployRequest(file="v4.py"))
    rig.until(lambda: len(rig.posted) == 2)
    assert rig.deploys.rollback(None, withdraw=number) == 3 and rig.posted[-1] == core.Withdraw(number)


def test_drivers_that_die_later_do_not_take_the_job_back_from_the_program_it_has_gone_back_to(rig: Rig) -> None:
    """Nor from a program that has passed, and only goes on without retired operators."""
    rig.ends(8, EpochNotes(), Violation())
    rig.until(lambda: rig.posted)
    assert rig.announcer.catalogue.program(3).tries == 1, "a driver may die while it loads it"
    rig.in_force(3, 10)
    assert rig.announcer.catalogue.program(3).tries == 0
    settled = replace(rig.announcer.catalogue.program(2), number=4, settles=2, tries=1)
    assert [deployed(replace(settled, probation=seconds), 12).tries for seconds in (0.0, 30.0)] == [0, 1]


def test_a_program_has_passed_also_if_it_goes_on_under_another_number(rig: Rig) -> None:
    """`ferry deploy --probation` waits for the number that it was given; it waited for ever."""
    settled = replace(rig.announcer.catalogue.program(2), number=3, settles=2, since=9)
    rig.announcer.catalogue = rig.announcer.catalogue.with_program(settled)
    rig.deploys._outcomes.tell(Passed(3))
    rig.until(lambda: not rig.announcer.catalogue.program(3).probation)
    assert [one["probation"] for one in rig.deploys.programs()] == [0.0, 0.0, 0.0]


class Loops:
    """The numbers of programs that have tasks; a task attaches at once."""

    def __init__(self, *programs: int) -> None:
        self.kept = [*programs]

    def others(self, program: int) -> bool:
        return any(number != program for number in self.kept)

    def has(self, program: int) -> bool:
        return program in self.kept

    def load(self, program: int, works: Any, gives_up: Any) -> bool:
        self.kept.append(program)
        return True

    def settle(self, program: int) -> None:
        self.forget(*[number for number in self.kept if number < program])

    def forget(self, *programs: int) -> None:
        self.kept = [number for number in self.kept if number not in programs]


def with_loops(rig: Rig, monkeypatch: pytest.MonkeyPatch, *programs: int) -> Loops:
    loops = Loops(*programs)
    rig.life.program.loops = loops
    monkeypatch.setattr(
        rig.deploys, "_built", lambda record: Program(record.number, plan_of(record.descriptors), {}, loops)
    )
    return loops


@pytest.mark.parametrize("wanted", ["nothing", "the way back", "a program of the user's"])
def test_no_epoch_of_a_program_that_drivers_die_of_begins_before_the_next_one_has_tasks(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    """The driver has begun with the tasks of the program before; tasks of three programs would hold all slots."""
    catalogue = with_tries(rig, 4)
    of, back_from = (1, 2) if wanted == "the way back" else (2, 0)
    if wanted != "nothing":
        record = replace(catalogue.program(of), number=3, since=None, base=2, back_from=back_from, tries=1)
        catalogue = catalogue.with_program(record)
    after = begun_again(tmp_path, monkeypatch, catalogue, 1, back=False)
    loops, looks = with_loops(after, monkeypatch, 1), list[bool]()

    def is_due(epoch: int) -> bool:
        looks.append(bool(after.posted))
        return looks[-1]

    after.machine.deploying.is_due = is_due
    after.deploys.start()
    assert after.posted[0].number == 3 and looks[-1] and loops.kept == [3]


def test_a_program_that_is_taken_back_keeps_no_tasks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be loaded after the driver has heard that it is taken back; the next deploy waited for its tasks to end."""
    loops = with_loops(rig, monkeypatch, 1)

    def open_sinks(program: Program, committed: int, is_over: Any) -> bool:
        rig.table.programs = rig.table.programs[:1]
        return True

    rig.deploys._programs.clear()
    rig.announcer.journaled = lambda: (rig.announcer.catalogue, None)
    rig.deploys._open_sinks = open_sinks  # type: ignore[assignment]
    assert rig.deploys.version(2, 7).number == 1 and loops.kept == [1] and not loops.others(1)
