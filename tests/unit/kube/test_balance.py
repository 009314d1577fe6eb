"""Load that is uneven, on Kubernetes: told in the status and once as an event, or followed, by whichever operator leads."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, PODS
from ferry_operator.kube.observe import facts
from tests.unit.kube.fakes.fake_world import World, job, settled


def told(world: World, reason: str) -> list[str]:
    events = [event for (kind, _), event in world.api.objects.items() if kind == EVENTS]
    return [event["message"] for event in events if event["reason"] == reason]


def leads(world: World) -> dict[str, float]:
    found: dict[str, float] = {}
    for vnode, group in enumerate(world.driver.groups if world.driver is not None else []):
        found[group[0]] = found.get(group[0], 0.0) + world.rates.get(vnode, 1.0)
    return found


def world_with(**balance: Any) -> World:
    world = World()
    world.api.create(JOBS, job(balance=balance, state={"replicas": 1, "virtualNodes": 8}))
    world.until(settled)
    world.rounds(20)
    skew(world)
    return world


def skew(world: World) -> None:
    """All that one of two workers leads is busy, and has been where it is for long."""
    assert world.driver is not None
    busy = world.driver.groups[0][0]
    world.rates = {v: 1000.0 if group[0] == busy else 10.0 for v, group in enumerate(world.driver.groups)}
    world.quiet = 1e6


def plans(world: World) -> int:
    assert world.driver is not None and world.driver.desired is not None
    return int(world.driver.desired["number"])


def test_advice_is_in_the_status_and_told_once_and_nothing_moves() -> None:
    world = world_with()
    before = plans(world)
    world.rounds(10)
    assert float(world.status["balance"]["imbalance"]) > 1.9 and "advice" not in world.status["balance"], "not yet"
    world.rounds(60)
    found = world.status["balance"]
    assert float(found["possible"]) < 1.1 and found["advice"].startswith("to move ")
    assert told(world, "Unbalanced") == [found["advice"]] and plans(world) == before
    world.rates = {v: rate + 100 for v, rate in world.rates.items()}
    world.rounds(20)
    assert world.status["balance"]["advice"] not in (found["advice"], None) and len(told(world, "Unbalanced")) == 1
    world.rates = dict.fromkeys(world.rates, 500.0)
    world.rounds(20)
    assert (
        world.status["balance"] == {"imbalance": "1.00", "imbalanceRatio": 1.0} and len(told(world, "Unbalanced")) == 1
    )


def test_auto_moves_and_says_why_and_is_at_rest_then() -> None:
    world = world_with(mode="auto")
    before = plans(world)
    world.rounds(80)
    world.until(settled)
    assert plans(world) == before + 1 and max(leads(world).values()) < 1.1 * sum(leads(world).values()) / 2
    assert any("to move" in message for message in told(world, "Placed"))
    world.rounds(80)
    assert plans(world) == before + 1


def test_it_takes_effect_and_ends_while_the_job_runs() -> None:
    world = world_with(mode="off")
    before = plans(world), world.lives
    world.rounds(80)
    assert "balance" not in world.status and plans(world) == before[0]
    world.api.edit(JOBS, "nbq5", {"spec": {"balance": {"mode": "auto", "horizon": "30s"}}})
    world.until(lambda w: plans(w) > before[0])
    assert world.lives == before[1], "nothing restarts"


def test_an_operator_that_takes_over_follows_the_advice_a_little_later() -> None:
    world = world_with(mode="auto")
    before = plans(world)
    world.rounds(20)
    world.begin_operator()
    world.rounds(20)
    assert plans(world) == before
    world.until(lambda w: plans(w) > before)


def test_a_job_that_is_suspended_is_not_balanced_on_its_way_out() -> None:
    world = World()
    world.no_checkpoint = True
    location = {"checkpoint": {"location": "s3://bucket/here"}, "replicas": 1, "virtualNodes": 8}
    world.api.create(JOBS, job(balance={"mode": "auto"}, state=location))
    world.until(settled)
    before = plans(world)
    world.api.edit(JOBS, "nbq5", {"spec": {"suspend": True}})
    world.rounds(5)
    skew(world)
    world.rounds(80)
    assert plans(world) == before and "balance" not in world.status


@pytest.mark.parametrize("cpu", ["250m", "50m"])
def test_a_worker_whose_sidecar_has_less_gets_less(cpu: str) -> None:
    world = world_with(mode="auto")
    world.rates = dict.fromkeys(world.rates, 1000.0)
    before = plans(world)
    pod: Doc = world.api.objects[PODS, "nbq5-worker-1"]
    every = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    given = next(one for one in every if one["name"] == "sidecar")["resources"]["requests"]
    assert facts.pod(pod).cpus == 0.25
    given["cpu"] = cpu
    world.api.edit(PODS, "nbq5-worker-1", {"spec": pod["spec"]})
    world.rounds(80)
    shares = leads(world)
    assert (
        (shares["1.0"] < shares["0.0"] / 2 and plans(world) == before + 1) if cpu == "50m" else plans(world) == before
    )
