"""A deploy in the driver: checked before it is imported, journaled before it is loaded; a refusal changes nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import TEXTS_MAX, Beside, DeployRequest, ProgramRecord, Retired, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry.contract.notes import EpochNotes
from ferry.contract.program_diff import program_diff
from ferry.contract.program_text import identity, is_sealed, packed
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.results import NO_RESULT
from ferry.contract.watermarks import FlowClock
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.driver import building, opening, taking_back
from ferry.driver.deploys import Deploys
from ferry.protocol import coordinator as core
from tests.unit.sidecar.test_data import settings_of

COUNTS = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
MORE = replace(COUNTS, name="more", index=1)


def plan_of(descriptors: Any) -> Any:
    operators = [SimpleNamespace(descriptor=replace(d, index=i), inputs=()) for i, d in enumerate(descriptors)]
    return SimpleNamespace(sources={}, sinks=[], outputs=(), operators=operators)


@dataclass
class Program:
    number: int
    plan: Any = field(default_factory=lambda: plan_of([COUNTS]))
    works: Any = None
    loops: Any = None


class Rig:
    """A driver whose programs are built at once; the test is its coordinator."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, starts: bool = True) -> None:
        self.settings = settings_of(folder)
        self.posted: list[Any] = []
        self.recorded: list[Any] = []
        self.notes: list[tuple[str, str]] = []
        self.refuses = ""
        self.table = SimpleNamespace(programs=first_program(1))
        self.machine = SimpleNamespace(
            generation=1, table=self.table, deploying=SimpleNamespace(may_take_back=lambda number: False),
            commits=SimpleNamespace(meta=b""),
        )  # fmt: skip
        self.announcer: Any = SimpleNamespace(
            catalogue=first_catalogue([COUNTS], file="job.py", arguments={"n": 1}),
            record=self.record,
            journaled=lambda: (None, None),
        )
        loop = SimpleNamespace(machine=self.machine, post=self.post, on_deployed=None, ending=threading.Event())
        self.life: Any = SimpleNamespace(
            settings=self.settings, announcer=self.announcer, loop=loop, program=Program(1), readers=[],
            stop=threading.Event(), sink_startup=SimpleNamespace(last_failure=""),
            metrics=DriverMetrics("numbers", str(folder)),
        )  # fmt: skip
        self.life.metrics.epoch, self.life.metrics.note = 3, lambda kind, text: self.notes.append((kind, text))
        self.deploys = Deploys(self.life, lambda program, committed, is_over: True)
        monkeypatch.setattr(self.deploys, "_checked", self.checked)
        monkeypatch.setattr(self.deploys, "_built", lambda record: Program(record.number, plan_of(record.descriptors)))
        if starts:
            self.deploys.start()

    def post(self, event: Any) -> None:
        """The coordinator takes a program back at once, if it can."""
        self.posted.append(event)
        if isinstance(event, core.Withdraw) and self.machine.deploying.may_take_back(event.number):
            self.table.programs = first_program(1)

    def record(self, catalogue: Any, generation: int) -> None:
        self.announcer.catalogue = catalogue
        self.recorded.append(catalogue)

    def checked(self, record: ProgramRecord) -> Any:
        if self.refuses:
            raise SpecRefused(self.refuses)
        descriptors = [MORE, COUNTS]
        return record, descriptors, program_diff(self.announcer.catalogue, (0,), descriptors)

    def until(self, true: Any) -> None:
        deadline = time.monotonic() + 10
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def states(self) -> dict[int, str]:
        return {one["number"]: one["state"] for one in self.deploys.programs()}

    def in_force(self, number: int, since: int) -> None:
        self.table.programs = (self.table.programs[-1], ProgramVersion(number, since, (1, 0)))
        self.life.loop.on_deployed(core.Deployed(number))
        self.until(lambda: self.deploys._under_way is None)

    def ends(self, epoch: int, notes: EpochNotes, *violations: Any, seconds: float = 0.1) -> None:
        """An epoch with rows is over."""
        record = EpochRecord(epoch, 0.0, seconds, 5, 5, 0, 0)
        self.deploys.ended(record, notes, violations)
        self.life.metrics.recent.append(record)

    def deployed(self, slower: float = 0.0) -> int:
        """A second program, in force from epoch 7 on."""
        number = self.deploys.request(DeployRequest(file="v2.py", slower=slower))
        self.until(lambda: self.posted)
        self.in_force(number, 7)
        return number


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(tmp_path, monkeypatch)


