"""What a life of a job begins with, and which checkpoint that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ferry.contract.catalogue import Catalogue, first_catalogue
from ferry.contract.descriptors import Aggregate
from ferry.contract.errors import UNDECIDED, FerryError, Refusal, SpecRefused, StateUnavailable, Unreachable
from ferry.contract.manifest import Chain, Manifest, file_name
from ferry.contract.names import Attempt, CommitId, InstanceId, Step, Term
from ferry.contract.programs import ProgramVersion
from ferry.contract.results import NO_RESULT
from ferry.contract.routing import Group, Table, Version
from ferry.contract.settings import CheckpointSettings
from ferry.driver.errors import Halted
from ferry.driver.restoring import Restoring
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.durable.parts import Corrupt, PartWriter
from ferry.protocol import coordinator as core
from ferry.sidecar.altering import obsolete
from tests.unit.sidecar.leaders import OPERATORS
from tests.unit.sidecar.test_data import VNODES, settings_of

INITIAL = Table(Version(0, 0), (Group(Term(1, 0), (InstanceId("0.0"),)),) * VNODES, initial=True)


NOBODY: Any = None
"""The loop: nothing asks it."""


CATALOGUE = first_catalogue(OPERATORS)


class Place:
    """A job's checkpoints, and a driver that begins."""

    def __init__(self, directory: Path, job: str = "j") -> None:
        self.directory, self.job = directory, job
        self.catalog = CheckpointCatalog(Location(str(directory / "store"), job))
        self.rewound: list[Manifest] = []

    def checkpoint(self, number: int, epoch: int, run: str = "j-0", generation: int = 3, **changes: Any) -> Manifest:
        writer = PartWriter(self.catalog.location, file_name(run, 0, f"x-{number}"), 0, "scan", epoch, VNODES)
        writer.add(pa.record_batch({"hash": pa.array([1], pa.uint64())}))
        made = Manifest(
            number, self.job, run, "line", generation, 1.0, CommitId(Step(epoch, 4), Attempt(generation, 1)),
            (NO_RESULT,) * len(OPERATORS), b"notes", VNODES, tuple(OPERATORS),
            (Chain(tuple(range(VNODES)), (writer.finish(),)),),
        )  # fmt: skip
        made = replace(made, **changes)
        self.catalog.publish(made)
        return made

    def driver(self, restore_from: str | None = None, kept: bool = True) -> Restoring:
        where = CheckpointSettings(str(self.directory / "store"))
        settings = replace(settings_of(self.directory), restore_from=restore_from, checkpoint=where if kept else None)
        catalog = CheckpointCatalog(Location(where.location, settings.job)) if kept else None
        return Restoring(settings, first_catalogue(OPERATORS), OPERATORS, catalog, self._rewind)

    def _rewind(self, manifest: Manifest, loop: Any) -> bool:
        self.rewound.append(manifest)
        return True


def loop_of(table: Table, swapped: list[Table]) -> Any:
    members = SimpleNamespace(failing={InstanceId("0.0"): None}, answers={})
    alive = {InstanceId("0.0"): True, InstanceId("1.0"): True}
    machine = SimpleNamespace(table=table, generation=table.version.generation, members=members, alive=alive)
    return SimpleNamespace(machine=machine, swap=swapped.append)


