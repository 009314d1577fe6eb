"""An installation of the first release is upgraded on nodes while its job is under load, by the lines of the operations guide."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import OPERATIONS, blocks
from tests.kube.clusters import Cluster, Lab
from tests.kube.conftest import own_namespace
from tests.kube.installation import CLAIM, CLAIMED, DISORDER, ROOT, Installation, Job
from tests.kube.kubectl import wait_until
from tests.kube.test_executors import epochs
from tests.kube.test_upgrade import NAME, fields, unpacked
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500), pytest.mark.long]

Times = Callable[[str, float], None]
Lives = dict[str, tuple[str, tuple[int, ...]]]

IMAGES = "localhost/ferry"
OLD, NEW = "0.1.0", "dev"
"""Tags of the images."""

PACE = {"interval": "500ms", "maxRows": 4_000}
SPRINT = {"epoch": {"interval": "500ms", "maxRows": 100_000}}
"""Once there is nothing more to see."""

GAP_SECONDS = 5.0
"""The longest time between the ends of two epochs, while nothing but the operators changes."""

REST_SECONDS = 30.0
"""A calm operator has looked at everything more than once."""


@pytest.fixture
def chart(cluster: Cluster, lab: Lab, tmp_path: Path) -> Path:
    """The chart of the release, whose images are on all nodes."""
    folder = unpacked(tmp_path, "charts", "crds")
    built = subprocess.run([ROOT / "tests" / "released" / "images"], check=True, stdout=subprocess.PIPE, text=True)
    here = lab.on(int(cluster.nodes[-1].removeprefix("n")), "ctr", "-n", "k8s.io", "images", "ls", "-q").split()
    if not {f"{IMAGES}/{name}:{OLD}" for name in ("operator", "runtime")} <= set(here):
        lab.run("image-load", *built.stdout.split(), timeout=600.0)
    return folder / "charts" / "ferry"


@pytest.fixture
def ferry(cluster: Cluster, chart: Path) -> Iterator[Installation]:
    """The release, with its own definitions."""
    cluster_wide = cluster.kubectl
    wait_until(lambda: not cluster_wide.find("crd", NAME), "end of the definitions of other tests", 60.0)
    try:
        with contextmanager(own_namespace)(cluster_wide) as mine:
            mine.apply(CLAIMED)
            wait_until(lambda: mine.get("pvc", CLAIM)["status"].get("phase") == "Bound", "volume", 60.0)
            made = Installation(mine)
            images = (f"images.{name}={IMAGES}/{name}:{OLD}" for name in ("operator", "runtime"))
            sets = [word for value in ("nodes.read=true", *images) for word in ("--set", value)]
            made.helm("install", "ferry", str(chart), "--wait", "--timeout=180s", *sets)
            yield made
            made.helm("uninstall", "ferry", "--wait", "--timeout=60s")
    finally:
        names = NAME, "streamjobjournals.ferry.dev"
        cluster_wide.run("delete", "crd", *names, "--wait=false", "--ignore-not-found")


def lines() -> list[str]:
    """The lines of the guide: keys that stay, the operator, the image of jobs."""
    block = next(block for block in blocks(OPERATIONS) if block.language == "sh")
    return [line for line in block.text.strip().splitlines() if not line.startswith("#")]


def by_the_guide(ferry: Installation, line: str) -> float:
    """Seconds that a line of the guide takes, as a user of the namespace types it."""
    programs = (str(Path(ferry.kubectl.program).parent), str(Path(sys.executable).parent), os.environ["PATH"])
    known = {**ferry.kubectl.environment(), "PATH": ":".join(programs), "IMAGES": IMAGES}
    here = line.replace(" -n streams ", f" -n {ferry.kubectl.namespace} ")
    assert here != line
    begin = time.monotonic()
    done = subprocess.run(["bash", "-ec", here], cwd=ROOT, env=known, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{here}: {done.stdout}{done.stderr}"
    return time.monotonic() - begin


def lives(job: Job) -> Lives:
    """Every pod, and how often its containers were started again."""

    def restarts(status: dict[str, list[dict[str, int]]]) -> tuple[int, ...]:
        parts = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
        return tuple(one["restartCount"] for one in parts)

    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], restarts(pod["status"])) for pod in job.pods()}


def tags(job: Job, role: str) -> set[str]:
    """Tags of the images of its pods that stay."""
    pods = (pod for pod in job.pods(role) if "deletionTimestamp" not in pod["metadata"])
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods}


def operators(ferry: Installation) -> set[str]:
    """Tags of the images of the operators."""
    pods = ferry.kubectl.items("pods", "-l", "app.kubernetes.io/component=operator")
    return {pod["spec"]["containers"][0]["image"].rpartition(":")[2] for pod in pods}


def longest(job: Job, since: float) -> float:
    """The longest time between the ends of two epochs, by the clock of the driver."""
    ends = epochs(job)
    assert ends[-1] > since + REST_SECONDS / 2, "epochs go on"
    return max(b - a for a, b in itertools.pairwise(ends) if b > since)


def lost(ferry: Installation) -> list[str]:
    """Messages of the events about lost pods."""
    return [event["message"] for event in ferry.kubectl.items("events") if event["reason"] == "PodLost"]


def stays(job: Job, before: Lives, tag: str) -> float:
    """Nothing but the operators has changed, which have this tag now; the longest time between two epochs meanwhile."""
    wait_until(lambda: operators(job.ferry) == {tag}, "end of the other operators", 60.0)
    epoch, begin = job.status()["epoch"], time.time()
    time.sleep(REST_SECONDS)
    job.until(lambda s: s["epoch"] > epoch + 2, "word of further epochs")
    assert lives(job) == before, "no pod was replaced, and no container started again"
    return longest(job, begin - REST_SECONDS)


def test_an_upgrade_under_load_restarts_nothing_and_images_roll_workers_first(
    ferry: Installation, chart: Path, times: Times, tmp_path: Path
) -> None:
    keep, operator, image = lines()
    job = ferry.start(ferry.job("kept", events=2_400_000, workers=2, epoch=PACE, pipeline={"args": DISORDER}))
    job.until_workers(2, 300.0)
    job.until_epoch(3)
    job.until(lambda s: "good" in s.get("memory", {}), "a spec that has worked")
    before = lives(job)
    assert len(before) == 3 and operators(ferry) == {OLD} and "deploy" not in fields(ferry.kubectl)

    by_the_guide(ferry, keep)
    times("upgrade: helm, with the hook, until the operators are ready", by_the_guide(ferry, operator))
    assert "deploy" in fields(ferry.kubectl), "the hook has applied the definitions"
    assert not ferry.kubectl.find("clusterrole", f"{ferry.kubectl.namespace}-ferry-definitions"), "its rights are gone"
    assert not ferry.kubectl.find("job", "ferry-definitions")
    job.until(lambda s: "defaults" in s.get("memory", {}), "the note of the image of the pods", 90.0)
    gaps = [stays(job, before, NEW)]
    assert job.status()["memory"]["defaults"]["image"].endswith(f":{OLD}")

    back = f"images.operator={IMAGES}/operator:{OLD}"
    ferry.helm("upgrade", "ferry", str(chart), "--wait", "--reset-then-reuse-values", "--set", back)
    gaps.append(stays(job, before, OLD))
    assert "deploy" in fields(ferry.kubectl), "the definitions stay"
    by_the_guide(ferry, operator)
    gaps.append(stays(job, before, NEW))
    for what, gap in zip(("operators upgraded", "the way back", "upgraded again"), gaps, strict=True):
        times(f"{what}, no pod restarted: the longest time between two epochs", gap)
    assert max(gaps) <= GAP_SECONDS * PATIENCE

    rolls = time.monotonic()
    by_the_guide(ferry, image)
    order: list[tuple[set[str], set[str]]] = []

    def rolled() -> bool:
        seen = tags(job, "driver"), tags(job, "worker")
        if not order or order[-1] != seen:
            order.append(seen)
        return seen == ({NEW}, {NEW}) and len(job.pods()) == 3

    wait_until(rolled, f"{job.name}: pods with the present image", 400.0, 0.5)
    job.until_workers(2)
    times("roll of two workers and the driver to the present image", time.monotonic() - rolls)
    assert ({OLD}, {NEW, OLD}) in order, "one worker after the other"
    assert all(workers == {NEW} for driver, workers in order if NEW in driver), f"the driver is last: {order}"
    job.until(lambda s: "roll" not in s["memory"], "end of the turn", 60.0)
    assert not {uid for uid, _ in before.values()} & {uid for uid, _ in lives(job).values()}
    assert not lost(ferry)

    job.until_epoch(3)
    ferry.kubectl.patch(f"sj/{job.name}", {"spec": SPRINT})
    job.finish()
    job.right(tmp_path)
    job.delete()
    ferry.assert_clean()
