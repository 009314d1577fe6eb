"""What a change would do, said beforehand: held against what the operator does in the small world."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ferry_operator.cli.remote import forecast
from ferry_operator.cli.remote.forecast import Capacity
from ferry_operator.cli.remote.proposal import APPLIED, Proposal, of_file, proposal
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from tests.unit.kube.fakes.fake_api import merged
from tests.unit.kube.fakes.fake_world import job


def present(annotations: dict[str, str] | None = None, **spec: Any) -> Doc:
    document = job(**spec)
    document["metadata"] |= {"uid": "u", "namespace": "jobs", "annotations": annotations or {}}
    return document


def planned(before: Doc, patch: Doc) -> Proposal:
    return proposal(before, merged(before, patch), {0: "n0", 1: "n1"})


def test_more_workers() -> None:
    found = planned(present(), {"spec": {"workers": 4}})
    assert [(c.path, str(c.kind)) for c in found.changes] == [("spec.workers", "handover")]
    assert found.effects[0] == "started: workers 2 to 3; state moves there"
    assert found.leaders == 4 and (found.copies or 0) >= 4 and "the status has no placement" in found.effects[1]
    assert found.refusals == () and not any("driver" in effect for effect in found.effects)


def test_fewer_workers() -> None:
    found = planned(present(workers=3), {"spec": {"workers": 2}})
    assert (
        found.effects[0]
        == "emptied, then stopped: the worker that leads the fewest bytes, drained ones and ones on cordoned nodes first"
    )
    assert found.leaders and found.leaders < 8


def test_a_field_that_restarts_the_driver_moves_nothing() -> None:
    found = planned(present(), {"spec": {"epoch": {"interval": "3s"}}})
    assert [str(c.kind) for c in found.changes] == ["restart"] and found.leaders == 0
    assert found.effects == (
        "the driver is restarted, and continues with the state in the workers (spec.epoch.interval)",
    )


def test_a_field_that_replaces_workers() -> None:
    found = planned(present(), {"spec": {"state": {"memory": "2Gi"}}})
    assert found.effects[0] == "emptied and replaced one by one: workers 0 to 1 (spec.state.memory)"
    assert (found.leaders or 0) >= 8


def test_another_spelling_is_no_change() -> None:
    before = present(epoch={"interval": "1s"})
    found = planned(before, {"spec": {"epoch": {"interval": "1000ms"}}})
    assert found.changes == () and found.effects == ("nothing changes",)


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"spec": {"state": {"virtualNodes": 16}}}, "spec.state.virtualNodes"),
        ({"spec": {"pipeline": {"args": {"a": {"of": "maps"}}}}}, "spec.pipeline.args"),
    ],
)
def test_what_the_operator_would_refuse(patch: Doc, said: str) -> None:
    found = planned(present(), patch)
    assert any(said in text for text in found.refusals) and found.effects == ("nothing: the spec in force stays",)


CHECKPOINTED = {"virtualNodes": 8, "checkpoint": {"location": "s3://bucket/ferry"}}


def test_to_rest_and_to_go_on() -> None:
    runs = present(state=CHECKPOINTED)
    for patch in ({"suspend": True}, {"workers": 0}, {"suspend": True, "restoreFrom": "3"}):
        found = planned(runs, {"spec": patch})
        assert "a last durable checkpoint, then all pods end" in found.effects[0] and found.refusals == ()
    rests = present(state=CHECKPOINTED, suspend=True, restoreFrom="3")
    rests["status"] = {"memory": {"uid": "u", "run": 2, "before": "3"}}
    assert planned(rests, {"spec": {"cores": 4}}).effects == ("the change applies when the job is resumed",)
    assert planned(rests, {}).effects == ("nothing changes",)
    back = {"suspend": False, "workers": 5}
    assert planned(rests, {"spec": back}).effects == ("the job continues from checkpoint latest, with 5 workers",)
    (effect,) = planned(rests, {"spec": {**back, "restoreFrom": "before-upgrade"}}).effects
    assert "from checkpoint before-upgrade" in effect
    found = planned(runs, {"spec": {"restoreFrom": "3"}})
    assert "suspend the job, change the field, and resume" in found.refusals[0]


def test_a_present_spec_that_is_refused_is_not_what_is_compared_with() -> None:
    good = {"pipeline": {"module": "jobs.nbq5"}, "workers": 3, "state": {"virtualNodes": 8}}
    before = present(workers=5, pipeline={"module": "jobs.nowhere"})
    bad = {
        "type": "Degraded",
        "status": "True",
        "reason": "SpecRefused",
        "message": "no module",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    kept = {"generation": 1, "spec": json.dumps(good), "seal": "of the operator"}
    before["status"] = {"conditions": [bad], "memory": {"uid": "u", "good": kept}}
    found = planned(before, {"spec": {"pipeline": {"module": "jobs.nbq5"}, "workers": 4}})
    assert [(c.path, c.before, c.after) for c in found.changes] == [("spec.workers", 3, 4)]
    assert "last good spec" in found.warnings[0]


def test_drains_and_pauses_count() -> None:
    before = present({names.DRAIN: "1", names.PAUSED: "true"}, workers=3)
    found = planned(before, {"spec": {"workers": 4}})
    assert "paused" in found.warnings[0] and found.leaders and found.leaders < 8
    undrained = planned(before, {"metadata": {"annotations": {names.DRAIN: None}}})
    assert undrained.changes == () and undrained.effects[0] == "worker 1 may hold state again" and undrained.leaders


def test_warnings_of_the_job_file_are_given() -> None:
    found = planned(present(), {"spec": {"workers": 1}})
    assert any("spec.state.replicas: " in text for text in found.warnings)


def test_what_programs_get_is_plain() -> None:
    wire = json.loads(json.dumps(planned(present(), {"spec": {"workers": 3, "state": {"memory": "2Gi"}}}).to_wire()))
    assert [(one["path"], one["after"]) for one in wire["changes"]] == [
        ("spec.workers", 3),
        ("spec.state.memory", "2Gi"),
    ]


def test_a_file_is_what_kubectl_apply_would_make_of_it() -> None:
    last = {"spec": {"workers": 2, "epoch": {"interval": "1s", "maxRows": 5}, "output": "/a"}}
    before = present({APPLIED: json.dumps(last)}, workers=7)
    new = {"spec": {"epoch": {"interval": "2s"}, "cores": 3}}
    assert of_file(new, before) == {
        "spec": {"workers": None, "output": None, "epoch": {"maxRows": None, "interval": "2s"}, "cores": 3}
    }
    assert of_file(new, present()) == {"spec": new["spec"]}


def test_the_forecast_is_about_what_moves() -> None:
    old = Capacity(Size(2, 1), 1, 64)
    grown = forecast.resized(old, Capacity(Size(4, 1), 1, 64), {})
    assert 28 <= grown.switchovers <= 36 and forecast.resized(old, old, {}) == forecast.resized(
        old, Capacity(Size(2, 1), 1, 64), {}
    )
    assert forecast.resized(old, old, {}).switchovers == 0
    assert forecast.rolled(old, {}).switchovers >= 64