def test_a_program_is_journaled_before_the_coordinator_deploys_it(rig: Rig) -> None:
    number = rig.deploys.request(DeployRequest(file="v2.py", at=5))
    rig.until(lambda: rig.posted)
    (order,) = rig.posted
    assert (order.number, order.operators, order.at) == (number, (1, 0), 5) == (2, (1, 0), 5)
    wanted = rig.recorded[0].program(2)
    assert (wanted.file, wanted.arguments, wanted.since, wanted.started_with) == (
        "v2.py", {"n": 1}, None, rig.settings.started_with,
    )  # fmt: skip
    assert rig.recorded[0].operators == (COUNTS, MORE) and rig.states() == {2: "waiting for epoch 5", 1: "in force"}
    rig.in_force(2, 7)
    assert rig.recorded[-1].program(2).since == 7 and rig.states() == {2: "in force", 1: "over"}


def test_a_refused_program_leaves_nothing_but_its_reason(rig: Rig) -> None:
    rig.refuses = "operator 'counts': the window was 10 ms, and is 20 ms"
    rig.deploys.request(DeployRequest(file="v2.py"))
    rig.until(lambda: rig.states().get(2) == "refused")
    assert rig.posted == [] and rig.announcer.catalogue.operators == (COUNTS,)
    assert rig.deploys.programs()[0]["refused"] == rig.refuses
    assert ("deploy-refused", f"program 2: {rig.refuses}") in rig.notes
    rig.refuses = ""
    assert rig.deploys.request(DeployRequest(file="v3.py")) == 3, "no number is given twice"


def test_one_deploy_at_a_time(rig: Rig) -> None:
    rig.deploys.request(DeployRequest(file="v2.py"))
    with pytest.raises(Refusal, match=r"program 2 is being deployed since \d+ s"):
        rig.deploys.request(DeployRequest(file="v3.py"))
    with pytest.raises(Refusal, match="program 2 is being deployed"):
        rig.deploys.request(DeployRequest(file="v2.py", arguments={"least": 3}))
    assert rig.deploys.request(DeployRequest(file="v2.py")) == 2, "its answer was lost"


def test_a_program_that_follows_by_itself_is_not_in_the_way_of_a_user(rig: Rig) -> None:
    """It was told as a deploy that the user had to give up."""
    rig.deploys._under_way = replace(rig.announcer.catalogue.programs[0], number=2, settles=1)
    with pytest.raises(Unreachable, match="program 2 is program 1 alone"):
        rig.deploys.request(DeployRequest(file="v2.py"))


def test_only_copies_of_this_run_are_loaded(rig: Rig) -> None:
    with pytest.raises(Refusal, match="is no copy of a program of this run"):
        rig.deploys.request(DeployRequest(file="v2.py", folder="/tmp/elsewhere"))


def test_a_rollback_deploys_the_program_before_under_a_new_number(rig: Rig) -> None:
    with pytest.raises(Refusal, match="no program was in force before; earlier programs: none"):
        rig.deploys.rollback(None)
    rig.deployed()
    with pytest.raises(Refusal, match="program 9 was never in force before; earlier programs: 1"):
        rig.deploys.rollback(9)
    assert rig.deploys.rollback(None) == 3
    rig.until(lambda: rig.announcer.catalogue.program(3) is not None)
    assert rig.announcer.catalogue.program(3).file == "job.py"


