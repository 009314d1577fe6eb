"""Many jobs at rest: what they cost, how soon an edit is followed, how soon another operator goes on after the leader is lost.

FERRY_CROWD=NAMESPACES,JOBS sets the size of the crowd; one operator has the list of all its namespaces. CI has few jobs and counts the same work with generous bounds; the
long test has the sizes and the bounds of docs/operating/sizing.md, and wants the machine alone.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ferry_operator.kube.api import names
from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.lease import RENEW_SECONDS
from ferry_operator.kube.api.port import JOBS, NOT_FOUND, PODS, ApiError, tolerate
from ferry_operator.kube.manifests.release import Installation, run_key
from tests.kube.conftest import TEST_LABEL
from tests.kube.kubectl import Document, Kubectl, wait_until
from tests.kube.operators import KEY, Operator, Operators, bound, job, roles
from tests.patience import PATIENCE

pytestmark = [pytest.mark.kube, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[2]

FOREIGN_MEBIBYTES = 10.0
"""Memory that 10,000 foreign pods may cost."""

MANNERS = ("floods", "hangs", "lies")

Times = Callable[[str, float], None]


@dataclass(frozen=True)
class Size:
    """A crowd, and what it may cost."""

    namespaces: int
    jobs: int
    rest_seconds: float
    edits: int
    cores: float
    mebibytes: float
    writes: float
    """of statuses, a second"""
    edit_seconds: float
    """that 99 of 100 edits may take"""
    leader_seconds: float

    @staticmethod
    def of_environment(default: Size) -> Size:
        found = os.environ.get("FERRY_CROWD")
        if not found:
            return default
        namespaces, jobs = map(int, found.split(","))
        return Size(namespaces, jobs, *(getattr(default, name) for name in list(default.__dataclass_fields__)[2:]))


FEW = Size(4, 40, 20.0, 20, 0.6 * PATIENCE, 400.0, 10.0, 2.0 * PATIENCE, 15.0 * PATIENCE)
MANY = Size(50, 1000, 120.0, 100, 0.2, 400.0, 10.0, 2.0, 15.0)


@dataclass
class Crowd:
    """Jobs that run, and their stand-ins."""

    namespaces: list[str]
    names: list[tuple[str, str]]
    process: subprocess.Popen[str]
    log: list[str] = field(default_factory=list)
    api: KubeApi = field(default_factory=lambda: KubeApi("default", lambda *_: None))

    def turn_bad(self) -> None:
        """The drivers of the last jobs flood, hang and lie from now on."""
        self.process.send_signal(signal.SIGUSR1)

    @property
    def good(self) -> list[tuple[str, str]]:
        return self.names[: -len(MANNERS)]

    def at_rest(self) -> int:
        """Number of jobs that run as they should."""
        mine = [job for job in self.api.within("").find(JOBS) if job["metadata"]["namespace"] in self.namespaces]
        return sum(map(rests, mine))

    def edit(self, namespace: str, name: str, workers: int) -> float:
        """Seconds until the operator follows a change of the number of workers."""
        api, began = self.api.within(namespace), time.monotonic()
        api.patch(JOBS, name, {"spec": {"workers": workers}})
        while True:
            try:
                api.get(PODS, names.worker_pod(name, workers - 1))
                return time.monotonic() - began
            except ApiError as error:
                tolerate(error, NOT_FOUND)
            assert time.monotonic() < began + 120
            time.sleep(0.02)


def rests(job: dict[str, object]) -> bool:
    status: dict[str, object] = job.get("status") or {}  # type: ignore[assignment]
    truth = {c["type"]: c["status"] for c in status.get("conditions", ())}  # type: ignore[attr-defined]
    return (truth.get("Ready"), truth.get("Progressing"), truth.get("Handover")) == ("True", "False", "False")


@contextmanager
def spread(kubectl: Kubectl, count: int) -> Iterator[list[str]]:
    """Namespaces in which the operator of the test's own namespace has the rights that it has for jobs, and no others."""
    home, (key, _, value) = str(kubectl.namespace), TEST_LABEL.partition("=")
    teams = [f"{home}-{number}" for number in range(count)]
    account = {"kind": "ServiceAccount", "name": "operator", "namespace": home}
    rights = bound(roles()[0], account)
    documents: list[Document] = []
    for name in teams:
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {key: value}}})
        documents += [{**each, "metadata": {**each["metadata"], "namespace": name}} for each in rights]
    everywhere = kubectl.within(None)
    try:
        everywhere.create(*documents)
        yield teams
    finally:
        everywhere.run("delete", "namespace", *teams, "--wait=false", "--ignore-not-found")


@contextmanager
def crowd(operators: Operators, size: Size, namespaces: list[str], directory: Path) -> Iterator[Crowd]:
    keys = [(namespaces[number % len(namespaces)], f"j{number}") for number in range(size.jobs)]
    api = KubeApi("default", lambda *_: None)

    def create(key: tuple[str, str]) -> dict[str, str]:
        namespace, name = key
        document = job(name)
        document["spec"]["pipeline"] = {"module": "jobs.nbq5"}
        made = api.within(namespace).create(JOBS, document)
        secret = run_key(Installation(namespace, "", "", KEY), made["metadata"]["uid"])
        return {"namespace": namespace, "name": name, "secret": secret}

    with ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(create, keys))
    for entry, manner in zip(jobs[-len(MANNERS) :], MANNERS, strict=True):
        entry["manner"] = manner
    plan = directory / "plan.json"
    plan.write_text(json.dumps({"kubectl": operators.kubectl.program, "jobs": jobs}))
    environment = {**operators.kubectl.environment(), "PYTHONPATH": os.pathsep.join(sys.path + [str(ROOT)])}
    command = [sys.executable, "-m", "tests.kube.crowd", str(plan)]
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    made = Crowd(namespaces, keys, process)
    threading.Thread(target=lambda: made.log.extend(process.stdout or ()), daemon=True).start()
    try:
        yield made
    finally:
        process.kill()
        process.wait()


