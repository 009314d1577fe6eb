"""Counters go on where the committed notes left them, and an epoch that is emitted again is counted once."""

from __future__ import annotations

import json
from pathlib import Path

from ferry.coordinator.progress import EpochRecord, Progress

NOTES = {"rows": 100, "malformed": 7, "late": 3, "epoch": (40, 2, 1)}
"""After an epoch of 40 rows, 2 malformed; 1 late record at its first operator, and 5 at its last."""


def test_a_new_driver_goes_on_from_a_finished_epoch(tmp_path: Path) -> None:
    progress = Progress("job", str(tmp_path))
    progress.resume(8, NOTES, 5, again=False)
    assert (progress.epoch, progress.rows, progress.malformed, progress.late) == (8, 100, 7, 8)


def test_an_epoch_that_is_emitted_again_is_counted_once(tmp_path: Path) -> None:
    progress = Progress("job", str(tmp_path))
    progress.resume(7, NOTES, 5, again=True)
    progress.finish_epoch(EpochRecord(8, 1.0, 2.0, 40, 0, 6, 2), 2, 0)
    assert (progress.epoch, progress.rows, progress.malformed, progress.late) == (8, 100, 7, 8)
    assert json.loads((tmp_path / "timeline.jsonl").read_text())["rows"] == 40
