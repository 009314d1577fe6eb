"""The operator is killed before and after every single call, at the API server and at the driver: the end is the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, Kind
from tests.unit.kube.fakes.fake_world import Killed, World, job, settled

CALLS_MAX = 200


def scale(workers: int) -> Callable[[World], None]:
    return lambda world: world.api.edit(JOBS, "nbq5", {"spec": {"workers": workers}})


def scale_in_to_the_costly_ones(world: World) -> None:
    assert world.driver is not None
    world.sizes = {v: 100.0 for v, group in enumerate(world.driver.groups) if group[0] != "0.0"}
    scale(2)(world)


def restart(world: World) -> None:
    world.api.edit(JOBS, "nbq5", {"spec": {"restartNonce": 7}})


def new_image(world: World) -> None:
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"image": "ferry:2"}}})


def lose_a_node(world: World) -> None:
    world.node_falls_silent(str(world.pod("nbq5-worker-1")["spec"]["nodeName"]))


CHANGES = [
    pytest.param(scale(4), 2, id="scale out"),
    pytest.param(scale(1), 3, id="scale in"),
    pytest.param(scale_in_to_the_costly_ones, 3, id="scale in, and the lowest worker goes"),
    pytest.param(restart, 2, id="restart"),
    pytest.param(new_image, 2, id="new image"),
    pytest.param(lose_a_node, 2, id="lost node"),
]


def final(world: World) -> dict[str, Any]:
    """What must be the same: every object without what tells processes apart, and where state is."""
    found: dict[str, Any] = {}
    for (kind, name), document in sorted(world.api.objects.items(), key=lambda item: (item[0][0].plural, item[0][1])):
        if kind != EVENTS:
            found[f"{kind.plural}/{name}"] = stripped(document)
    assert world.driver is not None
    found["used"] = world.used()
    found["copies"] = sorted(len(group) for group in world.driver.groups)
    return found


def stripped(document: Doc) -> Doc:
    one = copy.deepcopy(document)
    for key in ("uid", "resourceVersion", "creationTimestamp"):
        one["metadata"].pop(key, None)
    for key in (names.TOKEN, names.EPOCH, names.WITHOUT_SURGE):
        one["metadata"].get("annotations", {}).pop(key, None)
    for owner in one["metadata"].get("ownerReferences", []):
        owner.pop("uid")
    (one.get("spec") or {}).pop("nodeName", None)
    status = one.get("status") or {}
    for key in ("token", "epoch", "lastHandover", "lastHandoverSeconds", "observedTime"):
        status.pop(key, None)
    for container in status.get("containerStatuses", []):
        container.get("state", {}).get("running", {}).pop("startedAt", None)
    for condition in status.get("conditions", []):
        condition.pop("lastTransitionTime", None)
    return one


def at_rest(world: World) -> bool:
    """Settled for some rounds: two operators in a row have nothing to do."""
    if not settled(world) or world.status["workers"] != world.api.objects[JOBS, "nbq5"]["spec"]["workers"]:
        return False
    calls = len(world.api.calls)
    world.rounds(3)
    quiet = all(verb == "patch status" for verb, _, _ in world.api.calls[calls:])
    return quiet and settled(world)


def run(change: Callable[[World], None], workers: int, kill_at: int | None, after: bool) -> tuple[dict[str, Any], int]:
    """The end of a change in which the n-th call is the operator's last; and how many calls there were."""
    world = World()
    world.api.create(JOBS, job(workers=workers))
    world.until(settled)
    world.rounds(5)
    count = 0

    def call(verb: str, kind: Kind, name: str) -> None:
        nonlocal count
        if count == kill_at:
            count += 1
            raise Killed
        count += 1

    change(world)
    if after:
        world.api.after = call
    else:
        world.api.before = call
    world.until(at_rest, 400)
    world.api.before = world.api.after = lambda verb, kind, name: None
    world.until(at_rest, 100)
    return final(world), count


@pytest.mark.parametrize(("change", "workers"), CHANGES)
def test_the_end_is_the_same_wherever_the_operator_is_killed(change: Callable[[World], None], workers: int) -> None:
    expected, calls = run(change, workers, None, False)
    assert 5 < calls < CALLS_MAX
    for after in (False, True):
        for kill_at in range(calls):
            found, _ = run(change, workers, kill_at, after)
            assert found == expected, f"killed {'after' if after else 'before'} call {kill_at}"
