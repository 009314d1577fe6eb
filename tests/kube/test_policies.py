"""The chart's network policies on nodes that enforce them: what they let through, and what they do not.

Every "no" is shown beside a "yes" at the same port, by the same means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferry.contract import ports
from ferry.contract.addresses import netloc
from tests.kube.clusters import Cluster
from tests.kube.installation import CHART, CLAIM, DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, Kubectl, KubectlError, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

SCRAPER = {"may": "scrape"}
OPERATOR_METRICS, REDIS, CLEAR_REDIS, OPEN = 8080, 6380, 6379, 8000
SECONDS = 3
"""A packet that is dropped gets no answer: time after which a port counts as closed. kube-router also refuses."""

CONNECT = f"import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {SECONDS}).close()"

CURL = f"curl -s -o /dev/null --connect-timeout {SECONDS} -m {SECONDS + 1} -w '%{{time_connect}}'"
"""Prints the seconds until it was connected; 0 without a connection."""

Times = Callable[[str, float], None]


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart with its policies; only pods with a label may scrape."""
    if cluster.lab is None:
        pytest.skip("whether an existing cluster enforces policies is not known")
    scrapers = "networkPolicies.scrapers[0].podSelector.matchLabels.may=scrape"
    with installed_ferry(cluster.kubectl, scrapers) as made:
        yield made


def stranger(kubectl: Kubectl, name: str, labels: Document) -> None:
    """A pod that belongs to no job, with a port that no policy closes."""
    container = {"name": "shell", "image": "ferry.lab/busybox:1", "command": ["httpd", "-f", "-p", str(OPEN)]}
    kubectl.apply({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    })  # fmt: skip
    kubectl.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s", timeout=90)


def reaches(kubectl: Kubectl, pod: str, address: str, port: int) -> bool:
    """Does a pod connect to a port, whatever is spoken there?"""
    if kubectl.get("pod", pod)["spec"]["containers"][0]["name"] == "shell":
        return float(kubectl.run("exec", pod, "--", "sh", "-c", f"{CURL} http://{netloc(address, port)} || true")) > 0
    try:
        kubectl.run("exec", pod, "--", "python3", "-c", CONNECT, address, str(port))
    except KubectlError as closed:
        assert "timed out" in closed.said or "Connection refused" in closed.said, closed
        return False
    return True


def address(kubectl: Kubectl, *selected: str) -> str:
    """The address of the first pod of a selection."""
    return str(kubectl.items("pods", *selected)[0]["status"]["podIP"])


def test_a_job_runs_behind_the_policies_and_strangers_reach_none_of_it(
    ferry: Installation, pods: Kubectl, times: Times, tmp_path: Path
) -> None:
    kubectl = ferry.kubectl
    job = ferry.start(ferry.job("behind", events=1_500_000, epoch=PACE, pipeline={"args": DISORDER}))
    job.until_workers(2, 240.0)
    job.until_epoch(2)
    stranger(kubectl, "stranger", {})
    stranger(kubectl, "scraper", SCRAPER)
    stranger(pods, "neighbour", SCRAPER)  # of another namespace
    driver, sidecar = (
        str(kubectl.get("pod", f"{job.name}-{pod}")["status"]["podIP"]) for pod in ("driver", "worker-0")
    )
    operator, redis = (address(kubectl, "-l", f"app.kubernetes.io/component={one}") for one in ("operator", "redis"))
    inside = ((driver, ports.CONTROL), (sidecar, ports.CHANNEL), (sidecar, ports.FLIGHT))
    metrics = ((driver, ports.METRICS), (sidecar, ports.METRICS), (operator, OPERATOR_METRICS))
    for where, port in (*inside, (redis, REDIS)):
        assert reaches(kubectl, f"{job.name}-worker-1", where, port), f"pods of jobs use {port}"
    assert not reaches(kubectl, f"{job.name}-worker-1", redis, CLEAR_REDIS), "Redis listens for TLS alone"
    for where, port in metrics:
        # The policies of other nodes know a new pod a moment later.
        wait_until(lambda at=where, port=port: reaches(kubectl, "scraper", at, port), f"scrape of {where}:{port}", 20)
    for who, of in (("stranger", kubectl), ("scraper", kubectl), ("neighbour", pods)):
        closed = (*inside, (redis, REDIS), *(() if who == "scraper" else metrics))
        assert reaches(of, who, address(kubectl, "-l", "may=scrape"), OPEN)
        opened = [(where, port) for where, port in closed if reaches(of, who, where, port)]
        assert not opened, f"{who} reaches {opened}"
    kubectl.run("scale", f"sj/{job.name}", "--replicas=3")
    times("a third worker behind policies", job.until_workers(3))
    job.finish()
    job.right(tmp_path)
    job.delete()


