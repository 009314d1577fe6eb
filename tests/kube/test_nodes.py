"""The lab's own nodes: they run pods as any Kubernetes does, and fail the way machines fail.

What Ferry's tests take for granted is tried here without Ferry, so that a failure there is Ferry's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.kube.clusters import Lab, NoCluster
from tests.kube.kubectl import Kubectl, wait_until

pytestmark = [pytest.mark.long, pytest.mark.kube, pytest.mark.timeout(600)]

BOX = "ferry.lab/busybox:1"
SERVE = "mkdir -p /www && hostname >/www/name && exec httpd -f -p 8080 -h /www"

SILENCE = 28
"""curl's exit code for a time-out: nobody said no."""

Document = dict[str, Any]
Times = Callable[[str, float], None]


def pod(name: str, node: int | None, command: str, **spec: Any) -> Document:
    """A pod with one container, on a node if one is named."""
    container = {"name": "main", "image": BOX, "command": ["sh", "-c", command]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{**container, **spec.pop("container", {})}],
            **({} if node is None else {"nodeSelector": {"kubernetes.io/hostname": f"n{node}"}}),
            **spec,
        },
    }


def server(name: str, node: int | None) -> Document:
    """A pod that says its name on port 8080."""
    return pod(
        name,
        node,
        SERVE,
        container={"readinessProbe": {"httpGet": {"path": "/name", "port": 8080}, "periodSeconds": 1}},
    )


def await_ready(kubectl: Kubectl, *names: str) -> None:
    kubectl.run("wait", "--for=condition=Ready", *(f"pod/{name}" for name in names), "--timeout=60s", timeout=90)


def execute(kubectl: Kubectl, name: str, command: str) -> str:
    return kubectl.run("exec", name, "--", "sh", "-c", command).strip()


def node_is(kubectl: Kubectl, node: int, status: str) -> Callable[[], bool]:
    """Is the node's condition Ready of this status?"""

    def check() -> bool:
        conditions = kubectl.get("node", f"n{node}")["status"]["conditions"]
        return any(c["type"] == "Ready" and c["status"] == status for c in conditions)

    return check


def address(kubectl: Kubectl, name: str) -> str:
    found: str = kubectl.get("pod", name)["status"]["podIP"]
    return found


def test_pods_with_a_native_sidecar_run_on_three_nodes(pods: Kubectl, lab: Lab, times: Times) -> None:
    sidecar = {
        "name": "sidecar", "image": BOX, "restartPolicy": "Always",
        "command": ["sh", "-c", "trap 'sleep 1; exit 0' TERM; sleep 1; touch /shared/up; while :; do sleep 0.2; done"],
        "startupProbe": {"exec": {"command": ["test", "-f", "/shared/up"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }  # fmt: skip
    main = "test -f /shared/up && echo sidecar was first; trap 'exit 0' TERM; while :; do sleep 0.2; done"
    names = ["a", "b", "c"]
    documents = [
        pod(
            name, i + 1, main, initContainers=[sidecar], terminationGracePeriodSeconds=10,
            volumes=[{"name": "shared", "emptyDir": {"medium": "Memory"}}],
            container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        )
        for i, name in enumerate(names)
    ]  # fmt: skip

    def start() -> None:
        pods.apply(*documents)
        await_ready(pods, *names)

    times("three pods with a native sidecar ready", elapsed(start))
    found = pods.items("pods")
    assert {p["spec"]["nodeName"] for p in found} == {"n1", "n2", "n3"}
    assert len({p["status"]["podIP"] for p in found}) == 3
    for name in names:
        assert pods.run("logs", name, "-c", "main").strip() == "sidecar was first"
    seconds = elapsed(lambda: pods.run("delete", "pod", *names))
    assert seconds < 9, "main ends on TERM at once, then the sidecar after a second"
    times("deleted", seconds)


def test_pods_reach_each_other_and_services_have_names(pods: Kubectl, lab: Lab) -> None:
    pods.apply(server("a", 1), server("b", 2), server("c", 3))
    await_ready(pods, "a", "b", "c")
    for here in "abc":
        for there in "abc":
            assert execute(pods, here, f"curl -sS -m 3 http://{address(pods, there)}:8080/name") == there
    pods.run("expose", "pod", "b", "--port=80", "--target-port=8080", "--name=web")
    say_hello = f"curl -sS -m 3 http://web.{pods.namespace}.svc/name"
    wait_until(lambda: execute(pods, "a", say_hello) == "b", "service", 15)
    wait_until(lambda: execute(pods, "c", "curl -sS -m 3 http://web/name") == "b", "service on the third node", 15)
    assert "Could not resolve" in pods.refusal("exec", "a", "--", "curl", "-sS", "-m", "3", "http://nowhere/")
    # the API, by its name, with the pod's own token
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    ask = f'curl -sS --cacert {token}/ca.crt -H "Authorization: Bearer $(cat {token}/token)" https://kubernetes.default/version'
    assert json.loads(execute(pods, "a", ask))["major"] == "1"


def test_a_volume_is_the_same_on_every_node_and_a_disk_is_not(pods: Kubectl, lab: Lab) -> None:
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "disk", "hostPath": {"path": "/mnt/test", "type": "DirectoryOrCreate"}},
    ]
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "disk", "mountPath": "/disk"}]
    user = {"securityContext": {"runAsUser": 1000, "runAsNonRoot": True}}
    pods.apply(
        claim,
        pod("a", 1, "sleep 600", volumes=volumes, container={"volumeMounts": mounts}),
        pod("b", 2, "sleep 600", volumes=volumes[:1], container={"volumeMounts": mounts[:1]}, **user),
        pod("c", 3, "sleep 600", volumes=volumes, container={"volumeMounts": mounts}),
    )
    await_ready(pods, "a", "b", "c")
    execute(pods, "b", "echo from b >/data/x")
    assert execute(pods, "c", "cat /data/x") == "from b"
    execute(pods, "a", "echo from a >/disk/x")
    assert execute(pods, "c", "ls /disk") == ""


