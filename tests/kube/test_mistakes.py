"""What people get wrong, on real nodes: within a minute a condition and an event name the cause; what ran before goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ferry_operator.job.quantities import Quantity
from tests.kube.clusters import Cluster
from tests.kube.installation import DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.turns, pytest.mark.timeout(900)]

Times = Callable[[str, float], None]

CAUSE_SECONDS = 60.0
"""Until the cause is named."""

GIVEN = "example.com/rdma"
"""A resource that nodes give out, and nothing is behind it."""

NOWHERE = "localhost/ferry/nowhere:1"

SHARE = 0.6
"""Of a node's memory, for a worker: a node takes one."""

WRONG: Document = {
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"}, "stringData": {"password": "not the one"},
}  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """Fields of a spec that cannot be followed, and what is to be said about them."""

    spec: Document
    reasons: tuple[str, ...]
    cause: str
    """part of the message"""


DEVICE = Mistake(
    {"transport": {"rdma": {"mode": "shared", "resource": "rdma/nowhere"}}}, ("Unschedulable",), "rdma/nowhere"
)
ROOM = Mistake({"kubernetes": {"driver": {"memory": "1000Gi"}}}, ("Unschedulable",), "Insufficient memory")
IMAGE = Mistake({"kubernetes": {"image": NOWHERE}}, ("ImagePull",), NOWHERE)
EMPTY = Mistake(
    {"kubernetes": {"image": "localhost/ferry/operator:dev"}}, ("CrashLoop", "DriverCrashes"), "No module named"
)
MODULE = Mistake({"pipeline": {"module": "jobs.nowhere"}}, ("DriverRefused",), "jobs.nowhere cannot be imported")
BEHIND = "no RDMA device can be used"
EXPECTS: Document = {"mode": "auto", "rdma": {"mode": "shared", "resource": GIVEN}}
INSISTS = Mistake({"transport": {**EXPECTS, "mode": "rdma"}}, ("TransportUnavailable",), BEHIND)
NEW = {"device": DEVICE, "transport": INSISTS, "room": ROOM, "image": IMAGE, "empty": EMPTY, "module": MODULE}
"""New jobs, each with one mistake."""

PASSWORD = Mistake({}, ("RedisRefuses",), "WRONGPASS")
REPLICAS = Mistake({"workers": 4}, ("Unschedulable",), "Insufficient memory")
REPLACED = Mistake(MODULE.spec, ("ProgramRefused",), MODULE.cause)


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart; its Redis may be reached from other namespaces."""
    values = ("networkPolicies.enabled=false", "operator.replicas=1", "jobs.allow.devices={rdma/*,example.com/*}")
    with installed_ferry(cluster.kubectl, *values) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(ferry: Installation) -> Iterator[None]:
    """After every test the operator's log is clean."""
    yield
    ferry.assert_clean()


@pytest.fixture(scope="module")
def given(ferry: Installation) -> Iterator[None]:
    """Every node gives out the resource."""
    nodes = [node["metadata"]["name"] for node in ferry.kubectl.items("nodes")]
    for count in ("8", None):
        for node in nodes:
            amounts = {kind: {GIVEN: count} for kind in ("capacity", "allocatable")}
            ferry.kubectl.patch(f"node/{node}", {"status": amounts}, subresource="status")
        if count is not None:
            yield


@pytest.fixture(scope="module")
def good(ferry: Installation, given: None) -> Iterator[Job]:
    """A job in which nothing is wrong, on its way up while the others are tried. A node takes one worker of it.

    It expects RDMA, and may do without.
    """
    least = min(Quantity(node["status"]["allocatable"]["memory"]).bytes for node in ferry.kubectl.items("nodes"))
    memory = {"memory": f"{int(least * SHARE) >> 20}Mi"}
    job = begin(ferry, "good", workers=2, events=20_000_000, kubernetes={"executor": memory}, transport=EXPECTS)
    yield job
    job.delete()


def begin(ferry: Installation, name: str, **spec: Any) -> Job:
    """A job, without its end."""
    arguments = {"args": DISORDER, **spec.pop("pipeline", {})}
    return ferry.start(ferry.job(name, **{"workers": 1, "epoch": PACE, "pipeline": arguments, **spec}))


