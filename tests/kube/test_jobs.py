"""Jobs on real nodes: applied, scaled, moved, and what they survive. Every output is compared with the oracle."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kube.clusters import Cluster, Lab
from tests.kube.installation import DISORDER, PACE, ROOT, Installation, Job, installed_ferry
from tests.kube.kubectl import wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

BEGINS = re.compile(r"query (\S+) \(id (\S+)\) begins")
"""In the driver's log: Spark's id of this run of the query, and of the query."""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
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


def redis(ferry: Installation) -> str:
    """The node of the board."""
    pods = ferry.kubectl.items("pods", "-l", "app.kubernetes.io/component=redis")
    return str(pods[0]["spec"]["nodeName"])


def number(node: str) -> int:
    """Of a node of the lab."""
    return int(node.removeprefix("n"))


def apart(ferry: Installation, start: Callable[..., Job], name: str, **spec: object) -> Job:
    """A job of two workers on two nodes, and its driver on one of them; the board is on neither, so each may be lost."""
    node = redis(ferry)
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


def runs_of_the_query(job: Job) -> list[str]:
    """Spark's ids of all runs of the query that the driver's pod has begun; all are of the query of the checkpoint."""
    begun = BEGINS.findall(job.kubectl.run("logs", f"{job.name}-driver"))
    query = json.loads((job.ferry.files / job.name / "checkpoint" / "metadata").read_text())["id"]
    assert {one for _, one in begun} <= {query}, begun
    return [run for run, _ in begun]


def kubectl_commands(text: str) -> list[list[str]]:
    """Their words without `kubectl` and the README's namespace."""
    found = [shlex.split(line, comments=True)[1:] for line in text.splitlines() if line.startswith("kubectl ")]
    for words in found:
        at = words.index("-n")
        assert words.pop(at) and words.pop(at) == "streams", words
    return found


def test_the_commands_of_the_readme_run_as_they_stand(ferry: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, _, _, _, second, *_ = (ROOT / "README.md").read_text("utf-8").split("## On Kubernetes")[1].split("```")
    commands, plugin = kubectl_commands(first), kubectl_commands(second)
    assert [words[0] for words in commands] == ["apply", "wait", "scale", "get", "delete"], commands
    assert [words[1] for words in plugin] == ["plan", "scale", "watch"], plugin
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # kubectl finds its plugins there
    for words in [*commands[:-1], *plugin, commands[-1]]:
        own = [str(ROOT / word) if word.startswith("examples/") else word for word in words if word != "-w"]
        if own[0] == "streamjob":  # a plugin is looked for by the first words, and gets all of them
            own = ["streamjob", "--namespace", str(ferry.kubectl.namespace), *own[1:]]
            print(ferry.kubectl.within(None).run(*own, timeout=320))
        else:
            ferry.kubectl.run(*own, timeout=320)
    left = "pods,secrets,poddisruptionbudgets"
    wait_until(lambda: not ferry.kubectl.items(left, "-l", "ferry.dev/job=nbq5"), "end of the job", 60.0)


def test_a_job_is_applied_scaled_and_patched_while_it_runs(
    ferry: Installation, start: Callable[..., Job], times: Times, tmp_path: Path
) -> None:
    job = start("nbq5")
    ferry.kubectl.run("wait", "--for=condition=Ready", f"streamjob/{job.name}", "--timeout=180s", timeout=200)
    job.until(lambda s: s.get("epoch", -1) >= 0, "first epoch")
    times("apply to first epoch", time.monotonic() - job.applied)
    driver, query = job.driver(), runs_of_the_query(job)
    assert len(query) == 1
    ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=4")
    job.until(lambda s: s.get("moving") or s.get("workers", 0) > 2, "begin of the scale")
    ferry.kubectl.run("delete", "pod", leader(ferry), "--grace-period=0", "--force")
    times("2 to 4 workers, with the operator's leader killed", job.until_workers(4))
    begin = time.monotonic()
    ferry.kubectl.patch(f"streamjob/{job.name}", {"spec": {"workers": 2}})
    job.until_workers(2)
    times("4 to 2 workers", time.monotonic() - begin)
    wait_until(lambda: len(job.pods("worker")) == 2, "end of the pods that hold nothing", 60.0)
    after = job.driver()
    assert after["metadata"]["uid"] == driver["metadata"]["uid"]
    assert not after["status"]["containerStatuses"][0]["restartCount"]
    assert runs_of_the_query(job) == query, "Spark's query went on, and was never begun again"
    job.finish()
    job.right(tmp_path)
    times("delete of a finished job", job.delete())


def test_a_node_dies_and_the_driver_is_deleted(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    job = start("kill", workers=3)
    job.until_workers(3, 240.0)
    job.until_epoch(3)
    kept = {job.node_of("driver"), redis(ferry)}
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


def test_the_node_of_the_driver_dies(
    ferry: Installation, start: Callable[..., Job], lab: Lab, times: Times, tmp_path: Path
) -> None:
    job = apart(ferry, start, "pilot")
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
    begin = time.monotonic()
    ferry.kubectl.run(
        "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s",
        f"--pod-selector=ferry.dev/job={job.name}", timeout=260,
    )  # fmt: skip
    times("drain of a node", time.monotonic() - begin)
    job.until_workers(2, 240.0)
    assert node not in {pod["spec"]["nodeName"] for pod in job.pods("worker")}
    job.finish()
    job.right(tmp_path)


@pytest.mark.parametrize("phase", ["at once", "starting", "running", "moving", "driver gone", "paused"])
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
