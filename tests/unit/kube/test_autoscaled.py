"""Jobs that are scaled by their load: what the operator writes, tells, and leaves to its user."""

from __future__ import annotations

import random
from typing import Any

from prometheus_client import generate_latest

from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry_operator.job import spec
from ferry_operator.job.status import ScalingMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import FIELD_MANAGER
from ferry_operator.kube.api.port import EVENTS, JOBS, Kind
from ferry_operator.kube.observe import overruled
from tests.unit.kube.fakes.fake_world import World, job, settled
from tests.unit.kube.test_decisions import document

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
    found: dict[str, Any] = world.api.objects[JOBS, "nbq5"]["spec"]
    return found


def series(world: World, name: str) -> float | None:
    return world.operator.metrics.registry.get_sample_value(
        f"ferry_streamjob_{name}", {"namespace": "jobs", "streamjob": "nbq5"}
    )


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


def put_back(world: World, times: int, workers: int = 2) -> None:
    """A tool with 2 workers in its manifest writes them over each decision."""
    for _ in range(times):
        world.until(lambda w: asked(w)["workers"] != workers, 600)
        world.rounds(3)
        world.api.edit(JOBS, "nbq5", {"spec": {"workers": workers}}, "argocd-controller")
        world.rounds(3)


def test_an_autoscaler_that_is_written_over_again_and_again_stops_and_says_so() -> None:
    world = scaled()
    world.work = BUSY
    put_back(world, 2)
    assert world.condition("AutoscalerActive")["reason"] != "Overruled"
    world.begin_operator()  # what is counted outlives the operator
    put_back(world, 1)
    world.rounds(400)
    assert asked(world)["workers"] == 2
    stopped = world.condition("AutoscalerActive")
    assert (stopped["status"], stopped["reason"]) == ("False", "Overruled")
    assert (
        "argocd-controller has put 2 workers back 3 times" in stopped["message"]
        and "ignoreDifferences" in stopped["message"]
    )
    assert len(told(world, "AutoscalerOverruled")) == 1
    assert world.status["autoscale"]["reason"] == "Waiting", (
        "a definition of 0.1.0 refuses reasons that it does not know"
    )


def test_an_overruled_autoscaler_goes_on_with_other_settings() -> None:
    world = scaled()
    world.work = BUSY
    put_back(world, 3)
    world.rounds(300)
    assert asked(world)["workers"] == 2
    world.api.edit(JOBS, "nbq5", {"spec": {"autoscale": {"cooldown": "61s"}}})
    world.until(lambda w: asked(w)["workers"] == 3)
    assert world.condition("AutoscalerActive")["reason"] != "Overruled"


def test_an_overruled_autoscaler_goes_on_once_the_size_has_no_other_owner() -> None:
    world = scaled()
    world.work = BUSY
    put_back(world, 3)
    world.rounds(300)
    assert asked(world)["workers"] == 2
    world.api.edit(JOBS, "nbq5", {"metadata": {"managedFields": []}})
    world.until(lambda w: asked(w)["workers"] == 3)


def owned(manager: str) -> dict[str, Any]:
    return {"managedFields": [{"manager": manager, "fieldsV1": {"f:spec": {"f:workers": {}}}}]}


def test_what_counts_as_put_back() -> None:
    def noted(workers: int, manager: str, now: float = 10_000.0, reversals: list[int] | None = None) -> list[int]:
        wanted = spec.check({**document(), "spec": {**document()["spec"], "workers": workers}}).spec
        kept = ScalingMemory(settings=overruled.digest(wanted), workers=3, before=2, reversals=reversals or [])
        after = overruled.noticed(kept, wanted, owned(manager), now)
        assert after is not None
        return after.reversals

    assert noted(2, "argocd-controller") == [10_000]
    assert noted(3, "argocd-controller") == [], "the size that was decided"
    assert noted(4, "kubectl") == [], "another size: a person's"
    assert noted(2, FIELD_MANAGER) == [], "the autoscaler's own way back"
    assert noted(2, "argocd-controller", reversals=[9_000]) == [9_000, 10_000]
    assert noted(2, "argocd-controller", reversals=[5_000, 9_000]) == [9_000, 10_000], "more than an hour ago"


def test_only_owners_of_workers_are_kept() -> None:
    fields = [
        {"manager": "team", "operation": "Apply", "fieldsV1": {"f:spec": {"f:cores": {}}}},
        {
            "manager": "argocd-controller",
            "operation": "Update",
            "fieldsV1": {"f:spec": {"f:workers": {}, "f:cores": {}}},
        },
        {"manager": FIELD_MANAGER, "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    kept = overruled.writers_of_workers({"managedFields": fields})
    assert kept == owned("argocd-controller")["managedFields"]
    assert overruled.other_writer({"managedFields": kept}) == "argocd-controller"
    assert overruled.other_writer(owned(FIELD_MANAGER)) is None and overruled.other_writer({}) is None


def test_a_clock_that_is_set_back_ends_no_pass() -> None:
    world = scaled()
    world.work = BUSY
    world.rounds(5)
    world.now -= 30
    world.until(lambda w: asked(w)["workers"] == 3)
