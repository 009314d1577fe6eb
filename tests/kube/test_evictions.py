"""Evictions on a real API server: refused and noted while a pod is in use, allowed afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ferry_operator.kube.api.client import KubeApi
from ferry_operator.kube.api.port import NODES
from ferry_operator.kube.observe import facts
from ferry_operator.kube.process.eviction_webhook import path_of
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.operators import KEY, Operators, Running, free_port
from tests.unit.charts import of_kind, render

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

Document = dict[str, Any]


@pytest.fixture
def webhook(operators: Operators, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The chart's webhook and its rights, but for an address of this machine; operators that begin afterwards serve it."""
    kubectl, port = operators.kubectl, free_port()
    documents = render({"evictionWebhook.enabled": True})
    (configuration,) = of_kind(documents, "ValidatingWebhookConfiguration")
    name = f"{kubectl.namespace}-evictions"
    (one,) = configuration["webhooks"]
    one["clientConfig"] = {"url": f"https://localhost:{port}{path_of(KEY)}"}
    one["namespaceSelector"]["matchExpressions"][0]["values"] = [str(kubectl.namespace)]
    (role,) = of_kind(documents, "ClusterRole")
    role["rules"][0]["resourceNames"] = [name]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": str(kubectl.namespace)}],
    }
    kubectl.create({**configuration, "metadata": {"name": name}}, {**role, "metadata": {"name": name}}, binding)
    monkeypatch.setenv("FERRY_EVICTION_WEBHOOK", name)
    monkeypatch.setenv("FERRY_EVICTION_ADDRESS", f"localhost:{port}")
    yield name
    for kind in ("validatingwebhookconfiguration", "clusterrole", "clusterrolebinding"):
        kubectl.run("delete", kind, name)


def eviction(kubectl: Kubectl, pod: str) -> tuple[list[str], str]:
    document = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kubectl.namespace},
    }
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{pod}/eviction"
    return ["create", "--raw", path, "-f", "-"], json.dumps(document)


def refused(kubectl: Kubectl, pod: str) -> str:
    words, document = eviction(kubectl, pod)
    return kubectl.refusal(*words, stdin=document)


def evict(kubectl: Kubectl, pod: str) -> None:
    words, document = eviction(kubectl, pod)
    kubectl.run(*words, stdin=document)


def may_leave(kubectl: Kubectl, pod: str) -> bool:
    return "ferry.dev/may-leave" in kubectl.get("pod", pod)["metadata"]["labels"]


def minimum(kubectl: Kubectl) -> int:
    number: int = kubectl.get("pdb", "a-workers")["spec"]["minAvailable"]
    return number


def is_registered(kubectl: Kubectl, name: str) -> bool:
    return "caBundle" in kubectl.get("validatingwebhookconfiguration", name)["webhooks"][0]["clientConfig"]


def test_the_webhook_empties_a_worker_and_lets_it_go(operators: Operators, webhook: str) -> None:
    kubectl = operators.kubectl
    with operators.job() as running:
        wait_until(lambda: is_registered(kubectl, webhook), "authority of the webhook", 20)
        wait_until(lambda: "is being emptied" in refused(kubectl, "a-worker-1"), "refusal by the webhook", 10, 1.0)
        wait_until(lambda: may_leave(kubectl, "a-worker-1"), "empty worker", 30)
        assert 1 not in running.driver.used()
        uid = kubectl.get("pod", "a-worker-1")["metadata"]["uid"]
        evict(kubectl, "a-worker-1")
        wait_until(lambda: (pod := kubectl.find("pod", "a-worker-1")) and pod["metadata"]["uid"] != uid, "next pod", 30)
        running.wait_settled(2)
        assert running.driver.used() == {0, 1}
        assert "room for the driver" in refused(kubectl, "a-driver")
        wait_until(lambda: may_leave(kubectl, "a-driver"), "place for the next driver", 30)
        evict(kubectl, "a-driver")
        wait_until(lambda: len(running.kubelets.lives) == 2, "another driver", 30)
        running.wait_settled(2)


def test_without_the_webhook_the_budget_protects_workers_until_they_are_empty(running: Running) -> None:
    kubectl = running.kubectl
    assert minimum(kubectl) == 2
    assert "disruption budget" in refused(kubectl, "a-worker-0")
    kubectl.run("scale", "sj/a", "--replicas=3")
    running.wait_settled(3)
    assert minimum(kubectl) == 3 and "disruption budget" in refused(kubectl, "a-worker-2")
    kubectl.patch("sj/a", {"metadata": {"annotations": {"ferry.dev/drain": "2"}}})
    wait_until(lambda: may_leave(kubectl, "a-worker-2"), "empty worker", 30)
    wait_until(lambda: minimum(kubectl) == 2, "budget for the two workers with state", 40)
    assert "disruption budget" in refused(kubectl, "a-worker-1")
    evict(kubectl, "a-worker-2")
    wait_until(lambda: kubectl.get("pdb", "a-workers")["status"]["currentHealthy"] == 2, "healthy workers", 20)
    assert kubectl.get("pdb", "a-workers")["status"]["disruptionsAllowed"] == 0


def test_changes_of_nodes_are_watched(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubectl.kubeconfig))
    api, name = KubeApi(str(kubectl.namespace), lambda *_: None), f"n-{kubectl.namespace}"
    before, version = api.listed(NODES)
    assert name not in [node["metadata"]["name"] for node in before]
    kubectl.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    kubectl.run("cordon", name)
    kubectl.run("delete", "node", name)
    began = time.monotonic()
    seen = [(change, node) for change, node in api.changes(NODES, version, 3) if node["metadata"].get("name") == name]
    assert 2.0 < time.monotonic() - began < 8.0, "the API server ends the watch"
    assert [change for change, _ in seen][:1] == ["ADDED"] and [change for change, _ in seen][-1:] == ["DELETED"]
    assert any(change == "MODIFIED" and facts.node(node).cordoned for change, node in seen)


def test_a_job_may_do_without_protection(running: Running) -> None:
    kubectl = running.kubectl
    kubectl.patch("sj/a", {"spec": {"kubernetes": {"disruptionBudget": "off"}}})
    wait_until(lambda: may_leave(kubectl, "a-worker-1") and minimum(kubectl) == 0, "budget that is off", 30)
    running.kubelets.over = True  # state goes with the pod
    evict(kubectl, "a-worker-1")
    running.wait_settled(2)
