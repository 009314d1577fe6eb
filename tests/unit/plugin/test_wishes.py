"""Annotations that users ask by: what is written, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.kube.names import Doc
from ferry_operator.plugin import wishes


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
        (wishes.drain(made(), 1), {"ferry.dev/drain": "1"}),
        (wishes.drain(made(drain="2, x"), 0), {"ferry.dev/drain": "0,2"}),
        (wishes.drain(made(drain="1,7"), 1), {"ferry.dev/drain": "1"}),
        (wishes.undrain(made(drain="0,2"), 0), {"ferry.dev/drain": "2"}),
        (wishes.undrain(made(drain="2"), 2), {"ferry.dev/drain": None}),
        (wishes.fewer(made(drain="0,2"), 2), {"ferry.dev/drain": "0"}),
        (wishes.move(made(), 3, "1.1"), {"ferry.dev/pins": "3=1.1"}),
        (wishes.move(made(pins="3=0.0,7=2.1"), 3, "1.0"), {"ferry.dev/pins": "3=1.0,7=2.1"}),
        (wishes.unpin(made(pins="3=0.0,7=2.1"), 7), {"ferry.dev/pins": "3=0.0"}),
        (wishes.unpin(made(pins="3=0.0"), 3), {"ferry.dev/pins": None}),
        (wishes.pause(True), {"ferry.dev/paused": "true"}),
        (wishes.pause(False), {"ferry.dev/paused": None}),
    ],
)
def test_what_is_written(patch: Doc | None, expected: dict[str, str | None]) -> None:
    assert note(patch) == expected


def test_nothing_is_written_when_no_drained_worker_goes() -> None:
    assert wishes.fewer(made(drain="0,1"), 2) is None and wishes.fewer(made(), 1) is None


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: wishes.drain(made(), 3), "the workers are 0 to 2"),
        (lambda: wishes.drain(made(drain="0,1"), 2), "no other worker is left"),
        (lambda: wishes.undrain(made(drain="0,1"), 2), "drained: 0, 1"),
        (lambda: wishes.undrain(made(), 2), "drained: none"),
        (lambda: wishes.move(made(), 8, "0.0"), "the virtual nodes are 0 to 7"),
        (lambda: wishes.move(made(), 1, "3.0"), "the instances are 0.0 to 2.1"),
        (lambda: wishes.move(made(), 1, "x"), "is no action"),
        (lambda: wishes.move(made(drain="1"), 1, "1.0"), "worker 1 is drained"),
        (lambda: wishes.unpin(made(pins="3=0.0"), 4), "kept: 3"),
    ],
)
def test_what_is_refused(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        ask()


def test_another_nonce_restarts() -> None:
    assert wishes.restart(made()) == {"spec": {"restartNonce": 1}}
    assert wishes.restart({"spec": {"restartNonce": 4}}) == {"spec": {"restartNonce": 5}}
