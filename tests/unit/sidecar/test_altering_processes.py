"""The user's `upgrade` while the state of a process is derived: an error of it refuses the deploy, also after the last piece."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.contract import messages as m
from ferry.contract.catalogue import Catalogue, ProgramRecord, first_catalogue
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.epoch_times import EpochTimes
from ferry.contract.errors import UserCodeFailed
from ferry.contract.names import CommitId, Step
from ferry.contract.programs import ProgramVersion, first_program
from ferry.sidecar import programs
from ferry.sidecar.altering import Altering
from ferry.sidecar.data import BeginsAnew, Data
from ferry.sidecar.programs import LoadedProgram, ProgramLoader
from ferry.store.process import ProcessState
from tests.unit.sidecar.test_data import ME, settings_of
from tests.unit.store.test_process import EVERY, VNODES, descriptor_of, fragments, opened, table_of

SUM = ferry.StateTable(pa.schema([("total", pa.int64())]))


@dataclass
class Summed(ferry.Process):
    """The sum of each key."""

    tables = {"sums": SUM}
    output = pa.schema([("total", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        before = work.get(*self.tables).column(0).fill_null(0).to_numpy(zero_copy_only=False)
        now = before + np.bincount(work.key_of(), work.rows()["n"].to_numpy(), minlength=work.count).astype(int)
        name, column = next(iter(self.tables)), self.tables[next(iter(self.tables))].values.names[0]
        work.put(name, range(work.count), {column: now})


@dataclass
class Halved(Summed):
    """Refuses odd sums."""

    tables = {"halves": ferry.StateTable(pa.schema([("half", pa.int64())]))}

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        totals = rows["total"].to_numpy()
        if (totals % 2).any():
            raise ValueError(f"{totals[totals % 2 == 1][0]} is odd")
        return {"halves": {"half": totals // 2}}


@dataclass
class Blind(Halved):
    """Fails without a row, too."""

    def upgrade(self, table: str, rows: pa.RecordBatch) -> Any:
        return {"halves": {"half": rows["half"]}}


BEFORE = descriptor_of(process=Summed())
AFTER = replace(descriptor_of(process=Halved()), index=1)
ALTERED = ((1, 0),)
SWITCH = (*first_program(1), ProgramVersion(2, 5, (1,), ALTERED))


class Instance:
    def __init__(self, folder: Path) -> None:
        self.states = [opened(BEFORE, folder / "0"), opened(AFTER, folder / "1")]
        self.altering = Altering([*self.states], [BEFORE, AFTER], VNODES, threading.RLock(), first_program(1))
        self.epoch = 0

    def records(self, *values: tuple[int, int]) -> None:
        """An epoch with these keys and numbers."""
        self.epoch += 1
        state = self.states[0]
        merged = state.combine(fragments(BEFORE, table_of([(k, 5, n, None) for k, n in values])))
        delta, _ = state.delta([merged], EpochTimes(0, 0, self.epoch))
        state.apply(delta, self.epoch, "x")
        self.altering.applied(0, delta, self.epoch, "x")

    def derive(self) -> None:
        self.altering.begin(ALTERED)
        while self.altering.step():
            pass


def test_a_failure_of_the_scan_or_of_a_delta_is_kept_until_the_state_is_derived_again(tmp_path: Path) -> None:
    for name, late in (("scan", False), ("delta", True)):
        one = Instance(tmp_path / name)
        one.records((1, 4), (2, 6))
        if not late:
            one.records((2, 1))
        one.derive()
        if late:
            assert not one.altering.failure and not one.states[1].broken
            one.records((2, 1))
        assert "ValueError: 7 is odd" in one.altering.failure and "7 is odd" in one.states[1].broken
        one.records((1, 2))
        with pytest.raises(UserCodeFailed, match="7 is odd"):
            one.states[1].delta([], EpochTimes(0, 0))
        one.altering.begin(())
        one.records((2, 1))
        one.derive()
        assert not one.altering.failure and not one.states[1].broken
        assert one.states[1].statistics()["entries"].sum() == 2


def test_a_table_with_a_state_that_could_not_be_derived(tmp_path: Path) -> None:
    """It is in force before the driver has heard of the error. Its first epoch fails, and is taken back."""
    one = Instance(tmp_path)
    one.records((1, 3))
    one.derive()
    assert one.altering.install(SWITCH) and not one.altering.failure
    with pytest.raises(UserCodeFailed, match="3 is odd"):
        one.states[1].delta([], EpochTimes(0, 0))


@pytest.fixture(autouse=True)
def loaded_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "load_program", lambda settings, program: None)


class Rig:
    def __init__(self, folder: Path, after: OperatorDescriptor) -> None:
        self.heard: list[LoadedProgram] = []
        self.catalogue = first_catalogue([BEFORE]).with_program(
            ProgramRecord(2, (1,), (after,), altered=ALTERED), (BEFORE, replace(after, index=1))
        )
        self.data = Data(settings_of(folder), ME, folder, [BEFORE], lambda *a: None, lambda *a: True)
        registry: Any = SimpleNamespace(catalogue=lambda: self.catalogue)
        self.loader = ProgramLoader(ME, settings_of(folder), folder, registry, self.data, self.heard.append)

    def load(self) -> m.ProgramLoaded | None:
        self.loader.load(m.LoadProgram(2, self.catalogue.dump().encode()))
        deadline = time.monotonic() + 30
        while not self.heard:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.loader.loaded(self.heard.pop())

    def put(self, number: int) -> None:
        state = self.data.states[0]
        assert isinstance(state, ProcessState)
        merged = state.combine(fragments(BEFORE, table_of([(1, 5, number, None)])))
        delta, _ = state.delta([merged], EpochTimes(0, 0, number), EVERY[: self.data.virtual_nodes])
        state.apply(delta, number, "x")
        self.data.altering.applied(0, delta, number, "x")


def test_the_driver_is_told_of_an_error_before_and_after_the_last_piece(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "late", AFTER)
    rig.put(2)
    assert rig.load() is None
    while rig.loader.derive():
        pass
    assert rig.loader.derived() == m.ProgramLoaded(ME, 2, "") and rig.loader.derived() is None
    rig.put(1)
    told = rig.loader.derived()
    assert told is not None and "ValueError: 3 is odd" in told.error and rig.loader.derived() is None
    rig.data.altering.begin(())
    assert rig.loader.derived() is None, "it stays refused"
    rig.data.states[1].give_up(told.error)  # type: ignore[attr-defined]
    with pytest.raises(BeginsAnew, match="3 is odd"):
        rig.data._operator = lambda step: 1  # type: ignore[method-assign]
        rig.data._apply(CommitId(Step(5, 0), None))  # type: ignore[arg-type]
    shadow = ProgramVersion(2, 5, (1, 0), ALTERED, (1,))
    rig.data._record = SimpleNamespace(saved=SimpleNamespace(programs=(shadow,)))  # type: ignore[assignment]
    rig.data._apply(CommitId(Step(5, 0), None))  # type: ignore[arg-type]  # a void step: all instances would begin anew
    early = Rig(tmp_path / "early", AFTER)
    early.put(1)
    assert early.load() is None
    while early.loader.derive():
        pass
    told = early.loader.derived()
    assert told is not None and "ValueError: 1 is odd" in told.error


def test_an_upgrade_that_fails_without_rows_is_no_program(tmp_path: Path) -> None:
    told = Rig(tmp_path, descriptor_of(process=Blind())).load()
    assert told is not None and "user code: KeyError" in told.error and "upgrade() of Blind" in told.error
    assert Catalogue.load(Rig(tmp_path / "wire", AFTER).catalogue.dump()).operators[1].shape.upgrades
    assert "upgrades" not in BEFORE.to_wire()["process"]
