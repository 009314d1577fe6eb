"""The program of a job on real nodes changes while it runs: each record by one program, and no pod is restarted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import deploys
from tests.kube.clusters import Cluster, Lab
from tests.kube.installation import MOUNT, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until
from tests.kube.test_jobs import by_command

pytestmark = [pytest.mark.kube, pytest.mark.turns, pytest.mark.timeout(1500)]

Times = Callable[[str, float], None]

PIPELINE = """
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

import ferry
from ferry_workloads.jobs import smq

STEP = {step}


@dataclass
class Seen(ferry.Process):
    tables = {{"count": ferry.StateTable(pa.schema([("n", pa.int64())]))}}
    output = pa.schema([("seq", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])

    def process(self, work):
        before = work.get("count").column("n").fill_null(0).to_numpy(zero_copy_only=False)
        key, rows = work.key_of(), work.rows()
        seq, step = rows.column("seq").to_numpy(), STEP * rows.column("factor").to_numpy()
        first = work.spans()[:-1]
        n = before[key] + step * (np.arange(len(key)) - first[key] + 1)
        work.put("count", range(work.count), {{"n": before + (step[0] if len(step) else 0) * np.diff(work.spans())}})
        work.emit(key, {{"seq": seq, "k": work.keys.column("k").take(pa.array(key)), "n": n}})


def passing(factor):
    def of(numbers):
        seq = numbers.column("seq").to_numpy()
        more = numbers.append_column("k", pa.array(seq % 8)).append_column("factor", pa.array(0 * seq + factor))
        return more.filter(pa.array(seq % (STEP * factor) == 0))

    return of


def sources(spark, args):
    return smq.sources(spark, {{name: args[name] for name in ("pace", "events")}})


def pipeline(streams, args):
    numbers = streams["smq"].map_batches(passing(args["factor"])).event_time("ts").key_by("k")
    seen = numbers.process("seen", Seen()).sink(ferry.parquet("seen"))
    {more}
"""
"""A text with its own step for tasks and instances, and a factor that an argument gives; see `tests.cluster.deploys`. Of two
programs in a row one step divides the other: the check knows then how many numbers both may leave out."""

KEY = "numbers.py"

AWAY_SECONDS = 15.0
"""Of the API server."""

PATIENT: Document = {
    "failure": {"heartbeat": "2s", "timeout": "30s"},
    "spark": {"spark.worker.timeout": "60", "spark.storage.blockManagerHeartbeatTimeoutMs": "60000"},
}
"""The nodes share one machine: a process that is slow for a while is not lost. A killed one closes its connections."""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


def text(ferry: Installation, name: str, step: int, more: str = "return seen") -> None:
    """Write the program into a ConfigMap."""
    data = {KEY: PIPELINE.format(step=step, more=more)}
    ferry.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})


def pipeline(name: str, factor: int) -> Document:
    """Of a spec."""
    return {"module": None, "configMap": {"name": name, "key": KEY}, "args": {"pace": 1500, "factor": factor}}


def uids(job: Job) -> dict[str, str]:
    """Of all pods."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in job.pods()}


def restarts(job: Job) -> int:
    """Of all containers of all pods."""
    kinds = ("initContainerStatuses", "containerStatuses")
    return sum(one["restartCount"] for pod in job.pods() for kind in kinds for one in pod["status"].get(kind) or ())


def reasons(job: Job) -> list[str]:
    """Of the events of the job."""
    return [event["reason"] for event in job.kubectl.items("events") if event["involvedObject"]["name"] == job.name]


def ended(ferry: Installation, job: Job, tmp_path: Path) -> Path:
    """End the job; its output up to the last epoch that was reported: a later one is perhaps not complete."""
    last = job.status()["epoch"]
    job.delete()
    output = ferry.fetch(f"{job.name}/out", tmp_path / "out")
    for folder in output.glob("*/epoch=*"):
        if int(folder.name.removeprefix("epoch=")) > last:
            folder.rename(tmp_path / f"{folder.parent.name}-{folder.name}")
    return output


def test_programs_change_under_load_and_no_pod_is_restarted(ferry: Installation, times: Times, tmp_path: Path) -> None:
    text(ferry, "numbers", 1)
    spec = {"pipeline": pipeline("numbers", 1), "epoch": PACE, "state": {"virtualNodes": 8}, **PATIENT}
    job = ferry.start(ferry.job("numbers", events=100_000_000, **spec))
    job.until_workers(2, 300.0)
    job.until(lambda s: s.get("program", {}).get("phase") == "InForce", "a program")
    job.until_epoch(3)
    first, steps = uids(job), {0: 1}

    def deployed(number: int, step: int, what: str) -> None:
        seconds = job.until(
            lambda s: s["program"]["number"] >= number and s["program"]["phase"] == "InForce", f"program {number}"
        )
        times(f"{what}: in force", seconds)
        # Once the windows of a removed operator have fired, the job goes on with one more program.
        programs = json.loads(by_command(ferry, "versions", job.name, "--json"))["programs"]
        steps[next(program["since"] for program in programs if program["number"] == number)] = step

    kubectl = ferry.kubectl
    kubectl.patch(f"sj/{job.name}", {"spec": {"pipeline": {"args": {"factor": 2}}}})
    deployed(2, 2, "kubectl patch of an argument")
    text(ferry, "numbers", 2)
    deployed(3, 4, "edit of the ConfigMap")
    assert uids(job) == first and restarts(job) == 0
    job.until_epoch(3)

    # A worker is killed, and the next program comes while its pod is replaced: the new pod gets all texts.
    life = job.life_of("worker-1")
    kubectl.run("delete", "pod", f"{job.name}-worker-1", "--grace-period=0", "--force")
    text(ferry, "windows", 2, deploys.WINDOWS)
    kubectl.patch(f"sj/{job.name}", {"spec": {"pipeline": pipeline("windows", 1)}})
    deployed(4, 2, "kubectl patch of the ConfigMap's name and of an argument, with a worker killed")
    job.until_replaced("worker-1", life)
    job.until_workers(2, 240.0)
    second = uids(job)
    assert {name for name in first if first[name] != second[name]} == {f"{job.name}-worker-1"}

    # A refusal is an answer: the driver that is killed meanwhile comes back with the journal's program.
    kubectl.patch("cm/windows", {"data": {KEY: "def pipeline(:\n"}})
    job.until(lambda s: s["program"]["phase"] == "Refused", "a refusal")
    assert "SyntaxError" in job.status()["program"]["message"] and "ProgramRefused" in reasons(job)
    epoch = job.status()["epoch"]
    job.until(lambda s: s["epoch"] > epoch + 5, "epochs of the program in force")
    assert uids(job) == second and job.status()["program"]["number"] == 4
    kubectl.run("delete", "pod", f"{job.name}-driver", "--grace-period=0", "--force")
    job.until(lambda s: s.get("generation", 0) >= 2 and s["epoch"] > epoch + 10, "epochs of the next driver", 300.0)
    third = uids(job)
    assert {name for name in second if second[name] != third[name]} == {f"{job.name}-driver"}
    assert job.status()["program"]["phase"] == "Refused" and job.status()["program"]["number"] == 4

    # The next edit tries again; the last one is the first program.
    text(ferry, "windows", 8, deploys.WINDOWS)
    deployed(6, 8, "edit of a refused ConfigMap")
    text(ferry, "numbers", 1)
    kubectl.patch(f"sj/{job.name}", {"spec": {"pipeline": pipeline("numbers", 1)}})
    deployed(7, 1, "kubectl patch back to the first program")
    job.until_epoch(5)
    assert uids(job) == third and restarts(job) == 0 and job.status()["program"]["again"] == 1, job.story()
    assert {"ProgramDeployed", "ProgramRolledBack"} <= set(reasons(job))
    output = ended(ferry, job, tmp_path)
    assert len(steps) == 6 and deploys.wrong(output, steps) == []
    assert deploys.read(output / "windows")


def test_a_deploy_outlasts_the_api_server_and_is_taken_back_with_its_state(
    ferry: Installation, lab: Lab, times: Times, tmp_path: Path
) -> None:
    """The journal is in the API server: epochs go on without it, and a switch waits. A rewind restarts no pod."""
    ferry.expected.append("no longer leads")
    text(ferry, "away", 1)
    state = {"virtualNodes": 8, "checkpoint": {"location": f"{MOUNT}/checkpoints", "every": "2s", "keep": 100}}
    spec = {"pipeline": pipeline("away", 1), "epoch": PACE, "state": state, **PATIENT}
    job = ferry.start(ferry.job("away", events=100_000_000, **spec))
    job.until_workers(2, 300.0)
    job.until_epoch(3)
    life, steps = uids(job), {0: 1}
    for number, factor, phase in ((2, 2, 0.3), (3, 4, 3.0)):
        ferry.kubectl.patch(f"sj/{job.name}", {"spec": {"pipeline": {"args": {"factor": factor}}}})
        time.sleep(phase)
        lab.freeze_api()
        try:
            time.sleep(AWAY_SECONDS)
        finally:
            lab.thaw_api()
        seconds = job.until(
            lambda s, number=number: s["program"]["number"] == number and s["program"]["phase"] == "InForce",
            "a program",
        )
        times(f"API server away {phase:g} s after the patch, for {AWAY_SECONDS:g} s: then in force", seconds)
        steps[job.status()["program"]["since"]] = factor
        job.until_epoch(5)
    epoch, last = job.status()["epoch"], max(steps)
    job.until(lambda s: s["epoch"] > epoch + 10, "more epochs")
    told = by_command(ferry, "rollback", job.name, "--rewind", "--wait", 200)
    assert f"program 2 is in force from epoch {min(since for since in steps if since)} on" in told, told
    del steps[last]
    job.until(lambda s: s["program"]["number"] == 2 and s["epoch"] > last + 10, "epochs of the program before", 200.0)
    assert uids(job) == life, job.story()
    assert job.status()["program"]["phase"] == "InForce"
    output = ended(ferry, job, tmp_path)
    assert deploys.wrong(output, steps) == []


def test_a_configmap_that_is_missing_is_a_condition_and_commands_deploy_over_it(
    ferry: Installation, tmp_path: Path
) -> None:
    spec = {"pipeline": pipeline("later", 1), "state": {"virtualNodes": 8}, **PATIENT}
    job = ferry.start(ferry.job("later", events=100_000_000, **spec))
    job.until(
        lambda s: any("does not exist: create it" in c["message"] for c in s.get("conditions", ())), "a condition"
    )
    assert not job.pods("driver")
    text(ferry, "later", 1)
    job.until(lambda s: s.get("epoch", -1) >= 1, "epochs", 300.0)
    life = uids(job)
    ferry.kubectl.run("delete", "configmap", "later")
    wait_until(lambda: "ProgramMissing" in reasons(job), "an event", 60.0)
    file = tmp_path / KEY
    file.write_text(PIPELINE.format(step=2, more="return seen"))
    assert "keeps its state" in by_command(ferry, "deploy", job.name, file, "--check")
    assert "program 2 is in force from epoch" in by_command(ferry, "deploy", job.name, file, "--wait", 50)
    assert "program 3 is in force from epoch" in by_command(ferry, "rollback", job.name, "--wait", 50)
    job.until(lambda s: s["program"]["phase"] == "InForce" and s["program"]["again"] == 1, "the first program")
    # The same with another text is a shadow that goes on; a kept program comes back as if nothing had been deployed.
    file.write_text(PIPELINE.format(step=1, more="return seen") + "# once more\n")
    told = by_command(ferry, "deploy", job.name, file, "--shadow", 60, "--wait", 50)
    assert "program 4 runs as a shadow from epoch" in told and "no row differs: program 5 goes on" in told
    job.until(lambda s: s["program"]["number"] == 5 and "of 60 epochs differ" in s["program"]["message"], "a verdict")
    file.write_text(PIPELINE.format(step=2, more="return seen"))
    assert "program 6 is in force" in by_command(ferry, "deploy", job.name, file, "--keep", "10m", "--wait", 50)
    job.until(lambda s: "program 5 is kept" in s["program"]["message"], "a kept program")
    assert "program 7 is in force from epoch" in by_command(ferry, "rollback", job.name, "--wait", 50)
    job.until(lambda s: s["program"]["number"] == 7 and s["program"]["phase"] == "InForce", "the kept program")
    assert {"ShadowBegun", "ProgramRolledBack"} <= set(reasons(job))
    # A shadow that differs is the answer to its spec.
    kubectl = ferry.kubectl
    kubectl.patch(f"sj/{job.name}", {"spec": {"pipeline": {"args": {"factor": 2}}, "deploy": {"shadow": 3}}})
    job.until(lambda s: s["program"]["phase"] == "Refused", "a refusal")
    refused = job.status()["program"]
    assert "as a shadow, of " in refused["message"] and refused["number"] == 9, refused
    epoch = job.status()["epoch"]
    job.until(lambda s: s["epoch"] > epoch + 5, "more epochs")
    states = [line.split()[0] for line in by_command(ferry, "versions", job.name).splitlines()[1:10]]
    assert states == ["9", "8", "7", "6", "5", "4", "3", "2", "1"] and uids(job) == life
    job.delete()
