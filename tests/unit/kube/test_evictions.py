"""Pods that leave: on cordons and evictions, in order, beside a budget that follows what workers hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import BUDGETS, JOBS, NODES, PODS, ApiError, Kind
from ferry_operator.kube.observe.evictions import CALM_SECONDS, PATIENCE_SECONDS
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_passes import running

ANYWHERE = [{"operator": "Exists"}]


def workers(world: World) -> Iterator[Doc]:
    return (pod for (kind, name), pod in world.api.objects.items() if kind == PODS and "-worker-" in name)


def node_of(world: World, pod: str) -> str:
    return str(world.pod(pod)["spec"].get("nodeName"))


def cordon(world: World, *nodes: str, closed: bool = True) -> None:
    for node in nodes:
        world.api.edit(NODES, node, {"spec": {"unschedulable": closed}})


def on_one_node() -> World:
    """A job whose pods are on the only node; two empty nodes have joined since."""
    world = running(nodes=1)
    world.rounds(30)
    for node in ("n1", "n2"):
        world.api.add_node(node)
    return world


def may_leave(pod: Doc) -> bool:
    return names.MAY_LEAVE in pod["metadata"]["labels"]


def protected(world: World) -> list[str]:
    """Workers that the budget selects."""
    return sorted(pod["metadata"]["name"] for pod in workers(world) if not may_leave(pod))


def minimum(world: World) -> int:
    number: int = world.api.objects[BUDGETS, "nbq5-workers"]["spec"]["minAvailable"]
    return number


def ask_to_evict(world: World, pod: str) -> None:
    """What the webhook notes."""
    world.api.edit(PODS, pod, {"metadata": {"annotations": {names.EVICTION: str(int(world.now))}}})


def deletions(world: World) -> list[str]:
    """Names of pods in the order of their deletion."""
    gone: list[str] = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if verb == "delete" and kind == PODS and "placeholder" not in name:
            gone.append(name)

    world.api.before = watch
    return gone


def test_the_budget_follows_the_workers_and_is_never_too_low() -> None:
    world = World(4)
    low: list[tuple[int, list[str]]] = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if kind in (PODS, BUDGETS) and verb != "list" and (BUDGETS, "nbq5-workers") in world.api.objects:
            here = [pod for pod in workers(world) if not may_leave(pod) and "deletionTimestamp" not in pod["metadata"]]
            if len(here) > minimum(world):
                low.append((minimum(world), protected(world)))

    world.api.after = watch
    world.api.create(JOBS, job())
    world.until(settled)
    assert minimum(world) == 2
    for count in (4, 2):
        world.api.edit(JOBS, "nbq5", {"spec": {"workers": count}})
        world.until(lambda w, count=count: settled(w) and w.status["workers"] == count)
        changed = world.now
        world.until(lambda w, count=count: minimum(w) == count == len(protected(w)))
        assert count == 4 or world.now - changed >= CALM_SECONDS - 1, (
            "the controller of budgets has seen the pods by then"
        )
    cordon(world, node_of(world, "nbq5-worker-1"))
    world.until(lambda w: minimum(w) == 3)
    world.until(lambda w: settled(w) and minimum(w) == 2)
    assert not low
    selector = world.api.objects[BUDGETS, "nbq5-workers"]["spec"]["selector"]
    assert selector["matchExpressions"] == [{"key": names.MAY_LEAVE, "operator": "DoesNotExist"}]


def test_the_budget_of_an_older_operator_and_a_deleted_one_are_mended() -> None:
    world = running()
    world.api.edit(BUDGETS, "nbq5-workers", {"spec": {"minAvailable": 100_000, "selector": {"matchExpressions": None}}})
    world.until(lambda w: minimum(w) == 2)
    assert world.api.objects[BUDGETS, "nbq5-workers"]["spec"]["selector"]["matchExpressions"]
    del world.api.objects[BUDGETS, "nbq5-workers"]
    world.until(lambda w: (BUDGETS, "nbq5-workers") in w.api.objects and minimum(w) == 2)


def test_a_worker_that_is_drained_may_leave_until_it_is_used_again() -> None:
    world = running(workers=3)
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: "1"}}})
    world.until(lambda w: may_leave(w.pod("nbq5-worker-1")))
    assert world.used() == [0, 2] and protected(world) == ["nbq5-worker-0", "nbq5-worker-2"]
    world.until(lambda w: minimum(w) == 2)
    wrong: list[Any] = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if verb == "submit" and may_leave(world.pod("nbq5-worker-1")):
            wrong.append(name)
        if verb == "patch" and name == "nbq5-worker-1" and world.now < busy_until:
            raise ApiError(403, "Forbidden", "not now")

    world.api.before, busy_until = watch, world.now + 20.0
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: None}}})
    world.rounds(19)
    assert may_leave(world.pod("nbq5-worker-1")) and world.used() == [0, 2]
    world.until(lambda w: settled(w) and w.used() == [0, 1, 2])
    assert not wrong and not may_leave(world.pod("nbq5-worker-1")) and minimum(world) == 3


@pytest.mark.parametrize("other", [{"minAvailable": "50%"}, {"minAvailable": None, "maxUnavailable": 1}])
def test_a_budget_that_somebody_has_edited_is_mended(other: Doc) -> None:
    world = running()
    world.api.edit(BUDGETS, "nbq5-workers", {"spec": other})
    world.rounds(20)
    assert world.api.objects[BUDGETS, "nbq5-workers"]["spec"].get("maxUnavailable") is None
    assert minimum(world) == len(protected(world)) > 0


def test_without_a_budget_every_pod_may_leave() -> None:
    world = running(kubernetes={"disruptionBudget": "off"})
    world.until(lambda w: minimum(w) == 0 and not protected(w))
    assert may_leave(world.pod("nbq5-driver")) and world.used() == [0, 1], "and keeps its state"
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"disruptionBudget": "follows"}}})
    world.until(lambda w: minimum(w) == 2 and len(protected(w)) == 2 and settled(w))


@pytest.mark.parametrize("comes_back", [True, False])
def test_an_eviction_waits_until_the_worker_is_empty(comes_back: bool) -> None:
    world = running()
    gone, uid = deletions(world), world.pod("nbq5-worker-1")["metadata"]["uid"]
    ask_to_evict(world, "nbq5-worker-1")
    world.until(lambda w: may_leave(w.pod("nbq5-worker-1")))
    assert world.used() == [0, 2] and not gone
    if comes_back:
        world.rounds(5)
        assert not gone, "the client evicts it"
        world.end("nbq5-worker-1")
        world.until(lambda w: settled(w) and w.used() == [0, 1])
        assert "nbq5-worker-1" not in gone
    else:
        since = world.now
        world.until(lambda w: "nbq5-worker-1" in gone)
        assert world.now - since >= PATIENCE_SECONDS
        world.until(lambda w: settled(w) and w.used() == [0, 1])
    assert world.pod("nbq5-worker-1")["metadata"]["uid"] != uid


def test_the_driver_leaves_a_cordoned_node_before_the_workers() -> None:
    world = on_one_node()
    gone, first, slow_until, schedule = deletions(world), world.driver, world.now + 15.0, world.schedule

    def slowly(name: str, pod: Doc) -> None:
        if "placeholder" not in name or world.now >= slow_until:
            schedule(name, pod)

    world.schedule = slowly  # type: ignore[method-assign]
    cordon(world, "n0")
    world.until(lambda w: w.driver is not first)
    assert world.now >= slow_until and first is not None
    assert {i for group in first.groups for i in group} == {"0.0", "1.0"}, "no state has moved before"
    world.until(lambda w: gone and settled(w) and all(node_of(w, name) != "n0" for name in w.pods()))
    assert gone[0] == "nbq5-driver" and {*gone} >= {"nbq5-worker-0", "nbq5-worker-1"} and world.lives == 2


def test_a_driver_without_a_place_elsewhere_stays_and_the_workers_leave() -> None:
    world = on_one_node()
    gone, crowded = deletions(world), world.schedule
    world.schedule = lambda name, pod: (  # type: ignore[method-assign]
        crowded(name, pod) if "placeholder" not in name else world.api.set_status(
            PODS, name, conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        )
    )  # fmt: skip
    cordon(world, "n0")
    world.until(lambda w: all(pod["spec"].get("nodeName") not in (None, "n0") for pod in workers(w)))
    assert node_of(world, "nbq5-driver") == "n0" and "nbq5-driver" not in gone
    assert "placeholder" in world.condition("Degraded")["message"]


def test_a_driver_may_be_evicted_once_the_next_one_has_a_place() -> None:
    world = running()
    gone = deletions(world)
    ask_to_evict(world, "nbq5-driver")
    world.until(lambda w: may_leave(w.pod("nbq5-driver")))
    placeholder = next(name for name in world.pods() if "placeholder" in name)
    assert node_of(world, placeholder) != "None" and not gone and world.lives == 1
    world.end("nbq5-driver")
    world.until(lambda w: settled(w) and w.lives == 2)
    assert not gone and len(world.pods()) == 3


def test_nothing_leaves_when_no_node_is_open_and_all_does_when_one_is() -> None:
    world = running()
    world.rounds(30)
    gone = deletions(world)
    for pod in ("nbq5-driver", "nbq5-worker-0", "nbq5-worker-1"):
        ask_to_evict(world, pod)
    cordon(world, "n0", "n1", "n2")
    world.rounds(40)
    assert not gone and world.used() == [0, 1] and not any(map(may_leave, workers(world)))
    held = world.condition("Degraded")
    assert held["reason"] == "Held" and "uncordon a node" in held["message"]
    for node in ("n3", "n4"):
        world.api.add_node(node)
    world.until(lambda w: settled(w) and {node_of(w, name) for name in w.pods()} <= {"n3", "n4"})
    assert world.condition("Degraded")["status"] == "False"
    assert gone[0] == "nbq5-driver"


@pytest.mark.parametrize(("heeds", "pods_max"), [(True, 2), (False, 16)])
def test_pods_that_tolerate_everything_come_to_rest(heeds: bool, pods_max: int) -> None:
    world = running(kubernetes={"tolerations": ANYWHERE})
    world.ignores_affinity = not heeds
    world.rounds(30)
    gone = deletions(world)
    cordon(world, node_of(world, "nbq5-worker-1"))
    world.rounds(660)
    assert len([name for name in gone if "-worker-" in name]) <= pods_max
