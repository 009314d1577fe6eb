"""The status of the custom resource: written whole, read leniently, small."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from ferry_operator.job.status import CONDITIONS, MESSAGE_MAX, Condition, JobStatus


def condition(kind: str, **changes: Any) -> Condition:
    values: dict[str, Any] = {
        "type": kind, "status": "True", "reason": "EpochsCommit", "message": "all is well",
        "last_transition_time": "2026-01-02T03:04:05Z", "observed_generation": 3,
    }  # fmt: skip
    return Condition(**{**values, **changes})


FULL = JobStatus(
    observed_generation=3, phase="Moving", desired=4, workers=2, selector="ferry.dev/job=q5,ferry.dev/role=worker",
    moving=16, lag="1.2s", state="12Mi", epoch=41, rows=1_000_000, replica_lag="0.1s", last_handover="3.4s",
    intended="start worker 3", generation=2, token=7, run="q5-0a1b2c3d", version="2",
    conditions=tuple(condition(kind) for kind in CONDITIONS),
)  # fmt: skip


def test_a_status_is_read_back_equal() -> None:
    document = FULL.to_wire()
    assert document["observedGeneration"] == 3 and document["conditions"][0]["lastTransitionTime"]
    assert JobStatus.read(json.loads(json.dumps(document))) == FULL
    assert FULL.condition("Ready") == condition("Ready") and FULL.condition("Other") is None


def test_an_object_without_a_status_has_the_first_one() -> None:
    assert JobStatus.read(None) == JobStatus.read({}) == JobStatus()
    assert JobStatus().to_wire() == {
        "observedGeneration": 0, "phase": "Pending", "desired": 0, "workers": 0, "selector": "", "moving": 0,
        "progress": {}, "conditions": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": "Hovering"},
        {"workers": "many"},
        {"workers": -1, "token": "x"},
        {"conditions": [{"type": "Ready"}]},
        {"conditions": "none"},
        {"of": "another version"},
    ],
)
def test_what_makes_no_sense_is_left_out(wrong: dict[str, Any]) -> None:
    """A status that another version wrote, or somebody by hand, never stops the operator."""
    document = {**FULL.to_wire(), **wrong}
    expected = {name: value for name, value in FULL.to_wire().items() if name not in wrong}
    assert JobStatus.read(document) == JobStatus.read(expected)
    assert JobStatus.read(document).run == "q5-0a1b2c3d"


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": "not one word"},
        {"reason": ""},
        {"status": "true"},
        {"last_transition_time": "2026-01-02 03:04:05"},
        {"message": "m" * (MESSAGE_MAX + 1)},
    ],
)
def test_a_condition_that_the_api_server_would_refuse_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        condition("Ready", **wrong)
