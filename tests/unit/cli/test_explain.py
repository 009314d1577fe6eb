"""What `ferry explain` prints of a decision."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ferry.contract.errors import Refusal
from ferry.contract.status import Status
from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry_operator.cli import explain
from ferry_operator.control.observed import Observed
from ferry_operator.control.scaling_sizes import ScalingPolicy
from ferry_operator.local.autoscaler import LocalAutoscaler
from tests.unit.control.test_decide import ALIVE, GROUPS, REST
from tests.unit.statuses import status_of

POLICY = ScalingPolicy(min=1, max=8, utilisation=0.7, cooldown=60.0)
BUSY = WorkReport(WORK_SECONDS, 1000.0, 1200.0, 5000, 0.25, 2.0, 0.5)


def observed(work: WorkReport | None) -> Observed:
    known: Status = status_of(GROUPS, ALIVE, work=work)
    return Observed(
        **{name: getattr(REST, name) for name in ("wanted", "workers", "driver", "submitted")}, status=known
    )


def text(scaler: LocalAutoscaler) -> str:
    assert scaler.report is not None
    document: dict[str, Any] = {"job": "nbq5", "spec": {"workers": 2, "instancesPerWorker": 1}}
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(explain.decision_table(document, scaler.report.to_wire()))
    return console.export_text()


def test_a_decision_is_printed_with_its_inputs() -> None:
    scaler = LocalAutoscaler(POLICY)
    notes: list[str] = []
    found = [scaler.due(observed(BUSY), float(now), notes.append) for now in range(0, 70, 10)]
    assert [[str(one) for one in commands] for commands in found] == [[]] * 6 + [["workers=4"]]
    assert len(notes) == 1 and notes[0].startswith("autoscale: 2 x 1 -> 4 x 1: 1,200 records/s arrive")
    shown = text(scaler)
    for words in (
        "nbq5", "ScaleOut (auto)", "2 x 1 -> 4 x 1", "requested 2 x 1, wanted 4 x 1 instances; from 1 to 8 workers",
        "1,200/s arrive, 1,000/s are read, 5,000 wait; over 10.0 s",
        "0.25 tasks and 2.00 instances with records, on average; 0.50 with the overhead of epochs", "500 records/s",
        "120% of the workers' time; the target is 70%", "this size for 60 s, low for 0 s; cooldown 60 s",
    ):  # fmt: skip
        assert words in shown


def test_what_is_not_known_is_left_out() -> None:
    scaler = LocalAutoscaler(POLICY)
    assert scaler.due(observed(None), 0.0, print) == []
    assert "not known yet" in text(scaler) and "records" not in text(scaler)


def test_nothing_is_decided_without_a_policy() -> None:
    scaler = LocalAutoscaler(None)
    assert not scaler.on and LocalAutoscaler(POLICY).on
    assert scaler.due(observed(BUSY), 0.0, print) == [] and scaler.report is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"autoscale": None}, r"spec\.autoscale\.max is not set"),
        ({"autoscaled": False, "suspended": True}, r"spec\.autoscale\.max is not set"),
        ({"autoscaled": True, "suspended": True}, "nothing is decided while the job is suspended"),
        ({"autoscaled": True, "suspended": False}, "nothing is decided yet"),
    ],
)
def test_why_there_is_no_decision_is_told(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], words: str) -> None:
    class Job:
        def describe(self) -> dict[str, Any]:
            return {"job": "nbq5", "status": None, **more}

    class Context:
        obj = None

    monkeypatch.setattr(explain.targets, "find", lambda where, name: Job())
    with pytest.raises(Refusal, match=words):
        explain.explain(Context(), "nbq5")  # type: ignore[arg-type]
