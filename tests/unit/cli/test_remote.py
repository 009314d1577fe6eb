"""A job on a cluster: what users change reaches the operator, and what they are shown comes from the API alone."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from ferry.contract.errors import Refusal
from ferry_operator.cli.remote.remote import Namespace, RemoteJob
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS, PODS, ApiError, Kind
from ferry_operator.local.registry import NoSuchJob
from tests.unit.cli.fakes.fake_user import FakeUser, user
from tests.unit.kube.fakes.fake_world import World, settled


def remote(**spec: Any) -> tuple[RemoteJob, FakeUser]:
    api = user(**spec)
    return RemoteJob(api, "nbq5"), api


def printed(shown: RemoteJob | Namespace) -> str:
    console = Console(width=200, highlight=False, soft_wrap=True)
    with console.capture() as capture:
        console.print(shown.table(shown.describe()))
    return capture.get()


def workers(count: int) -> Any:
    return lambda world: settled(world) and world.status["workers"] == count


def test_scale_is_a_patch_of_the_subresource() -> None:
    job, api = remote()
    assert job.scale(3, None) == "scaling" and api.written == [({"spec": {"replicas": 3}}, "scale")]
    api.world.until(workers(3))


def test_instances_are_a_field_of_the_spec() -> None:
    job, api = remote()
    job.scale(3, 2)
    assert api.written == [({"spec": {"workers": 3, "instancesPerWorker": 2}}, "")]
    api.world.until(workers(3))


def test_a_drained_worker_is_emptied_and_comes_back() -> None:
    job, api = remote(workers=3)
    job.drain(1)
    api.world.until(lambda w: w.used() == [0, 2])
    assert job.describe()["drains"] == [1] and "drained" in printed(job)
    job.undrain(1)
    api.world.until(lambda w: w.used() == [0, 1, 2])


def test_a_drained_worker_that_is_scaled_in_is_not_drained_any_more() -> None:
    job, api = remote(workers=3)
    job.drain(2)
    api.world.until(lambda w: w.used() == [0, 1])
    job.scale(2, None)
    api.world.until(workers(2))
    job.scale(3, None)
    api.world.until(workers(3))


def test_a_virtual_node_that_is_moved_stays_until_it_is_let_go() -> None:
    job, api = remote()
    assert "virtual node 3 moves to 1.0, and stays there" in job.move([3], "1.0")

    def led() -> str:
        assert api.world.driver is not None
        return api.world.driver.groups[3][0]

    api.world.until(lambda w: led() == "1.0" and settled(w))
    assert job.describe()["pins"] == {"3": "1.0"} and "3 at 1.0" in printed(job)
    job.unpin(3)
    assert job.describe()["pins"] == {}


def test_nothing_changes_while_paused() -> None:
    job, api = remote()
    job.pause()
    assert "once the job is not paused" in job.scale(3, None)
    api.world.rounds(20)
    assert api.world.status["workers"] == 2 and "paused" in printed(job)
    assert job.resume(None) == "the operator reconciles again"
    api.world.until(workers(3))


def test_a_restart_is_another_driver() -> None:
    job, api = remote()
    lives = api.world.lives
    job.restart()
    api.world.until(lambda w: w.lives == lives + 1 and settled(w))


def test_a_write_that_came_too_late_is_made_again() -> None:
    job, api = remote(workers=3)
    stale = [job.object()]
    get = api.get
    api.api.set_status(JOBS, "nbq5", epoch=77)
    api.get = lambda kind, name: stale.pop() if stale else get(kind, name)  # type: ignore[method-assign]
    job.drain(1)
    assert len(api.written) == 2 and job.describe()["drains"] == [1]


def test_writes_that_are_always_too_late_are_given_up() -> None:
    job, api = remote(workers=3)
    api.refuses = ApiError(409, "Conflict", "'nbq5' has changed")
    with pytest.raises(ApiError, match="has changed"):
        job.drain(1)


def test_what_the_api_server_refuses_is_refused() -> None:
    job, api = remote()
    api.refuses = ApiError(422, "Invalid", "spec.workers: Invalid value: 9")
    for ask in (lambda: job.scale(9, None), lambda: job.restart(), lambda: job.tried({"spec": {"workers": 9}})):
        with pytest.raises(Refusal, match="Invalid value: 9"):
            ask()
    with pytest.raises(NoSuchJob, match="no StreamJob called 'x'"):
        RemoteJob(api, "x").describe()


def test_a_cluster_without_ferry_says_so() -> None:
    job, api = remote()

    def unknown(*_: object) -> Doc:
        raise ApiError(404, "404", "get streamjobs nbq5: answered with 404")

    api.get = unknown  # type: ignore[method-assign]
    with pytest.raises(Refusal, match="is Ferry installed"):
        job.describe()


def test_status_shows_conditions_pods_and_events() -> None:
    job, api = remote()
    job.scale(3, None)
    api.world.until(workers(3))
    document, text = job.describe(), printed(job)
    assert [one["index"] for one in document["workers"]] == [0, 1, 2] and document["driver"]["phase"] == "Running"
    assert document["status"]["phase"] == "Running" and document["spec"]["virtualNodes"] == 8
    for words in (
        "3 of 3 own state",
        "ReplicasInSync",
        "HandoverFinished: after",
        "nbq5",
        "on n0",
        "last handover",
        "1.12 times the average",
    ):
        assert words in text, text
    assert not job.ended(document) and job.exists()
    api.api.remove(JOBS, "nbq5")
    assert not job.exists()


def test_what_may_not_be_read_is_left_out_and_said() -> None:
    job, api = remote()
    api.forbidden = [EVENTS]
    find = api.find

    def find_no_pods(kind: Kind, selector: str = "") -> list[Doc]:
        if kind == PODS:
            raise ApiError(403, "Forbidden", "pods are forbidden")
        return find(kind, selector)

    api.find = find_no_pods
    text = printed(job)
    assert "events may not be read" in text and "pods may not be read" in text and "2 of 2 own state" in text
    assert job.nodes() == {}


def test_all_jobs_of_a_namespace() -> None:
    _, api = remote()
    text = printed(Namespace(api))
    assert "nbq5" in text and "2/2 x 1" in text and "Running" in text
    assert "no StreamJob in namespace jobs" in printed(Namespace(FakeUser(World())))
