"""A job where nodes, pods, services and the API server have addresses of IPv6 alone, behind the chart's policies.

The nodes are a lab of its own, with FERRY_LAB_FAMILY=ipv6.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ferry.contract import ports
from ferry.contract.addresses import is_v6, netloc
from tests.kube.clusters import Cluster, existing
from tests.kube.conftest import new_nodes
from tests.kube.installation import DISORDER, PACE, Installation, installed_ferry
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.test_drains import SMALL, drain
from tests.kube.test_policies import OPERATOR_METRICS, REDIS, address, egress, reaches, stranger

pytestmark = [pytest.mark.long, pytest.mark.kube, pytest.mark.timeout(1500)]

API_SERVER = 6443


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes; no interface of them but the loopback has an address of IPv4."""
    if existing() is not None:
        pytest.skip("of which family an existing cluster is cannot be chosen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FERRY_LAB_FAMILY", "ipv6")
        yield from new_nodes(f"test-{os.getpid()}-ipv6", 2, tmp_path_factory.getbasetemp() / "ipv6-logs")


@pytest.fixture(scope="module")
def ferry(cluster: Cluster) -> Iterator[Installation]:
    """The chart; the control plane alone may scrape."""
    assert cluster.lab is not None
    scrapers = f"networkPolicies.scrapers[0].ipBlock.cidr={cluster.lab.control_plane()[0]}/128"
    with installed_ferry(cluster.kubectl, scrapers, "evictionWebhook.enabled=true") as made:
        yield made


def test_a_job_runs_scales_loses_a_worker_and_is_drained_where_all_addresses_are_of_ipv6(
    ferry: Installation, cluster: Cluster, times: Callable[[str, float], None], tmp_path: Path
) -> None:
    assert cluster.lab is not None
    kubectl, (control_plane, there) = ferry.kubectl, cluster.lab.control_plane()
    job = ferry.start(ferry.job("six", events=3_000_000, epoch=PACE, pipeline={"args": DISORDER}, kubernetes=SMALL))
    times("two workers over IPv6", job.until_workers(2, 240.0))
    job.until_epoch(2)
    assert_of_ipv6_alone(kubectl, cluster)

    driver, worker, other = (f"{job.name}-{pod}" for pod in ("driver", "worker-0", "worker-1"))
    at = {pod: str(kubectl.get("pod", pod)["status"]["podIP"]) for pod in (driver, worker, other)}
    operator, redis = (address(kubectl, "-l", f"app.kubernetes.io/component={one}") for one in ("operator", "redis"))
    inside = ((at[driver], ports.CONTROL), (at[worker], ports.CHANNEL), (at[worker], ports.FLIGHT), (redis, REDIS))
    metrics = ((at[driver], ports.METRICS), (at[worker], ports.METRICS), (operator, OPERATOR_METRICS))
    stranger(kubectl, "stranger", {})
    closed = [(where, port) for where, port in inside if not reaches(kubectl, other, where, port)]
    assert not closed, f"a pod of the job does not reach {closed}"
    opened = [(where, port) for where, port in (*inside, *metrics) if reaches(kubectl, "stranger", where, port)]
    assert not opened, f"a stranger reaches {opened}"
    assert reaches(kubectl, "stranger", control_plane, API_SERVER)
    for where, port in metrics:
        scrape = [*there, "curl", "-sk", "-m", "5", "-o", "/dev/null", f"http://{netloc(where, port)}/metrics"]
        assert subprocess.run(scrape).returncode == 0, f"no metrics at {netloc(where, port)}"

    kubectl.run("scale", f"sj/{job.name}", "--replicas=3")
    times("a third worker over IPv6", job.until_workers(3))
    egress(ferry, [])
    wait_until(lambda: not reaches(kubectl, worker, control_plane, API_SERVER), "a closed way out", 30)
    life = job.life_of("worker-1")
    kubectl.run("delete", "pod", other, "--grace-period=0", "--force")
    job.until_replaced("worker-1", life)
    job.until_workers(3)
    egress(ferry, [{"to": [{"ipBlock": {"cidr": f"{control_plane}/128"}}]}])
    wait_until(lambda: reaches(kubectl, worker, control_plane, API_SERVER), "a way out that is listed", 30)

    kubectl.run(*drain(job, job.node_of("worker-2"), 240), timeout=260)  # the API server asks the operator's webhook
    job.until_workers(3)
    job.finish()
    job.right(tmp_path)
    job.delete()


def assert_of_ipv6_alone(kubectl: Kubectl, cluster: Cluster) -> None:
    """Nodes, pods and services have no address of IPv4."""
    told = [one for node in kubectl.items("nodes") for one in node["status"]["addresses"]]
    found = [one["address"] for one in told if one["type"] == "InternalIP"]
    found += [one["ip"] for pod in kubectl.items("pods") for one in pod["status"]["podIPs"]]
    listed = [one for service in kubectl.items("services") for one in service["spec"]["clusterIPs"]]
    found += [one for one in listed if one != "None"]
    assert len(found) > 6 and all(map(is_v6, found)), found
    assert cluster.lab is not None
    shown = cluster.lab.on(1, "ip", "-4", "-o", "addr").splitlines()
    assert all(" lo " in line for line in shown), shown
