"""How a new driver goes on from what the one before it has left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from ferry.contract.errors import StateUnavailable
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.notes import EpochCounts, EpochNotes
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver.checkpoint import COMMIT, Checkpoint
from ferry.driver.job import resume
from ferry.protocol.coordinator import Ready
from ferry.spark.compile import CompiledPipeline

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


def resumed(
    folder: Path, notes: str, final: bool = False, flush: bool = False, sources: Any = NONE, **more: Any
) -> tuple[Any, ...]:
    """What a driver finds when the state has committed epoch 7: its last epoch, whether all is over, what it counts."""
    metrics = DriverMetrics("job", str(folder.parent))
    meta = EpochNotes(spark=notes, flush=flush, rows=70, epoch=EpochCounts(10)).dump()
    ready = Ready(CommitId(Step(7, 0), Attempt(1, 9)), meta, final)
    return (
        *resume(ready, CompiledPipeline(sources, (), ()), Checkpoint(folder), metrics, 0, **more),
        metrics.epoch,
        metrics.rows,
    )


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
    with pytest.raises(StateUnavailable, match="was rolled back to another day"):
        resumed(folder, notes)


def test_sources_are_compared_with_offsets_of_the_same_program_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that goes back from a program with another source was refused: it had read other sources."""
    compared = list[int]()
    monkeypatch.setattr(Checkpoint, "require_sources", lambda self, epoch, *names: compared.append(epoch))
    notes = Checkpoint(folder).notes(7)
    resumed(folder, notes, of_plan=lambda epoch: epoch < 7)
    assert compared == []
    resumed(folder, notes, of_plan=lambda epoch: epoch < 8)
    assert compared == [7]
