"""Pods and nodes as they are read: every shape of a status that is known to have misled an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ferry_operator.job.models_kubernetes import Kubernetes
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe import facts

T0 = "2026-01-01T00:00:00Z"
T1 = "2026-01-01T00:01:00Z"


def pod(status: Doc, **metadata: Any) -> Doc:
    labels = {names.JOB: "a", names.ROLE: "worker", names.WORKER: "3"}
    base = {"name": "a-worker-3", "uid": "u", "resourceVersion": "7", "labels": labels, "creationTimestamp": T0}
    return {"metadata": {**base, **metadata}, "spec": {"nodeName": "n1"}, "status": status}


def container(state: Doc, ready: bool = False, **more: Any) -> Doc:
    return {"name": "executor", "ready": ready, "state": state, **more}


def sidecar(state: Doc, ready: bool = False, **more: Any) -> Doc:
    return {**container(state, ready, **more), "name": "sidecar"}


def owner_of_state(state: Doc, ready: bool = False, **more: Any) -> Doc:
    return {**container(state, ready, **more), "name": "state-owner"}


def crashing(made: Callable[..., Doc], **ended: Any) -> Doc:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    return {"containerStatuses": [made(waiting, lastState={"terminated": ended})]}


def test_the_containers_whose_memory_a_job_sets() -> None:
    assert all("memory" in Kubernetes.model_fields[one].annotation.model_fields for one in facts.SIZED)  # type: ignore[union-attr]


def test_a_pod() -> None:
    one = facts.pod(pod({"phase": "Running", "podIP": "10.0.0.9"}, annotations={names.INSTANCES: "4"}))
    assert (one.name, one.worker, one.node, one.ip, one.phase) == ("a-worker-3", 3, "n1", "10.0.0.9", "Running")
    assert one.created == facts.when(T0) and one.number(names.INSTANCES) == 4 and one.number(names.TOKEN) == 0


@pytest.mark.parametrize(
    ("where", "cpu", "cpus"),
    [("containers", "500m", 0.5), ("initContainers", 2, 2.0), ("containers", "1e3", 1.0), ("volumes", "3", 1.0)],
)
def test_what_a_sidecar_is_given(where: str, cpu: Any, cpus: float) -> None:
    made = pod({"phase": "Running"})
    made["spec"][where] = [{"name": "executor"}, {"name": "sidecar", "resources": {"requests": {"cpu": cpu}}}]
    assert facts.pod(made).cpus == cpus
    made["spec"][where] = [{"name": "sidecar"}]
    assert facts.pod(made).cpus == 1.0


def test_a_pod_without_anything() -> None:
    one = facts.pod({"metadata": {"name": "x"}})
    assert (one.phase, one.ready, one.ended, one.problems, one.worker) == ("Pending", False, None, (), None)


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        pytest.param(
            {"phase": "Failed", "containerStatuses": [container({"terminated": {"exitCode": 2, "reason": "Error"}})]},
            2, "Error", id="an exit code",
        ),
        pytest.param(
            {"phase": "Succeeded", "containerStatuses": [container({"terminated": {"exitCode": 0}})]}, 0, "", id="done",
        ),
        pytest.param({"phase": "Failed", "reason": "Evicted", "message": "disk"}, None, "Evicted", id="evicted, no statuses"),
        pytest.param(
            {"phase": "Failed", "reason": "Evicted",
             "containerStatuses": [container({"terminated": {"exitCode": 137, "reason": "Error"}})]},
            None, "Evicted", id="evicted while it ran",
        ),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})]},
            137, "OOMKilled", id="out of memory",
        ),
        pytest.param(
            {"phase": "Failed",
             "containerStatuses": [container({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})]},
            None, "PodEnded", id="nobody knows",
        ),
    ],
)  # fmt: skip
def test_how_a_pod_ended(status: Doc, code: int | None, reason: str) -> None:
    ended = facts.pod(pod(status)).ended
    assert ended is not None and (ended.code, ended.reason) == (code, reason)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        pytest.param(
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]},
            ("Unschedulable", "a-worker-3: 0/3 nodes"), id="unschedulable",
        ),
        pytest.param(
            {"containerStatuses": [container({"waiting": {"reason": "ImagePullBackOff", "message": "no x"}})]},
            ("ImagePull", "a-worker-3, executor: no x"), id="no image",
        ),
        pytest.param(
            {"initContainerStatuses": [container(
                {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                lastState={"terminated": {"exitCode": 1, "message": "2026-11-27 00:00:00,1 j w3 INFO up\nends: Redis says no\n"}})]},
            ("CrashLoop", "a-worker-3, executor: ends with 1: Redis says no"), id="a sidecar that crashes",
        ),
        pytest.param(
            crashing(sidecar, exitCode=137, reason="OOMKilled", message="2026 INFO up"),
            ("CrashLoop", "a-worker-3, sidecar: ends with 137: OOMKilled: raise spec.kubernetes.sidecar.memory; 2026 INFO up"),
            id="a sidecar without enough memory",
        ),
        pytest.param(
            crashing(container, exitCode=137, reason="OOMKilled"),
            ("CrashLoop", "a-worker-3, executor: ends with 137: OOMKilled: raise spec.kubernetes.executor.memory"),
            id="an executor without enough memory",
        ),
        pytest.param(
            crashing(owner_of_state, exitCode=137, reason="OOMKilled"),
            ("CrashLoop", "a-worker-3, state-owner: ends with 137: OOMKilled"), id="no field sets its memory",
        ),
        pytest.param(
            crashing(sidecar, exitCode=128, reason="StartError", message="exec: no such file"),
            ("CrashLoop", "a-worker-3, sidecar: ends with 128: StartError; exec: no such file"), id="it cannot start",
        ),
        pytest.param(
            crashing(sidecar, exitCode=137, reason="Error"),
            ("CrashLoop", "a-worker-3, sidecar: ends with 137: no log"), id="killed by somebody else",
        ),
        pytest.param(
            crashing(sidecar, exitCode=0, reason="Completed"),
            ("CrashLoop", "a-worker-3, sidecar: ends with 0: no log"), id="it ends without a reason",
        ),
        pytest.param(
            {"containerStatuses": [container({"waiting": {"reason": "CreateContainerConfigError", "message": "secret"}})]},
            ("ContainerRefused", "a-worker-3, executor: secret"), id="refused",
        ),
        pytest.param({"containerStatuses": [container({"waiting": {"reason": "ContainerCreating"}})]}, None, id="coming"),
        pytest.param({"phase": "Running", "containerStatuses": [container({"running": {}}, True)]}, None, id="well"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_from_running(status: Doc, expected: tuple[str, str] | None) -> None:
    found = [(one.reason, one.message) for one in facts.pod(pod(status)).problems]
    assert found == ([expected] if expected else [])


SAID = {"exitCode": 4, "message": "2026 INFO up\nno transport: transport.mode is rdma, and there is none\n"}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(sidecar({"terminated": SAID}), True, id="it ended"),
        pytest.param(sidecar({"running": {}}, lastState={"terminated": SAID}), True, id="it tries again"),
        pytest.param(
            sidecar({"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": SAID}), True, id="it will"
        ),
        pytest.param(sidecar({"running": {}}, True, lastState={"terminated": SAID}), False, id="it came up"),
        pytest.param(container({"terminated": SAID}), False, id="another container"),
        pytest.param(sidecar({"terminated": {**SAID, "exitCode": 1}}), False, id="another end"),
    ],
)
def test_a_sidecar_without_a_transport_is_heard(one: Doc, expected: bool) -> None:
    found = facts.pod(pod({"phase": "Pending", "initContainerStatuses": [one]})).problems
    text = "a-worker-3: no transport: transport.mode is rdma, and there is none"
    assert found == ((facts.Problem("TransportUnavailable", text),) if expected else ())


def test_a_sidecar_without_last_words() -> None:
    one = sidecar({"terminated": {"exitCode": 4}})
    (problem,) = facts.pod(pod({"phase": "Pending", "initContainerStatuses": [one]})).problems
    assert problem.message == "a-worker-3: no transport: its log says why"


@pytest.mark.parametrize(
    ("condition", "ready", "silent"),
    [
        pytest.param({"status": "True"}, True, None, id="well"),
        pytest.param(
            {"status": "False", "lastTransitionTime": T1}, True, facts.when(T1), id="the node controller says no"
        ),
        pytest.param(
            {"status": "False", "reason": "ContainersNotReady", "lastTransitionTime": T1},
            False,
            None,
            id="the kubelet does",
        ),
    ],
)
def test_silence_is_seen_without_reading_nodes(condition: Doc, ready: bool, silent: float | None) -> None:
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", **condition}],
        "containerStatuses": [container({"running": {}}, ready)],
    }
    assert facts.pod(pod(status)).silent_since == silent


def test_a_node() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": T0}
    document = {"metadata": {"name": "n1", "labels": {facts.ZONE: "z"}}, "spec": {}, "status": {"conditions": [ready]}}
    assert facts.node(document) == facts.KubeNode("n1", None, False, "z")
    unknown = {**ready, "status": "Unknown", "lastTransitionTime": T1}
    document = {"metadata": {"name": "n1"}, "spec": {"unschedulable": True}, "status": {"conditions": [unknown]}}
    assert facts.node(document) == facts.KubeNode("n1", facts.when(T1), True, None)


def test_times() -> None:
    assert facts.stamp(facts.when(T0) or 0.0) == T0
    assert facts.when("2026-01-01T00:00:00.123456Z") == facts.when(T0)
    assert facts.when(None) is None and facts.when("soon") is None


@pytest.mark.parametrize(("volume", "limit", "expected"), [
    ({"emptyDir": {"sizeLimit": "2Gi"}}, "1Gi", 2 << 30),
    ({"emptyDir": {}}, "1Gi", 1 << 30),
    ({"hostPath": {"path": "/srv"}}, "1Gi", 1 << 30),
    ({"emptyDir": {}}, "much", None),
])  # fmt: skip
def test_the_room_for_state_is_the_volume_or_the_memory(volume: Any, limit: str, expected: int | None) -> None:
    sidecar = {"name": "sidecar", "resources": {"limits": {"memory": limit}}}
    spec = {
        "initContainers": [sidecar],
        "volumes": [{"name": "run", "emptyDir": {"sizeLimit": "1"}}, {"name": "state", **volume}],
    }
    found = facts.pod({"metadata": {"name": "p", "labels": {facts.ZONE: "z1"}}, "spec": spec})
    assert found.state_bytes == expected and found.zone == "z1"
