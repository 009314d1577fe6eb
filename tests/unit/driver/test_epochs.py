"""What an epoch commits with its state, for the driver after this one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.messages import Fragment
from ferry.contract.names import Step
from ferry.contract.tickets import Judge, Right, stage_ticket
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.epochs import Epochs
from ferry.protocol.coordinator import Ingested, StartIngest
from ferry.spark.ingest import Work


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


def test_the_tasks_of_a_run_get_the_right_to_stage_its_fragments_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[Work] = []

    def run_ingest(spark: Any, batch: Any, operator: Any, plan: Any, work: Work, rows: Any) -> list[str]:
        works.append(work)
        return []

    monkeypatch.setattr("ferry.driver.epochs.run_ingest", run_ingest)
    root = Right.root("secret")
    epochs: Any = object.__new__(Epochs)
    epochs._root, epochs._dead_letter_of_tasks, epochs.spark = root, None, None
    epochs.loop = SimpleNamespace(machine=SimpleNamespace(generation=2), members=None)
    epochs.publisher = SimpleNamespace(authority=None)
    epochs.plan = SimpleNamespace(operators=[SimpleNamespace(descriptor=None, inputs=())])
    assert epochs._receipts(StartIngest(Step(4, 0), 3, (), None, 0, b""), None) == []
    (work,) = works
    ticket = stage_ticket(work.right, 9, "0.0", "life")
    assert Judge(root, "0.0", "life").fragment(ticket, time.time()) == Fragment(Step(4, 0), 2, 3, 9)
    assert root.seal not in (work.right.seal, ticket) and root.seal.hex().encode() not in ticket
