"""Which checkpoints are asked for, and what becomes of what the leaders have written."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.errors import Refusal
from ferry.contract.manifest import Chain, StoredFile, file_name
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.settings import CheckpointSettings
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import checkpoint_scheduler
from ferry.driver.checkpoint_scheduler import CheckpointScheduler
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry.durable.parts import PartWriter
from ferry.protocol import coordinator as core
from tests.unit.sidecar.test_data import settings_of

SECONDS = 10.0


class Job:
    """A scheduler of checkpoints, and the loop to which it posts."""

    def __init__(self, directory: Path, every_ms: int | None = None, keep: int = 2) -> None:
        where = CheckpointSettings(str(directory / "store"), every_ms, keep)
        self.settings = replace(settings_of(directory), checkpoint=where)
        self.metrics = DriverMetrics("j", str(directory))
        self.metrics.epoch = 5
        self.posted: queue.Queue[Any] = queue.Queue()
        checkpoints = SimpleNamespace(under_way=None)
        table = SimpleNamespace(programs=first_program(1))
        machine = SimpleNamespace(generation=1, checkpoints=checkpoints, table=table)
        loop: Any = SimpleNamespace(post=self.posted.put, machine=machine, on_publish=None)
        self.loop = loop
        catalog = CheckpointCatalog(Location(where.location, self.settings.job))
        self.scheduler = CheckpointScheduler(
            self.settings, where, lambda: Catalogue((), ()), catalog, self.loop, self.metrics
        )
        self.scheduler.start()

    def heard(self) -> Any:
        return self.posted.get(timeout=SECONDS)

    def file(self) -> StoredFile:
        name = file_name(self.settings.run, time.time(), f"0.0-0-scan-{time.monotonic_ns()}")
        writer = PartWriter(self.scheduler.catalog.location, name, 0, "scan", 5, 8)
        writer.add(pa.record_batch({"hash": pa.array([1], pa.uint64())}))
        return writer.finish()

    def written(self, number: int, *files: StoredFile) -> core.Published:
        """All leaders have."""
        chains = json.dumps([asdict(Chain(tuple(range(8)), files))]).encode()
        commit_id = CommitId(Step(self.metrics.epoch, 0), Attempt(1, 1))
        self.loop.on_publish(core.Publish(number, commit_id, (), b"", (chains,), first_program(1)[0]))
        answer = self.heard()
        assert isinstance(answer, core.Published) and answer.number == number
        return answer

    def numbers(self) -> list[int]:
        return [one.number for one in self.scheduler.catalog.manifests()]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_checkpoint_whose_files_are_gone_is_none_and_another_may_follow(tmp_path: Path) -> None:
    job = Job(tmp_path)
    first = job.scheduler.take("mine")
    assert job.heard() == core.TakeCheckpoint(first, False)
    gone = job.file()
    job.scheduler.catalog.location.remove(gone.name)
    assert "is missing" in job.written(first, gone).reason and job.metrics.problems.is_late()
    assert job.numbers() == []
    second = job.scheduler.take("mine")
    assert second > first and job.heard() == core.TakeCheckpoint(second, False, anew=True)
    assert job.written(second, job.file()).reason == ""
    until(lambda: not job.metrics.problems.is_late())
    assert job.numbers() == [second]
    third = job.scheduler.take("another")
    assert job.heard() == core.TakeCheckpoint(third, False)
    with pytest.raises(Refusal, match="named 'mine' already"):
        job.scheduler.take("mine")


def test_whoever_asks_again_for_the_last_one_hears_of_the_same(tmp_path: Path) -> None:
    """Else each would take the place of the one that is being written, and none would ever be complete."""
    job = Job(tmp_path)
    number = job.scheduler.suspend()
    assert job.heard() == core.TakeCheckpoint(number, True)
    assert job.scheduler.suspend() == number
    time.sleep(2 * checkpoint_scheduler.LOOK_SECONDS)
    assert job.posted.empty()
    assert job.written(number, job.file()).reason == ""
    assert job.scheduler.suspended.wait(SECONDS)


def test_the_last_one_has_the_name_of_the_one_whose_place_it_takes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    named = job.scheduler.take("mine")
    assert job.heard() == core.TakeCheckpoint(named, False)
    last = job.scheduler.suspend()
    assert job.heard() == core.TakeCheckpoint(last, True)
    with pytest.raises(Refusal, match=f"suspended with checkpoint {last}"):
        job.scheduler.take("too late")
    assert job.written(last, job.file()).reason == ""
    assert job.scheduler.suspended.wait(SECONDS)
    assert [(one.number, one.name) for one in job.scheduler.catalog.manifests()] == [(last, "mine")]


def test_the_last_one_is_written_until_it_is_whole(tmp_path: Path) -> None:
    job = Job(tmp_path)
    number = job.scheduler.suspend()
    job.heard()
    gone = job.file()
    job.scheduler.catalog.location.remove(gone.name)
    assert job.written(number, gone).reason
    assert not job.scheduler.suspended.is_set()
    assert job.written(number, job.file()).reason == ""
    assert job.scheduler.suspended.wait(SECONDS)


def test_one_of_which_nobody_knows_is_no_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.written(7, job.file()).reason
    assert job.numbers() == []


def test_a_store_that_is_away_is_waited_for_and_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_scheduler, "RETRY_SECONDS", 0.01)
    job = Job(tmp_path)
    number = job.scheduler.take(None)
    job.heard()
    file = job.file()
    manifests = tmp_path / "store" / "j" / "manifests"
    manifests.symlink_to("/proc/tty")  # Nobody can write there.
    commit_id = CommitId(Step(5, 0), Attempt(1, 1))
    chains = json.dumps([asdict(Chain(tuple(range(8)), (file,)))]).encode()
    job.loop.on_publish(core.Publish(number, commit_id, (), b"", (chains,), first_program(1)[0]))
    until(lambda: any(one.reason == "CheckpointDelayed" for one in job.metrics.problems.lasting))
    assert job.posted.empty()
    manifests.unlink()
    assert job.heard() == core.Published(number, "")
    until(lambda: not job.metrics.problems.lasting)
    assert job.numbers() == [number]


def test_one_that_is_late_is_said_to_be_in_the_same_words_all_the_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster other words are another event, and another status."""
    monkeypatch.setattr(checkpoint_scheduler, "LATE_SECONDS", 0.0)
    job = Job(tmp_path)
    number = job.scheduler.take(None)
    until(lambda: bool(job.metrics.problems.lasting))
    (said,) = job.metrics.problems.lasting
    assert f"checkpoint {number} is not complete" in said.text and "it has not begun" in said.text
    time.sleep(1.2)
    assert job.metrics.problems.lasting == (said,)
    job.metrics.problems.delayed("CheckpointDelayed", f"{said.text}, after 3 ms")
    (other,) = job.metrics.problems.lasting
    job.metrics.problems.delayed("CheckpointDelayed", f"{said.text}, after 12 ms")
    assert job.metrics.problems.lasting == (other,) != (said,)


