"""What outlives all pods of a job, and all nodes: its checkpoints on a volume. The output is compared with the oracle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster
from tests.kube.conftest import NODES
from tests.kube.installation import DISORDER, MOUNT, PACE, Installation, installed_ferry
from tests.kube.kubectl import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

KEPT = {"location": f"{MOUNT}/checkpoints", "every": "2s", "keep": 3}


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


def test_all_pods_are_deleted_and_all_nodes_are_rebooted(
    ferry: Installation, cluster: Cluster, times: Times, tmp_path: Path
) -> None:
    state = {"checkpoint": KEPT, "replicas": 1}
    job = ferry.start(ferry.job("lasting", epoch=PACE, pipeline={"args": DISORDER}, state=state, workers=2))
    job.until_workers(2, 240.0)
    job.until(lambda s: (s.get("checkpoint") or {}).get("number", 0) >= 2, "two checkpoints")
    driver = job.life_of("driver")

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
