"""How a new driver goes on from what the one before it has left."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame

from ferry.contract.errors import Final, SpecRefused, StateUnavailable
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.notes import EpochCounts, EpochNotes
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver.checkpoint import COMMIT, Checkpoint
from ferry.driver.job import Job
from ferry.protocol.coordinator import Ready
from ferry.spark.compile import CompiledPipeline
from ferry.spark.sinks import Sink

NONE: dict[str, Any] = {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Epoch 6 has ended, 7 has begun."""
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "commits").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"q"}')
    (tmp_path / "checkpoint" / "commits" / "6").write_text("v1\n{}")
    for epoch in (6, 7):
        (tmp_path / "checkpoint" / "offsets" / str(epoch)).write_text(f'v1\n{{}}\n{{"a":{epoch}}}')
    return tmp_path / "checkpoint"


def resumed(folder: Path, notes: str, final: bool = False, flush: bool = False, sources: Any = NONE) -> tuple[Any, ...]:
    """What a driver finds when the state has committed epoch 7: its last epoch, whether all is over, what it counts."""
    job: Any = object.__new__(Job)
    job._checkpoint = Checkpoint(folder)
    metrics = DriverMetrics("job", str(folder.parent))
    meta = EpochNotes(spark=notes, flush=flush, rows=70, epoch=EpochCounts(10)).dump()
    ready = Ready(CommitId(Step(7, 0), Attempt(1, 9)), meta, final)
    return (*job._resume(ready, CompiledPipeline(sources, (), ()), metrics, 0), metrics.epoch, metrics.rows)


def test_an_epoch_that_spark_has_not_ended_is_begun_again_with_its_own_offsets(folder: Path) -> None:
    notes, offsets = Checkpoint(folder).notes(7), (folder / "offsets/7").read_text()
    (folder / "offsets/7").unlink()
    assert resumed(folder, notes) == (7, False, 6, 60)
    assert (folder / "offsets/7").read_text() == offsets
    assert resumed(folder, notes, flush=True) == (7, False, 6, 60), "what fired last is not in the sinks yet"
    assert resumed(folder, notes, final=True) == (7, False, 7, 70)
    assert resumed(folder, notes, flush=True) == (7, True, 7, 70)


def test_what_cannot_be_written_again_ends_the_job(folder: Path) -> None:
    notes = Checkpoint(folder).notes(7)
    shutil.rmtree(folder)
    with pytest.raises(StateUnavailable, match="orders: Spark's own source"):
        resumed(folder, notes, sources={"orders": object.__new__(DataFrame)})
    for log, text in (("offsets", 'v1\n{}\n{"a":9}'), ("commits", COMMIT)):
        (folder / log).mkdir(parents=True)
        (folder / log / "7").write_text(text)
    with pytest.raises(StateUnavailable, match="was put back to another day"):
        resumed(folder, notes)


class Away(Sink):
    """A sink that is away when a driver begins. `then` is what happens at each try."""

    def __init__(self, *then: BaseException | None) -> None:
        self.then, self.opened = list(then), list[int]()

    def open(self, committed: int) -> None:
        error = self.then.pop(0)
        if error is not None:
            raise error
        self.opened.append(committed)

    def write(self, epoch: int, generation: int, rows: Any) -> None:
        raise AssertionError("no epoch yet")


def opened(tmp_path: Path, *declared: Away, limit: int | None = None) -> tuple[bool, list[str]]:
    """Whether all are open, and what was said in the timeline."""
    job: Any = object.__new__(Job)
    job.settings, job._stop = SimpleNamespace(sink_patience_ms=limit), threading.Event()
    metrics, loop = DriverMetrics("job", str(tmp_path)), SimpleNamespace(ending=threading.Event(), halt=None)
    done = job._open_sinks(declared, 7, loop, metrics)
    assert not metrics.problems
    file = tmp_path / "timeline.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return done, [json.loads(line)["kind"] for line in lines]


def test_a_sink_that_is_away_when_a_driver_begins_is_waited_for(tmp_path: Path) -> None:
    """The driver ended, and after the sixth one in a row the job: two seconds without an output folder did it."""
    away, there = Away(FileExistsError("a file"), OSError("stale handle"), None), Away(None)
    assert opened(tmp_path, away, there) == (True, ["degraded", "mended"])
    assert away.opened == there.opened == [7]


def test_a_sink_that_is_refused_or_away_for_too_long_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="of another run"):
        opened(tmp_path, Away(SpecRefused("epoch 9 of another run")))
    with pytest.raises(Final, match=r"cannot be opened: OSError: gone .*nothing is lost"):
        opened(tmp_path, Away(*[OSError("gone")] * 100), limit=50)


def test_a_job_that_is_stopped_does_not_wait_for_its_sink(tmp_path: Path) -> None:
    """Which is tried again after half a minute, if it is away for long."""
    job: Any = object.__new__(Job)
    job.settings, job._stop, job._opening = SimpleNamespace(sink_patience_ms=None), threading.Event(), True
    loop: Any = SimpleNamespace(ending=threading.Event(), halt=None)

    class Asked(Away):
        def open(self, committed: int) -> None:
            job._end_soon(loop)
            super().open(committed)

    metrics = DriverMetrics("job", str(tmp_path))
    assert not job._open_sinks([Asked(OSError("gone"), OSError("a second try"))], 7, loop, metrics)
    assert loop.ending.is_set()
