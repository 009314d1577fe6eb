"""The program that a driver begins with: the deployed one, or the one that the user has edited since."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.catalogue import Beside, Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.contract.program_text import is_sealed, packed
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.settings import JOURNAL, SETTINGS, RunSettings
from ferry.driver import __main__ as main
from ferry.driver.beginning import beginning, begun_with, require_newest
from ferry.driver.errors import BeginsAgain
from ferry.driver.probation import tried
from tests.unit.sidecar.test_data import settings_of

COUNTS = OperatorDescriptor("counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),))
MORE = replace(COUNTS, name="more", index=1)
DEPLOYED = ProgramVersion(2, 7, (1, 0))


def settings(tmp_path: Path, folder: str = "f1") -> RunSettings:
    return replace(settings_of(tmp_path), pipeline_file="job.py", program=folder, pipeline_args={"n": 1})


def job(tmp_path: Path) -> tuple[Catalogue, Any]:
    """A job that began with `counts` and got `more` in front of it."""
    started = settings(tmp_path).started_with
    catalogue = first_catalogue([COUNTS], file="job.py", folder="f1", arguments={"n": 1})
    record = ProgramRecord(
        2, (1, 0), (replace(MORE, index=0), replace(COUNTS, index=1)), file="v2.py", folder="f2", arguments={"n": 2},
        started_with=started, since=7,
    )  # fmt: skip
    table = SimpleNamespace(programs=(*first_program(1), DEPLOYED))
    return catalogue.with_program(record, (COUNTS, MORE)), table


def test_a_new_job_begins_with_the_program_of_its_settings(tmp_path: Path) -> None:
    record = beginning(None, None, settings(tmp_path))
    assert (record.number, record.pipeline, record.arguments) == (1, (None, "job.py", "f1"), {"n": 1})
    catalogue = begun_with(None, record, [COUNTS, MORE])
    assert catalogue.operators == (COUNTS, MORE) and catalogue.programs[0].operators == (0, 1)
    assert catalogue.programs[0].file == "job.py"


def test_the_next_driver_begins_with_the_deployed_program(tmp_path: Path) -> None:
    catalogue, table = job(tmp_path)
    record = beginning(catalogue, table, settings(tmp_path))
    assert (record.number, record.pipeline, record.arguments) == (2, (None, "v2.py", "f2"), {"n": 2})
    assert begun_with(catalogue, record, record.descriptors) == catalogue


def test_a_deploy_whose_driver_died_at_the_switch_is_known_to_be_in_force(tmp_path: Path) -> None:
    """Otherwise a rollback would not find the program later."""
    catalogue, table = job(tmp_path)
    unsettled = catalogue.with_program(replace(catalogue.programs[1], since=None))
    record = beginning(unsettled, table, settings(tmp_path))
    assert begun_with(unsettled, record, record.descriptors) == catalogue


def test_a_restore_whose_driver_died_before_the_first_table_begins_with_the_program_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    catalogue, _ = job(tmp_path)
    restored = Catalogue(catalogue.operators, catalogue.programs[1:])
    record = beginning(restored, None, settings(tmp_path))
    assert (record.number, record.operators) == (2, (1, 0))
    assert begun_with(restored, record, record.descriptors) == restored


def test_a_program_beside_another_one_stays_beside_it_when_its_text_was_edited(tmp_path: Path) -> None:
    """And its operators are counted, not only named: two have the same name."""
    catalogue, table = job(tmp_path)
    beside = replace(catalogue.programs[-1], beside=Beside(1, 0, 60.0), silent=(0,), altered=((1, 0),))
    record = beginning(catalogue.with_program(beside), table, settings(tmp_path, "f3"))
    assert (record.folder, record.beside, record.silent, record.altered) == ("f3", beside.beside, (0,), ((1, 0),))
    with pytest.raises(SpecRefused, match="differ from the running job"):
        begun_with(catalogue, record, [*record.descriptors, record.descriptors[0]])


def test_a_program_that_was_edited_since_takes_its_place_if_it_keeps_the_same_state(tmp_path: Path) -> None:
    catalogue, table = job(tmp_path)
    record = beginning(catalogue, table, settings(tmp_path, "f3"))
    assert (record.number, record.folder, record.operators) == (2, "f3", (1, 0))
    begun = begun_with(catalogue, record, record.descriptors)
    assert [one.folder for one in begun.programs] == ["f1", "f3"]
    for other, words in (
        ([replace(COUNTS, index=0)], "operator 'more' was removed"),
        (
            [replace(MORE, index=0), replace(COUNTS, index=1, window=Window(20, 20))],
            "the window was 10 ms, and is 20 ms",
        ),
    ):
        with pytest.raises(SpecRefused, match=rf"{words}.*differ from the running job\. .* begin without that state"):
            begun_with(catalogue, record, other)


def test_a_program_whose_text_is_lost_is_not_replaced_by_another_one(tmp_path: Path) -> None:
    catalogue, table = job(tmp_path)
    forgotten = Catalogue(catalogue.operators, catalogue.programs[:1])
    with pytest.raises(SpecRefused, match="no text of program 2, which is in force"):
        beginning(forgotten, table, settings(tmp_path))


def test_a_standby_with_the_program_of_yesterday_does_not_take_over(tmp_path: Path) -> None:
    catalogue, table = job(tmp_path)
    announcer: Any = SimpleNamespace(journaled=lambda: (catalogue, table))
    record = beginning(catalogue, table, settings(tmp_path))
    require_newest(announcer, record, settings(tmp_path))
    with pytest.raises(BeginsAgain, match="this standby has program 1, and program 2 is in force"):
        require_newest(announcer, catalogue.programs[0], settings(tmp_path))


def test_on_kubernetes_a_driver_begins_with_the_journals_program_unless_the_operator_says_otherwise(
    tmp_path: Path,
) -> None:
    catalogue, table = job(tmp_path)
    edited = replace(settings(tmp_path), pipeline_file="configmap/rules/job.py", program=None, pipeline_args={"n": 9})
    text = replace(edited, pipeline_text=packed("VALUE = 1"), begins_with=JOURNAL)
    assert beginning(catalogue, table, text).file == "v2.py"
    mine = beginning(catalogue, table, replace(text, begins_with=SETTINGS))
    assert (mine.number, mine.operators, mine.arguments) == (2, (1, 0), {"n": 9})
    assert Path(mine.folder or "").parent == tmp_path / "programs" and is_sealed(mine.text, mine.seal, text.secret)
    first = Catalogue(catalogue.operators, catalogue.programs[:1])
    assert beginning(first, None, text).file == "job.py", (
        "also of the first program, whose ConfigMap may be half edited"
    )
    nameless = first_catalogue([COUNTS])
    assert beginning(nameless, None, text).file == "configmap/rules/job.py", "release 0.1.0 journaled no names"
    assert beginning(None, None, text).text == packed("VALUE = 1")


@pytest.mark.parametrize(("tries", "begins"), [(2, 2), (3, 1)])
def test_no_fourth_driver_begins_with_a_program_that_is_on_probation(tmp_path: Path, tries: int, begins: int) -> None:
    catalogue, table = job(tmp_path)
    record = catalogue.program(2)
    assert record is not None
    catalogue = catalogue.with_program(replace(record, tries=tries))
    assert beginning(catalogue, table, settings(tmp_path)).number == begins
    edited = replace(settings(tmp_path, "f3"), pipeline_args={"n": 3})
    assert beginning(catalogue, table, edited).number == 2, "the user has mended it"
    alone = SimpleNamespace(programs=table.programs[1:])
    assert beginning(catalogue, alone, settings(tmp_path)).number == 2, "its state has no other program"


def test_a_try_is_journaled_before_the_program_runs(tmp_path: Path) -> None:
    catalogue, table = job(tmp_path)
    recorded = list[Any]()
    announcer: Any = SimpleNamespace(record=lambda catalogue, generation: recorded.append(catalogue))
    table.version = SimpleNamespace(generation=4)
    record = catalogue.program(2)
    assert record is not None
    assert tried(record, catalogue, table, announcer) is record and not recorded, "it has passed"
    late = replace(record, tries=1, deployed_at=time.time() - 3600)
    assert tried(late, catalogue, table, announcer) is late and not recorded, "a restart, an hour later"
    counted = tried(replace(late, deployed_at=time.time()), catalogue, table, announcer)
    assert counted.tries == recorded[-1].program(2).tries == 2


def test_a_driver_that_follows_in_the_same_process_goes_by_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint may have brought back another program than that of the settings."""
    began = list[list[str]]()
    monkeypatch.setattr(main.session, "keep", lambda: None)
    monkeypatch.setattr("os.execv", lambda program, words: began.append(words))
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "ferry.driver", "run.json"])
    main.follow(BeginsAgain("the state is gone"))
    monkeypatch.setattr("sys.orig_argv", began[0])
    main.follow(BeginsAgain("the state is gone again"))
    assert began == [["python", "-m", "ferry.driver", "run.json", main.FOLLOWS]] * 2
    file = str(replace(settings(tmp_path), begins_with=SETTINGS).write())
    assert main.settings_from([began[0][0], file]).begins_with == SETTINGS
    assert main.settings_from([began[0][0], file, main.FOLLOWS]).begins_with == JOURNAL
