"""Annotations that users ask by: what is written, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.cli.remote import intents
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest
from ferry_operator.kube.api.names import Doc


def made(workers: int = 3, **annotations: str) -> Doc:
    named = {f"ferry.dev/{key}": text for key, text in annotations.items()}
    return {
        "metadata": {"name": "a", "annotations": named},
        "spec": {"workers": workers, "instancesPerWorker": 2, "state": {"virtualNodes": 8}},
    }


def note(patch: Doc | None) -> Any:
    assert patch is not None
    return patch["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (intents.drain(made(), 1), {"ferry.dev/drain": "1"}),
        (intents.drain(made(drain=" 2"), 0), {"ferry.dev/drain": "0,2"}),
        (intents.drain(made(drain="2, x"), 0), {"ferry.dev/drain": "0"}),
        (intents.drain(made(drain="1,7"), 1), {"ferry.dev/drain": "1"}),
        (intents.undrain(made(drain="0,2"), 0), {"ferry.dev/drain": "2"}),
        (intents.undrain(made(drain="2"), 2), {"ferry.dev/drain": None}),
        (intents.move(made(), [3], "1.1"), {"ferry.dev/pins": "3=1.1"}),
        (intents.move(made(pins="3=0.0,7=2.1"), [3], "1.0"), {"ferry.dev/pins": "3=1.0,7=2.1"}),
        (intents.move(made(pins="3=0.0,7=2.1"), [3], "1.0", True), {"ferry.dev/pins": "3=1.0@window,7=2.1"}),
        (intents.move(made(pins="3=0.0@window,7=2.1@window"), [3], "1.0"), {"ferry.dev/pins": "3=1.0,7=2.1@window"}),
        (intents.unpin(made(pins="3=0.0,7=2.1"), 7), {"ferry.dev/pins": "3=0.0"}),
        (intents.unpin(made(pins="3=0.0"), 3), {"ferry.dev/pins": None}),
        (intents.pause(True), {"ferry.dev/paused": "true"}),
        (intents.pause(False), {"ferry.dev/paused": None}),
    ],
)
def test_what_is_written(patch: Doc | None, expected: dict[str, str | None]) -> None:
    assert note(patch) == expected


def shelved(annotations: dict[str, str] | None = None, **spec: Any) -> Doc:
    job = made(**(annotations or {}))
    state = {**job["spec"]["state"], "checkpoint": {"location": "s3://bucket/ferry"}}
    return {**job, "spec": {**job["spec"], "state": state, **spec}}


PAUSED = {"paused": "true"}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (intents.suspend(shelved()), {"spec": {"suspend": True}}),
        (intents.suspend(shelved(workers=0)), None),
        (intents.suspend(shelved(suspend=True)), None),
        (intents.resume(shelved(suspend=True)), {"spec": {"suspend": False}}),
        (intents.resume(shelved(suspend=True), 5), {"spec": {"suspend": False, "workers": 5}}),
        (intents.resume(shelved(workers=0), 5), {"spec": {"suspend": False, "workers": 5}}),
        (intents.resume(shelved()), None),
        (intents.resume(shelved(PAUSED)), {"metadata": {"annotations": {"ferry.dev/paused": None}}}),
        (
            intents.restore(shelved(suspend=True), "3", "keep", None),
            {"spec": {"suspend": False, "restoreFrom": "3", "restoreSink": "keep"}},
        ),
        (intents.restore(shelved(suspend=True), "3", None, 4), {"spec": {"suspend": False, "workers": 4, "restoreFrom": "3"}}),
    ],
)  # fmt: skip
def test_to_rest_and_to_go_on(patch: Doc | None, expected: Doc | None) -> None:
    assert patch == expected


def test_a_checkpoint_is_asked_for_by_an_id() -> None:
    request = CheckpointRequest("7", "before-upgrade")
    assert note(intents.checkpoint(shelved(), request)) == {"ferry.dev/checkpoint": request.text()}


def test_drains_stay_after_a_change_of_the_size_because_drained_workers_leave_first() -> None:
    assert intents.resized(made(2, drain="0,2")) is None and intents.resized(made(1)) is None


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: intents.suspend(made()), "only durable checkpoints outlive the pods"),
        (lambda: intents.resume(shelved(workers=0)), "--workers N"),
        (lambda: intents.resume(shelved(), 3), "`scale` it"),
        (lambda: intents.restore(shelved(), "3", None, None), "`suspend` it first"),
        (lambda: intents.checkpoint(made(), CheckpointRequest("1")), "set spec.state.checkpoint.location"),
        (lambda: intents.checkpoint(shelved(suspend=True), CheckpointRequest("1")), "is suspended"),
        (lambda: intents.checkpoint(shelved(PAUSED), CheckpointRequest("1")), "is paused"),
        (lambda: intents.drain(made(), 3), "the workers are 0 to 2"),
        (lambda: intents.drain(made(drain="0,1"), 2), "no other worker is left"),
        (lambda: intents.undrain(made(drain="0,1"), 2), "drained: 0, 1"),
        (lambda: intents.undrain(made(), 2), "drained: none"),
        (lambda: intents.move(made(), [8], "0.0"), "the virtual nodes are 0 to 7"),
        (lambda: intents.move(made(), [1], "3.0"), "the instances are 0.0 to 2.1"),
        (lambda: intents.move(made(), [1], "x"), "is no action"),
        (lambda: intents.move(made(drain="1"), [1], "1.0"), "worker 1 is drained"),
        (lambda: intents.unpin(made(pins="3=0.0"), 4), "pinned: 3"),
    ],
)
def test_what_is_refused(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        ask()


def test_another_nonce_restarts() -> None:
    assert intents.restart(made()) == {"spec": {"restartNonce": 1}}
    assert intents.restart({"spec": {"restartNonce": 4}}) == {"spec": {"restartNonce": 5}}
