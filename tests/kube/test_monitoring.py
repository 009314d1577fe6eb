"""What the chart says about monitoring, seen by a real Prometheus: every process is scraped, every query has an answer."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.kube.clusters import Cluster, Lab
from tests.kube.installation import CHART, MOUNT, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until
from tests.kube.prometheus import SCRAPERS, Prometheus, Series, filled, token
from tests.unit.charts import alerts, dashboards, queries

pytestmark = [pytest.mark.kube, pytest.mark.timeout(400)]

NOTHING: dict[str, str] = {
    "handovers / Switchover / A": "a copy leads in the same moment between two epochs in which it is in sync",
    "jobs / Watermark lag / A": "the times of generated input are not today's",
    "jobs / Late and malformed records / A": "the input is in order",
    "jobs / Late and malformed records / B": "every record is well-formed",
    "jobs / Busy tasks and instances / B": "the estimate needs some seconds without a move",
    "jobs / Every deploy / A": "the first program begins with epoch 0, which is no other number than zero",
    "state / Instances / B": "no instance dies without its pod",
    "state / Durable checkpoint: late / A": "none is late",
    "operator / Waiting jobs / A": "one job seldom waits",
    "operator / Oldest in the queue, and watches / A": "one job seldom waits",
    "operator / API requests refused or failed / A": "few requests fail, and they may come before the first scrape",
    "operator / Failed reconciliations / A": "no reconciliation has to fail",
    "FerryJobFallsBehind": "the times of generated input are not today's",
    "FerryOperatorIsRefused": "nothing is forbidden to the operator",
}
"""Queries that may have no answer, or zero, in this story, and why. All others have another one."""

COMPARISON = re.compile(r" (==|>|<) (?=[\d.]+(?: or |\)?$))")


@dataclass(frozen=True)
class Story:
    """A job that was scaled, scaled back and robbed of a worker, and who has watched it."""

    prometheus: Prometheus
    job: Job
    begin: float
    end: float

    def seen(self, query: str) -> list[Series]:
        """A query over the whole story."""
        return self.prometheus.over(filled(query), self.begin, self.end)


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> Lab:
    """A lab: Prometheus runs on one of its nodes."""
    if cluster.lab is None:
        pytest.skip("an existing cluster has its own Prometheus")
    return cluster.lab


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl, SCRAPERS) as made:
        yield made


@pytest.fixture(scope="module")
def story(ferry: Installation, lab: Lab) -> Iterator[Story]:
    """All that is worth a look, once."""
    directory = Path(tempfile.mkdtemp(prefix="ferry-prometheus-"))
    begin = time.time()
    # Copies take some epochs, so that it is seen how far behind they are.
    slowly = {"bandwidth": "64Ki"}
    kept = {"checkpoint": {"location": f"{MOUNT}/checkpoints", "every": "2s"}}
    # By the clock, so that there are latencies; slower than epochs could be, so that no backlog stays.
    advised = {"max": 4}
    paced = {"module": "ferry_workloads.jobs.nbq5", "args": {"seed": 7, "rate": 1000.0, "pace": 15_000}}
    job = ferry.start(
        ferry.job("seen", events=50_000_000, epoch=PACE, handover=slowly, state=kept, pipeline=paced, autoscale=advised)
    )
    try:
        with Prometheus(lab, ferry.kubectl, monitors(ferry), CHART / "alerts.yaml", directory) as prometheus:
            job.until_workers(2, 240.0)
            job.until_epoch(10)  # A pause is what is beyond the usual distance of epochs: that has to be known.
            ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=4")
            job.until_workers(4)
            ferry.kubectl.run("scale", f"sj/{job.name}", "--replicas=2")
            job.until_workers(2)
            # A pause is told once the last copy is in sync: where none was before a worker died, there was none to show.
            wait_until(lambda: prometheus.number("ferry_handover_pause_seconds_count") >= 1, "end of a handover", 60.0)
            before, _ = job.life_of("worker-1")
            ferry.kubectl.run("delete", "pod", f"{job.name}-worker-1", "--grace-period=0", "--force")
            wait_until(lambda: prometheus.number("ferry_recovery_seconds_count") >= 1, "recovery", 60.0)
            wait_until(lambda: job.life_of("worker-1")[0] != before, "another pod", 60.0)
            job.until_workers(2)
            job.until_epoch(20)
            yield Story(prometheus, job, begin, time.time())
    finally:
        job.delete()
        shutil.rmtree(directory)


def monitors(ferry: Installation) -> list[Document]:
    """Those of the chart; the cluster need not know their kinds."""
    sets = ("monitoring.podMonitor=true", "monitoring.serviceMonitor=true", "monitoring.interval=1s")
    text = ferry.helm("template", "ferry", str(CHART), *(word for one in sets for word in ("--set", one)))
    return [d for d in yaml.safe_load_all(text) if d and d["kind"] in ("PodMonitor", "ServiceMonitor")]


def test_every_process_is_scraped(ferry: Installation, story: Story) -> None:
    def pods() -> set[str]:
        operators = ferry.kubectl.items("pods", "-l", "app.kubernetes.io/component=operator")
        return {pod["metadata"]["name"] for pod in [*operators, *story.job.pods()]}

    def all_up() -> bool:
        found = story.prometheus.targets()
        up = {target.labels["pod"] for target in found if target.health == "up"}
        return len(found) == len(up) == 2 + 1 + 2 and up == pods()

    wait_until(all_up, "scrape of two operators, a driver and two sidecars", 40.0)
    for series in story.prometheus.now('up{role!=""}'):
        assert series.labels["streamjob"] == story.job.name
        assert (series.labels["role"] == "worker") == ("worker" in series.labels)
    most = story.seen('count(up{role="worker"} == 1)')
    assert max(value for one in most for value in one.numbers) == 4, "sidecars come and go"


def test_without_the_token_a_scrape_is_refused(ferry: Installation, story: Story, lab: Lab) -> None:
    address = {p["metadata"]["name"]: p["status"]["podIP"] for p in ferry.kubectl.items("pods")}
    right = token(ferry.kubectl, {"name": "ferry-metrics", "key": "token"})
    found = {(t.labels["pod"], t.labels.get("role", "")) for t in story.prometheus.targets()}
    assert found
    for pod, role in found:
        url = f"http://{address[pod]}:{7071 if role else 8080}/metrics"
        for shown, code in (("", "401"), ("Bearer ", "401"), (f"Bearer {right}x", "401"), (f"Bearer {right}", "200")):
            command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"Authorization: {shown}", url]
            assert lab.on(2, *command) == code, (pod, shown.replace(right, "..."))


def test_every_panel_has_something_to_show(story: Story) -> None:
    asked = {name: query for name, query in queries().items() if " / " in name}
    assert {name.split(" / ")[0] for name in asked} == set(dashboards())
    dark = {name: query for name, query in asked.items() if not any(n for s in story.seen(query) for n in s.numbers)}
    assert not dark.keys() - NOTHING.keys(), {name: dark[name] for name in dark.keys() - NOTHING.keys()}


def test_every_deploy_and_every_handover_is_a_row(story: Story) -> None:
    """The job has one program, and its handovers are counted once."""
    (deploy,) = story.seen(queries()["jobs / Every deploy / A"])
    assert deploy.labels["program"] == "1" and len(deploy.points) == 1
    rows = sum(len(series.points) for series in story.seen(queries()["handovers / Every handover / A"]))
    assert rows == story.prometheus.number("ferry_handover_pause_seconds_count")


def test_every_alert_has_something_to_watch(story: Story) -> None:
    """Not that it is true, but that what it compares is there."""
    watched = {rule["alert"]: COMPARISON.sub(r" \1 bool ", rule["expr"]) for rule in alerts()}
    assert all(" bool " in query for query in watched.values()), watched
    dark = {name for name, query in watched.items() if not any(s.numbers for s in story.seen(query))}
    assert not dark - NOTHING.keys()


def test_alerts_are_evaluated_and_silent(story: Story) -> None:
    names = {rule["alert"] for rule in alerts()}
    wait_until(lambda: {r.name for r in story.prometheus.rules() if r.health != "unknown"} == names, "rules", 10.0)
    assert not [rule for rule in story.prometheus.rules() if rule.health != "ok" or rule.state == "firing"]


def test_the_table_names_what_exists() -> None:
    assert set(NOTHING) <= set(queries())
