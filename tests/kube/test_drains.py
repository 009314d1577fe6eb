"""Nodes are drained under load, one after the other and all at once: nothing is lost, and nothing is counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster
from tests.kube.installation import DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import wait_until
from tests.kube.test_jobs import PROMOTED, said_by_driver

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900), pytest.mark.long]

Times = Callable[[str, float], None]

SMALL = {part: {"cpu": "50m"} for part in ("driver", "executor", "sidecar")}
"""All pods, and those that take their places, fit on one node."""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart with the webhook for evictions."""
    with installed_ferry(cluster.kubectl, "evictionWebhook.enabled=true") as made:
        yield made


@pytest.fixture
def job(ferry: Installation, request: pytest.FixtureRequest) -> Iterator[Job]:
    """A job of two workers under load, with a checkpoint of its own; afterwards all nodes are open."""
    name = request.node.name.removeprefix("test_").replace("_", "-")
    job = ferry.start(
        ferry.job(name, events=5_000_000, workers=2, epoch=PACE, pipeline={"args": DISORDER}, kubernetes=SMALL)
    )
    job.until_workers(2, 300.0)
    job.until_epoch(3)
    yield job
    for node in nodes(ferry):
        ferry.kubectl.run("uncordon", node)
    if ferry.kubectl.find("streamjob", job.name):
        job.delete()
    ferry.assert_clean()


def nodes(ferry: Installation) -> list[str]:
    return sorted(node["metadata"]["name"] for node in ferry.kubectl.items("nodes"))


def drain(job: Job, node: str, seconds: int) -> list[str]:
    """The words of a user who empties a node, of pods of this job alone."""
    chosen = f"--pod-selector=ferry.dev/job={job.name}"
    return ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={seconds}s", chosen]


def test_every_node_in_turn(ferry: Installation, job: Job, times: Times, tmp_path: Path) -> None:
    for node in nodes(ferry):
        here, begin, epoch = (
            [pod for pod, n in job.nodes().items() if n == node],
            time.monotonic(),
            job.status()["epoch"],
        )
        ferry.kubectl.run(*drain(job, node, 240), timeout=260)
        times(f"drain of {node} with {', '.join(here) or 'nothing'}", time.monotonic() - begin)
        assert node not in job.nodes().values()
        job.until_workers(2, 240.0)
        job.until(lambda s, epoch=epoch: s["epoch"] > epoch + 2, "epochs after a drain")
        assert PROMOTED not in said_by_driver(job), "every worker was emptied before its pod went"
        ferry.kubectl.run("uncordon", node)
    assert not [event for event in ferry.kubectl.items("events") if event["reason"] == "PodLost"]
    job.finish()
    job.right(tmp_path)


def test_all_nodes_at_once(ferry: Installation, job: Job, times: Times, tmp_path: Path) -> None:
    drains = {node: ferry.kubectl.start(*drain(job, node, 300)) for node in nodes(ferry)}
    try:
        held = lambda s: any(c["type"] == "Degraded" and c["reason"] == "Held" for c in s.get("conditions", []))  # noqa: E731
        job.until(held, "word that no node takes pods", 60.0)
        wait_until(lambda: len(job.pods("worker")) == 2 and len(job.pods("driver")) == 1, "the three pods", 60.0)
        uids = {pod["metadata"]["uid"] for pod in job.pods("worker")}
        job.until_epoch(20)
        assert {pod["metadata"]["uid"] for pod in job.pods("worker")} == uids, "nothing was emptied into nowhere"
        assert all(process.poll() is None for process in drains.values()), "they ask again and again"
        opened, *others = sorted(drains, key=lambda node: node in job.nodes().values())
        drains[opened].kill()
        begin = time.monotonic()
        ferry.kubectl.run("uncordon", opened)
        for node in others:
            assert drains[node].wait(240) == 0
        times("drains of the other nodes, once a node was open again", time.monotonic() - begin)
    finally:
        for process in drains.values():
            process.kill()
            process.communicate()
    job.until_workers(2, 240.0)
    assert set(job.nodes().values()) == {opened}
    assert not [event for event in ferry.kubectl.items("events") if event["reason"] == "PodLost"]
    job.finish()
    job.right(tmp_path)
