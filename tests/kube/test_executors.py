"""Executors under `k8s://` on real nodes: killed, left by their driver, scaled. Outputs are compared with the oracle."""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.clusters import Cluster
from tests.kube.installation import DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import wait_until
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

KILL = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    if words[0].endswith(b"java") and any(b"KubernetesExecutorBackend" in word for word in words):
        os.kill(int(pid), signal.SIGKILL)
        print(words[words.index(b"--executor-id") + 1].decode())
"""
"""Python in the container of an executor: prints whom it has killed."""

TIMELINE = "/var/lib/ferry/timeline.jsonl"


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


def labels(job: Job, pod: str) -> dict[str, str]:
    return dict(job.kubectl.get("pod", f"{job.name}-{pod}")["metadata"]["labels"])


def executor(job: Job, worker: int) -> str:
    """The executor that a worker's pod is labelled with; empty: none."""
    return labels(job, f"worker-{worker}").get("spark-exec-id", "")


def until_labelled(job: Job, workers: int, generation: int) -> dict[int, str]:
    """The executors of all workers, once all are of this generation."""

    def done() -> bool:
        return all(executor(job, k).startswith(f"{generation}0") for k in range(workers))

    wait_until(done, f"executors of generation {generation}", 180.0, 0.5)
    return {k: executor(job, k) for k in range(workers)}


def containers(job: Job) -> dict[str, Any]:
    """What must stay while executors come and go: pods, and how often their containers were started again."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            [
                one["restartCount"]
                for one in (*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"])
            ],
        )
        for pod in job.pods("worker")
    }


def epochs(job: Job) -> list[float]:
    """When each epoch of the present driver ended."""
    text = job.kubectl.run("exec", f"{job.name}-driver", "--", "cat", TIMELINE)
    records = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [float(record["t"]) for record in records if record["kind"] == "epoch"]


def test_an_executor_and_a_driver_are_killed_and_workers_come_and_go(
    ferry: Installation, times: Times, tmp_path: Path
) -> None:
    job = ferry.start(ferry.job("attached", epoch=PACE, pipeline={"args": DISORDER}, events=3_000_000))
    try:
        job.until_workers(2, 240.0)
        job.until_epoch(3)
        before = until_labelled(job, 2, 1)
        application = labels(job, "driver")["spark-app-selector"]
        assert [labels(job, pod)["spark-role"] for pod in ("driver", "worker-0")] == ["driver", "executor"]
        assert {labels(job, f"worker-{k}")["spark-app-selector"] for k in (0, 1)} == {application}
        assert before.keys() == {0, 1} and before[1][1:4] == "001", "worker 1, of the first driver"

        kept = containers(job)
        killed = time.time()
        who = job.kubectl.run("exec", f"{job.name}-worker-1", "-c", "executor", "--", "python3", "-c", KILL).strip()
        assert who == before[1]
        said = f"executor {who} of worker 1 has closed its connection"
        wait_until(lambda: said in job.kubectl.run("logs", f"{job.name}-driver"), "the loss", 20.0, 0.1)
        times("an executor killed: told by the driver, and read from its log", time.time() - killed)
        job.until_epoch(4)
        ends = epochs(job)
        gaps = [b - a for a, b in itertools.pairwise(ends)]
        usual = statistics.median(gaps)
        around = max(b - a for a, b in itertools.pairwise(ends) if killed - 1 <= b and a <= killed + 5)
        times("an executor killed: the longest epoch, beyond the usual one", around - usual)
        assert around - usual <= PATIENCE, (around, usual)
        wait_until(lambda: executor(job, 1) not in ("", who), "another executor", 120.0, 0.5)
        assert containers(job) == kept, "no container was started again"

        begin = time.monotonic()
        job.kubectl.run("delete", "pod", f"{job.name}-driver", "--grace-period=0", "--force")
        job.until(lambda s: s.get("generation", 0) >= 2, "a new driver", 300.0)
        job.until_epoch(2)
        times("a driver killed to the next epochs", time.monotonic() - begin)
        after = until_labelled(job, 2, 2)
        assert not set(after.values()) & set(before.values())
        assert labels(job, "driver")["spark-app-selector"] != application
        assert containers(job) == kept, "executors of the new driver run in the old pods"

        driver = job.driver()["metadata"]["uid"]
        for size in (4, 2):
            begin = time.monotonic()
            job.kubectl.run("scale", f"sj/{job.name}", f"--replicas={size}")
            job.until_workers(size)
            times(f"scaled to {size} workers", time.monotonic() - begin)
            if size == 4:
                until_labelled(job, 4, 2)
        assert job.driver()["metadata"]["uid"] == driver
        assert "kubernetes.default.svc" not in job.kubectl.run("logs", f"{job.name}-driver"), (
            "Spark asked no API server"
        )
        job.finish()
        job.right(tmp_path)
    finally:
        job.delete()
    ferry.assert_clean()