def test_one_is_due_when_something_has_come_and_old_ones_go(tmp_path: Path) -> None:
    job = Job(tmp_path, every_ms=1)
    for epoch in (6, 7, 8):
        job.metrics.epoch, job.metrics.rows = epoch, epoch
        asked = job.heard()
        assert isinstance(asked, core.TakeCheckpoint) and not asked.hold
        assert job.written(asked.number, job.file()).reason == ""
        last = asked.number
        until(lambda: job.scheduler._published_epoch == epoch)  # noqa: B023
    time.sleep(2 * checkpoint_scheduler.LOOK_SECONDS)
    assert job.posted.empty()
    until(lambda: job.numbers() == [last, last - 1])


def test_the_next_driver_goes_on_with_the_numbers_and_the_lineage(tmp_path: Path) -> None:
    job = Job(tmp_path)
    number = job.scheduler.take(None)
    job.heard()
    job.written(number, job.file())
    other = Job(tmp_path)
    until(lambda: other.scheduler._published_epoch == 5)
    following = other.scheduler.take(None)
    assert following == number + 1 and other.heard() == core.TakeCheckpoint(following, False)


def test_a_checkpoint_is_of_the_program_of_its_epoch_though_others_are_in_force_by_now(tmp_path: Path) -> None:
    """Two deploys may take less time than an upload; and ids without a state stay without."""
    job = Job(tmp_path)
    wanted = ProgramRecord(2, (4, 5), (), base=1, begins=(4,))
    number, catalogue = job.scheduler.take(None), Catalogue((), (wanted,), (3,))
    job.heard()
    job.scheduler._catalogue = lambda: catalogue
    job.loop.machine.table.programs = (ProgramVersion(2, 6, (1,)), ProgramVersion(3, 8, (2,)))
    assert job.written(number, job.file()).reason == ""
    (manifest,) = job.scheduler.catalog.manifests()
    assert manifest.programs == first_program(1) and manifest.void == (3, 4)
