"""A rollback to the state before a deploy: refused as a whole, or begun as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ferry
from ferry.connectors.sink import Sink
from ferry.contract.catalogue import RECORDS_MAX, TEXTS_MAX, Catalogue, DeployRequest, ProgramRecord, first_catalogue
from ferry.contract.descriptors import GLOBAL, Aggregate, OperatorDescriptor
from ferry.contract.errors import Refusal
from ferry.contract.programs import ProgramVersion
from ferry.driver.rewinding import rewind
from ferry.protocol import coordinator as core
from tests.unit.driver.test_deploys import Rig as Deploying

FIRST, SECOND = ProgramVersion(1, 0, (0,)), ProgramVersion(2, 9, (0,))
GOES, STAYS = ferry.parquet("out"), ferry.foreach_epoch(lambda epoch, generation, rows: None)


class Rig:
    def __init__(
        self, sinks: list[Sink], now: ProgramVersion = SECOND, found: bool = True, stored: bool = True
    ) -> None:
        self.did = list[Any]()
        manifest = SimpleNamespace(epoch=7, programs=(FIRST,))
        catalog = SimpleNamespace(check=lambda manifest: self.did.append("checked"))
        records = (ProgramRecord(1, (0,), (), since=0), ProgramRecord(2, (0,), (), since=9))
        self.announcer = SimpleNamespace(catalogue=Catalogue((), records), record=self.record)
        machine = SimpleNamespace(table=SimpleNamespace(programs=(now,)), generation=1)
        self.life: Any = SimpleNamespace(
            loop=SimpleNamespace(machine=machine, post=self.did.append), announcer=self.announcer,
            restoring=SimpleNamespace(before=lambda table, known: (catalog, manifest) if found else None),
            texts=SimpleNamespace(of=lambda number, catalogue: SimpleNamespace(plan=SimpleNamespace(sinks=sinks))),
            settings=SimpleNamespace(restore_sink="truncate", started_with="the present file"),
            checkpoint_scheduler=SimpleNamespace() if stored else None,
        )  # fmt: skip

    def record(self, catalogue: Catalogue, generation: int) -> None:
        self.did.append("recorded")
        self.announcer.catalogue = catalogue


def plan(*sinks: Sink) -> Any:
    return SimpleNamespace(sinks=sinks)


def test_the_programs_after_the_checkpoint_are_given_up_before_the_job_halts() -> None:
    rig = Rig([GOES])
    assert rewind(rig.life, plan(GOES)) == 1
    assert rig.did == ["checked", "recorded", core.Rewind("program 2 was rolled back with --rewind")]
    catalogue = Catalogue.load(rig.announcer.catalogue.dump())
    assert [one.rewound for one in catalogue.programs] == [False, True] and catalogue.wanted is None
    assert catalogue.programs[0].started_with == "the present file", "the next driver begins with it"
    later = catalogue.with_program(ProgramRecord(3, (0,), (), since=12))
    assert [one.number for one in later.before(3)] == [1], "no rollback leads to it"
    assert later.wanted is not None


def test_a_deploy_leads_back_to_the_program_of_the_checkpoint_only() -> None:
    rig = Rig([GOES])
    with pytest.raises(
        Refusal, match="before program 2 is of program 1, and another program is wanted: roll back with --to 1"
    ):
        rewind(rig.life, plan(GOES), "of no program")
    assert rig.did == []
    assert rewind(rig.life, plan(GOES), rig.announcer.catalogue.programs[0].identity) == 1


@pytest.mark.parametrize(
    ("rig", "sink", "words"),
    [
        (Rig([GOES], stored=False), GOES, "it has no state.checkpoint.location"),
        (Rig([GOES], found=False), GOES, "no checkpoint of this run is older than epoch 9"),
        (Rig([GOES]), STAYS, "the rows since epoch 7 may stay in foreach_epoch"),
        (Rig([STAYS]), GOES, "the rows since epoch 7 may stay in foreach_epoch"),
        (Rig([GOES], now=SECOND._replace(silent=(0,))), GOES, "program 2 runs beside another one"),
    ],
    ids=["location", "checkpoint", "sink", "sink of the program before", "beside"],
)
def test_what_cannot_go_back_is_refused_and_nothing_changes(rig: Rig, sink: Sink, words: str) -> None:
    with pytest.raises(Refusal, match=words):
        rewind(rig.life, plan(sink))
    assert rig.did == []


def test_sinks_whose_rows_stay_on_purpose_do_not_matter() -> None:
    rig = Rig([STAYS])
    rig.life.settings.restore_sink = "keep"
    assert rewind(rig.life, plan(STAYS)) == 1


def test_a_sink_takes_rows_back_if_it_can_for_certain() -> None:
    class Mine(ferry.Sink):
        def write(self, epoch: int, generation: int, rows: Any) -> None:
            pass

    class Removing(Mine):
        def truncate_after(self, epoch: int) -> None:
            pass

    kinds = [GOES, ferry.console(), Removing(), ferry.foreach_epoch(STAYS.function, lambda epoch: None)]
    assert all(one.takes_back for one in kinds)
    assert not any(one.takes_back for one in (STAYS, Mine(), ferry.http("http://localhost/rows")))


def test_the_program_in_force_after_a_rewind_is_never_forgotten() -> None:
    """It is not the newest one, and the next driver builds it."""
    catalogue = Catalogue((), (ProgramRecord(1, (0,), (), since=0, text="x" * TEXTS_MAX),))
    for number in range(2, RECORDS_MAX + 5):
        catalogue = catalogue.with_program(ProgramRecord(number, (0,), (), since=number, text="y", rewound=True))
    first = catalogue.program(1)
    assert first is not None and first.text


def test_copies_that_a_rewound_program_dropped_stay_without_state() -> None:
    """The restored life has none of them. An operator that returns has the id whose state is in the checkpoint."""
    a, b = (
        OperatorDescriptor(n, i, "aggregate", (("k", "int"),), GLOBAL, (Aggregate("n", "count"),))
        for i, n in enumerate("ab")
    )
    catalogue = first_catalogue([a, b]).with_program(ProgramRecord(2, (0,), (a,), since=10))
    copies = (a, b, replace(a, index=2), replace(b, index=3))
    shadow = ProgramRecord(3, (2, 3, 0), (a, b, replace(a, index=2)), since=20, altered=((2, 0), (3, 1)))
    catalogue = catalogue.with_program(shadow, copies).with_program(
        ProgramRecord(4, (0,), (a,), since=30, drops=(2, 3))
    )
    assert catalogue.void == (2, 3)
    for one in catalogue.programs[2:]:
        catalogue = catalogue.with_program(replace(one, rewound=True))
    assert catalogue.void == (2, 3) and catalogue.ids == {"a": 0, "b": 1}


def test_what_a_program_dropped_is_there_again_after_a_rewind() -> None:
    a = OperatorDescriptor("a", 0, "aggregate", (("k", "int"),), GLOBAL, (Aggregate("n", "count"),))
    catalogue = first_catalogue([a]).with_program(
        ProgramRecord(2, (1,), (a,), since=10, drops=(0,)), (a, replace(a, index=1))
    )
    assert catalogue.void == (0,)
    (last,) = catalogue.programs[1:]
    catalogue = catalogue.with_program(replace(last, rewound=True))
    assert catalogue.void == (1,) and catalogue.ids == {"a": 0}


def test_a_deploy_that_rewinds_is_refused_or_ends_this_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Deploying(tmp_path, monkeypatch)
    number = rig.deployed()
    asked, found = list[str](), [False]

    def rewind(life: Any, plan: Any, identity: str) -> int:
        asked.append(identity)
        if not found[0]:
            raise Refusal("no checkpoint is older")
        return 1

    monkeypatch.setattr("ferry.driver.deploys.rewind", rewind)
    request = DeployRequest(file="job.py", arguments={"n": 1}, rewind=True, attempt="rewind=True")
    refused = rig.deploys.request(request)
    rig.until(lambda: rig.deploys._under_way is None)
    assert "no checkpoint is older" in rig.announcer.catalogue.program(refused).refused
    assert asked == [rig.announcer.catalogue.programs[0].identity]
    found[0], recorded = True, len(rig.recorded)
    again = rig.deploys.request(request)
    rig.until(lambda: rig.deploys._phase == "rewinding")
    assert rig.deploys.request(request) == again == number + 2, "the operator asks again"
    with pytest.raises(Refusal):
        rig.deploys.request(DeployRequest(file="v3.py"))
    assert len(rig.recorded) == recorded and rig.states()[number] == "in force"
