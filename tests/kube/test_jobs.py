"""Jobs on real nodes: applied, scaled, moved, and what they survive. Every output is compared with the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster, Lab
from tests.kube.conftest import NODES
from tests.kube.installation import DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

ROOT = Path(__file__).resolve().parents[2]

IN_MEMORY = {"stateVolume": {"medium": "memory", "size": "128Mi"}}

SWITCHED, PROMOTED = " switched", " promoted"
"""In the driver's log: an orderly handover, and a copy that leads because the leader was lost."""

BEGINS = "OwnQuery begins"
"""In the driver's log."""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl, "jobs.allow.hostPaths={/mnt}", "jobs.allow.hostNetwork=true") as made:
        yield made


@pytest.fixture
def start(ferry: Installation) -> Iterator[Callable[..., Job]]:
    """Starts jobs; those that a test leaves are deleted."""
    jobs: list[Job] = []

    def begin(name: str, **spec: object) -> Job:
        job = ferry.start(ferry.job(name, **{"epoch": PACE, "pipeline": {"args": DISORDER}, **spec}))
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        if ferry.kubectl.find("streamjob", job.name):
            job.delete()
    ferry.assert_clean()


def leader(ferry: Installation) -> str:
    """The pod that holds the operator's Lease."""
    leases = ferry.kubectl.items("leases")
    assert leases, "no lease"
    return str(leases[0]["spec"]["holderIdentity"]).rsplit("-", 1)[0]


def redis(ferry: Installation) -> Document:
    """The pod of the registry; one that a lost node still has does not count."""
    found = ferry.kubectl.items("pods", "-l", "app.kubernetes.io/component=redis")
    return next(pod for pod in found if "deletionTimestamp" not in pod["metadata"])


def number(node: str) -> int:
    """Of a node of the lab."""
    return int(node.removeprefix("n"))


def apart(ferry: Installation, start: Callable[..., Job], name: str, **spec: object) -> Job:
    """A job of two workers on two nodes, and its driver on one of them; the registry is on neither, so each may be lost."""
    node = redis(ferry)["spec"]["nodeName"]
    ferry.kubectl.run("cordon", node)
    try:
        job = start(name, workers=2, **spec)
        wait_until(lambda: len(job.nodes()) == 3, "node for every pod", 60.0)
    finally:
        ferry.kubectl.run("uncordon", node)
    where = job.nodes()
    assert node not in where.values() and where["worker-0"] != where["worker-1"], where
    job.until_workers(2, 240.0)
    job.until_epoch(3)
    return job


def said_by_driver(job: Job) -> str:
    """The log of the driver's pod."""
    return job.kubectl.run("logs", f"{job.name}-driver")


def by_command(ferry: Installation, *words: object) -> str:
    """By a command, as a user of the cluster."""
    kubectl = ferry.kubectl
    where = ["--kubeconfig", kubectl.kubeconfig, "--namespace", kubectl.namespace]
    command = [sys.executable, "-m", "ferry_operator.cli", *map(str, [*words, *where])]
    path = f"{ROOT / 'runtime'}:{ROOT / 'operator'}"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_job_is_applied_scaled_and_patched_while_it_runs(
    ferry: Installation, start: Callable[..., Job], times: Times, tmp_path: Path
) -> None:
    job = start("nbq5")
    ferry.kubectl.run("wait", "--for=condition=Ready", f"streamjob/{job.name}", "--timeout=180s", timeout=200)
    job.until(lambda s: s.get("epoch", -1) >= 0, "first epoch")
    times("apply to first epoch", time.monotonic() - job.applied)
    driver = job.driver()
    assert said_by_driver(job).count(BEGINS) == 1
    ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=4")
    job.until(lambda s: s.get("moving") or s.get("workers", 0) > 2, "begin of the scale")
    ferry.assert_clean()  # what the leader has said goes with it
    ferry.kubectl.run("delete", "pod", leader(ferry), "--grace-period=0", "--force")
    times("2 to 4 workers, with the operator's leader killed", job.until_workers(4))
    begin, plan = time.monotonic(), tmp_path / "plan.json"
    assert "4 -> 2" in by_command(ferry, "plan", job.name, "--set", "workers=2", "--strategy", "optimized", "-o", plan)
    by_command(ferry, "submit", job.name, plan, "--at-epoch", job.status()["epoch"] + 8)
    job.until_workers(2)
    times("4 to 2 workers, by a submitted plan", time.monotonic() - begin)
    assert "submitted" in by_command(ferry, "plans", job.name)
    wait_until(lambda: len(job.pods("worker")) == 2, "end of the pods that hold nothing", 60.0)
    ferry.kubectl.run("delete", "pod", redis(ferry)["metadata"]["name"], "--grace-period=0", "--force")
    ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=3")
    times("2 to 3 workers, with the registry killed", job.until_workers(3))
    after = job.driver()
    assert after["metadata"]["uid"] == driver["metadata"]["uid"]
    assert not after["status"]["containerStatuses"][0]["restartCount"]
    assert PROMOTED not in said_by_driver(job), "every worker was emptied before its pod went"
    assert said_by_driver(job).count(BEGINS) == 1, "the query went on, and was never begun again"
    job.finish()
    job.right(tmp_path)
    times("delete of a finished job", job.delete())


