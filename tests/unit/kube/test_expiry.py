"""`spec.ttlAfterFinished`: what has ended is deleted when its time is over, and never the only state of a job."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.job import changes, spec
from ferry_operator.kube.api import names
from ferry_operator.kube.api.port import JOBS, PODS
from tests.unit.kube.fakes.fake_world import World, job, settled

TTL = 600


def running(ttl: str | None = f"{TTL}s", **more: Any) -> World:
    world = World()
    world.api.create(JOBS, job(ttlAfterFinished=ttl, **more))
    world.until(settled)
    return world


def is_there(world: World) -> bool:
    return (JOBS, "nbq5") in world.api.objects


def seconds_until_gone(world: World) -> float:
    began = world.now
    while is_there(world):
        world.round(10)
        assert world.now < began + 10 * TTL
    return world.now - began


def test_a_finished_job_goes_when_its_time_is_over() -> None:
    world = running()
    world.driver_ends(0)
    world.rounds(3)
    assert world.status["phase"] == "Finished"
    assert world.operator.reconcile("nbq5") == pytest.approx(TTL - 3, abs=1), "the next look is at that time"
    assert TTL - 5 <= seconds_until_gone(world) <= TTL + 10


def test_a_finished_job_without_the_field_stays() -> None:
    world = running(ttl=None)
    world.driver_ends(0)
    world.rounds(3)
    world.round(100 * TTL)
    world.rounds(3)
    assert is_there(world) and world.operator.reconcile("nbq5") is None


def test_the_time_counts_from_the_end_also_for_the_next_operator_and_without_the_pod() -> None:
    world = running()
    world.driver_ends(0)
    world.rounds(3)
    world.round(TTL - 60)
    world.begin_operator()
    world.api.remove(PODS, "nbq5-driver")
    world.rounds(2)
    assert is_there(world) and seconds_until_gone(world) < 100


def test_an_edit_at_the_last_moment_keeps_the_job() -> None:
    world = running()
    world.driver_ends(0)
    world.rounds(3)
    world.round(TTL - 10)
    world.api.edit(JOBS, "nbq5", {"spec": {"ttlAfterFinished": None}})
    world.rounds(60)
    assert is_there(world)


def test_a_job_does_not_go_by_the_time_of_an_older_spec() -> None:
    world = running()
    world.driver_ends(0)
    world.rounds(3)
    world.api.edit(JOBS, "nbq5", {"spec": {"ttlAfterFinished": "720h", "kubernetes": {"envFrom": ["not-for-jobs"]}}})
    world.round(2 * TTL)
    world.rounds(5)
    assert is_there(world) and "not-for-jobs" in world.condition("Degraded")["message"]


def test_a_paused_job_stays() -> None:
    world = running()
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {names.PAUSED: "true"}}})
    world.driver_ends(0)
    world.round(2 * TTL)
    world.rounds(3)
    assert is_there(world)


def failed(checkpoint: bool, **more: Any) -> World:
    world = running(**more)
    if checkpoint:
        world.take_checkpoint(None)
    world.rounds(10)
    world.driver_ends(2, "refused: nonsense\n")
    world.until(lambda w: w.status.get("phase") == "Failed")
    return world


def test_a_failed_job_with_a_checkpoint_goes() -> None:
    world = failed(checkpoint=True)
    assert world.status["checkpoint"]["number"] == 1
    assert TTL - 5 <= seconds_until_gone(world) <= TTL + 10


def test_a_failed_job_whose_workers_have_the_only_state_stays_and_says_so() -> None:
    world = failed(checkpoint=False)
    workers = [pod for pod in world.pods() if "worker" in pod]
    world.rounds(3)
    assert "KeptForItsState" not in world.condition("Degraded")["message"]
    world.round(TTL)
    world.rounds(5)
    assert is_there(world) and [pod for pod in world.pods() if "worker" in pod] == workers
    assert "spec.ttlAfterFinished is over, and the job stays" in world.condition("Degraded")["message"]


def test_a_job_that_was_refused_before_its_first_epoch_goes() -> None:
    world = World()
    world.ends_with = (2, "refused: there is no module 'jobs.nbq5'\n")
    world.api.create(JOBS, job(ttlAfterFinished=f"{TTL}s"))
    world.until(lambda w: w.status.get("phase") == "Failed")
    assert TTL - 5 <= seconds_until_gone(world) <= TTL + 10


def test_a_job_that_runs_crashes_or_is_suspended_stays() -> None:
    world = running(ttl="1s")
    world.rounds(30)
    world.driver_ends(1, "boom")
    world.rounds(30)
    assert is_there(world) and settled(world)


def test_the_field_changes_nothing_of_a_running_job() -> None:
    before = spec.check(job()).spec
    (change,) = changes.classify(
        before,
        before.model_copy(
            update={"ttl_after_finished": spec.check(job(ttlAfterFinished="1h")).spec.ttl_after_finished}
        ),
    )
    assert change.kind == "live"