def test_a_memory_limit_kills(pods: Kubectl, lab: Lab) -> None:
    greedy = pod(
        "greedy", None, "tail -c 100000000 /dev/zero | wc -c; exit 1", restartPolicy="Never",
        container={"resources": {"limits": {"memory": "50Mi", "cpu": "500m"}}},
    )  # fmt: skip
    pods.apply(greedy)

    def reason() -> str:
        statuses = pods.get("pod", "greedy")["status"].get("containerStatuses", [{}])
        found: str = statuses[0].get("state", {}).get("terminated", {}).get("reason", "")
        return found

    wait_until(reason, "end of the container", 60)
    assert reason() == "OOMKilled"


def test_a_node_that_is_killed(pods: Kubectl, lab: Lab, times: Times) -> None:
    pods.apply(server("stays", 1), server("lost", 3))
    await_ready(pods, "stays", "lost")
    there, machine = address(pods, "lost"), pods.get("pod", "lost")["status"]["hostIP"]
    times("killed a node", elapsed(lambda: lab.kill(3)))
    assert not lab.is_alive(3)
    for silent in (f"http://{there}:8080/name", f"http://{machine}:10250/"):
        assert failure(pods, "stays", silent) == SILENCE
    times("killed: NotReady", wait_until(node_is(pods, 3, "Unknown"), "lost node", 60))
    times("killed: its pod is being deleted", wait_until(deleted(pods, "lost"), "eviction", 60))
    assert execute(pods, "stays", "hostname") == "stays"
    seconds = elapsed(lambda: lab.boot(3)) + wait_until(node_is(pods, 3, "True"), "node", 60)
    times("booted: Ready", seconds)
    times("booted: what was deleted is gone", wait_until(lambda: not pods.find("pod", "lost"), "deleted pod", 60))


def test_a_node_that_is_cut_off_and_healed(pods: Kubectl, lab: Lab, times: Times) -> None:
    pods.apply(server("stays", 1), server("alone", 3))
    await_ready(pods, "stays", "alone")
    there = address(pods, "alone")
    lab.cut(3)
    wait_until(node_is(pods, 3, "Unknown"), "lost node", 60)
    wait_until(deleted(pods, "alone"), "eviction", 60)
    assert lab.on(3, "curl", "-sS", "-m", "2", f"http://{there}:8080/name").strip() == "alone", "it goes on, alone"
    lab.heal(3)
    times("healed: Ready", wait_until(node_is(pods, 3, "True"), "node", 60))
    times("healed: what was deleted is gone", wait_until(lambda: not pods.find("pod", "alone"), "deleted pod", 60))


def test_a_cut_between_two(pods: Kubectl, lab: Lab) -> None:
    pods.apply(server("a", 1), server("b", 2), server("c", 3))
    await_ready(pods, "a", "b", "c")
    to = {name: f"http://{address(pods, name)}:8080/name" for name in "abc"}
    lab.cut(1, "2")
    assert failure(pods, "a", to["b"]) == SILENCE
    assert execute(pods, "a", f"curl -sS -m 2 {to['c']}") == "c"
    lab.heal(1)
    assert execute(pods, "a", f"curl -sS -m 3 {to['b']}") == "b"
    lab.cut(1, "cp")
    wait_until(node_is(pods, 1, "Unknown"), "lost node", 60)
    assert execute(pods, "c", f"curl -sS -m 2 {to['a']}") == "a", "only the control plane is out of reach"


def test_pods_that_stand_still(pods: Kubectl, lab: Lab) -> None:
    pods.apply(server("a", 1), server("b", 2))
    await_ready(pods, "a", "b")
    there = address(pods, "b")
    lab.freeze(2)
    try:
        assert failure(pods, "a", f"http://{there}:8080/name") == SILENCE
        assert node_is(pods, 2, "True")()
    finally:
        lab.thaw(2)
    wait_until(lambda: execute(pods, "a", f"curl -sS -m 2 http://{there}:8080/name") == "b", "answer", 20)


def test_a_command_that_fails_says_so(lab: Lab) -> None:
    with pytest.raises(NoCluster, match="there is no node n9"):
        lab.cut(9)
    with pytest.raises(NoCluster, match="n1 is up already"):
        lab.boot(1)


def elapsed(action: Callable[[], Any]) -> float:
    """Seconds that something took."""
    began = time.monotonic()
    action()
    return time.monotonic() - began


def failure(kubectl: Kubectl, name: str, url: str) -> int:
    """The exit code of a curl in a pod that must fail."""
    said = kubectl.refusal("exec", name, "--", "curl", "-sS", "-m", "2", url)
    return int(said.rpartition("exit code ")[2])


def deleted(kubectl: Kubectl, name: str) -> Callable[[], bool]:
    """Is it being deleted?"""

    def check() -> bool:
        found = kubectl.find("pod", name)
        return found is None or "deletionTimestamp" in found["metadata"]

    return check
