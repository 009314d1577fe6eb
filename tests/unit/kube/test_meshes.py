"""Pods into which a service mesh has injected a container: it never ends, and its place among the others is any."""

from __future__ import annotations

from typing import Any

import pytest

from ferry_operator.job import spec
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import EVENTS, JOBS
from ferry_operator.kube.cluster import driver_url
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.observe import facts
from ferry_operator.kube.observe.seen import Seen
from tests.unit.kube.fakes.fake_world import PROXY, World, job, settled
from tests.unit.kube.test_decisions import NODES, NOW, RELEASE, document

T0 = "2026-01-01T00:00:00Z"


def in_a_mesh(**fields: Any) -> World:
    world = World()
    world.in_mesh = True
    world.api.create(JOBS, job(**fields))
    world.until(settled)
    return world


def driver(main: Doc, policy: str = "Never", name: str = "driver") -> Doc:
    """A pod in phase Running, whose proxy runs."""
    proxy = {"name": PROXY, "ready": True, "state": {"running": {"startedAt": T0}}}
    return {
        "metadata": {"name": "a-driver", "creationTimestamp": T0},
        "spec": {"restartPolicy": policy, "containers": [{"name": PROXY}, {"name": name}]},
        "status": {"phase": "Running", "containerStatuses": [proxy, {"name": name, "ready": False, "state": main}]},
    }


GONE: Doc = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no", "finishedAt": T0}}


def test_a_driver_has_ended_when_its_own_container_has() -> None:
    ended = facts.pod(driver(GONE)).ended
    assert ended is not None and (ended.code, ended.message, ended.at) == (3, "no", facts.when(T0))
    assert facts.pod(driver({"running": {"startedAt": T0}})).ended is None


def test_an_executor_that_its_kubelet_starts_again_has_not_ended() -> None:
    assert facts.pod(driver(GONE, "Always", "executor")).ended is None


def test_the_end_of_an_injected_container_is_not_the_end_of_a_driver() -> None:
    pod = driver({"running": {"startedAt": T0}})
    pod["status"]["containerStatuses"][0]["state"] = GONE
    assert facts.pod(pod).ended is None


def test_a_driver_that_hangs_is_seen_behind_a_proxy_that_does_not() -> None:
    pod = driver({"running": {"startedAt": T0}})
    no = {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "lastTransitionTime": T0}
    pod["status"]["conditions"] = [no]
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}
    assert facts.pod(pod).not_ready_since == facts.when(T0)


def test_a_job_in_a_mesh_finishes_and_its_pods_go() -> None:
    world = in_a_mesh()
    world.driver_ends(0)
    world.until(lambda w: w.pods() == [])
    assert world.status["phase"] == "Finished" and world.lives == 1
    world.rounds(20)
    assert world.pods() == [] and world.status["phase"] == "Finished"


def test_a_crashed_driver_in_a_mesh_is_followed_by_another() -> None:
    world = in_a_mesh()
    world.driver_ends(1, "ValueError: a record says nonsense")
    world.until(lambda w: settled(w) and w.lives == 2)
    events = [event["message"] for (kind, _), event in world.api.objects.items() if kind == EVENTS]
    assert any("a record says nonsense" in text for text in events)


def test_a_refused_driver_in_a_mesh_says_why_and_stays() -> None:
    world = in_a_mesh()
    world.driver_ends(3, "StateUnavailable: nobody holds virtual node 3")
    world.until(lambda w: w.status["phase"] == "Failed")
    world.rounds(10)
    assert "nbq5-driver" in world.pods() and "virtual node 3" in world.condition("Ready")["message"]


@pytest.mark.parametrize("tls", ["run", "off"])
def test_a_driver_with_a_rewritten_probe_is_asked_as_its_job_says(tls: str) -> None:
    checked = spec.check(document(security={"tls": tls}))
    made = pods.driver(
        document() | {"metadata": {"name": "nbq5", "namespace": "jobs", "uid": "u"}}, checked, RELEASE, {}
    )
    (main,) = made["spec"]["containers"]
    # Istio's agent answers the kubelet, and asks the driver itself.
    main["readinessProbe"]["httpGet"] = {"path": "/app-health/driver/readyz", "port": 15020, "scheme": "HTTP"}
    made["spec"]["containers"] = [{"name": PROXY, "readinessProbe": {"httpGet": {"path": "/healthz/ready"}}}, main]
    pod = facts.pod({**made, "status": {"podIP": "10.0.0.1"}})
    seen = Seen(document(), (pod,), NODES, True, None, None, NOW)
    assert driver_url(seen, checked) == {"run": "https", "off": "http"}[tls] + "://10.0.0.1:7070"
