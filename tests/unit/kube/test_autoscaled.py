"""Jobs that are scaled by their load: what the operator writes, tells, and leaves to its user."""

from __future__ import annotations

import random
from typing import Any

from prometheus_client import generate_latest

from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import EVENTS, JOBS, Kind
from tests.unit.kube.fakes.fake_world import World, job, settled

BUSY = WorkReport(WORK_SECONDS, 1000.0, 1000.0, 5, 0.0, 2.0)
"""Two workers' time and no more: three are needed for 70 % of it."""

CALM = WorkReport(WORK_SECONDS, 10.0, 10.0, 0, 0.0, 0.02)


def scaled(mode: str = "auto", autoscale: dict[str, Any] | None = None, **more: Any) -> World:
    world = World()
    world.api.create(
        JOBS, job(autoscale={"min": 1, "max": 4, "cooldown": "1m", "mode": mode, **(autoscale or {})}, **more)
    )
    world.until(settled)
    return world


def told(world: World, reason: str) -> list[str]:
    return [e["message"] for (kind, _), e in world.api.objects.items() if kind == EVENTS and e["reason"] == reason]


def asked(world: World) -> dict[str, Any]:
    spec: dict[str, Any] = world.api.objects[JOBS, "nbq5"]["spec"]
    return spec


def series(world: World, name: str) -> float | None:
    return world.operator.metrics.registry.get_sample_value(f"ferry_streamjob_{name}", {"streamjob": "nbq5"})


def test_a_job_follows_its_load_out_and_in_again() -> None:
    world = scaled()
    assert world.condition("AutoscalerActive")["reason"] == "NotMeasured"
    world.work = BUSY
    world.until(lambda w: asked(w)["workers"] == 3)
    world.until(lambda w: settled(w) and w.used() == [0, 1, 2])
    (message,) = told(world, "Rescaled")
    for words in ("2 x 1 -> 3 x 1", "1,000 records/s arrive, 5 wait", "needs 100% of the time of 2 x 1"):
        assert words in message
    world.rounds(200)
    assert asked(world)["workers"] == 3 and len(told(world, "Rescaled")) == 1, "it is enough"
    assert world.condition("AutoscalerActive")["status"] == "True"
    found = world.status["autoscale"]
    assert (found["reason"], found["workers"], found["arrivingPerSecond"], found["backlog"]) == ("Fits", 3, 1000.0, 5)
    assert (series(world, "autoscale_workers"), series(world, "autoscale_target")) == (3, 0.7)
    assert b"ferry_streamjob_autoscale_true_rate" in generate_latest(world.operator.metrics.registry)
    world.work = CALM
    world.until(lambda w: asked(w)["workers"] == 1)
    world.until(lambda w: settled(w) and w.used() == [0])
    assert len(told(world, "Rescaled")) == 2
    assert world.status["desired"] == 1, "what it wrote is what counts, as from a user"


def test_advice_is_told_once_and_nothing_is_done() -> None:
    world = scaled("advise")
    world.work = BUSY
    world.rounds(300)
    assert asked(world)["workers"] == 2 and not told(world, "Rescaled")
    (message,) = told(world, "RescaleAdvised")
    assert "2 x 1 -> 3 x 1" in message
    assert (world.status["autoscale"]["workers"], series(world, "autoscale_workers")) == (3, 3)


def test_without_a_maximum_nobody_decides() -> None:
    world = World()
    world.api.create(JOBS, job())
    world.until(settled)
    world.work = BUSY
    world.rounds(300)
    assert asked(world)["workers"] == 2 and "autoscale" not in world.status
    assert world.condition("AutoscalerActive") == {} and series(world, "autoscale_workers") is None


def test_a_paused_job_is_left_alone() -> None:
    world = scaled()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}})
    world.work = BUSY
    world.rounds(200)
    assert asked(world)["workers"] == 2
    assert world.condition("AutoscalerActive")["message"] == "nothing is decided: the job is paused"