def test_a_job_that_is_deployed_often_keeps_the_program_in_force_only(rig: Rig) -> None:
    rig.deployed()
    assert rig.deploys.version(2, 7).number == 2 and sorted(rig.deploys._programs) == [1, 2]
    rig.deploys.settled(2)
    assert sorted(rig.deploys._programs) == [2]


def test_a_rollback_gives_up_a_deploy_under_way(rig: Rig) -> None:
    """Also one that the coordinator does not know yet."""
    rig.deploys.request(DeployRequest(file="v2.py", at=100))
    rig.until(lambda: rig.posted)
    assert rig.deploys.rollback(None) == 1 and rig.posted[-1] == core.Withdraw(2)
    rig.life.loop.on_deployed(core.Deployed(2, "it was withdrawn"))
    rig.until(lambda: rig.states()[2] == "refused")
    rig.posted.clear()
    rig.deploys._withdrawn = 3
    rig.deploys.request(DeployRequest(file="v3.py"))
    rig.until(lambda: rig.states().get(3) == "refused")
    assert rig.posted == []


def test_a_program_that_is_given_up_while_it_is_built_is_never_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code may not return here. The next driver must not deploy it."""
    rig, goes_on = Rig(tmp_path, monkeypatch), threading.Event()
    monkeypatch.setattr(rig.deploys, "_built", lambda record: goes_on.wait(10) and Program(record.number))
    rig.deploys.request(DeployRequest(file="v2.py"))
    rig.until(lambda: rig.announcer.catalogue.program(2) is not None)
    assert rig.deploys.rollback(None) == 1
    assert (
        rig.announcer.catalogue.wanted.number == 1 and rig.announcer.catalogue.program(2).refused == "it was withdrawn"
    )
    goes_on.set()
    rig.until(lambda: rig.deploys._under_way is None)
    assert not [event for event in rig.posted if isinstance(event, core.Deploy)]


def test_a_rollback_before_the_first_commit_takes_the_program_back(rig: Rig) -> None:
    rig.deployed()
    rig.machine.deploying.may_take_back = lambda number: number == 2
    assert rig.deploys.rollback(None) == 1
    assert isinstance(rig.posted[-1], core.Withdraw) and rig.posted[-1].number == 2
    rig.table.programs = first_program(1)
    rig.life.loop.on_deployed(core.Deployed(2, "it was rolled back"))
    rig.until(lambda: rig.states() == {2: "refused", 1: "in force"})
    assert rig.deploys.version(1, 7).number == 1


def test_a_rollback_that_comes_too_late_deploys_the_program_before(rig: Rig) -> None:
    """The first epoch is decided between the request and the coordinator's look at it."""
    rig.deployed()
    answers = iter([True, True])
    rig.machine.deploying.may_take_back = lambda number: next(answers, False)
    rig.life.loop.post = rig.posted.append
    assert rig.deploys.rollback(None) == 3, "the program before, under a new number"
    assert core.Withdraw in {type(event) for event in rig.posted}


