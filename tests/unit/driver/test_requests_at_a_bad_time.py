"""Requests while a driver begins, while the driver deploys a program by itself, and while the job goes back."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import Beside, Catalogue, DeployRequest, ProgramRecord, Retired
from ferry.contract.errors import Refusal, Unreachable
from ferry.contract.notes import EpochNotes
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.results import NO_RESULT
from ferry.contract.watermarks import FlowClock
from ferry.driver import program_list as listing
from ferry.driver.errors import Halted
from ferry.protocol import coordinator as core
from tests.unit.driver.test_deploys import COUNTS, MORE, Program, Rig, plan_of

FIRED = EpochNotes(maxima={1: {0: {"": FlowClock(31)}}})


def retiring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A job whose operator `more` is retired, and has just fired its last window."""
    rig = Rig(tmp_path, monkeypatch)
    record = ProgramRecord(2, (0, 1), (COUNTS, MORE), file="v2.py", since=4, retires=(Retired(1, 1),))
    rig.announcer.catalogue = rig.announcer.catalogue.with_program(record, (COUNTS, MORE))
    rig.table.programs = (ProgramVersion(2, 4, (0, 1)),)
    rig.deploys._programs[2] = Program(2, plan_of([COUNTS, MORE]))
    rig.machine.commits = SimpleNamespace(results=(NO_RESULT, NO_RESULT._replace(high=40)), meta=b"")
    return rig


def test_a_driver_that_begins_takes_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in the way of the program that the driver goes on with, and the driver would halt."""
    first = Rig(tmp_path, monkeypatch)
    first.deploys.request(DeployRequest(file="v2.py", at=900))
    first.until(lambda: first.posted)
    second = Rig(tmp_path, monkeypatch, starts=False)
    second.announcer.catalogue = first.announcer.catalogue
    for ask in (lambda: second.deploys.request(DeployRequest(file="v3.py")), lambda: second.deploys.rollback(None)):
        with pytest.raises(Unreachable, match="the driver is starting"):
            ask()
    with pytest.raises(Unreachable, match="the driver is starting"):
        second.deploys.rewind()
    second.deploys.start()
    second.until(lambda: second.posted)
    assert second.posted[0].number == 2 and second.deploys.rollback(None) == 1, "and now it can be given up"
    assert second.posted[-1] == core.Withdraw(2)


def test_a_restored_job_deploys_the_last_program_that_was_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rig(tmp_path, monkeypatch)
    first.deployed()
    first.refuses = "bad"
    first.deploys.request(DeployRequest(file="v3.py"))
    first.until(lambda: first.deploys._under_way is None)
    second = Rig(tmp_path, monkeypatch, starts=False)
    second.announcer.catalogue, second.table.programs = first.announcer.catalogue, first_program(1)
    second.deploys.start()
    second.until(lambda: second.posted)
    assert second.posted[0].number == 2


def test_a_rollback_waits_for_a_program_that_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would only give up the deploy that the driver has begun by itself, and say that the job has gone back."""
    rig = retiring(tmp_path, monkeypatch)
    rig.ends(6, FIRED)
    rig.until(lambda: rig.posted)
    assert rig.posted[0].number == 3
    for ask in (lambda: rig.deploys.rollback(None), lambda: rig.deploys.rewind()):
        with pytest.raises(Unreachable, match="program 3 is program 2 alone, and is not in force yet"):
            ask()
    assert len(rig.posted) == 1
    rig.machine.deploying = SimpleNamespace(may_take_back=lambda number: number == 3)
    rig.table.programs = (ProgramVersion(2, 4, (0, 1)), ProgramVersion(3, 7, (0,)))
    rig.life.loop.on_deployed(core.Deployed(3))
    rig.until(lambda: rig.deploys._under_way is None)
    with pytest.raises(Unreachable, match="program 3 is program 2 alone"):
        rig.deploys.rollback(None)


def test_no_program_begins_while_the_job_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, go, begun = retiring(tmp_path, monkeypatch), threading.Event(), threading.Event()
    went = list[int]()

    def rewind(life: Any, plan: Any, identity: str) -> int:
        begun.set()
        go.wait(10)
        return 1

    monkeypatch.setattr("ferry.driver.deploys.rewind", rewind)
    thread = threading.Thread(target=lambda: went.append(rig.deploys.rewind(leaves=2)))
    thread.start()
    begun.wait(10)
    rig.ends(6, FIRED)
    with pytest.raises(Unreachable, match="the job goes back to a checkpoint"):
        rig.deploys.rewind(leaves=2)
    go.set()
    thread.join(10)
    assert went == [1] and not rig.posted and rig.announcer.catalogue.program(3) is None


def test_a_job_that_has_gone_back_does_not_go_back_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)
    assert rig.deploys.rewind(leaves=2) == 1


def test_a_rewind_that_is_refused_leaves_room_for_a_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch)

    def rewind(life: Any, plan: Any, identity: str) -> int:
        raise Refusal("no checkpoint")

    monkeypatch.setattr("ferry.driver.deploys.rewind", rewind)
    with pytest.raises(Refusal, match="no checkpoint"):
        rig.deploys.rewind()
    assert rig.deployed() == 2