def test_bounds_hold_at_once_and_whoever_scales_is_followed_after_the_cooldown() -> None:
    world = scaled()
    world.api.edit(JOBS, "nbq5", {"spec": {"autoscale": {"min": 3}}})
    world.until(lambda w: asked(w)["workers"] == 3, 20)
    world.work = CALM
    world.until(lambda w: settled(w) and w.used() == [0, 1, 2])
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.until(lambda w: w.status["workers"] == 4)
    world.until(lambda w: asked(w)["workers"] == 3)


def test_free_cores_are_used_before_another_worker() -> None:
    world = scaled(kubernetes={"sidecar": {"cpu": 2}})
    world.work = BUSY
    world.until(lambda w: asked(w).get("instancesPerWorker") == 2)
    assert asked(world)["workers"] == 2
    world.until(
        lambda w: settled(w) and sorted({i for g in w.driver.groups for i in g}) == ["0.0", "0.1", "1.0", "1.1"]
    )


def test_what_somebody_has_changed_meanwhile_is_not_written_over() -> None:
    world = scaled()
    world.work = BUSY

    def meanwhile(verb: str, kind: Kind, name: str) -> None:
        if verb == "patch" and kind == JOBS and world.condition("AutoscalerActive").get("reason") == "ScaleOut":
            world.api.before = lambda *_: None
            world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})

    world.api.before = meanwhile
    world.until(lambda w: asked(w)["workers"] != 2)
    assert asked(world)["workers"] == 4
    world.rounds(5)
    assert asked(world)["workers"] == 4
    assert not told(world, "Rescaled"), "nothing was written"


def test_a_suspended_job_is_not_woken() -> None:
    world = scaled(state={"checkpoint": {"location": "s3://bucket/ferry"}})
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 0}})
    world.rounds(200)
    assert asked(world)["workers"] == 0 and world.pods() == []


def test_an_operator_that_begins_anew_waits_a_cooldown_more() -> None:
    world = scaled()
    world.work = CALM
    world.rounds(60)
    world.begin_operator()
    world.rounds(60)
    assert asked(world)["workers"] == 2
    world.until(lambda w: asked(w)["workers"] == 1, 40)


def test_copies_stay_unless_the_user_says_otherwise() -> None:
    world = scaled(autoscale={"min": None})
    world.work = CALM
    world.rounds(400)
    assert asked(world)["workers"] == 2 and world.condition("ReplicasInSync")["status"] == "True"


def test_a_worker_for_which_there_is_no_room_is_let_go_and_bounds_do_not_wait_for_it() -> None:
    world = scaled()
    world.capacity = 1
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4}})
    world.rounds(100)
    assert world.condition("AutoscalerActive")["message"] == "nothing is decided: worker 3 is awaited"
    world.api.edit(JOBS, "nbq5", {"spec": {"autoscale": {"max": 3}}})
    world.until(lambda w: asked(w)["workers"] == 3, 20)
    world.api.edit(JOBS, "nbq5", {"spec": {"workers": 4, "autoscale": {"max": 4}}})
    world.work = CALM
    world.until(lambda w: asked(w)["workers"] == 1, 1000)


def test_a_maximum_that_is_reached_is_one_event() -> None:
    world, noise = scaled(autoscale={"max": 2}), random.Random(1)
    for _ in range(720):
        load = 1.54 * noise.uniform(0.95, 1.05)
        world.work = WorkReport(WORK_SECONDS, 1000.0 * load, 1000.0 * load, 5, 0.0, load)
        world.rounds(1)
    assert told(world, "AtMaximum") == ["the load needs more than 2 workers; see status.autoscale"]


def test_a_clock_that_is_set_back_ends_no_pass() -> None:
    world = scaled()
    world.work = BUSY
    world.rounds(5)
    world.now -= 30
    world.until(lambda w: asked(w)["workers"] == 3)