def test_a_rollback_is_answered_once_the_program_is_taken_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the journal is away it is not. A repeated request does not go back a program further."""
    monkeypatch.setattr(taking_back, "SECONDS_MAX", 0.05)
    rig.deployed()
    rig.machine.deploying.may_take_back = lambda number: number == 2
    rig.life.loop.post = rig.posted.append
    for _ in range(2):
        with pytest.raises(Unreachable, match="program 2 is not taken back yet"):
            rig.deploys.rollback(None)
    rig.table.programs = first_program(1)
    assert rig.deploys.rollback(None) == 1
    with pytest.raises(Refusal, match="before"):
        rig.deploys.rollback(None)
    rig.table.programs = (*first_program(1), ProgramVersion(2, 7, (1, 0)))
    with pytest.raises(Unreachable):
        rig.deploys.rollback(None)
    rig.table.programs = first_program(1)
    monkeypatch.setattr(taking_back, "REPEATED_SECONDS", 0.0)
    with pytest.raises(Refusal, match="before"):
        rig.deploys.rollback(None)  # Another command, much later.


def test_the_next_driver_goes_on_with_a_wanted_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Rig(tmp_path, monkeypatch)
    first.deploys.request(DeployRequest(file="v2.py", at=900))
    first.until(lambda: first.posted)
    second = Rig(tmp_path, monkeypatch)
    second.announcer.catalogue = first.announcer.catalogue
    second.deploys.start()
    second.until(lambda: second.posted)
    order = second.posted[0]
    assert (order.number, order.operators, order.at) == (2, (1, 0), 900), "and not before its epoch"


def test_a_wanted_program_is_compared_anew_when_a_restore_brought_back_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rig(tmp_path, monkeypatch)
    first.deploys.request(DeployRequest(file="v2.py"))
    first.until(lambda: first.posted)
    second = Rig(tmp_path, monkeypatch)
    wanted = first.announcer.catalogue.program(2)
    second.announcer.catalogue = first.announcer.catalogue.with_program(replace(wanted, base=7, altered=((1, 9),)))
    second.deploys.start()
    second.until(lambda: second.posted)
    assert (second.posted[0].number, second.posted[0].base, second.posted[0].altered) == (2, 1, ())


def test_a_program_that_another_driver_has_deployed_is_built_from_the_journal(rig: Rig) -> None:
    record = ProgramRecord(2, (1, 0), (MORE, COUNTS), file="v2.py")
    rig.announcer.journaled = lambda: (rig.announcer.catalogue.with_program(record, (COUNTS, MORE)), None)
    rig.table.programs = (*rig.table.programs, ProgramVersion(2, 7, (1, 0)))
    assert rig.deploys.version(2, 7).number == 2
    with pytest.raises(Refusal, match="no text of program 5"):
        rig.deploys.version(5, 7)


def test_a_program_that_is_taken_back_while_its_sinks_open_gives_way(rig: Rig) -> None:
    rig.deployed()
    opened: list[int] = []

    def open_sinks(program: Program, committed: int, is_over: Any) -> bool:
        opened.append(program.number)
        if program.number == 2:
            rig.table.programs = first_program(1)
        return not is_over()

    rig.deploys._open_sinks = open_sinks  # type: ignore[assignment]
    assert rig.deploys.version(2, 7).number == 1 and opened == [2, 1]


@pytest.mark.parametrize("away", [False, True])
def test_sinks_that_refuse_or_are_away_take_their_program_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """It ended the job, or made it wait for ever."""
    rig.deployed()
    monkeypatch.setattr(opening, "OPEN_SECONDS", 0.0)
    rig.life.sink_startup.last_failure = "sink s cannot be opened: OSError: stale handle"

    def open_sinks(program: Program, committed: int, is_over: Any) -> bool:
        if program.number == 2 and not away:
            raise SpecRefused("sink: out/seen is written by parquet('seen') of this run")
        return program.number == 1 or not is_over()

    rig.deploys._open_sinks = open_sinks  # type: ignore[assignment]
    if not away:
        with pytest.raises(SpecRefused, match="is written by"):
            rig.deploys.version(2, 7)  # an epoch of it is committed
    rig.machine.deploying.may_take_back = lambda number: number == 2
    assert rig.deploys.version(2, 7).number == 1
    assert ("stale handle, for 0 s" if away else "out/seen is written by") in rig.posted[-1].reason


def test_rows_of_an_earlier_program_are_published_by_that_program(rig: Rig) -> None:
    """A repeated epoch, though another program is in force."""
    rig.deployed()
    assert rig.deploys.version(1, 6).number == 1 and rig.deploys.version(2, 7).number == 2


def test_a_text_travels_with_its_program_and_comes_back_with_a_rollback(rig: Rig) -> None:
    number = rig.deploys.request(DeployRequest(file="configmap/rules/job.py", text=packed("VALUE = 1"), attempt="3"))
    rig.until(lambda: rig.posted)
    wanted = rig.recorded[0].program(number)
    assert Path(wanted.folder).parent == rig.settings.path / "programs" and wanted.text == packed("VALUE = 1")
    assert is_sealed(wanted.text, wanted.seal, rig.settings.secret) and wanted.attempt == "3"
    assert b"VALUE" not in rig.posted[0].program and wanted.text.encode() in rig.posted[0].program
    rig.in_force(number, 7)
    rig.deploys.request(DeployRequest(file="v3.py"))
    rig.until(lambda: len(rig.posted) == 2)
    rig.in_force(3, 9)
    rig.deploys.rollback(2)
    rig.until(lambda: len(rig.posted) == 3)
    again = rig.announcer.catalogue.program(4)
    assert (again.text, again.hash, again.identity) == (wanted.text, wanted.hash, wanted.identity)
    rig.in_force(4, 11)
    (brief,) = rig.deploys.brief()
    assert (brief.number, brief.state, brief.since, brief.again, brief.hash) == (4, "in force", 11, 2, wanted.hash)


def test_the_status_has_the_program_in_force_and_a_refused_one(rig: Rig) -> None:
    rig.refuses = "no pipeline"
    rig.deploys.request(DeployRequest(file="v2.py", attempt="1"))
    rig.until(lambda: rig.states().get(2) == "refused")
    now, refused = rig.deploys.brief()
    assert (now.number, now.state, refused.number, refused.refused, refused.attempt) == (
        1,
        "in force",
        2,
        "no pipeline",
        "1",
    )
    assert refused.identity == identity(None, "v2.py", "", {"n": 1}) != now.identity


def test_texts_of_old_programs_are_forgotten_and_no_rollback_finds_them(rig: Rig) -> None:
    long = "x" * (TEXTS_MAX // 2)
    catalogue = rig.announcer.catalogue
    for number in (2, 3, 4):
        record = ProgramRecord(number, (0,), (COUNTS,), folder=f"/gone/{number}", text=long, since=number)
        catalogue = catalogue.with_program(record)
    assert [bool(one.text) for one in catalogue.programs] == [False, False, True, True]
    assert not catalogue.with_program(replace(catalogue.programs[-1], refused="no", since=None)).programs[-1].text
    rig.announcer.catalogue = catalogue
    rig.table.programs = (ProgramVersion(4, 4, (0,)),)
    with pytest.raises(Refusal, match="the text of program 2 is not kept any more: deploy its file again"):
        rig.deploys.rollback(2)


def test_texts_that_the_next_driver_builds_are_never_forgotten(rig: Rig) -> None:
    """Of the program in force, of the program before it, and of the programs that have its retired operators."""
    catalogue, long = rig.announcer.catalogue, "x" * TEXTS_MAX
    for number in (2, 3, 4, 5):
        record = ProgramRecord(number, (0,), (COUNTS,), folder=f"/gone/{number}", text=long, since=number)
        catalogue = catalogue.with_program(replace(record, retires=(Retired(0, 2),)))
    assert [bool(one.text) for one in catalogue.programs] == [False, True, False, True, True]


def test_a_job_goes_on_without_retired_operators_with_the_same_text(rig: Rig) -> None:
    """On Kubernetes only the journal has the text, and the next pod of the driver needs it."""
    text = packed("x = 1\n")
    record = ProgramRecord(
        2,
        (0, 1),
        (COUNTS, MORE),
        file="v2.py",
        folder="/run/programs/a",
        text=text,
        seal="s",
        since=4,
        retires=(Retired(1, 1),),
        attempt="a",
    )
    rig.announcer.catalogue = rig.announcer.catalogue.with_program(record, (COUNTS, MORE))
    rig.table.programs = (ProgramVersion(2, 4, (0, 1)),)
    rig.deploys._programs[2] = Program(2, plan_of([COUNTS, MORE]))
    notes = EpochNotes(maxima={1: {0: {"": FlowClock(31)}}})
    results = [NO_RESULT, NO_RESULT._replace(high=39)]
    rig.machine.commits = SimpleNamespace(results=tuple(results), meta=b"")
    rig.ends(5, notes)
    assert rig.deploys._under_way is None, "the window until 40 is open"
    rig.machine.commits.results = (NO_RESULT, NO_RESULT._replace(high=40))
    rig.ends(6, notes)
    rig.until(lambda: rig.posted)
    settled = rig.announcer.catalogue.program(3)
    assert (settled.operators, settled.settles, settled.text, settled.attempt) == ((0,), 2, text, "a")
    assert settled.seal and settled.folder and not settled.retires


def test_no_rollback_goes_on_with_a_kept_half_whose_code_has_failed(rig: Rig) -> None:
    """Before it is loaded, and while it waits for its epoch: epochs would be missing in its state."""
    number = rig.deployed()
    program = rig.announcer.catalogue.program(number)
    both = replace(program, beside=Beside(1, 0, 60.0), silent=(0,), deployed_at=1e12)
    rig.announcer.catalogue = rig.announcer.catalogue.with_program(both)
    rig.table.programs = (ProgramVersion(number, 7, (1, 0), (), (0,)),)
    rig.machine.commits = SimpleNamespace(meta=b"")
    back, notes = rig.deploys.rollback(None), EpochNotes(failed=(number, "user code: it fails"))
    rig.until(lambda: isinstance(rig.posted[-1], core.Deploy) and rig.posted[-1].number == back)
    rig.machine.commits.meta = notes.dump()
    rig.deploys.ended(EpochRecord(8, 0.0, 0.1, 5, 5, 0, 0), notes, ())
    withdrawn = rig.posted[-1]
    assert withdrawn.number == back and withdrawn.reason.startswith("its state lacks epochs, because its code failed")
    rig.life.loop.on_deployed(core.Deployed(back, withdrawn.reason))
    rig.until(lambda: rig.deploys._under_way is None)
    again = rig.deploys.rollback(None)
    rig.until(lambda: "lacks epochs" in rig.announcer.catalogue.program(again).refused)
    assert rig.posted[-1] == withdrawn, "it was not loaded"


def test_a_program_that_does_not_return_in_the_driver_is_refused_and_the_next_one_is_deployed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ended = threading.Event(), threading.Event()

    def built(record: ProgramRecord) -> Any:
        if record.file == "hangs.py":
            answers.wait()  # for a registry of schemas
            ended.set()
        return Program(record.number, plan_of(record.descriptors))

    monkeypatch.setattr(rig.deploys, "_built", built)
    monkeypatch.setattr(building, "CHECK_SECONDS", 0.2)
    rig.deploys.request(DeployRequest(file="hangs.py"))
    rig.until(lambda: rig.states()[2] == "refused")
    why = rig.recorded[-1].program(2).refused
    assert "but not in the driver within 0.2 s (test_deploys.py:" in why and "in built: " in why, why
    assert rig.posted == []
    answers.set()
    assert ended.wait(10)
    monkeypatch.setattr(building, "CHECK_SECONDS", 10)
    rig.deploys.request(DeployRequest(file="v3.py"))
    rig.until(lambda: rig.posted)
    assert [order.number for order in rig.posted] == [3]


def test_an_error_of_a_build_in_the_driver_is_the_reason_of_the_refusal(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(record: ProgramRecord) -> Any:
        raise TimeoutError("the registry does not answer")

    monkeypatch.setattr(rig.deploys, "_built", built)
    rig.deploys.request(DeployRequest(file="v2.py"))
    rig.until(lambda: rig.states()[2] == "refused")
    assert rig.recorded[-1].program(2).refused.endswith("the registry does not answer")