@pytest.mark.long
def test_a_node_dies_and_the_driver_is_deleted(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    job = start("kill", workers=3)
    job.until_workers(3, 240.0)
    job.until_epoch(3)
    kept = {job.node_of("driver"), redis(ferry)["spec"]["nodeName"]}
    victim = next(pod for pod in (f"worker-{k}" for k in range(3)) if job.node_of(pod) not in kept)
    node, life = job.node_of(victim), job.life_of(victim)
    epoch, begin = job.status()["epoch"], time.monotonic()
    lab.kill(number(node))
    job.until(lambda s: s["epoch"] > epoch + 1, "an epoch after the node's death")
    times("power cut of a node to the next epochs", time.monotonic() - begin)
    job.until_replaced(victim, life)
    job.until_workers(3, 240.0)
    times("power cut of a node to full strength", time.monotonic() - begin)
    lab.boot(number(node))
    workers = {pod["metadata"]["uid"] for pod in job.pods("worker")}
    begin = time.monotonic()
    ferry.kubectl.run("delete", "pod", f"{job.name}-driver", "--grace-period=0", "--force")
    job.until(lambda s: s.get("generation", 0) >= 2, "a new driver", 300.0)
    job.until_epoch(2)
    times("driver pod deleted to the next epochs", time.monotonic() - begin)
    assert {pod["metadata"]["uid"] for pod in job.pods("worker")} == workers, "its state stayed where it was"
    job.finish()
    job.right(tmp_path)


@pytest.mark.turns
def test_the_node_of_the_registry_and_of_a_worker_dies_and_stays_off(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    """The journal is in the API server: groups close over the loss, and what the registry knew is said to another one."""
    job = start("journal", workers=2, events=3_000_000, kubernetes=IN_MEMORY)
    job.until_workers(2, 240.0)
    job.until_epoch(3)
    where = job.nodes()
    victim, node = next((pod, node) for pod, node in where.items() if node != where["driver"])
    put_registry(ferry, node)
    life, before, epoch, begin = job.life_of(victim), version(job), job.status()["epoch"], time.monotonic()
    lab.kill(number(node))
    times("power cut of the registry's node: journaled", wait_until(lambda: version(job) > before, "a table", 120.0))
    job.until(lambda s: s["epoch"] > epoch + 1, "an epoch after the node's death", 120.0)
    times("power cut of the registry's node to the next epochs", time.monotonic() - begin)
    job.until_replaced(victim, life)
    job.until_workers(2, 240.0)
    times("power cut of the registry's node to full strength", time.monotonic() - begin)
    begin = time.monotonic()
    ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=3")
    job.until_workers(3, 240.0)
    times("2 to 3 workers, with that node off", time.monotonic() - begin)
    assert not lab.is_alive(number(node)) and redis(ferry)["spec"]["nodeName"] != node
    assert job.status()["generation"] == 1, "the driver went on"
    lab.boot(number(node))
    job.finish()
    job.right(tmp_path)


def put_registry(ferry: Installation, node: str) -> None:
    """Have the registry on this node. Others are not cordoned for it: those are emptied of workers."""
    pod, others = redis(ferry), [one for one in (f"n{i + 1}" for i in range(NODES)) if one != node]
    if pod["spec"]["nodeName"] != node:
        ferry.kubectl.run("taint", "nodes", *others, "test=registry:NoSchedule")
        ferry.kubectl.run("delete", "pod", pod["metadata"]["name"])
        ferry.kubectl.run("rollout", "status", "deployment/ferry-redis", "--timeout=60s", timeout=90)
        ferry.kubectl.run("taint", "nodes", *others, "test-")


def version(job: Job) -> tuple[int, int]:
    """Of the journaled table."""
    uid = job.kubectl.get("streamjob", job.name)["metadata"]["uid"]
    spec = job.kubectl.get("streamjobjournal", f"{job.name}-{uid}")["spec"]
    return spec["generation"], spec["number"]


@pytest.mark.long
def test_the_node_of_the_driver_dies(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    job = apart(ferry, start, "pilot", kubernetes=IN_MEMORY)
    where = job.nodes()
    lost = where["driver"]
    kept = next(pod for pod, node in where.items() if node != lost)
    life, epoch, begin = job.life_of(kept), job.status()["epoch"], time.monotonic()
    lab.kill(number(lost))
    job.until(lambda s: s["generation"] >= 2 and s["epoch"] > epoch + 1, "an epoch of the next driver", 300.0)
    times("power cut of the driver's node to the next epochs", time.monotonic() - begin)
    assert job.node_of("driver") != lost
    assert job.life_of(kept) == life, "the new driver went on with the state where it was"
    job.until_workers(2, 240.0)
    times("power cut of the driver's node to full strength", time.monotonic() - begin)
    job.finish()
    job.right(tmp_path)


@pytest.mark.long
def test_a_node_is_silent_and_comes_back_and_another_is_drained(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    job = apart(ferry, start, "cut", events=3_000_000)
    where = job.nodes()
    victim, node = next((pod, node) for pod, node in where.items() if node != where["driver"])
    life = job.life_of(victim)
    epoch, begin = job.status()["epoch"], time.monotonic()
    lab.cut(number(node))
    job.until(lambda s: s["epoch"] > epoch + 1, "an epoch after the cut")
    times("silent cut of a node to the next epochs", time.monotonic() - begin)
    job.until_replaced(victim, life)
    job.until_workers(2, 240.0)
    lab.heal(number(node))
    ferry.kubectl.run("wait", "--for=condition=Ready", f"node/{node}", "--timeout=60s", timeout=90)
    node = next(n for k in range(2) if (n := job.node_of(f"worker-{k}")) != job.node_of("driver"))
    said, begin = said_by_driver(job), time.monotonic()
    ferry.kubectl.run(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s",
        f"--pod-selector=ferry.dev/job={job.name}", timeout=260,
    )  # fmt: skip
    times("drain of a node", time.monotonic() - begin)
    job.until_workers(2, 240.0)
    assert node not in {pod["spec"]["nodeName"] for pod in job.pods("worker")}
    news = said_by_driver(job).removeprefix(said)
    assert SWITCHED in news and PROMOTED not in news, f"it was emptied before its pod went\n{news}"
    job.finish()
    job.right(tmp_path)


@pytest.mark.long
def test_pods_on_the_network_of_their_node_find_their_state_in_its_directory(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    kept = f"/mnt/{ferry.kubectl.namespace}"
    own = {
        "network": "host",
        "nodeSelector": {"kubernetes.io/hostname": f"n{NODES}"},
        "stateVolume": {"medium": "hostPath", "path": kept},
        **{part: {"cpu": "50m"} for part in ("driver", "executor", "sidecar")},
    }
    names = ("mine", "yours")
    jobs = {name: start(name, events=600_000, state={"replicas": 0}, kubernetes=own) for name in names}
    for job in jobs.values():
        job.until_workers(2, 240.0)
        job.until_epoch(3)
    job = jobs["mine"]
    assert {pod["status"]["podIP"] == pod["status"]["hostIP"] for pod in job.pods()} == {True}
    life, begin = job.life_of("worker-1"), time.monotonic()
    ferry.kubectl.run("delete", "pod", f"{job.name}-worker-1", "--grace-period=0", "--force")
    job.until_replaced("worker-1", life)
    job.until_epoch(2)
    times("the only copy lost its pod, and the next one found its files: next epochs", time.monotonic() - begin)
    for job in jobs.values():
        job.finish()
        (tmp_path / job.name).mkdir()
        job.right(tmp_path / job.name)
    lab.on(NODES, "rm", "-r", kept)


LATER = [pytest.param(phase, marks=pytest.mark.long) for phase in ("starting", "running", "driver gone", "paused")]


@pytest.mark.turns
@pytest.mark.parametrize("phase", ["at once", "moving", *LATER])
def test_deleted_in_any_phase_nothing_is_left(
    ferry: Installation, start: Callable[..., Job], times: Times, phase: str
) -> None:
    job = start("gone-" + phase.replace(" ", "-"))
    if phase != "at once":
        wait_until(lambda: len(job.pods()) >= 3, "pods", 60.0)
    if phase not in ("at once", "starting"):
        job.until_workers(2, 240.0)
    if phase == "moving":
        ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=3")
        job.until(lambda s: s.get("moving") or s.get("workers", 0) > 2, "a move")
    elif phase == "driver gone":
        ferry.kubectl.run("delete", "pod", f"{job.name}-driver", "--grace-period=0", "--force")
    elif phase == "paused":
        ferry.kubectl.run("annotate", f"sj/{job.name}", "ferry.dev/paused=true")
    times(f"delete, {phase}", job.delete())