@dataclass
class Word:
    """What was heard of a mistake so far: a condition that names the cause, and an event that does."""

    job: Job
    mistake: Mistake
    since: float
    heard: dict[str, None] = field(default_factory=dict)

    def came(self) -> bool:
        """Look again; whether both were there."""
        chosen = f"--field-selector=involvedObject.name={self.job.name},type=Warning"
        told = self.job.status().get("conditions", ())
        degraded = [one for one in told if (one["type"], one["status"]) == ("Degraded", "True")]
        for kind, said in (("condition", degraded), ("event", self.job.kubectl.items("events", chosen))):
            if any(one["reason"] in self.mistake.reasons and self.mistake.cause in one["message"] for one in said):
                self.heard[kind] = None
        return len(self.heard) == 2

    def seconds(self) -> float:
        """Since the mistake; AssertionError when they are too many."""
        passed = time.monotonic() - self.since
        assert passed < CAUSE_SECONDS, f"{self.job.name}: only {list(self.heard)} of it\n{self.job.story()}"
        return passed

    def awaited(self) -> float:
        """Seconds from the mistake until both were there."""
        while not self.came():
            self.seconds()
            time.sleep(0.5)
        return self.seconds()


def test_a_wrong_password_of_redis(ferry: Installation, good: Job, cluster: Cluster, times: Times) -> None:
    url = f"redis.url=rediss://ferry-redis.{ferry.kubectl.namespace}.svc:6380/0"
    values = ("redis.enabled=false", url, "redis.existingSecret=wrong", "redis.caSecret=trusted", "operator.replicas=1")
    trusted = {**WRONG, "metadata": {"name": "trusted"}, "stringData": {}}
    trusted["data"] = {"ca.crt": ferry.kubectl.get("secret", "ferry-redis-tls")["data"]["ca.crt"]}
    with installed_ferry(cluster.kubectl, *values, documents=[WRONG, trusted]) as other:
        job = begin(other, "locked-out")
        times("wrong password of Redis: named", Word(job, PASSWORD, job.applied).awaited())
        job.delete()


def test_new_jobs_that_cannot_run(ferry: Installation, good: Job, times: Times) -> None:
    jobs = {name: begin(ferry, name, **mistake.spec) for name, mistake in NEW.items()}
    words = {name: Word(job, NEW[name], job.applied) for name, job in jobs.items()}
    while words:
        for name in [name for name, word in words.items() if word.came()]:
            times(f"new job, mistake '{name}': named", words.pop(name).seconds())
            assert jobs[name].status()["phase"] not in ("Running", "Moving")
            ferry.kubectl.run("delete", "streamjob", name, "--wait=false")
        for word in words.values():
            word.seconds()
        time.sleep(0.5)
    for job in jobs.values():
        job.delete()


def test_a_job_that_may_do_without_rdma_says_that_it_does(good: Job) -> None:
    good.until_workers(2, 240.0)
    good.until(lambda s: BEHIND in s.get("transport", {}).get("reason", ""), "reason for TCP", 20.0)
    said = good.status()["transport"]
    chosen = f"--field-selector=involvedObject.name={good.name},reason=TransportFallback"
    wait_until(lambda: good.kubectl.items("events", chosen), "event", 10.0)
    assert said["kind"] == "tcp" and {event["message"] for event in good.kubectl.items("events", chosen)} == {
        f"links are tcp although RDMA is expected: {said['reason']}"
    }


def test_a_job_that_runs_goes_on(good: Job, times: Times) -> None:
    good.until_workers(2, 240.0)
    for name, mistake in {"image": IMAGE, "replicas": REPLICAS, "module": REPLACED, "transport": INSISTS}.items():
        right: Document = good.kubectl.get("streamjob", good.name)["spec"]
        life, changed = good.life_of("worker-0"), time.monotonic()
        good.kubectl.patch(f"streamjob/{good.name}", {"spec": mistake.spec})
        times(f"running job, mistake '{name}': named", Word(good, mistake, changed).awaited())
        times(f"running job, mistake '{name}': next epochs", good.until_epoch(2))
        back = {key: taken_back(value, right.get(key)) for key, value in mistake.spec.items()}
        good.kubectl.patch(f"streamjob/{good.name}", {"spec": back})
        good.until(lambda s: degraded(s) == "False" and s["workers"] == 2, "end of the problem", 120.0)
        wait_until(lambda: len(good.pods()) == 3, "end of other pods", 60.0)
        assert good.life_of("worker-0") == life, "what held the state was left alone"


def taken_back(changed: Any, right: Any) -> Any:
    """The merge patch that undoes another one."""
    if not isinstance(changed, dict):
        return right
    return {key: taken_back(value, (right or {}).get(key)) for key, value in changed.items()}


def degraded(status: Document) -> str:
    """The condition's status."""
    return next((c["status"] for c in status.get("conditions", ()) if c["type"] == "Degraded"), "")
