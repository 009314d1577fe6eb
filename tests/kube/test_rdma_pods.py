"""A resource of a device plugin on real nodes, and jobs that request it where no device works: what is given, and what is said.

The plugin is the DaemonSet of `images/verbs`. Its device is a file of the lab's node that opens, and is no device for verbs.
Jobs over real verbs are in `tests/rdma`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.kube.clusters import Cluster, Lab
from tests.kube.installation import DISORDER, PACE, Installation, installed_ferry
from tests.kube.kubectl import Document, Kubectl, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(900)]

RESOURCE, SLOTS = "rdma/shared", 4
DAEMON_SET = Path(__file__).parents[2] / "images" / "verbs" / "daemonset.yaml"

DEVICES = "/mnt/devices"
"""Of a node of the lab, on its own disk."""

NULL = "mknod -m 666 {0}/uverbs0 c 1 3"
OTHERS = "mknod {0}/rdma_cm c 1 3 && mknod {0}/umad0 c 1 3"
"""Files that are there without a device, or are not for pods."""

METRICS = (
    "import os, urllib.request as u; print(u.urlopen(u.Request(f'http://{os.environ[\"POD_IP\"]}:7071/metrics', "
    "headers={'Authorization': 'Bearer ' + os.environ['FERRY_METRICS_TOKEN']})).read().decode())"
)


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart: `rdma/*` is allowed by default."""
    with installed_ferry(cluster.kubectl) as made:
        made.expected.extend(["TransportUnavailable", "no RDMA device"])
        yield made


@pytest.fixture(scope="module")
def plugins(cluster: Cluster) -> Iterator[Lab]:
    """The DaemonSet of the plugin, and a device on every node."""
    if cluster.lab is None:
        pytest.skip("the nodes of an existing cluster are left alone")
    lab = cluster.lab
    for i in range(1, len(cluster.nodes) + 1):
        files = f"{NULL} && {OTHERS}".format(DEVICES)
        lab.on(i, "sh", "-c", f"mkdir -p {DEVICES} && rm -f {DEVICES}/* && {files}")
    documents = list(yaml.safe_load_all(DAEMON_SET.read_text()))
    (pod,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "DaemonSet"]
    (container,) = pod["containers"]
    container["args"] = ["-resource", RESOURCE, "-slots", str(SLOTS), "-devices", DEVICES]
    for described, key in (
        *((v["hostPath"], "path") for v in pod["volumes"]),
        *((m, "mountPath") for m in container["volumeMounts"]),
    ):
        described[key] = described[key].replace("/dev/infiniband", DEVICES)
    cluster.kubectl.apply(*documents)
    try:
        cluster.kubectl.run("-n", "ferry-verbs", "rollout", "status", "ds/verbs", "--timeout=120s", timeout=140)
        yield lab
    finally:
        cluster.kubectl.run("delete", "namespace", "ferry-verbs", timeout=120)


def slots(kubectl: Kubectl, node: str) -> str | None:
    """The number of devices that a node offers; None before its plugin has registered."""
    found: str | None = kubectl.get("node", node)["status"]["allocatable"].get(RESOURCE)
    return found


def requests_it(ferry: Installation, name: str, mode: str) -> Document:
    """A job whose sidecars request the resource."""
    transport = {"mode": mode, "rdma": {"mode": "shared", "resource": RESOURCE}}
    return ferry.job(name, events=600_000, epoch=PACE, pipeline={"args": DISORDER}, transport=transport)


def test_a_sidecar_gets_the_device_and_says_why_its_links_are_tcp(
    ferry: Installation, plugins: Lab, cluster: Cluster, tmp_path: Path
) -> None:
    kubectl = ferry.kubectl
    for node in cluster.nodes:
        wait_until(lambda node=node: slots(kubectl, node) == str(SLOTS), f"resource of {node}", 60)
    job = ferry.start(requests_it(ferry, "shared", "auto"))
    job.until_workers(2, 240.0)
    pod = f"{job.name}-worker-0"
    listed = ("ls", "/dev/infiniband")
    assert kubectl.run("exec", pod, "-c", "sidecar", "--", *listed).split() == ["rdma_cm", "uverbs0"]
    assert "No such file" in kubectl.refusal("exec", pod, "-c", "executor", "--", *listed), "only the sidecar gets it"
    job.until(lambda s: (s.get("transport") or {}).get("kind") == "tcp", "links", 60)
    reason = job.status()["transport"]["reason"]
    assert "no RDMA device can be used" in reason, reason
    wait_until(lambda: "TransportFallback" in {e["reason"] for e in kubectl.items("events")}, "event", 60)
    metrics = kubectl.run("exec", pod, "-c", "sidecar", "--", "python3", "-c", METRICS)
    (line,) = [one for one in metrics.splitlines() if one.startswith("ferry_transport_info{") and 'kind="tcp"' in one]
    assert "no RDMA device" in line, line
    job.finish()
    job.right(tmp_path)
    job.delete()


def test_a_job_that_insists_says_that_there_is_no_device(ferry: Installation, plugins: Lab) -> None:
    job = ferry.start(requests_it(ferry, "insists", "rdma"))

    def said(status: Document) -> bool:
        told = {c["type"]: c for c in status.get("conditions", ())}
        return told.get("Degraded", {}).get("reason") == "TransportUnavailable"

    job.until(said, "reason why nothing runs", 240.0)
    (told,) = [c["message"] for c in job.status()["conditions"] if c["type"] == "Degraded"]
    assert "no RDMA device can be used" in told
    job.delete()


def test_a_node_whose_device_is_gone_gives_out_none(plugins: Lab, cluster: Cluster) -> None:
    kubectl = cluster.kubectl
    wait_until(lambda: slots(kubectl, "n1") == str(SLOTS), "resource of n1", 60)
    plugins.on(1, "rm", f"{DEVICES}/uverbs0")
    try:
        wait_until(lambda: slots(kubectl, "n1") == "0", "unhealthy slots", 30)
    finally:
        plugins.on(1, "sh", "-c", NULL.format(DEVICES))
    wait_until(lambda: slots(kubectl, "n1") == str(SLOTS), "resource of n1", 30)
