"""A scale-in empties the workers with the least state; the choice stays, and the numbers of workers may have gaps."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import JOBS, PODS, Kind
from tests.unit.kube.fakes.fake_world import World, settled
from tests.unit.kube.test_evictions import cordon, node_of
from tests.unit.kube.test_memory import forget
from tests.unit.kube.test_passes import running
from tests.unit.kube.test_suspension import begun, edit, memory, suspended


def make_light(world: World, worker: int) -> None:
    """The virtual nodes of all other workers get many bytes."""
    assert world.driver is not None
    world.sizes = {v: 100.0 for v, group in enumerate(world.driver.groups) if group[0] != f"{worker}.0"}


def at_rest_with(*workers: int) -> Any:
    def there(world: World) -> bool:
        pods = [f"nbq5-worker-{k}" for k in workers]
        return settled(world) and world.used() == list(workers) and world.pods() == ["nbq5-driver", *pods]

    return there


def with_a_gap() -> World:
    """A job of three workers that has lost the one between."""
    world = begun(workers=3)
    make_light(world, 1)
    edit(world, workers=2)
    world.until(at_rest_with(0, 2))
    return world


@pytest.mark.parametrize("light", [0, 1, 2])
def test_the_worker_with_the_fewest_bytes_leaves_and_no_other_one_is_touched(light: int) -> None:
    world = begun(workers=3)
    uids = {name: world.pod(name)["metadata"]["uid"] for name in world.pods()}
    make_light(world, light)
    edit(world, workers=2)
    world.until(at_rest_with(*(k for k in range(3) if k != light)))
    world.rounds(5)
    assert all(world.pod(name)["metadata"]["uid"] == uids[name] for name in world.pods())
    assert world.status["workers"] == world.status["desired"] == 2


def test_a_growth_fills_the_gap() -> None:
    world = with_a_gap()
    edit(world, workers=4)
    world.until(at_rest_with(0, 1, 2, 3))
    make_light(world, 0)
    edit(world, workers=3)
    world.until(at_rest_with(1, 2, 3))
    edit(world, workers=1)
    world.until(lambda w: settled(w) and w.status["workers"] == 1)
    assert len(world.pods()) == 2


def test_the_choice_is_recorded_before_anything_follows_it() -> None:
    world = begun(workers=3)
    make_light(world, 0)
    wrong = []

    def watch(verb: str, kind: Kind, name: str) -> None:
        if (verb == "submit" or (verb == "delete" and kind == PODS)) and memory(world).get("members") != [1, 2]:
            wrong.append((verb, name))

    world.api.before = watch
    edit(world, workers=2)
    world.until(at_rest_with(1, 2))
    assert not wrong


def test_a_half_empty_worker_stays_the_one_that_leaves() -> None:
    world = begun(workers=3)
    make_light(world, 0)
    edit(world, workers=2)
    world.until(lambda w: w.driver is not None and sum("0.0" in group for group in w.driver.groups) <= 3)
    assert world.used() == [0, 1, 2], "it is half empty"
    make_light(world, 2)
    cordon(world, node_of(world, "nbq5-worker-1"))
    world.begin_operator()
    for _ in range(40):
        world.round()
        assert memory(world)["members"] == [1, 2]
    assert 0 not in world.used()


def test_a_worker_on_a_cordoned_node_leaves_first_and_nothing_replaces_it() -> None:
    world = begun(workers=3)
    world.rounds(40)
    make_light(world, 2)
    edit(world, workers=2)
    node = node_of(world, "nbq5-worker-0")
    cordon(world, node)
    world.until(lambda w: settled(w) and w.status["workers"] == 2 and len(w.pods()) == 3)
    assert world.used() == [1, 2] == memory(world)["members"]


def test_a_drained_worker_leaves_first_and_its_drain_is_over() -> None:
    world = begun(workers=3)
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: "1"}}})
    world.until(lambda w: settled(w) and w.used() == [0, 2])
    edit(world, workers=2)
    world.until(at_rest_with(0, 2))
    world.until(lambda w: names.DRAIN not in w.api.objects[JOBS, "nbq5"]["metadata"]["annotations"])
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: "2"}}})
    world.until(lambda w: w.used() == [0])
    assert len(world.pods()) == 3, "a drain of a worker with a higher number than the size"


def test_a_pin_to_a_gap_is_said() -> None:
    world = with_a_gap()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PINS: "0=1.0,1=2.0"}}})
    world.until(lambda w: "there is no instance 1.0 (2 workers (0, 2)" in w.condition("Degraded").get("message", ""))
    assert world.driver is not None
    world.until(lambda w: w.driver is not None and w.driver.groups[1][0] == "2.0")


def test_workers_with_a_gap_are_replaced_one_by_one_and_keep_their_numbers() -> None:
    world = with_a_gap()
    old = {world.pod(f"nbq5-worker-{k}")["metadata"]["uid"] for k in (0, 2)}
    most = 0
    edit(world, kubernetes={"image": "ferry:2"})
    for _ in range(200):
        world.round()
        most = max(most, len(world.pods()))
        if at_rest_with(0, 2)(world) and not old & {world.pod(f"nbq5-worker-{k}")["metadata"]["uid"] for k in (0, 2)}:
            break
    else:
        raise AssertionError(world.story())
    assert most == 4, "a surge worker"
    assert "nbq5-worker-1" not in world.pods()


def test_a_lost_node_brings_the_worker_back_under_its_number() -> None:
    world = with_a_gap()
    world.node_falls_silent(node_of(world, "nbq5-worker-2"))
    world.until(lambda w: 2 not in w.used())
    world.until(at_rest_with(0, 2), 400)


def test_the_next_run_has_no_gaps() -> None:
    world = with_a_gap()
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(at_rest_with(0, 1))
    assert "members" not in memory(world)


def test_after_a_loss_of_the_memory_the_lowest_numbers_are_workers_again() -> None:
    world = with_a_gap()
    forget(world)
    world.until(at_rest_with(0, 1), 400)


def test_a_choice_waits_for_a_driver() -> None:
    world = begun(workers=3)
    make_light(world, 0)
    world.hangs = True
    world.rounds(8)
    edit(world, workers=2)
    world.rounds(5)
    assert "members" not in memory(world) and len(world.pods()) == 4
    world.hangs = False
    world.until(at_rest_with(1, 2), 400)


def test_nothing_is_recorded_without_a_scale_in() -> None:
    world = running(workers=2)
    edit(world, workers=3)
    world.until(at_rest_with(0, 1, 2))
    assert "members" not in memory(world)


def test_drains_stay_while_the_choice_waits() -> None:
    world = with_a_gap()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.DRAIN: "2"}}})
    world.until(lambda w: settled(w) and w.used() == [0])
    world.until(lambda w: len(memory(w)["members"]) == 2 and "good" in memory(w))
    world.hangs = True
    world.rounds(8)
    edit(world, workers=3)
    world.rounds(2)
    assert memory(world)["members"] == [0, 1, 2]
    edit(world, workers=2)
    world.rounds(3)
    assert world.api.objects[JOBS, "nbq5"]["metadata"]["annotations"][names.DRAIN] == "2"