def cpu_seconds(operator: Operator) -> float:
    fields = Path(f"/proc/{operator.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(operator: Operator, now: bool = False) -> float:
    """Mebibytes at the peak, or `now`."""
    text = Path(f"/proc/{operator.process.pid}/status").read_text()
    return int(re.findall(rf"{'VmRSS' if now else 'VmHWM'}:\s+(\d+) kB", text)[0]) / 1024


def calls(operator: Operator) -> dict[tuple[str, str], float]:
    """Calls of the API server by verb and resource."""
    found: dict[tuple[str, str], float] = {}
    for labels, value in re.findall(
        r"^ferry_operator_api_requests_total\{(.*)\} (\S+)$", operator.get("/metrics"), re.MULTILINE
    ):
        label = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        key = label["verb"], label["resource"]
        found[key] = found.get(key, 0.0) + float(value)
    return found


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@pytest.mark.parametrize(
    "default", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.long)]
)
def test_a_crowd_costs_little_and_nobody_waits_for_it(
    operators: Operators, kubectl: Kubectl, default: Size, times: Times, tmp_path: Path
) -> None:
    size = Size.of_environment(default)
    with spread(kubectl, size.namespaces) as namespaces, crowd(operators, size, namespaces, tmp_path) as jobs:
        operators.arguments = ("--namespaces", ",".join(namespaces))
        operators.start()
        leader = operators.leader()
        operators.start()
        took = wait_until(lambda: jobs.at_rest() == size.jobs, "all jobs at rest", 60 + size.jobs, every=2.0)
        times(f"{size.jobs} jobs: all run", took)
        jobs.turn_bad()
        time.sleep(5 + size.rest_seconds / 4)

        before, began, used = calls(leader), time.monotonic(), cpu_seconds(leader)
        time.sleep(size.rest_seconds)
        seconds = time.monotonic() - began
        cores = (cpu_seconds(leader) - used) / seconds
        now = calls(leader)
        rates = {key: (now[key] - before.get(key, 0.0)) / seconds for key in now}
        writes, every = rates.get(("patch", "streamjobs"), 0.0), sum(rates.values())
        memory = resident(leader)
        print(
            f"{size.jobs} jobs at rest: {cores:.3f} cores, {memory:.0f} MiB, {writes:.2f} writes of statuses a second"
        )
        print(f"{size.jobs} jobs at rest: {every:.2f} calls of the API server a second")

        edited = random.Random(1).sample(jobs.good, size.edits)
        edits = [jobs.edit(*key, workers=3) for key in edited]
        times(f"{size.jobs} jobs: an edit is followed, half of them", percentile(edits, 0.5))
        times(f"{size.jobs} jobs: an edit is followed, 99 of 100", percentile(edits, 0.99))

        leader.process.send_signal(signal.SIGKILL)
        other = next(key for key in jobs.good if key not in edited)
        lost = jobs.edit(*other, workers=3)
        times(f"{size.jobs} jobs: the leader is lost, an edit is followed", lost)
        time.sleep(size.rest_seconds / 2)
        after = resident(operators.leader())
        print(f"{size.jobs} jobs: {after:.0f} MiB of the next leader")

        assert cores < size.cores and max(memory, after) < size.mebibytes
        assert writes < size.writes and every < size.writes + 5.0, rates
        assert percentile(edits, 0.99) < size.edit_seconds and lost < size.leader_seconds
        assert not [line for line in jobs.log if "Traceback" in line]


@pytest.mark.long
def test_foreign_pods_cost_the_operator_nothing(operators: Operators, kubectl: Kubectl) -> None:
    """The API server filters: no list and no watch has a pod of others."""
    count = 10_000
    api = KubeApi(str(kubectl.namespace), lambda *_: None)
    with operators.job():
        leader = operators.leader()
        before = resident(leader, now=True)
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda number: api.create(PODS, foreign(number)), range(count)))
        assert len(made) == count
        time.sleep(2 * RENEW_SECONDS)
        grown = resident(leader, now=True) - before
        operators.start()
        leader.process.kill()
        after = resident(operators.leader()) - before
        print(f"{count} foreign pods: {grown:.1f} MiB more; the next leader has {after:.1f} MiB more at the peak")
        assert max(grown, after) < FOREIGN_MEBIBYTES


def foreign(number: int) -> Document:
    """A pod of another team, which no node takes."""
    container = {"name": "c", "image": "x", "env": [{"name": "TEXT", "value": "x" * 4_000}]}
    metadata = {"name": f"foreign-{number}", "labels": {"app.kubernetes.io/managed-by": "others"}}
    spec = {"containers": [container], "nodeSelector": {"is": "nowhere"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
