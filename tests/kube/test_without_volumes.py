"""The quick start on nodes that fail: all that the job needs to go on is in its pods, and in the API server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import runner
from tests.kube.clusters import Cluster, Lab
from tests.kube.conftest import NODES
from tests.kube.installation import CLAIM, MOUNT, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until
from tests.kube.test_jobs import number, put_registry, redis

pytestmark = [pytest.mark.kube, pytest.mark.turns, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

EVENTS = 8_000_000
"""More than PACE gives out until the last step, in 400 s; the last step reads the rest at once."""

ASIDE = "import os, sys; os.path.isdir(sys.argv[2]) or os.rename(*sys.argv[1:])"


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


def test_the_quick_start_outlives_its_driver_and_a_node_without_any_volume(
    ferry: Installation, lab: Lab, times: Times, tmp_path: Path
) -> None:
    """The node that is powered off has the driver, one of the two workers, and the registry.

    Only the output is on a volume, for that is what a user reads, and what is compared with the oracle here. Nothing that
    the job needs is there: while there is no driver, all of it is put elsewhere, and the job goes on.
    """
    quick = ferry.job("quick", events=EVENTS, epoch=PACE)
    del quick["spec"]["kubernetes"]["checkpoint"]
    workers = ("worker-0", "worker-1")
    with cordoned(ferry, f"n{NODES}"):
        job = ferry.start(quick)
        job.until_workers(2, 240.0)
        job.until_epoch(3)
        lives, driver = [job.life_of(pod) for pod in workers], job.life_of("driver")
        epoch, begin = job.status()["epoch"], time.monotonic()
        ferry.kubectl.run("delete", "pod", f"{job.name}-driver", "--grace-period=0", "--force")
        job.until_replaced("driver", driver)
        until_goes_on(job, 2, epoch)
        times("driver's pod deleted, to the next epochs", time.monotonic() - begin)
        assert [job.life_of(pod) for pod in workers] == lives, "its state stayed where it was"

    where = job.nodes()
    lost = where["driver"]
    (kept,) = (pod for pod in workers if where[pod] != lost)
    put_registry(ferry, lost)
    job.until_epoch(2)
    life, epoch, begin = job.life_of(kept), job.status()["epoch"], time.monotonic()
    lab.kill(number(lost))
    put_aside(job, kept)
    until_goes_on(job, 3, epoch)
    times("power cut of the node of driver, worker and registry, to the next epochs", time.monotonic() - begin)
    job.until(lambda s: s.get("workers") == 2 and not s.get("moving"), "2 workers that own state", 240.0)
    times("the same, to full strength", time.monotonic() - begin)
    degraded = next(one for one in job.status()["conditions"] if one["type"] == "Degraded")
    assert degraded["reason"] == "OutputIsNew", "nobody is told that the output is not where it was"
    assert lost not in (*job.nodes().values(), redis(ferry)["spec"]["nodeName"])
    assert job.life_of(kept) == life, "the copies on the other node became leaders there"
    lab.boot(number(lost))

    lives = [job.life_of(pod) for pod in workers]
    edit: Document = {"spec": {"cores": 1}}
    changes: dict[str, Callable[[], object]] = {
        "restart": lambda: streamjob(job, "restart"),
        "edit of cores": lambda: ferry.kubectl.patch(f"streamjob/{job.name}", edit),
    }
    for what, change in changes.items():
        before, begin = job.status(), time.monotonic()
        change()
        until_goes_on(job, before["generation"] + 1, before["epoch"])
        times(f"{what}, to the next epochs", time.monotonic() - begin)
    job.until(lambda s: s["phase"] == "Running", "end of all problems, before that of its input", 60.0)
    assert [job.life_of(pod) for pod in workers] == lives, "its state stayed where it was"
    assert job.claims() == {CLAIM}
    ferry.kubectl.patch(f"streamjob/{job.name}", {"spec": {"epoch": {"interval": "0s", "maxRows": 1_000_000}}})
    job.finish()
    right(job, tmp_path)
    job.delete()


@contextmanager
def cordoned(ferry: Installation, node: str) -> Iterator[None]:
    """No pod is put on this node: driver and workers are on the two others."""
    ferry.kubectl.run("cordon", node)
    try:
        yield
    finally:
        ferry.kubectl.run("uncordon", node)


def until_goes_on(job: Job, generation: int, epoch: int) -> None:
    """Return when the driver of this generation, or a later one, has ended two epochs after this one."""
    job.until(
        lambda s: s.get("generation", 0) >= generation and s["epoch"] > epoch + 1,
        f"epochs after {epoch} of generation {generation}",
        300.0,
    )


def put_aside(job: Job, worker: str) -> None:
    """Leave nothing where the output is, while there is no driver."""
    folders = [f"{MOUNT}/{job.name}/{name}" for name in ("out", "before")]
    command = ("exec", f"{job.name}-{worker}", "-c", "executor", "--", "python3", "-c", ASIDE, *folders)
    generation = job.status()["generation"]
    wait_until(lambda: job.kubectl.run(*command) == "", "command in the pod of the other worker", 10.0)
    assert job.status()["generation"] == generation, "the next driver is there already"


def streamjob(job: Job, command: str) -> None:
    """`kubectl streamjob COMMAND JOB`."""
    kubectl = job.kubectl
    paths = (Path(kubectl.program).parent, Path(sys.executable).parent, os.environ["PATH"])
    subprocess.run(
        [kubectl.program, "streamjob", "--namespace", str(kubectl.namespace), command, job.name],
        env={**kubectl.environment(), "PATH": os.pathsep.join(map(str, paths))},
        check=True,
        timeout=60,
    )


def right(job: Job, work: Path) -> None:
    """Both parts of the output, together, are what the oracle says."""
    parts = [work / name for name in ("before", "out")]
    before, after = (job.ferry.fetch(f"{job.name}/{part.name}", part) / "nbq5" for part in parts)
    epochs = {one.name: one for one in before.glob("epoch=*")}
    again = [name for name in epochs if (after / name).exists()]
    assert epochs and len(again) <= 1, f"the epoch that was under way when the driver was lost: {again}"
    for name, folder in epochs.items():
        if name not in again:
            folder.rename(after / name)
    spec = job.document["spec"]
    missing, extra = runner.difference("nbq5", spec["events"], spec["pipeline"]["args"], after.parent, work)
    assert not missing and not extra, f"missing {missing[:5]}, unexpected {extra[:5]}\n{job.story()}"
