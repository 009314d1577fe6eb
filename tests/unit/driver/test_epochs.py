"""What an epoch commits with its state, for the driver after this one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ferry.contract.names import Step
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.epochs import Epochs
from ferry.protocol.coordinator import Ingested, StartIngest


def test_the_offsets_of_an_epoch_are_committed_with_all_its_steps(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for epoch in (3, 4):
        (tmp_path / f"offsets/{epoch}").write_text(f'v1\n{{}}\n{{"a":{epoch}}}')
    posted: list[Ingested] = []
    epochs: Any = object.__new__(Epochs)
    epochs.loop = SimpleNamespace(machine=SimpleNamespace(generation=1, late=0), post=posted.append)
    epochs.publisher = SimpleNamespace(letters=SimpleNamespace(keep=lambda epoch, letters: None))
    epochs.plan = SimpleNamespace(operators=[SimpleNamespace(inputs=[SimpleNamespace(origin="a", delay_ms=0)])] * 2)
    epochs._checkpoint = Checkpoint(tmp_path)
    meta = b'{"spark":"of the epoch before"}'
    for step in (Step(4, 0), Step(4, 1)):
        epochs._ingested(StartIngest(step, 1, (), None, 0, meta), [], None)
        meta = posted[-1].meta
        assert json.loads(meta)["spark"] == epochs._checkpoint.notes(4)
