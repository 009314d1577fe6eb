"""Pods with verbs: nodes that are virtual machines with Soft-RoCE, a device plugin on them, and jobs on their networks.

Two machines, each with a card for RDMA alone. What a job writes has to be what the oracle expects; that its bytes went over
RDMA is shown by the counters of the kernels of the machines. Everything on them is emulated, and slow.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster, Lab
from tests.kube.installation import DISORDER, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, Kubectl, wait_until
from tests.rdma.machines import grown

pytestmark = [pytest.mark.long, pytest.mark.kube, pytest.mark.timeout(2400)]

Times = Callable[[str, float], None]

RESOURCE, SLOTS = "rdma/shared", 4
TAINT = "ferry.lab/machine"
COUNTERS = "cd /sys/class/infiniband/rxe0/ports/1/hw_counters && grep -H . *"

WRITES_TO_ITSELF = """
from ferry.channel.rdma.device import choose_device
from ferry.channel.rdma.memory import RingShape
print(choose_device(RingShape()).port.device)
"""

SCRAPE = (
    "import os, urllib.request as u; print(u.urlopen(u.Request(f'http://{os.environ[\"POD_IP\"]}:PORT/metrics', "
    "headers={'Authorization': 'Bearer ' + os.environ['FERRY_METRICS_TOKEN']})).read().decode())"
)

EVENTS = 400_000


@dataclass(frozen=True)
class Machines:
    """Nodes of the lab that are virtual machines."""

    lab: Lab
    numbers: tuple[int, ...]

    @property
    def nodes(self) -> list[str]:
        return [f"n{i}" for i in self.numbers]

    def counters(self) -> dict[str, int]:
        """Of the devices of all machines, together."""
        total: dict[str, int] = {}
        for i in self.numbers:
            for name, value in re.findall(r"^(\w+):(\d+)$", self.lab.on(i, "sh", "-c", COUNTERS), re.MULTILINE):
                total[name] = total.get(name, 0) + int(value)
        return total

    def unplug(self, number: int, state: str = "down") -> None:
        """The cable of a card for RDMA: `down`, `up`."""
        _, there = self.lab.control_plane()
        subprocess.run([*there, "ip", "link", "set", f"n{number}-rdma", state], check=True, timeout=20)


@pytest.fixture(scope="module")
def machines(cluster: Cluster, times_of_module: Times) -> Iterator[Machines]:
    """Two, beside the nodes that are there, each with the plugin of the lab."""
    if cluster.lab is None:
        pytest.skip("the nodes of an existing cluster are left alone")
    lab, kubectl = cluster.lab, cluster.kubectl
    there = tuple(int(file.parent.name[1:]) for file in sorted(lab.directory.glob("n*/machine")))
    numbers = there or tuple(len(cluster.nodes) + k for k in (1, 2))
    made = Machines(lab, numbers)
    begin = time.monotonic()
    Lab.setup("machine")
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda i: there or lab.run("vm-up", str(i), timeout=400), numbers))
        plugin = f"{lab.run('program', 'verbs').strip()} -resource {RESOURCE} -slots {SLOTS}"
        for i in numbers:
            lab.on(i, "sh", "-c", f"pgrep -x verbs || setsid {plugin} >{lab.directory}/n{i}/verbs.log 2>&1 &")
        for node in made.nodes:
            wait_until(lambda node=node: slots(kubectl, node) == str(SLOTS), f"resource of {node}", 240)
        times_of_module("two machines: to their devices on offer", time.monotonic() - begin)
        yield made
    finally:
        for i in numbers if not there else ():
            lab.kill(i)
            kubectl.run("delete", "node", f"n{i}", "--ignore-not-found")


@pytest.fixture(scope="module")
def times_of_module() -> Times:
    return lambda what, seconds: print(f"{what}: {seconds:.1f} s", flush=True)


@pytest.fixture(scope="module")
def ferry(cluster: Cluster, machines: Machines) -> Iterator[Installation]:
    """The chart, with the host's network for jobs; all of it on ordinary nodes, because machines have a taint."""
    with installed_ferry(cluster.kubectl, "jobs.allow.hostNetwork=true") as made:
        yield made


def slots(kubectl: Kubectl, node: str) -> str | None:
    """The number of devices that a node offers; None before its plugin has registered."""
    found = kubectl.find("node", node) or {"status": {"allocatable": {}}}
    return found["status"]["allocatable"].get(RESOURCE)


