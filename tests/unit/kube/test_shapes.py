"""A size that fits nowhere takes nothing down that runs, and nodes that go away are left once and for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferry_operator.job import spec
from ferry_operator.kube.api.port import JOBS, NODES, PODS
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.observe.in_place import InPlace, in_place_of
from ferry_operator.kube.observe.rolling import SETTLED_SECONDS
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_decisions import document
from tests.unit.kube.test_passes import running

NOWHERE = {"kubernetes": {"nodeSelector": {"gpu": "a100"}}}
DRIVER, EXECUTOR = ({"kubernetes": {one: {"memory": "9Ti"}}} for one in ("driver", "executor"))
SIDECAR = {"kubernetes": {"sidecar": {"memory": "9Ti"}}}

WORKERS = ("nbq5-worker-0", "nbq5-worker-1")


def uids(world: World) -> dict[str, str]:
    return {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}


def full(**more: Any) -> World:
    """A job on nodes that have room for nothing else."""
    world = World(nodes=2, capacity=1)
    world.api.create(JOBS, job(**more))
    world.until(settled)
    return world


def edited(change: Any, begin: Callable[..., World] = running, **more: Any) -> tuple[World, dict[str, str]]:
    """A job whose spec is good, and has just been changed."""
    world = begin(failure={"progressDeadline": "60s"}, **more)
    world.rounds(5)
    assert world.api.objects[JOBS, "nbq5"]["status"]["memory"]["good"]
    before = uids(world)
    world.api.edit(JOBS, "nbq5", {"spec": change})
    return world, before


@pytest.mark.parametrize(
    "change", [DRIVER, EXECUTOR, SIDECAR, NOWHERE, {**DRIVER, "workers": 3}, {**EXECUTOR, "workers": 3}]
)
def test_a_size_that_fits_nowhere_takes_nothing_down(change: Any) -> None:
    world, before = edited(change)
    for _ in range(200):
        epoch = world.epoch
        world.round()
        assert {name: uid for name, uid in uids(world).items() if name in before} == before, "all of them, at all times"
        assert world.epoch > epoch and world.lives == 1, "epochs end"
    told = world.condition("Degraded")
    assert told["reason"] == "DoesNotFit" and "no room" in told["message"] and "spec.restartNonce" in told["message"]
    if "workers" not in change:
        assert set(uids(world)) == set(before) and world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("change", [DRIVER, EXECUTOR])
def test_before_its_deadline_a_size_is_told_to_have_no_room(change: Any) -> None:
    world, _ = edited(change)
    world.until(lambda w: w.condition("Degraded").get("reason") == "Unschedulable", 20)
    assert world.condition("Progressing")["status"] == "True"


@pytest.mark.parametrize("change", [DRIVER, EXECUTOR])
def test_room_that_comes_in_time_is_used(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world, before = edited(change)
    world.rounds(20)
    monkeypatch.setattr("tests.unit.kube.fakes.fake_world.NODE_MEMORY.bytes", 1 << 60)
    world.until(settled)
    world.rounds(60)
    after = uids(world)
    assert settled(world) and set(after) == set(before) and world.condition("Degraded")["status"] == "False"
    changed = {name for name in before if before[name] != after[name]}
    assert changed == ({"nbq5-driver"} if change is DRIVER else set(before))


@pytest.mark.parametrize("change", [DRIVER, EXECUTOR, NOWHERE])
def test_a_mistake_that_is_mended_leaves_nothing_behind(change: Any) -> None:
    world, before = edited(change)
    world.rounds(20)
    mended = {"nodeSelector": None} if change is NOWHERE else {next(iter(change["kubernetes"])): None}
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": mended}})
    world.until(settled)
    assert uids(world) == before and world.condition("Degraded")["status"] == "False"


def test_a_placeholder_goes_when_its_job_does_not_need_it() -> None:
    for end in ({"spec": {"suspend": True}}, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}):
        world, _ = edited(DRIVER)
        world.until(lambda w: any("-placeholder-" in name for name in w.pods()), 20)
        world.api.edit(JOBS, "nbq5", end)
        world.rounds(10)
        assert not any("-placeholder-" in name for name in world.pods())


def test_a_driver_that_has_ended_is_tried_no_more() -> None:
    world, _ = edited(DRIVER)
    world.until(lambda w: any("-placeholder-" in name for name in w.pods()), 20)
    world.driver_ends(1)
    world.rounds(5)
    assert not any("-placeholder-" in name for name in world.pods()), "the next one looks for its place itself"
    world.until(lambda w: w.condition("Degraded").get("reason") == "DoesNotFit", 100)
    world.until(lambda w: w.condition("Ready").get("status") == "True", 60)


def test_a_smaller_size_goes_without_a_surge_worker_where_there_is_no_room() -> None:
    world = full(kubernetes={"executor": {"memory": "8Gi"}})
    world.rounds(5)
    before = uids(world)
    world.api.edit(JOBS, "nbq5", {"spec": {"kubernetes": {"executor": {"memory": "4Gi"}}}})
    world.until(lambda w: settled(w) and all(w.pod(name)["metadata"]["uid"] != before[name] for name in WORKERS))


def test_a_larger_size_without_room_for_a_surge_worker_is_taken_back() -> None:
    world, before = edited({"kubernetes": {"executor": {"memory": "8Gi"}}}, full)
    world.rounds(150)
    assert uids(world) == before and world.condition("Degraded")["reason"] == "DoesNotFit"


def test_a_worker_that_is_not_wanted_any_more_proves_no_place() -> None:
    """It is there, and of the old size: the surge worker is another one."""
    world, before = edited({**EXECUTOR, "workers": 2}, workers=3)
    for _ in range(150):
        world.round()
        assert {name: uids(world).get(name) for name in WORKERS} == {name: before[name] for name in WORKERS}


GIVEN = {"driver": {"cpu": "1", "memory": "2Gi"}, "nodeSelector": {"a": "1"}, "tolerations": [{"key": "x"}]}


@pytest.mark.parametrize(
    ("change", "driver", "worker"),
    [
        pytest.param({}, True, True, id="the same"),
        pytest.param({"image": "ferry:2"}, True, True, id="an image"),
        pytest.param({"driver": {"memory": "1Gi"}}, True, True, id="less"),
        pytest.param({"driver": {"memory": "2049Mi"}}, False, True, id="more memory for the driver"),
        pytest.param({"driver": {"cpu": "1001m"}}, False, True, id="more processors for the driver"),
        pytest.param({"executor": {"cpu": "64"}}, True, False, id="more processors for executors"),
        pytest.param({"sidecar": {"memory": "9Ti"}}, True, False, id="more memory for sidecars"),
        pytest.param({"nodeSelector": {}}, True, True, id="any node"),
        pytest.param({"nodeSelector": {"a": "1", "b": "2"}}, False, False, id="fewer nodes"),
        pytest.param({"nodeSelector": {"a": "2"}}, False, False, id="other nodes"),
        pytest.param({"tolerations": [{"key": "x"}, {"key": "y"}]}, True, True, id="more is tolerated"),
        pytest.param({"tolerations": []}, False, False, id="less is tolerated"),
        pytest.param({"affinity": {"nodeAffinity": {}}}, False, False, id="an affinity"),
        pytest.param({"network": "host"}, False, False, id="ports of the node"),
        pytest.param({"volumes": [{"name": "a", "mountPath": "/a", "claim": "a"}]}, False, False, id="a volume"),
    ],
)
def test_what_takes_the_place_of_the_pod_before(change: Any, driver: bool, worker: bool) -> None:
    old, new = (
        spec.check({**document(), "spec": {**document()["spec"], "kubernetes": one}})
        for one in (GIVEN, {**GIVEN, **change})
    )
    assert in_place_of(old, new) == InPlace(driver, worker) and in_place_of(None, new) == InPlace()


# --- nodes that go away


EVERYTHING = {"tolerations": [{"operator": "Exists"}]}


def made(world: World) -> int:
    return sum(verb == "create" and kind == PODS for verb, kind, _ in world.api.calls)


@pytest.mark.parametrize("tolerations", [EVERYTHING, {}])
def test_a_node_that_is_closed_is_left_once(tolerations: Any) -> None:
    world = running(kubernetes=tolerations)
    world.rounds(int(SETTLED_SECONDS))
    node = world.pod("nbq5-worker-0")["spec"]["nodeName"]
    count = made(world)
    world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    world.rounds(200)
    assert node not in {world.pod(name)["spec"]["nodeName"] for name in WORKERS} and settled(world)
    assert made(world) - count <= 3, "the surge worker, and the worker again"


def test_a_pod_that_avoids_a_node_that_stays_is_made_again() -> None:
    world = full(kubernetes=EVERYTHING)
    world.rounds(int(SETTLED_SECONDS))
    world.api.edit(NODES, "n0", {"spec": {"unschedulable": True}})
    world.rounds(60)
    world.api.edit(NODES, "n0", {"spec": {"unschedulable": None}})
    world.until(settled)
    assert {world.pod(name)["spec"]["nodeName"] for name in WORKERS} == {"n0", "n1"}


def test_nodes_that_are_closed_all_at_once_are_not_left() -> None:
    world = running(kubernetes=EVERYTHING)
    world.rounds(int(SETTLED_SECONDS))
    count = made(world)
    for node in ("n0", "n1", "n2"):
        world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    world.rounds(200)
    assert made(world) == count


def test_a_worker_that_is_put_back_again_and_again_is_not_chased() -> None:
    """Whoever places it does not heed what the pod says, such as a scheduler of the users' own."""
    world = running(kubernetes=EVERYTHING)
    world.rounds(int(SETTLED_SECONDS))
    node = world.pod("nbq5-worker-0")["spec"]["nodeName"]
    world.ignores_affinity = True
    count = made(world)
    world.api.edit(NODES, node, {"spec": {"unschedulable": True}})
    world.rounds(600)
    assert made(world) - count <= 600 / SETTLED_SECONDS * 2


def test_a_pod_is_kept_from_nodes_in_each_of_its_ways_to_be_let_in() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": [{"key": "metadata.name"}]}]
    given = {"nodeAffinity": {pods.REQUIRED: {"nodeSelectorTerms": terms}, "preferred": 1}, "podAffinity": {"x": 1}}
    pod = {"metadata": {"annotations": {}}, "spec": {"affinity": given}}
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")]
    affinity = pods.excluding(pod, ("n1", "n2"))["spec"]["affinity"]
    found = affinity["nodeAffinity"][pods.REQUIRED]["nodeSelectorTerms"]
    assert found == [{**terms[0], "matchFields": away}, {"matchFields": [{"key": "metadata.name"}, *away]}]
    assert affinity["podAffinity"] == {"x": 1} and affinity["nodeAffinity"]["preferred"] == 1
    assert pods.excluding({"spec": {}}, ()) == {"spec": {}}