def test_a_job_begins_with_nothing_or_with_its_state(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.driver().begin(None, INITIAL) == (INITIAL, None)
    place.checkpoint(4, 17)
    going_on = replace(INITIAL, version=Version(5, 2), initial=False)
    assert place.driver("latest").begin(going_on, INITIAL) == (INITIAL, None), "state is there already"
    assert len(place.catalog.manifests()) == 1


def test_a_job_that_may_go_on_or_begin_asks(tmp_path: Path) -> None:
    """Nobody has said which: to begin from nothing would lose the state, and to go on could be another job's."""
    place = Place(tmp_path)
    place.checkpoint(4, 17)
    place.checkpoint(7, 23)
    with pytest.raises(SpecRefused, match=r"the last one is 7; set restoreFrom: latest .* restoreFrom: none ") as asked:
        place.driver().begin(None, INITIAL)
    assert str(asked.value).startswith(f"{UNDECIDED}: {place.catalog.location.text} holds checkpoints")
    assert place.driver("none").begin(None, INITIAL) == (INITIAL, None)
    going_on = replace(INITIAL, version=Version(5, 2), initial=False)
    assert place.driver().begin(going_on, INITIAL) == (INITIAL, None), "it has begun: nothing is to be asked"
    assert place.driver(kept=False).begin(None, INITIAL) == (INITIAL, None)
    for file in (tmp_path / "store" / "j" / "manifests").iterdir():
        file.write_text("{")
    with pytest.raises(SpecRefused, match="the last one is 7"):
        place.driver().begin(None, INITIAL)


def test_in_its_own_place_a_checkpoint_gets_a_new_number(tmp_path: Path) -> None:
    """What came after it is of a life that is over, and must not be the latest."""
    place = Place(tmp_path)
    asked = place.checkpoint(4, 17)
    place.checkpoint(5, 23)
    driver = place.driver("4")
    table, commit = driver.begin(None, INITIAL)
    newest, *_ = place.catalog.manifests()
    assert (newest.number, newest.epoch, newest.restored_from, newest.run) == (6, 17, "4", "j-1")
    assert newest.chains == asked.chains and newest.lineage == asked.lineage
    assert table.restoring and table.origin == f"{place.catalog.url(newest)}#{newest.generation}"
    assert table.version.generation + 1 == newest.generation > asked.generation, "that of this driver"
    assert commit is not None and (commit.commit_id, commit.meta) == (asked.commit_id, b"notes")
    assert not driver.is_automatic
    assert not place.rewound, "an older driver may still write"
    driver.rewind(NOBODY)
    assert place.rewound == [newest]
    driver.over()
    assert not place.catalog.location.names("pins")


def test_another_jobs_checkpoint_stays_as_it_is(tmp_path: Path) -> None:
    other = Place(tmp_path, "other")
    url = other.catalog.url(other.checkpoint(2, 9))
    place = Place(tmp_path)
    driver = place.driver(url)
    table, _ = driver.begin(None, INITIAL)
    assert table.origin.startswith(f"{url}#") and not place.catalog.manifests() and len(other.catalog.manifests()) == 1
    assert other.catalog.location.names("pins"), "it is still read"
    driver.over()
    alone = place.driver(url, kept=False)
    assert alone.begin(None, INITIAL)[0].origin == table.origin
    alone.over()


def test_a_driver_that_did_not_come_to_its_end_is_followed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.checkpoint(4, 17)
    table, commit = place.driver("latest").begin(None, INITIAL)
    journaled = replace(table, version=Version(9, 0))
    next_one = place.driver("latest")
    assert next_one.begin(journaled, INITIAL) == (INITIAL, commit)
    next_one.rewind(NOBODY)
    assert [one.number for one in place.catalog.manifests()] == [5, 4] and place.rewound[0].number == 5


def test_what_cannot_be_taken_over_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(Refusal, match="there is no checkpoint 'latest'"):
        place.driver("latest").begin(None, INITIAL)
    with pytest.raises(SpecRefused, match=r"names a checkpoint in state\.checkpoint\.location, which is not set"):
        place.driver("4", kept=False).begin(None, INITIAL)
    place.checkpoint(4, 17, virtual_nodes=2 * VNODES)
    with pytest.raises(SpecRefused, match=f"set state.virtualNodes: {2 * VNODES}"):
        place.driver("4").begin(None, INITIAL)
    place.checkpoint(5, 17, operators=(replace(OPERATORS[0], ttl_ms=7), *OPERATORS[1:]))
    with pytest.raises(SpecRefused, match=r"keys were kept for .* checkpoint 5 has other operators than this pipeline"):
        place.driver("5").begin(None, INITIAL)
    gone = replace(OPERATORS[0], name="gone", index=len(OPERATORS))
    place.checkpoint(7, 17, operators=(*OPERATORS, gone))
    with pytest.raises(SpecRefused, match="checkpoint 7 has open windows of 'gone', and this pipeline does not"):
        place.driver("7").begin(None, INITIAL)
    damaged = place.checkpoint(6, 17)
    place.catalog.location.remove(damaged.files[0].name)
    with pytest.raises(Corrupt, match="is missing"):
        place.driver("6").begin(None, INITIAL)
    assert len(place.catalog.manifests()) == 4


def test_a_restore_under_another_program_is_a_deploy_from_the_next_epoch_on(tmp_path: Path) -> None:
    """Operators are kept, altered and added; when state is lost again, the same program begins again."""
    place = Place(tmp_path)
    altered = replace(OPERATORS[0], aggregates=(*OPERATORS[0].aggregates, Aggregate("extra", "count")))
    place.checkpoint(
        4,
        17,
        operators=(OPERATORS[0],),
        results=(NO_RESULT,),
        programs=(ProgramVersion(3, 9, (0,), ((0, 5),)),),
        format=3,
    )
    driver = place.driver("4")
    driver._operators = (replace(OPERATORS[1], index=0), replace(altered, index=1))
    driver.catalogue = first_catalogue(driver._operators, file="job.py")
    table, _ = driver.begin(None, INITIAL)
    before = ProgramVersion(3, 9, (0,))
    assert table.programs == (before, ProgramVersion(4, 18, (1, 2), ((2, 0),)))
    old, new = driver.catalogue.programs
    assert (old.number, old.file, new.number, new.file, new.operators) == (3, None, 4, "job.py", (1, 2))
    assert [one.name for one in driver.catalogue.operators] == [OPERATORS[0].name, OPERATORS[1].name, OPERATORS[0].name]
    assert driver.manifest is not None
    assert driver._programs_of(driver.manifest, driver.catalogue) == table.programs
    later = replace(
        driver.manifest,
        programs=(ProgramVersion(4, 18, (1, 2), ((2, 0),)),),
        commit_id=CommitId(Step(30, 1), Attempt(1, 1)),
    )
    assert driver._programs_of(later, driver.catalogue) == (ProgramVersion(4, 18, (1, 2)),), (
        "its state has the altered operator"
    )
    forgotten = replace(later, programs=(ProgramVersion(2, 18, (1, 2)),))
    with pytest.raises(Refusal, match="is of program 2, which the journal does not remember any more"):
        driver._programs_of(forgotten, driver.catalogue)


def test_after_a_restore_of_two_programs_side_by_side_the_state_of_the_silent_half_goes(tmp_path: Path) -> None:
    """A new job voids the ids at once; a job that goes back, at the end of the half. An operator that only the kept program has
    may return; an operator that only the shadow has is gone."""
    place = Place(tmp_path)
    copy = replace(OPERATORS[0], index=2)
    for number, both, gone in (
        (4, ProgramVersion(3, 9, (2, 1, 0), ((2, 0),), (2, 1)), {1, 2}),
        (6, ProgramVersion(3, 9, (2, 0, 1), ((2, 0),), (0, 1)), {0}),
    ):
        operators, results = (*OPERATORS[:2], copy), (NO_RESULT,) * 3
        place.checkpoint(number, 17, operators=operators, results=results, programs=(both,), format=3)
        driver = place.driver(str(number))
        driver._operators = (OPERATORS[0],)
        driver.catalogue = first_catalogue(driver._operators, file="job.py")
        table, _ = driver.begin(None, INITIAL)
        alone = tuple({2, 0} - gone)
        assert table.programs == (both, ProgramVersion(4, 18, alone)) and obsolete(table.programs) == gone
        assert driver.catalogue.void == tuple(gone)
        assert driver.manifest is not None
        assert driver._programs_of(driver.manifest, driver.catalogue)[0] == both


def test_a_void_id_of_the_checkpoint_has_no_name_in_the_next_job(tmp_path: Path) -> None:
    """The operator returned with the id of a copy without rows, which had run beside it."""
    place = Place(tmp_path)
    operators, programs = (*OPERATORS[:2], replace(OPERATORS[1], index=2)), (ProgramVersion(5, 9, (0,)),)
    place.checkpoint(4, 17, operators=operators, results=(NO_RESULT,) * 3, programs=programs, void=(2,), format=3)
    driver = place.driver("4")
    driver._operators = tuple(OPERATORS[:2])
    driver.catalogue = first_catalogue(driver._operators, file="job.py")
    table, _ = driver.begin(None, INITIAL)
    assert table.programs[-1].operators == (0, 1) and driver.catalogue.void == (2,)


def test_a_job_goes_back_to_the_newest_checkpoint_before_the_program_in_force(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for number, epoch in ((1, 3), (2, 7), (3, 12)):
        place.checkpoint(number, epoch, run="j-1", generation=1)
    groups = (Group(Term(5, 2), (InstanceId("0.0"), InstanceId("1.0")), ()),) * VNODES
    table = Table(Version(5, 4), groups, programs=(ProgramVersion(2, 8, (0, 1)),))
    swapped: list[Table] = []
    halted = Halted(core.Halt("rewind", "program 2 was rolled back"))
    end = place.driver().begin_again(loop_of(table, swapped), halted, CATALOGUE)
    assert "begins again with checkpoint 2 of epoch 7" in str(end)
    assert swapped[0].restoring
    place.checkpoint(9, 7, run="j-1", generation=1, programs=(ProgramVersion(1, 5, (0, 1), (), (1,)),), format=3)
    place.driver().begin_again(loop_of(table, swapped), halted, CATALOGUE)
    assert swapped.pop().programs[-1].silent == (), "of two programs side by side it is not taken"
    first = replace(table, programs=(ProgramVersion(2, 3, (0, 1)),))
    assert place.driver().begin_again(loop_of(first, swapped), halted, CATALOGUE) is halted and len(swapped) == 1


def test_a_rollback_to_the_state_before_skips_what_the_job_has_left_or_only_gone_on_with(tmp_path: Path) -> None:
    """Else the program would be in force again that the rollback, or its own violation, has ended."""
    place = Place(tmp_path)
    for number, epoch, program in ((1, 3, 1), (2, 7, 2), (3, 12, 3)):
        place.checkpoint(number, epoch, run="j-1", programs=(ProgramVersion(program, epoch - 1, (0, 1)),), format=3)
    records = [replace(CATALOGUE.programs[0], number=number, since=number * 4 - 4) for number in (1, 2, 3)]
    table = Table(Version(5, 4), INITIAL.groups, programs=(ProgramVersion(4, 14, (0, 1)),))
    for third, fourth, epoch in (
        ({}, {}, 12),
        ({"settles": 2}, {"settles": 2}, 3),
        ({"back_from": 2}, {"settles": 3}, 3),
        ({"back_from": 2}, {"back_from": 3}, 3),
    ):
        programs = (*records[:2], replace(records[2], **third), replace(records[2], number=4, **fourth))
        found = place.driver().before(table, Catalogue((), programs))
        assert found is not None and found[1].epoch == epoch, (third, fourth)


LOST = StateUnavailable("no copy of virtual nodes [0] is left")


def test_all_copies_are_lost(tmp_path: Path) -> None:
    """Generations grow with every driver, and a manifest has that of its own."""
    place = Place(tmp_path)
    place.checkpoint(1, 3, run="j-1", generation=1)
    place.checkpoint(2, 7, run="j-1", generation=2)
    groups = (Group(Term(5, 2), (InstanceId("0.0"), InstanceId("1.0")), (InstanceId("2.0"),)),) * VNODES
    swapped: list[Table] = []
    end = place.driver().begin_again(loop_of(Table(Version(5, 4), groups), swapped), LOST, CATALOGUE)
    assert isinstance(end, Unreachable) and "begins again with checkpoint 2 of epoch 7" in str(end)
    (table,) = swapped
    newest = place.catalog.manifests()[0]
    assert (newest.number, newest.epoch, newest.generation, newest.restored_from) == (3, 7, 5, "2")
    assert table.restoring and table.origin == f"{place.catalog.url(newest)}#5" and table.version == Version(5, 5)
    assert {group.in_sync for group in table.groups} == {groups[0].in_sync} and not table.groups[0].learners
    following = place.driver()
    _, commit = following.begin(table, INITIAL)
    assert commit is not None and commit.commit_id == newest.commit_id
    assert following.is_automatic
    following.over()


def test_who_has_the_only_copy_cannot_go_on(tmp_path: Path) -> None:
    """The job begins again without him, but not twice with the same checkpoint: whatever made him fail would do it again."""
    place, failed = Place(tmp_path), Halted(core.Halt("failed", "held only by 0.0 (its disk is full)"))
    place.checkpoint(2, 7, run="j-1", generation=2)
    members: list[tuple[str, ...]] = [("0.0",), ("0.0", "1.0"), ("0.0",)]
    groups = tuple(Group(Term(5, 2), tuple(map(InstanceId, names)), ()) for names in members)
    groups += (Group(Term(5, 2), (InstanceId("1.0"),), (InstanceId("0.0"),)),) * (VNODES - len(groups))
    swapped: list[Table] = []
    loop = loop_of(Table(Version(5, 4), groups), swapped)
    end = place.driver().begin_again(loop, failed, CATALOGUE)
    assert "begins again with checkpoint 2" in str(end)
    assert {group.in_sync for group in swapped[0].groups} == {("1.0",)} and not swapped[0].groups[-1].learners
    again = replace(swapped[0], version=Version(6, 4), initial=False)
    assert place.driver().begin_again(loop_of(again, swapped), failed, CATALOGUE) is failed
    alone = loop_of(Table(Version(5, 4), groups), swapped)
    alone.machine.alive.pop("1.0")
    away = Halted(core.Halt("away", "held only by 1.0, gone for 60 s"))
    assert "begins again" in str(place.driver().begin_again(loop_of(Table(Version(5, 4), groups), []), away, CATALOGUE))
    alone.machine.alive.pop("0.0")
    assert place.driver().begin_again(alone, away, CATALOGUE) is away
    assert place.driver().begin_again(alone, failed, CATALOGUE) is failed and len(swapped) == 1


def test_another_runs_checkpoint_is_taken_by_nobody_but_its_user(tmp_path: Path) -> None:
    place = Place(tmp_path)
    loop = loop_of(replace(INITIAL, version=Version(5, 4), initial=False), swapped := [])
    assert place.driver(kept=False).begin_again(loop, LOST, CATALOGUE) is LOST
    place.checkpoint(4, 17, run="j-0")
    assert place.driver().begin_again(loop, LOST, CATALOGUE) is LOST
    place.checkpoint(5, 3, run="j-1")
    place.checkpoint(6, 99, run="j-0")
    assert "checkpoint 5 of epoch 3" in str(place.driver().begin_again(loop, LOST, CATALOGUE))
    assert len(swapped) == 1


def test_one_that_began_elsewhere_and_has_none_of_its_own_begins_there_again(tmp_path: Path) -> None:
    other = Place(tmp_path, "other")
    url = other.catalog.url(other.checkpoint(2, 9))
    table = replace(INITIAL, version=Version(5, 4), initial=False, origin=f"{url}#4")
    swapped: list[Table] = []
    assert "checkpoint 2 of epoch 9" in str(
        Place(tmp_path).driver().begin_again(loop_of(table, swapped), LOST, CATALOGUE)
    )
    assert swapped[0].origin == f"{url}#5"


def test_the_newest_is_damaged(tmp_path: Path) -> None:
    """Nobody begins with an older one by himself."""
    place = Place(tmp_path)
    place.checkpoint(1, 3, run="j-1")
    loop = loop_of(replace(INITIAL, version=Version(5, 4), initial=False), swapped := [])
    gone = place.checkpoint(2, 7, run="j-1")
    place.catalog.location.remove(gone.files[0].name)
    with pytest.raises(Corrupt, match="restoreFrom: 1"):
        place.driver().begin_again(loop, LOST, CATALOGUE)
    place.catalog.location.write_new("manifests/0000000003-000001-abcd.json", b"{torn")
    with pytest.raises(FerryError):
        place.driver().begin_again(loop, LOST, CATALOGUE)
    assert not swapped