def restricted(name: str, node: str) -> Document:
    """A pod with the device that has no other right."""
    container = {
        "name": "main",
        "image": "localhost/ferry/runtime:dev",
        "command": ["sleep", "3600"],
        "resources": {"limits": {RESOURCE: 1}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "tolerations": [{"key": TAINT, "operator": "Exists"}],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def test_a_pod_without_any_right_uses_the_device_of_its_node(
    pods: Kubectl, machines: Machines, cluster: Cluster, times: Times
) -> None:
    for i in machines.numbers:
        found = pods.get("node", f"n{i}")["status"]["nodeInfo"]["kernelVersion"]
        assert found != pods.get("node", "n1")["status"]["nodeInfo"]["kernelVersion"], "a kernel of its own"
    assert slots(pods, "n1") is None, "a node without a device"
    pods.run("label", "namespace", str(pods.namespace), "pod-security.kubernetes.io/enforce=restricted")
    pods.apply(*(restricted(node, node) for node in machines.nodes))
    begin = time.monotonic()
    for node in machines.nodes:
        pods.run("wait", "--for=condition=Ready", f"pod/{node}", "--timeout=200s", timeout=220)
    times("pods on machines: applied to ready", time.monotonic() - begin)
    before = machines.counters()
    for node in machines.nodes:
        assert pods.run("exec", node, "--", "python3", "-c", WRITES_TO_ITSELF, timeout=120).split() == ["rxe0"]
    after = machines.counters()
    assert after["sent_pkts"] > before["sent_pkts"] and after["rcvd_pkts"] > before["rcvd_pkts"], (before, after)
    # The network of pods, and services, as on other nodes.
    asked = "import socket; socket.create_connection(('kubernetes.default.svc', 443), 20); print('there')"
    assert pods.run("exec", machines.nodes[0], "--", "python3", "-c", asked, timeout=120).strip() == "there"


def on_machines(ferry: Installation, name: str, mode: str, events: int, workers: int = 2) -> Document:
    """A job on the host's network: its workers have to be on machines, its driver must not."""
    return ferry.job(
        name,
        events=events,
        workers=workers,
        epoch={"mode": "micro-batch", "interval": "2s", "maxRows": 2_000},
        pipeline={"args": DISORDER},
        state={"virtualNodes": 8, "replicas": 1},
        failure={"heartbeat": "2s", "timeout": "60s", "returnDeadline": "300s"},
        transport={"mode": mode, "rdma": {"mode": "hostNetwork", "resource": RESOURCE}},
        kubernetes={
            "network": "host",
            "checkpoint": f"/data/{name}/checkpoint",
            "volumes": [{"name": "data", "mountPath": "/data", "claim": "ferry-data"}],
            "workerPodTemplate": {"spec": {"tolerations": [{"key": TAINT, "operator": "Exists"}]}},
            "executor": {"cpu": "200m", "memory": "1280Mi"},
            "sidecar": {"cpu": "200m", "memory": "512Mi"},
        },
    )


def links(job: Job, worker: int) -> dict[str, int]:
    """Links of a sidecar to other sidecars, by kind, from its metrics."""
    pod = job.kubectl.get("pod", f"{job.name}-worker-{worker}")
    (sidecar,) = [one for one in pod["spec"]["initContainers"] if one["name"] == "sidecar"]
    (port,) = [one["containerPort"] for one in sidecar["ports"] if one["name"] == "metrics"]
    scrape = SCRAPE.replace("PORT", str(port))
    text = job.kubectl.run(
        "exec", f"{job.name}-worker-{worker}", "-c", "sidecar", "--", "python3", "-c", scrape, timeout=120
    )
    found: dict[str, int] = {}
    for kind, number in re.findall(r'^ferry_transport_info\{.*kind="(\w+)".*\} (\d+)', text, re.MULTILINE):
        found[kind] = found.get(kind, 0) + int(float(number))
    return {kind: number for kind, number in found.items() if number}


def until_rdma(job: Job, seconds: float = 300.0) -> None:
    """Have all links between sidecars over RDMA: the status and the metrics of both ends say so."""
    job.until(lambda s: (s.get("transport") or {}).get("kind") == "rdma", "links over RDMA", seconds)
    for worker in (0, 1):
        wait_until(lambda worker=worker: links(job, worker) == {"rdma": 1}, f"links of worker {worker}", 120)


def test_a_job_on_rdma_whose_card_is_unplugged_and_whose_worker_is_killed(
    ferry: Installation, machines: Machines, times: Times, tmp_path: Path
) -> None:
    begin = time.monotonic()
    job = ferry.start(on_machines(ferry, "verbs", "auto", EVENTS))
    until_rdma(job, 600.0)
    times("a job on machines: applied to links over RDMA", time.monotonic() - begin)
    assert {job.node_of(f"worker-{k}") for k in (0, 1)} == set(machines.nodes)
    assert job.node_of("driver") not in machines.nodes
    assert {pod["status"]["podIP"] == pod["status"]["hostIP"] for pod in job.pods()} == {True}
    a_card_is_unplugged(job, machines, times)
    job.until_workers(2, 900.0)
    job.until_epoch(2, 600.0)
    times("a job on machines: applied to its first epochs", time.monotonic() - begin)
    a_worker_is_killed(job, times)
    # The rest of the input, in large epochs: by another driver.
    job.kubectl.patch(f"sj/{job.name}", {"spec": {"epoch": {"interval": "500ms", "maxRows": 50_000}}})
    job.finish(900.0)
    job.right(tmp_path)
    job.delete()


def over_tcp(status: Document) -> bool:
    """All links are TCP, with the reason."""
    told = status.get("transport") or {}
    return told.get("kind") == "tcp" and bool(told.get("reason"))


def a_card_is_unplugged(job: Job, machines: Machines, times: Times) -> None:
    """The card for RDMA: links are TCP, with the reason, until it is back."""
    before, number, begin = machines.counters(), machines.numbers[1], time.monotonic()
    machines.unplug(number)
    try:
        job.until(over_tcp, "links over TCP, and why", 120.0)
        times("a card unplugged: the status says TCP, and why", time.monotonic() - begin)
        for worker in (0, 1):
            wait_until(lambda worker=worker: links(job, worker) == {"tcp": 1}, f"links of worker {worker}", 120)
    finally:
        machines.unplug(number, "up")
    begin = time.monotonic()
    until_rdma(job)
    times("the card plugged in: both ends say RDMA", time.monotonic() - begin)
    after = machines.counters()
    assert grown(before, after).get("retry_exceeded_err"), "no device gave up a packet"
    wait_until(lambda: grown(after, machines.counters()).get("sent_pkts"), "bytes over RDMA again", 60)
    said = {event["reason"] for event in job.kubectl.items("events")}
    assert {"TransportFallback", "TransportRestored"} <= said, said


def a_worker_is_killed(job: Job, times: Times) -> None:
    """Its pod; another one takes its place."""
    life, begin = job.life_of("worker-1"), time.monotonic()
    job.kubectl.run("delete", "pod", f"{job.name}-worker-1", "--grace-period=0", "--force")
    job.until_epoch(2, 300.0)
    times("a worker killed: two more epochs", time.monotonic() - begin)
    job.until_replaced("worker-1", life)
    job.until_workers(2, 900.0)
    times("a worker killed: another one owns state", time.monotonic() - begin)
    until_rdma(job)
    times("a worker killed: links over RDMA again", time.monotonic() - begin)


def test_state_moves_over_rdma_where_a_job_allows_nothing_else(
    ferry: Installation, machines: Machines, times: Times, tmp_path: Path
) -> None:
    job = ferry.start(on_machines(ferry, "strict", "rdma", EVENTS // 4, workers=1))
    job.until_workers(1, 600.0)
    job.until_epoch(2, 600.0)
    before, begin = machines.counters(), time.monotonic()
    job.kubectl.run("scale", f"sj/{job.name}", "--replicas=2")
    job.until_workers(2, 900.0)
    times("a job that allows RDMA alone: 1 -> 2 workers", time.monotonic() - begin)
    until_rdma(job)
    after = grown(before, machines.counters())
    assert after.get("sent_pkts") and after.get("rcvd_pkts"), after
    job.kubectl.patch(f"sj/{job.name}", {"spec": {"epoch": {"interval": "500ms", "maxRows": 50_000}}})
    job.finish(900.0)
    job.right(tmp_path)
    said = {event["reason"] for event in job.kubectl.items("events")}
    assert "HandoverFinished" in said, said
    job.delete()