def test_a_job_whose_way_out_is_closed_reaches_its_own_and_nothing_else(
    ferry: Installation, cluster: Cluster, tmp_path: Path
) -> None:
    """The port of the API server stands for the world outside: a worker needs it for nothing."""
    assert cluster.lab is not None
    kubectl, (control_plane, _) = ferry.kubectl, cluster.lab.control_plane()
    job = ferry.start(ferry.job("closed", events=1_500_000, epoch=PACE, pipeline={"args": DISORDER}))
    job.until_workers(2, 240.0)
    worker, driver = f"{job.name}-worker-0", f"{job.name}-driver"
    # A sidecar owns state before the container of its executor has begun.
    kubectl.run("wait", "--for=condition=Ready", f"pod/{worker}", "--timeout=60s", timeout=90)
    assert reaches(kubectl, worker, control_plane, 6443)
    egress(ferry, [])
    try:
        wait_until(lambda: not reaches(kubectl, worker, control_plane, 6443), "a closed way out", 30)
        assert reaches(kubectl, driver, control_plane, 6443), "a driver keeps its journal there"
        assert reaches(kubectl, worker, str(kubectl.get("pod", driver)["status"]["podIP"]), ports.CONTROL)
        life = job.life_of("worker-1")
        kubectl.run("delete", "pod", f"{job.name}-worker-1", "--grace-period=0", "--force")
        job.until_replaced("worker-1", life)
        job.until_workers(2)
        egress(ferry, [{"to": [{"ipBlock": {"cidr": f"{control_plane}/32"}}]}])
        wait_until(lambda: reaches(kubectl, worker, control_plane, 6443), "a way out that is listed", 30)
        job.finish()
        job.right(tmp_path)
    finally:
        egress(ferry, None)
        job.delete()


def egress(ferry: Installation, rules: list[Document] | None) -> None:
    """Where jobs may connect to, beside their own pods, Redis and DNS; None: anywhere."""
    value = f"networkPolicies.jobEgress={json.dumps(rules)}"
    ferry.helm("upgrade", "ferry", str(CHART), "--reuse-values", "--wait", "--timeout=60s", "--set-json", value)


def test_a_job_on_the_hosts_network_runs_beside_the_policies(ferry: Installation, tmp_path: Path) -> None:
    """No selector names its pods: the operator reaches its driver, and its processes reach Redis, by port."""
    ferry.helm(
        "upgrade",
        "ferry",
        str(CHART),
        "--reuse-values",
        "--wait",
        "--timeout=120s",
        "--set",
        "jobs.allow.hostNetwork=true",
    )
    document = ferry.job("onhost", events=600_000, epoch=PACE, pipeline={"args": DISORDER})
    document["spec"]["kubernetes"] |= {"network": "host"}
    assert document["spec"]["kubernetes"]["volumes"][0]["claim"] == CLAIM
    job: Job = ferry.start(document)
    job.until_workers(2, 240.0)
    assert {pod["status"]["podIP"] == pod["status"]["hostIP"] for pod in job.pods()} == {True}
    job.finish()
    job.right(tmp_path)
    job.delete()
