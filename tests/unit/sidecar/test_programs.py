"""An instance loads a program before it is deployed, answers once and again, and knows the programs of every table."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.errors import Unreachable
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.programs import ProgramVersion, first_program
from ferry.protocol import instance as core
from ferry.sidecar import programs
from ferry.sidecar.data import BeginsAnew, Data
from ferry.sidecar.programs import LoadedProgram, ProgramLoader
from ferry.sidecar.rehearsal import rehearse_operator
from tests.released import make
from tests.unit.sidecar.test_data import ME, settings_of

COUNTS = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
MORE = replace(COUNTS, name="more", index=1)
COMMITTED = CommitId(Step(4, 1), Attempt(1, 3))
CATALOGUE = first_catalogue([COUNTS]).with_program(
    ProgramRecord(2, (1, 0), (replace(MORE, index=0), replace(COUNTS, index=1))), (COUNTS, MORE)
)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.heard: list[LoadedProgram] = []
        self.published: Catalogue | None = None
        self.data = Data(settings_of(folder), ME, folder, [COUNTS], lambda *a: None, lambda *a: True)
        self.data.add(first_catalogue([COUNTS]))
        registry: Any = SimpleNamespace(catalogue=self.catalogue)
        self.loader = ProgramLoader(ME, settings_of(folder), folder, registry, self.data, self.heard.append)

    def catalogue(self) -> Catalogue:
        if self.published is None:
            raise Unreachable("Redis is away")
        return self.published

    def load(self, number: int) -> m.ProgramLoaded:
        had, deadline = len(self.heard), time.monotonic() + 30
        self.loader.load(m.LoadProgram(number, CATALOGUE.dump().encode()))
        while len(self.heard) == had:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.loader.loaded(self.heard[-1])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_loaded_program_has_its_states_and_the_answer_is_given_again(rig: Rig) -> None:
    for _ in range(2):
        assert rig.load(2) == m.ProgramLoaded(ME, 2)
    assert len(rig.data.states) == 2 and rig.data.programs[2][0].name == "more"
    assert not list(rig.data._directory.glob("rehearsal-*"))


def test_operators_that_differ_in_their_names_are_rehearsed_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of 1,000 operators was not loaded in time."""
    rehearsed: list[str] = []
    monkeypatch.setattr(programs, "rehearse_operator", lambda descriptor, directory: rehearsed.append(descriptor.name))
    assert rig.load(2).error == "" and len(rehearsed) == 1


def test_why_a_program_cannot_be_loaded_is_the_answer_and_nothing_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: OperatorDescriptor, directory: Path) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(programs, "rehearse_operator", fails)
    for _ in range(2):
        assert rig.load(2) == m.ProgramLoaded(ME, 2, "MemoryError: no room")
    assert len(rig.data.states) == 1 and 2 not in rig.data.programs
    assert rig.load(3).error == "the request has no program 3"


ALTERED = first_catalogue([COUNTS]).with_program(
    ProgramRecord(3, (1,), (replace(COUNTS, aggregates=(Aggregate("n", "count"), Aggregate("m", "max", "x"))),), altered=((1, 0),)),
    (COUNTS, replace(COUNTS, index=1, aggregates=(Aggregate("n", "count"), Aggregate("m", "max", "x")))),
)  # fmt: skip


def test_a_program_that_is_given_up_is_derived_no_more(rig: Rig) -> None:
    """Else every delta would be derived and kept twice, by each instance, until another program is loaded."""
    request = m.LoadProgram(3, ALTERED.dump().encode())

    def heard() -> LoadedProgram:
        deadline = time.monotonic() + 30
        while not rig.heard:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return rig.heard.pop()

    rig.loader.load(request)
    assert rig.loader.loaded(heard()) is None and rig.data.altering.left_out == {1}
    rig.loader.load(m.LoadProgram(3, b"", given_up=True))
    assert rig.loader.loaded(heard()) is None and rig.data.altering.left_out == set()
    assert rig.loader.derived() is None
    rig.loader.load(request)
    late = heard()
    rig.loader.load(m.LoadProgram(3, b"", given_up=True))
    assert rig.loader.loaded(heard()) is None and rig.loader.loaded(late) is None
    assert rig.data.altering.left_out == set(), "it was still being loaded"
    rig.loader.load(request)
    assert rig.loader.loaded(heard()) is None and rig.data.altering.left_out == {1}, "a new driver deploys it again"


def test_a_table_that_names_an_unknown_program_is_looked_up(rig: Rig) -> None:
    """Its driver died after the journal had it, and before this instance had loaded it."""
    table = (*first_program(1), ProgramVersion(2, 7, (1, 0)))
    with pytest.raises(BeginsAnew, match="program 2 is in force, and its operators are not known here"):
        rig.loader.require(table)
    rig.published = CATALOGUE
    rig.loader.require(table)
    assert len(rig.data.states) == 2
    rig.published = None
    rig.loader.require(table)


def test_a_table_of_a_driver_of_release_0_1_is_of_the_first_program(rig: Rig) -> None:
    """Workers are replaced before the driver: a worker of this release gets a table without programs."""
    frozen = json.loads((make.HERE / "v0.1.0" / "messages.json").read_text())["Install"]
    event = m.decode(frozen["code"], bytes.fromhex(frozen["bytes"]))
    assert isinstance(event, m.Install) and event.table.programs == ()
    rig.loader.require(event.table.programs)
    assert len(rig.data.states) == 1


JOIN = OperatorDescriptor(
    "join", 0, "join", (("a", "string"), ("b", "int")), Window(10, 10),
    left=Side((("x", "x", "int64"), ("t", "t", "string"))), right=Side((("y", "y", "double"),)),
)  # fmt: skip
WIDE = replace(
    COUNTS,
    key=(("a", "string"), ("b", "float")),
    aggregates=tuple(
        Aggregate(function, function, None if function == "count" else "v", number=number)
        for function, number in (("count", "int"), ("sum", "int"), ("min", "float"), ("max", "int"), ("mean", "float"))
    ),
)


@pytest.mark.parametrize(
    "descriptor", [COUNTS, JOIN, WIDE, replace(COUNTS, window=Window(30, 10)), replace(COUNTS, emit="changes")]
)
def test_an_operator_is_rehearsed_to_its_fired_rows(tmp_path: Path, descriptor: OperatorDescriptor) -> None:
    rehearse_operator(descriptor, tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_files_of_operators_that_the_catalogue_lacks_are_not_opened(rig: Rig, tmp_path: Path) -> None:
    """An old catalogue was published: the instance waits for the right one, and keeps its files."""
    assert rig.load(2).error == ""
    rig.data.perform(core.Save(core.InstanceRecord(1, programs=(ProgramVersion(2, 0, (1, 0)),), committed=COMMITTED)))
    settings = settings_of(tmp_path)
    with pytest.raises(BeginsAnew, match="state of operators that the published catalogue lacks"):
        Data(settings, ME, tmp_path, [COUNTS], lambda *a: None, lambda *a: True)
    again = Data(settings, ME, tmp_path, [COUNTS, MORE], lambda *a: None, lambda *a: True)
    assert again._record.saved.committed == COMMITTED and not again.damage
