"""What outlives all pods of a job, and all nodes: its checkpoints, on a volume or in S3. The output is compared with the oracle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster
from tests.kube.conftest import NODES
from tests.kube.installation import CLAIM, DISORDER, MOUNT, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until
from tests.s3 import S3Server

pytestmark = [pytest.mark.kube, pytest.mark.turns, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

KEPT = {"location": f"{MOUNT}/checkpoints", "every": "2s", "keep": 3}


AWAY_SECONDS = 60.0
"""For which the server of S3 is not there."""

DELAYED, BEGAN_AGAIN = "CheckpointDelayed", "BeganAgain"

WORDS = 6
"""Of one delay, at most: an event each, of which `kubectl describe` has room for few."""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


def test_all_workers_and_all_pods_are_deleted_and_all_nodes_are_rebooted(
    ferry: Installation, cluster: Cluster, times: Times, tmp_path: Path
) -> None:
    state = {"checkpoint": KEPT, "replicas": 1}
    job = ferry.start(ferry.job("lasting", epoch=PACE, pipeline={"args": DISORDER}, state=state, workers=2))
    job.until_workers(2, 240.0)
    job.until(lambda s: (s.get("checkpoint") or {}).get("number", 0) >= 2, "two checkpoints")
    driver, restarts, generation = job.life_of("driver"), driver_restarts(job), job.status()["generation"]

    begin = time.monotonic()
    workers = f"ferry.dev/job={job.name},ferry.dev/role=worker"
    ferry.kubectl.run("delete", "pods", "-l", workers, "--grace-period=0", "--force")
    job.until(lambda s: s["generation"] > generation, "a driver that begins again with a checkpoint")
    job.until_workers(2)
    job.until_epoch(3)
    times("all copies of the state deleted, to the next epochs", time.monotonic() - begin)
    assert driver_restarts(job) == restarts and job.life_of("driver") == driver, "the same process, with its Spark"
    assert BEGAN_AGAIN in [one["reason"] for one in warnings(job)]

    begin = time.monotonic()
    ferry.kubectl.run("delete", "pods", "-l", f"ferry.dev/job={job.name}", "--grace-period=0", "--force")
    job.until_replaced("driver", driver)
    job.until_workers(2)
    job.until_epoch(3)
    times("all pods of a job deleted, to the next epochs", time.monotonic() - begin)

    begin = time.monotonic()
    ferry.kubectl.patch(f"streamjob/{job.name}", {"spec": {"suspend": True}})
    job.until(lambda s: s.get("phase") == "Suspended", "its suspension")
    wait_until(lambda: not job.pods(), "end of its pods", 120.0)
    times("suspended", time.monotonic() - begin)
    if cluster.lab is not None:
        for node in range(1, NODES + 1):
            cluster.lab.kill(node)
        for node in range(1, NODES + 1):
            cluster.lab.boot(node)
    begin = time.monotonic()
    ferry.kubectl.patch(f"streamjob/{job.name}", {"spec": {"suspend": False, "workers": 3}})
    job.until_workers(3, 600.0)
    times("resumed with three workers, all nodes rebooted", time.monotonic() - begin)
    job.finish()
    job.right(tmp_path)
    job.delete()
    assert ferry.fetch("checkpoints", tmp_path / "left").joinpath("lasting", "manifests").exists(), "they stay"


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Iterator[S3Server]:
    """An S3 beside the control plane, where pods reach it."""
    if cluster.lab is None:
        pytest.skip("the S3 of these tests is in the lab's network")
    address, there = cluster.lab.control_plane()
    one = S3Server(tmp_path / "s3", address, there)
    yield one
    one.kill()


@pytest.mark.long
def test_an_s3_is_away_and_then_all_pods_are(
    ferry: Installation, server: S3Server, times: Times, tmp_path: Path
) -> None:
    """Nothing of the job is on a volume but its output: when all pods are gone, only S3 has its state and its offsets."""
    keys = {name: server.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    ferry.kubectl.run(
        "create",
        "secret",
        "generic",
        "for-jobs-bucket",
        *(f"--from-literal={name}={value}" for name, value in keys.items()),
    )
    made = ferry.job("bucket", events=3_000_000, epoch=PACE, pipeline={"args": DISORDER}, workers=2)
    made["spec"]["state"] |= {"checkpoint": {**KEPT, "location": server.url}, "replicas": 1}
    made["spec"]["kubernetes"] |= {"envFrom": ["for-jobs-bucket"]}
    del made["spec"]["kubernetes"]["checkpoint"]
    job, said = ferry.start(made), list[str]()
    job.until_workers(2, 240.0)
    job.until(lambda s: number(s) >= 2, "two checkpoints")

    server.kill()
    begin, before = time.monotonic(), job.status()
    times("S3 is killed, until kubectl says so", job.until(lambda s: degraded(s) == ("True", DELAYED), DELAYED))
    message = next(one["message"] for one in job.status()["conditions"] if one["type"] == "Degraded")
    assert f":{server.port}" in message, f"it names the location: {message}"
    time.sleep(max(0.0, begin + AWAY_SECONDS - time.monotonic()))
    after = job.status()
    times(f"{after['epoch'] - before['epoch']} epochs without S3", time.monotonic() - begin)
    assert after["epoch"] >= before["epoch"] + AWAY_SECONDS / 3, "they wait for no checkpoint"
    assert number(after) <= number(before) + 1 and degraded(after) == ("True", DELAYED), after
    told = [one["message"] for one in warnings(job) if one["reason"] == DELAYED]
    assert 0 < len(told) <= WORDS, "one event a delay, not one a second: " + "\n".join(told)

    begin = time.monotonic()
    server.start()
    job.until(lambda s: number(s) > number(after), "another checkpoint")
    times("S3 is back, to the next checkpoint", time.monotonic() - begin)
    job.until(lambda s: degraded(s) == ("False", "AllWell") and s["phase"] == "Running", "end of the delay", 30.0)
    job.until(lambda s: number(s) > number(after) + 1, "and another one")
    said.append(logs(ferry))

    driver, begin = job.life_of("driver"), time.monotonic()
    ferry.kubectl.run("delete", "pods", "-l", f"ferry.dev/job={job.name}", "--grace-period=0", "--force")
    job.until_replaced("driver", driver)
    job.until_workers(2)
    job.until_epoch(3)
    times("all pods of a job deleted, to the next epochs from S3", time.monotonic() - begin)
    assert job.claims() == {CLAIM}
    job.finish()
    job.right(tmp_path)
    said += [logs(ferry), ferry.kubectl.run("get", "streamjobs,pods,events,configmaps", "-o", "yaml")]
    for name, value in keys.items():
        assert not any(value in text for text in said), f"{name} can be read with kubectl"
    job.delete()


def driver_restarts(job: Job) -> list[int]:
    """How often each container of the driver was started again."""
    return [one["restartCount"] for one in job.driver()["status"]["containerStatuses"]]


def number(status: Document) -> int:
    """Of the last complete checkpoint."""
    return int((status.get("checkpoint") or {}).get("number", 0))


def degraded(status: Document) -> tuple[str, str]:
    """The condition: whether, and why."""
    found = (one for one in status.get("conditions", ()) if one["type"] == "Degraded")
    return next(((one["status"], one["reason"]) for one in found), ("", ""))


def warnings(job: Job) -> list[Document]:
    """Events of the job itself."""
    return job.kubectl.items("events", f"--field-selector=involvedObject.name={job.name},type=Warning")


def logs(ferry: Installation) -> str:
    """Of all containers, also of those that have ended, of all pods."""
    told = []
    for pod in ferry.kubectl.items("pods"):
        name, status = pod["metadata"]["name"], pod["status"]
        for one in (*(status.get("initContainerStatuses") or ()), *status["containerStatuses"]):
            told.append(ferry.kubectl.run("logs", name, "-c", one["name"]))
            if one["restartCount"]:
                told.append(ferry.kubectl.run("logs", name, "-c", one["name"], "--previous"))
    return "\n".join(told)
