"""Who decides about the size of a job: the autoscaler of Kubernetes, by a metric of its own API, and Ferry's. Both exact.

The HorizontalPodAutoscaler is a real one, of kube-controller-manager. What it asks is a server of this test behind the API
server: a lab has no metrics-server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.clusters import Cluster
from tests.kube.installation import DISORDER, PACE, Installation, Job, installed_ferry
from tests.kube.kubectl import Document, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.turns, pytest.mark.timeout(1200)]

GROUP = "external.metrics.k8s.io"
API = f"v1beta1.{GROUP}"
SERVER = "metrics"
PORT = 6443

SCRIPT = """
import json, pathlib, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ferry.contract.certificates import issue, server_context

VERSION = "external.metrics.k8s.io/v1beta1"
LOAD = pathlib.Path("/tmp/load")
LOAD.write_text("0")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if "/offered" in self.path:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            item = {"metricName": "offered", "metricLabels": {}, "timestamp": now, "value": LOAD.read_text()}
            found = {"kind": "ExternalMetricValueList", "apiVersion": VERSION, "metadata": {}, "items": [item]}
        else:
            one = {"name": "offered", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            found = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [one]}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = ThreadingHTTPServer(("", 6443), Handler)
server.socket = server_context(issue("0" * 48)).wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart, installed in a namespace of its own, with a volume that all nodes share."""
    with installed_ferry(cluster.kubectl) as made:
        yield made


@pytest.fixture
def metrics(ferry: Installation) -> Iterator[str]:
    """A pod behind the API server that says how many records are offered; its name. The load is in its file /tmp/load."""
    kubectl = ferry.kubectl
    container = {"name": "metrics", "image": "localhost/ferry/runtime:dev", "command": ["python3", "-c", SCRIPT]}
    labels = {"app": SERVER}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": SERVER, "labels": labels},
            "spec": {"containers": [container]},
        }
    )
    kubectl.run("wait", "--for=condition=Ready", f"pod/{SERVER}", "--timeout=120s", timeout=150)
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVER},
            "spec": {"selector": labels, "ports": [{"port": PORT}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API},
            "spec": {
                "group": GROUP,
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": SERVER, "namespace": kubectl.namespace, "port": PORT},
            },
        },
    )
    try:
        kubectl.run("wait", "--for=condition=Available", f"apiservice/{API}", "--timeout=60s", timeout=90)
        yield SERVER
    finally:
        # While it is registered and gone, no namespace can be deleted.
        kubectl.run("delete", "apiservice", API, "--ignore-not-found")


def autoscaler(job: Job, each: int) -> Document:
    """One that keeps so many offered records for each worker."""
    metric = {"metric": {"name": "offered"}, "target": {"type": "AverageValue", "averageValue": str(each)}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": job.name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "ferry.dev/v1alpha1", "kind": "StreamJob", "name": job.name},
            "minReplicas": 2,
            "maxReplicas": 4,
            "metrics": [{"type": "External", "external": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def test_an_autoscaler_of_kubernetes_drives_a_job(ferry: Installation, metrics: str, tmp_path: Path) -> None:
    """Two workers, four, and two again, as the load says; the rows are those of a job that nobody has touched."""
    kubectl = ferry.kubectl
    job = ferry.start(ferry.job("driven", events=4_000_000, workers=2, epoch=PACE, pipeline={"args": DISORDER}))

    def offered(records: int) -> None:
        kubectl.run("exec", metrics, "--", "sh", "-c", f"echo -n {records} >/tmp/load")

    try:
        job.until_workers(2)
        offered(10_000)
        kubectl.apply(autoscaler(job, 5000))
        offered(20_000)
        job.until_workers(4)
        offered(9000)
        job.until_workers(2)
        found = kubectl.get("hpa", job.name)["status"]
        assert found["desiredReplicas"] == 2, "what there is it sees at its next look"
        active = {one["type"]: one["status"] for one in found["conditions"]}
        assert active["AbleToScale"] == active["ScalingActive"] == "True"
        kubectl.run("delete", "hpa", job.name)
        job.finish()
        job.right(tmp_path)
    finally:
        job.delete()


def test_ferry_writes_the_size_that_it_decides(ferry: Installation, tmp_path: Path) -> None:
    """On a real API server, with the rights that the chart gives: first a bound, then what the load needs."""
    wanted: dict[str, Any] = {"min": 3, "max": 4, "cooldown": "5s", "mode": "auto"}
    job = ferry.start(
        ferry.job("scaled", events=2_000_000, workers=2, epoch=PACE, pipeline={"args": DISORDER}, autoscale=wanted)
    )
    try:
        job.until_workers(3)
        job.until(lambda s: (s.get("autoscale") or {}).get("used") is not None, "measured load")
        found = job.status()["autoscale"]
        assert found["recordsPerSecond"] > 0 and found["trueRate"] > 0 and found["mode"] == "auto", found
        condition = {one["type"]: one for one in job.status()["conditions"]}["AutoscalerActive"]
        assert condition["status"] == "True", condition

        def told() -> list[str]:
            events = ferry.kubectl.items(
                "events", "--field-selector", f"involvedObject.name={job.name},reason=Rescaled"
            )
            return [event["message"] for event in events]

        wait_until(lambda: told(), "event", 10.0)
        assert told()[0].startswith("2 x 1 -> 3 x 1")
        job.finish()
        job.right(tmp_path)
    finally:
        job.delete()