def test_programs_are_not_rewound_if_the_driver_died_before_the_checkpoint_was_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, monkeypatch)
    rig.deployed()
    known = rig.announcer.catalogue
    second = Rig(tmp_path, monkeypatch, starts=False)
    second.announcer.catalogue = known.with_program(replace(known.programs[1], rewound=True))
    second.table.programs = rig.table.programs
    assert second.announcer.catalogue.void, "the operator that is in force, too"
    second.deploys.start()
    after: Catalogue = second.announcer.catalogue
    assert not after.void and [one.rewound for one in after.programs] == [False, False]


def test_a_job_that_is_back_at_two_programs_goes_on_with_the_half_that_it_had_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All state was lost. A later program was compared with that half; it is refused, not deployed after an hour."""
    rig = Rig(tmp_path, monkeypatch, starts=False)
    both = ProgramRecord(
        2, (1, 0), (MORE, COUNTS), file="v2.py", since=4, base=1, beside=Beside(1, 0, 60.0), silent=(0,)
    )
    half = ProgramRecord(3, (0,), (COUNTS,), file="job.py", since=6, base=2, settles=1)
    later = ProgramRecord(4, (0,), (COUNTS,), file="v4.py", since=8, base=3)
    for record in (both, half, later):
        rig.announcer.catalogue = rig.announcer.catalogue.with_program(record, (COUNTS, MORE))
    rig.table.programs = (ProgramVersion(2, 4, (1, 0), (), (0,)),)
    rig.deploys.start()
    rig.until(lambda: rig.posted and rig.announcer.catalogue.program(4).refused)
    assert [one.number for one in rig.posted] == [3]
    assert (
        "is back at program 2, which runs beside another one: deploy it again"
        in rig.announcer.catalogue.program(4).refused
    )


def test_a_rollback_just_before_the_coordinator_has_the_deploy_gives_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator did not know the program yet, and ignored it."""
    rig, order_of = Rig(tmp_path, monkeypatch), listing.order_of

    def late(*parts: Any) -> Any:
        rig.deploys.rollback(None)
        return order_of(*parts)

    monkeypatch.setattr(listing, "order_of", late)
    rig.deploys.request(DeployRequest(file="v2.py"))
    rig.until(lambda: len(rig.posted) == 3)
    assert rig.posted[0] == rig.posted[2] == core.Withdraw(2) and rig.posted[1].number == 2


def test_an_operator_of_a_lost_program_begins_anew_after_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Program 2 had begun it, and no checkpoint of program 2 is left; it had returned with an id without a state."""
    first = Rig(tmp_path, monkeypatch)
    first.deployed()
    first.posted.clear()
    first.deploys.request(DeployRequest(file="v3.py"))
    first.until(lambda: first.posted)
    assert first.posted[0].operators == (1, 0)
    first.in_force(3, 9)
    second = Rig(tmp_path, monkeypatch, starts=False)
    second.announcer.catalogue = first.announcer.catalogue
    second.deploys.start()
    second.until(lambda: second.posted)
    assert (second.posted[0].number, second.posted[0].operators) == (3, (2, 0))
    assert second.announcer.catalogue.void == (1,) and second.announcer.catalogue.ids == {"counts": 0, "more": 2}


def test_a_deploy_during_which_the_job_ends_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that halts because state was lost told the user that the program was refused, because state was lost."""
    rig, told = Rig(tmp_path, monkeypatch), list[Any]()
    monkeypatch.setattr(rig.deploys._outcomes, "tell", told.append)

    def load(record: ProgramRecord) -> None:
        rig.life.loop.ending.set()
        raise Halted(core.Halt("unavailable", "virtual nodes [0] were held only by 1.0"))

    monkeypatch.setattr(rig.deploys, "_load", load)
    rig.deploys.request(DeployRequest(file="v2.py"))
    for thread in [one for one in threading.enumerate() if one.name == "deploy"]:
        thread.join(10)
    assert rig.life.loop.ending.is_set() and told == [] and rig.announcer.catalogue.wanted.number == 2


def test_a_look_at_another_program_undoes_no_newer_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two terminals look at program 1, and the program of the first one is in force before the second one asks."""
    rig = Rig(tmp_path, monkeypatch)
    mine = DeployRequest(file="v2.py", base=1)
    assert rig.deploys.request(mine) == 2
    rig.until(lambda: rig.posted)
    with pytest.raises(Refusal, match=r"program 2 is being deployed since \d+ s"):
        rig.deploys.request(DeployRequest(arguments={"n": 5}, base=1))
    rig.in_force(2, 7)
    with pytest.raises(Refusal, match=r"program 2 is in force since the look at program 1: deploy again"):
        rig.deploys.request(DeployRequest(file="job.py", arguments={"n": 5}, base=1))
    assert len(rig.posted) == 1 and rig.deploys._under_way is None
    assert rig.deploys.request(mine) == 2, "its answer was lost"
    assert rig.deploys.request(DeployRequest(file="v3.py", base=2)) == 3


@pytest.mark.parametrize("base", [0, 2, 3])
def test_a_program_that_goes_on_alone_is_the_program_that_a_user_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: int
) -> None:
    rig = retiring(tmp_path, monkeypatch)
    rig.ends(6, FIRED)
    rig.until(lambda: rig.posted)
    rig.in_force(3, 8)
    with pytest.raises(Refusal, match="program 3 is in force since the look at program 1"):
        rig.deploys.request(DeployRequest(file="v4.py", base=1))
    assert rig.deploys.request(DeployRequest(file="v4.py", base=base)) == 4
