"""On a real API server: what a tenant gets who may only write StreamJobs, and what becomes of a job whose object is replaced,
made again or copied."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.kube.kubectl import Document, Kubectl, KubectlError, wait_until
from tests.kube.operators import Operators, Running, job
from tests.kube.stand_ins import VNODES

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

RBAC = "rbac.authorization.k8s.io"
KEPT: Document = {"virtualNodes": VNODES, "checkpoint": {"location": "s3://bucket/ferry"}}

EVERYWHERE: Document = {"topologyKey": "kubernetes.io/os", "labelSelector": {}, "namespaceSelector": {}}

EVIL: Document = {
    "pipeline": {"module": "evil"},
    "transport": {"rdma": {"mode": "sriov", "resource": "nvidia.com/gpu", "networks": "kube-system/host"}},
    "kubernetes": {
        "image": "registry.evil/x:1",
        "network": "host",
        "serviceAccount": "ferry-operator",
        "envFrom": ["ferry-operator", "a-run"],
        "user": 999,
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "ferry-operator", "key": "key"}}}],
        "driverPodTemplate": {"spec": {"priorityClassName": "system-node-critical"}},
        "workerPodTemplate": {"spec": {"volumes": [{"name": "v", "secret": {"secretName": "a-run"}}]}},
        "volumes": [{"name": "etc", "mountPath": "/host", "hostPath": "/etc"}],
        "stateVolume": {"medium": "hostPath", "path": "/var/lib/kubelet"},
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [EVERYWHERE]}},
    },
}

SHAPED = ("env.KEY", "driverPodTemplate.spec.priorityClassName", "workerPodTemplate.spec.volumes.v.secret")

RIGHTS: Document = {
    "apiGroups": ["ferry.dev"],
    "resources": ["streamjobs", "streamjobs/scale"],
    "verbs": ["create", "get", "list", "watch", "patch", "update", "delete"],
}


@dataclass
class Tenant:
    """kubectl with the rights of somebody who may only write StreamJobs."""

    kubectl: Kubectl
    user: str

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        return self.kubectl.run("--as", self.user, *arguments, stdin=stdin)

    def apply(self, document: Document, how: str = "apply") -> None:
        self.run(how, "-f", "-", stdin=yaml.safe_dump(document))


@pytest.fixture
def tenant(kubectl: Kubectl) -> Tenant:
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": str(kubectl.namespace)}
    role = {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": "tenant"}, "rules": [RIGHTS]}
    binding = {
        "apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {"name": "tenant"}, "subjects": [account],
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "tenant"},
    }  # fmt: skip
    kubectl.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}}, role, binding)
    return Tenant(kubectl, f"system:serviceaccount:{kubectl.namespace}:tenant")


@pytest.fixture
def kept(operators: Operators) -> Iterator[Running]:
    """A job with a location for its checkpoints, under a good spec."""
    with operators.job(state=KEPT) as found:
        wait_until(lambda: "good" in found.status()["memory"], "a good spec that is kept", 20)
        yield found


def notes(**texts: Any) -> Document:
    return {f"ferry.dev/{name.replace('_', '-')}": json.dumps(one) for name, one in texts.items()}


def settings(kubectl: Kubectl) -> Document:
    found: Document = json.loads(base64.b64decode(kubectl.get("secret", "a-run")["data"]["run.json"]))
    return found


def degraded(kubectl: Kubectl, name: str) -> str:
    conditions = (kubectl.find("sj", name) or {}).get("status", {}).get("conditions", [])
    return next((f"{c['reason']}: {c['message']}" for c in conditions if c["type"] == "Degraded"), "")


def test_a_tenant_gets_nothing_but_jobs(kept: Running, tenant: Tenant) -> None:
    """Neither by a spec, nor by notes that look like those of an operator, nor by a status."""
    kubectl, before = kept.kubectl, kept.pods()
    forged = {"status": {"memory": {"uid": kubectl.get("sj", "a")["metadata"]["uid"], "run": 9, "over": True}}}
    with pytest.raises(KubectlError, match="forbidden"):
        tenant.run("patch", "sj/a", "--subresource=status", "--type=merge", "-p", json.dumps(forged))
    tenant.run("patch", "sj/a", "--type=merge", "-p", json.dumps(forged))
    plain = job("plain")
    tenant.apply({**plain, "metadata": {"name": "spec"}, "spec": {**plain["spec"], **EVIL}})
    bad = {**plain["spec"], "pipeline": {"module": "jobs.rules", "args": {"depth": {"of": "maps"}}}}
    text = notes(last_good_spec={**bad, **EVIL}, run={"number": 3, "over": True}, refused=["x", "y"])
    status = {"memory": {"good": {"generation": 1, "spec": json.dumps({**bad, **EVIL}), "seal": "0" * 16}}}
    tenant.apply({**plain, "metadata": {"name": "notes", "annotations": text}, "spec": bad, "status": status})
    tenant.run("annotate", "sj/a", "--overwrite", *(f"{name}={one}" for name, one in text.items()))
    for name, said in (("spec", "belongs to Ferry"), ("notes", "spec.pipeline.args")):
        wait_until(lambda name=name, said=said: said in degraded(kubectl, name), f"refusal of {name}", 30)
    said = degraded(kubectl, "spec")
    for field in ("network", "serviceAccount", "user", "volumes.etc.hostPath", "stateVolume.path", "affinity", *SHAPED):
        assert f"spec.kubernetes.{field}" in said, said
    for field in ("resource", "networks"):
        assert f"spec.transport.rdma.{field}" in said, said
    assert kept.pods() == before and kept.settled(2)
    assert kept.status()["memory"]["run"] == 1 and kubectl.find("secret", "spec-run") is None


def test_a_template_with_another_field_is_refused_and_the_job_goes_on(kept: Running, tenant: Tenant) -> None:
    before = kept.pods()
    for field in ("hostPID", "hostUsers", "serviceAccountName"):
        template = {"spec": {field: "operator" if field.startswith("service") else True}}
        tenant.run(
            "patch", "sj/a", "--type=merge", "-p", json.dumps({"spec": {"kubernetes": {"driverPodTemplate": template}}})
        )
        said = f"driverPodTemplate: spec.{field}: a template may not set it"
        wait_until(lambda said=said: said in degraded(kept.kubectl, "a"), field, 20)
        tenant.run(
            "patch", "sj/a", "--type=json", "-p", '[{"op": "remove", "path": "/spec/kubernetes/driverPodTemplate"}]'
        )
    kept.wait_settled(2)
    assert kept.pods() == before and len(kept.kubelets.lives) == 1


def test_annotations_that_make_no_sense_are_said(kept: Running, tenant: Tenant) -> None:
    tenant.run("annotate", "sj/a", "ferry.dev/drain=1-3", "ferry.dev/pins=3:1.0", "ferry.dev/paused=True")
    wait_until(lambda: degraded(kept.kubectl, "a").count("ferry.dev/") == 3, "three that are not followed", 20)
    assert kept.driver.used() == {0, 1} and kept.condition("Ready")["status"] == "True"
    assert sum(e["reason"] == "AnnotationIgnored" for e in kept.kubectl.items("events")) == 3
    tenant.run("annotate", "sj/a", "ferry.dev/drain-", "ferry.dev/pins-", "ferry.dev/paused-")
    wait_until(lambda: "AllWell" in degraded(kept.kubectl, "a"), "all well", 20)


def test_a_job_that_is_replaced_while_it_is_suspended_keeps_its_state(kept: Running, tenant: Tenant) -> None:
    """On its way, at rest and when it runs again; each time the manifest says nothing of what went before."""
    kubectl, manifest = kept.kubectl, job(state=KEPT)
    rests = job(state=KEPT, suspend=True)

    def phase(wanted: str) -> None:
        wait_until(lambda: kept.status()["phase"] == wanted, f"phase {wanted}", 60)

    kept.driver.holds = True
    tenant.apply(rests, "replace")
    phase("Suspending")
    tenant.apply(manifest, "replace")
    kept.wait_settled(2)
    assert kept.status()["memory"]["run"] == 1 and len(kept.kubelets.lives) == 1
    tenant.apply(rests, "replace")
    phase("Suspending")
    tenant.run("annotate", "sj/a", "team=x")
    tenant.apply(rests, "replace")
    kept.driver.holds = False
    phase("Suspended")
    tenant.apply(rests, "replace")
    tenant.apply(manifest, "replace")
    kept.wait_settled(2)
    assert settings(kubectl)["restore_from"] == "latest" and kept.status()["memory"]["run"] == 2
    run = kept.status()["run"]
    tenant.apply({**manifest, "metadata": {"name": "a", "labels": {"team": "x"}}}, "replace")
    kubectl.run("delete", "pod", "a-driver", "--force", "--grace-period=0")
    wait_until(lambda: len(kept.kubelets.lives) == 3, "another driver", 30)
    kept.wait_settled(2)
    assert settings(kubectl)["run"] == run == kept.status()["run"]


STAGES = ("runs", "suspending", "ended", "suspended", "resuming", "again")
"""`ended`: the driver with its last checkpoint, and no operator has seen it; `resuming`: pods that no node takes yet."""


def stages(*short: str) -> list[Any]:
    return [one if one in short else pytest.param(one, marks=pytest.mark.long) for one in STAGES]


@contextmanager
def at(stage: str, kept: Running) -> Iterator[None]:
    """The job is there; afterwards it goes on."""
    (operator,) = kept.operators.running
    try:
        if stage != "runs":
            kept.driver.holds = stage in ("suspending", "ended")
            kept.kubectl.patch("sj/a", {"spec": {"suspend": True}})
            wait_until(lambda: "-driver" not in str(kept.pods()) or kept.driver.suspends, "request to suspend", 60)
        if stage == "ended":
            operator.process.send_signal(signal.SIGSTOP)
            kept.driver.holds = False
            wait_until(lambda: kept.kubectl.get("pod", "a-driver")["status"]["phase"] == "Failed", "end", 20)
        if stage in ("suspended", "resuming", "again"):
            wait_until(lambda: kept.status()["phase"] == "Suspended", "suspended job", 60)
        if stage in ("resuming", "again"):
            kept.kubelets.has_room = lambda pod: stage == "again"
            kept.kubectl.patch("sj/a", {"spec": {"suspend": False}})
            wait_until(lambda: len(kept.pods()) == 3, "pods", 60)
        if stage == "again":
            kept.wait_settled(2)
        yield
    finally:
        operator.process.send_signal(signal.SIGCONT)
        kept.driver.holds, kept.kubelets.has_room = False, lambda pod: True


@pytest.mark.parametrize("stage", stages("ended", "resuming"))
def test_an_export_that_is_applied_again_or_under_another_name_changes_nothing(
    kept: Running, tenant: Tenant, stage: str
) -> None:
    """With the status and the annotations that it had, and with those of an operator of an older release."""
    kubectl, old = kept.kubectl, notes(run={"number": 7, "over": True, "before": None}, last_good_spec=EVIL)
    with at(stage, kept):
        export = kubectl.get("sj", "a")
        annotations = {**export["metadata"].get("annotations", {}), **old}
        for name in ("a", "b"):
            tenant.apply({**export, "metadata": {"name": name, "annotations": annotations}})
    wait_until(lambda: "memory" in (kubectl.get("sj", "b").get("status") or {}), "memory of the copy", 30)
    copy = kubectl.get("sj", "b")
    memory = copy["status"]["memory"]
    defaults = memory.pop("defaults", None)  # of the operator, once the copy has pods
    if defaults is not None:
        assert re.fullmatch("[0-9a-f]{16}", defaults.pop("redis"))
    assert defaults in (None, {"image": "ferry:1", "redisAt": "127.0.0.1:1"}) and memory.pop("key") == 1
    assert memory == {"uid": copy["metadata"]["uid"], "run": 1, "over": False}
    tenant.run("delete", "sj", "b")
    if stage in ("suspending", "ended", "suspended"):
        wait_until(lambda: kept.status()["phase"] == "Suspended", "suspended job", 60)
        tenant.run("patch", "sj/a", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    kept.wait_settled(2)
    assert kept.status()["memory"]["run"] == (1 if stage == "runs" else 2)
    assert settings(kubectl)["restore_from"] == (None if stage == "runs" else "latest")


@pytest.mark.parametrize("stage", stages("runs"))
def test_a_job_that_is_made_again_asks_where_it_begins(kept: Running, tenant: Tenant, stage: str) -> None:
    """By hand, or from a backup: its checkpoints are there, and nothing in the object says so."""
    kubectl, manifest = kept.kubectl, job(state=KEPT)
    manifest["metadata"]["annotations"] = notes(run={"number": 2, "over": True, "before": None})
    with at(stage, kept):
        lives, before = len(kept.kubelets.lives), kubectl.get("sj", "a")
        kept.kubelets.over = True  # no state is needed on any pod: it is in the checkpoints
        tenant.run("replace", "--force", "-f", "-", stdin=yaml.safe_dump({**manifest, "status": before["status"]}))
    wait_until(lambda: len(kept.kubelets.lives) == lives + 1, "driver", 60)
    uid = kubectl.get("sj", "a")["metadata"]["uid"]
    assert settings(kubectl)["restore_from"] is None and uid != before["metadata"]["uid"]
    assert "FERRY_BEGUN" not in json.dumps(kubectl.get("pod", "a-driver"))
    kept.kubelets.end_driver(2, "refused: restoreFrom is not set: s3://x holds checkpoints; set latest or none\n")
    wait_until(lambda: "RestoreFromNeeded" in degraded(kubectl, "a"), "question", 60)
    wait_until(lambda: kept.status()["phase"] == "Failed", "failed job", 20)
    tenant.run("patch", "sj/a", "--type=merge", "-p", '{"spec": {"restoreFrom": "latest"}}')
    wait_until(lambda: settings(kubectl)["restore_from"] == "latest", "an answer that is followed", 60)
    wait_until(lambda: len(kept.kubelets.lives) >= lives + 2, "a driver that goes on", 60)
