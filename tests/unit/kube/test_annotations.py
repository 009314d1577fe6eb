"""Annotations of users: one spelling is followed, and every other one is said."""

from __future__ import annotations

import json

import pytest

from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import EVENTS, JOBS
from ferry_operator.kube.observe.annotations import (
    invalid_annotations,
    requested_drains,
    requested_pins,
    requested_windows,
)
from tests.unit.kube.fakes.fake_world import World
from tests.unit.kube.test_passes import running

SIZE, VIRTUAL_NODES = Size(4, 1), 8

GOOD: list[tuple[str, str]] = [
    (names.DRAIN, ""),
    (names.DRAIN, "1"),
    (names.DRAIN, "0, 3"),
    (names.PINS, ""),
    (names.PINS, "3=1.0, 4=2.0@window"),
    (names.PAUSED, "true"),
    (names.PAUSED, "false"),
    (names.CHECKPOINT, '{"id": "1", "name": "before-upgrade", "more": 1}'),
]

WRONG: list[tuple[str, str, str]] = [
    *((names.DRAIN, text, "no list of workers") for text in (
        "1-3", "10%", "2024-11-27 at 10:30", "1;3", "1 3", "one", "-1", "1,", "0x1", "01", "\u0663", "1.0", "[1]", "1e1",
    )),
    (names.DRAIN, "0,1,2,3", "no other worker can take their state"),
    *((names.PINS, text, "no pin such as") for text in ("3:1.0", "3=1", "nonsense", "3=1.0@", "3=1.0;4=2.0", "3=01.0", "3=-1.0", "3=1.0,")),
    (names.PINS, "3=1.0,3=2.0", "named twice"),
    (names.PINS, "9=1.0", "no virtual node 9"),
    (names.PINS, "3=4.0", "no instance 4.0"),
    (names.PINS, "3=1.1", "no instance 1.1"),
    *((names.PAUSED, text, "neither 'true' nor 'false'") for text in ("True", "yes", "1", "", " true", "paused")),
    *((names.CHECKPOINT, text, "no request") for text in (
        "now", "{", "[]", "7", "{}", '{"id": 7}', '{"id": "1", "name": ""}', '{"id": "1", "name": "latest"}',
        '{"id": "1", "name": "none"}', '{"id": "1", "name": "12"}', '{"id": "1", "name": "A b"}', "[" * 100_000,
    )),
    (names.PLAN, "x", "no plan of this job"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), GOOD)
def test_what_is_spelled_right_is_followed(name: str, text: str) -> None:
    assert list(invalid_annotations({name: text}, "nbq5", SIZE, VIRTUAL_NODES)) == []


@pytest.mark.parametrize(("name", "text", "why"), WRONG, ids=lambda text: str(text)[:20])
def test_what_is_not_is_said_and_not_followed(name: str, text: str, why: str) -> None:
    (one,) = invalid_annotations({name: text}, "nbq5", SIZE, VIRTUAL_NODES)
    assert one.reason == "AnnotationIgnored" and why in one.message and name in one.message and len(one.message) < 500
    if why in ("no list of workers", "no pin such as", "named twice"):
        assert (requested_drains(text), requested_pins(text, 8), requested_windows(text)) == ((), (), ())


def test_a_pin_to_a_worker_that_is_emptied_is_said() -> None:
    (one,) = invalid_annotations({names.DRAIN: "1", names.PINS: "3=1.0,4=2.0"}, "nbq5", SIZE, VIRTUAL_NODES)
    assert "worker 1 is drained" in one.message and "virtual node 3" in one.message


def test_what_is_read() -> None:
    assert requested_drains("3, 1,3") == (1, 3) and requested_drains(None) == ()
    assert requested_pins("9=0.0,4=2.1,3=1.0@window", 8) == ((3, "1.0"), (4, "2.1")) and requested_pins(None, 8) == ()
    assert requested_windows("9=0.0,4=2.1,3=1.0@window") == (3,) and requested_windows(None) == ()


def annotate(world: World, **notes: str | None) -> None:
    named = {f"ferry.dev/{name}": text for name, text in notes.items()}
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": named}})


def test_nonsense_moves_nothing_and_is_told_at_once() -> None:
    world = running(workers=3)
    used = world.used()
    annotate(world, drain="1-2", pins="3:2.0", paused="True")
    world.round()
    said = world.condition("Degraded")
    assert (said["status"], said["reason"]) == ("True", "AnnotationIgnored")
    assert "'1-2'" in said["message"] and "'3:2.0'" in said["message"] and "'True'" in said["message"]
    told = [
        one["message"]
        for (kind, _), one in world.api.objects.items()
        if kind == EVENTS and one["reason"] == "AnnotationIgnored"
    ]
    assert len(told) == 3
    world.rounds(10)
    assert world.used() == used and world.condition("Ready")["status"] == "True"
    annotate(world, drain="1,2", pins=None, paused=None)
    world.until(lambda w: w.used() == [0])
    assert world.condition("Degraded")["status"] == "False"


def test_notes_that_a_tenant_writes_are_no_memory() -> None:
    """The annotations of the first releases: a run, a spec, a refusal; none of them is read any more."""
    world = running()
    pods, run = world.pods(), world.status["run"]
    spec = {"pipeline": {"module": "evil"}, "kubernetes": {"image": "evil:1"}}
    annotate(world, **{
        "run": json.dumps({"number": 3, "over": True, "before": "7"}), "last-good-spec": json.dumps(spec),
        "refused": json.dumps(["x", "y"]), "checkpoint-answered": json.dumps({"id": "1", "number": 1}),
    })  # fmt: skip
    world.rounds(5)
    world.api.edit(JOBS, "nbq5", {"spec": {"pipeline": {"args": {"depth": {"of": "maps"}}}}})
    world.rounds(20)
    assert world.pods() == pods and world.status["run"] == run and world.lives == 1
    assert world.condition("Degraded")["reason"] == "SpecRefused"
