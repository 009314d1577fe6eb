"""Ferry's resource on a real API server, by real `kubectl`: nothing that is wrong comes in, nothing right is refused."""

from __future__ import annotations

import json
import operator
import re
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from ferry_operator.crd.rules import BASE, RULES, Rule, patched
from ferry_operator.crd.schema import LATER
from ferry_operator.job import spec
from ferry_operator.job.container_template import ACCOUNT
from ferry_operator.job.fields import model_of, names_of
from ferry_operator.job.models import Spec
from ferry_operator.kube.manifests import pods
from ferry_operator.kube.manifests.release import Installation
from tests import templates
from tests.kube.kubectl import Kubectl, wait_until

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Running",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}

Document = dict[str, Any]


def job(name: str = "a", **spec: Any) -> Document:
    """The smallest job, with fields of its spec put in."""
    return patched(BASE, {"metadata": {"name": name}, "spec": spec})


def version(kubectl: Kubectl, name: str = "a") -> tuple[int, str]:
    """Generation and resource version: whether the spec, and whether anything, was written."""
    metadata = kubectl.get("sj", name)["metadata"]
    return metadata["generation"], metadata["resourceVersion"]


# --- what comes in


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_accepted_and_applying_them_again_writes_nothing(kubectl: Kubectl, path: Path) -> None:
    name = yaml.safe_load(path.read_text())["metadata"]["name"]
    assert "created" in kubectl.run("apply", "-f", str(path))
    first = version(kubectl, name)
    assert first[0] == 1
    said = kubectl.run("apply", *["-f", str(path)] * 9).splitlines()
    assert len(said) == 9 and all("unchanged" in line for line in said)
    assert version(kubectl, name) == first


def test_what_the_server_returns_can_be_applied_and_writes_nothing(kubectl: Kubectl) -> None:
    kubectl.apply(job(), options=["--server-side"])
    first = version(kubectl)
    kubectl.apply(*[job()] * 9, options=["--server-side"])
    assert version(kubectl) == first
    whole = kubectl.get("sj", "a")
    kubectl.run("replace", "-f", "-", stdin=json.dumps(whole))
    assert version(kubectl) == first


@pytest.mark.parametrize("given", [{}, "groups"], ids=["nothing", "empty-groups"])
def test_defaults_are_those_of_the_models(kubectl: Kubectl, given: Any) -> None:
    """What the API server fills in is what `ferry run` assumes; it leaves out empty maps, nulls, and fields in LATER."""
    spec = job()["spec"] | (empty_groups(Spec) if given == "groups" else {})
    kubectl.apply({**job(), "spec": spec})
    found, meant = kubectl.get("sj", "a")["spec"], Spec.model_validate(spec)
    assert Spec.model_validate(found) == meant
    assumed = {"spec": meant.model_dump(by_alias=True, mode="json")}
    for path in LATER:
        *groups, last = path.split(".")
        reduce(operator.getitem, groups, assumed).pop(last)
    assert without_empties(found) == without_empties(assumed["spec"])


def empty_groups(model: type[BaseModel]) -> Document:
    """Every group of fields of which none is required, without its fields."""
    below = {alias: model_of(model.model_fields[name].annotation) for alias, name in names_of(model).items()}
    return {alias: empty_groups(group) for alias, group in below.items() if group is not None and alias != "pipeline"}


def without_empties(value: Any) -> Any:
    """A document without its nulls, empty maps and empty lists."""
    if not isinstance(value, dict):
        return value
    parts = {key: without_empties(one) for key, one in value.items()}
    return {key: one for key, one in parts.items() if one not in (None, {}, [])}


@pytest.mark.parametrize(
    ("field", "patch"),
    [
        ("spec.nonsense", {"nonsense": 1}),
        ("spec.state.replica", {"state": {"replica": 1}}),
        ("spec.kubernetes.driver.memorry", {"kubernetes": {"driver": {"memorry": "1Gi"}}}),
    ],
)
def test_an_unknown_field_is_refused(kubectl: Kubectl, field: str, patch: Document) -> None:
    document = yaml.safe_dump({**BASE, "spec": {**BASE["spec"], **patch}})
    assert f'unknown field "{field}"' in kubectl.refusal("apply", "-f", "-", stdin=document)
    assert kubectl.items("sj") == []


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"workers": "two"}, "spec.workers"),
        ({"workers": -1}, "greater than or equal to 0"),
        ({"workers": 0}, "without pods only a checkpoint keeps the state"),
        ({"workers": 257}, "less than or equal to 256"),
        ({"handover": {"strategy": "slow"}}, 'Unsupported value: "slow"'),
        ({"state": {"memory": "much"}}, "spec.state.memory"),
        ({"epoch": {"interval": "soon"}}, "spec.epoch.interval"),
        ({"pipeline": None}, "spec.pipeline: Required value"),
    ],
    ids=str,
)
def test_what_the_schema_says_is_enforced(kubectl: Kubectl, patch: Document, said: str) -> None:
    assert said in kubectl.refusal("apply", "-f", "-", stdin=yaml.safe_dump(job("a", **patch)))


# --- the rules in CEL


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_refuses_what_breaks_it_and_nothing_else(kubectl: Kubectl, rule: Rule) -> None:
    valid, broken = yaml.safe_dump(rule.valid_job()), yaml.safe_dump(rule.broken_job())
    if not rule.update:
        said_once(kubectl.refusal("create", "-f", "-", stdin=broken), rule)
    kubectl.run("create", "-f", "-", stdin=valid)
    if rule.update:
        name = rule.valid["metadata"]["name"] if "metadata" in rule.valid else BASE["metadata"]["name"]
        before = version(kubectl, name)
        said_once(kubectl.refusal("replace", "-f", "-", stdin=broken), rule)
        assert version(kubectl, name) == before


def said_once(said: str, rule: Rule) -> None:
    """The rule's message is there, at its place, and no other rule's."""
    assert rule.message in said
    messages = {other.message for other in RULES}
    spoken = {m for m in messages if re.search(rf"(?:: |\] ){re.escape(m)}(?:$|[\n,\]])", said + "\n")}
    assert spoken == {rule.message}, said
    place = rule.path.replace("[]", "[0]") + (rule.field_path or "")
    assert place in said, f"{place} is not named in {said}"


def test_there_are_rules_for_what_matters_most() -> None:
    assert len(RULES) >= 8
    names = {rule.name for rule in RULES}
    assert {"replicas-below-workers", "state-virtualNodes-immutable"} <= names


def test_an_immutable_field_may_be_applied_again(kubectl: Kubectl) -> None:
    kubectl.apply(job(state={"virtualNodes": 128}))
    assert "unchanged" in kubectl.apply(job(state={"virtualNodes": 128}))
    kubectl.apply(job(state={"virtualNodes": 128}, workers=3))
    assert version(kubectl)[0] == 2


# --- scale


def test_scale_changes_the_workers_and_nothing_else(kubectl: Kubectl) -> None:
    kubectl.apply(job(workers=2))
    before = kubectl.get("sj", "a")["spec"]
    kubectl.run("scale", "sj/a", "--replicas=4")
    assert kubectl.get("sj", "a")["spec"] == {**before, "workers": 4}
    kubectl.run("scale", "sj/a", "--current-replicas=4", "--replicas=3")
    assert kubectl.get("sj", "a")["spec"] == {**before, "workers": 3}
    kubectl.patch("sj/a", {"spec": {"replicas": 2}}, subresource="scale")
    assert kubectl.get("sj", "a")["spec"] == before


def test_scale_is_guarded_by_schema_and_rules(kubectl: Kubectl) -> None:
    kubectl.apply(job(workers=3, state={"virtualNodes": 8, "replicas": 2}))
    before = version(kubectl)
    assert "without pods only a checkpoint keeps the state" in kubectl.refusal("scale", "sj/a", "--replicas=0")
    copies, instances = (r for r in RULES if r.name in ("replicas-below-workers", "instances-within-virtual-nodes"))
    assert copies.message in kubectl.refusal("scale", "sj/a", "--replicas=2")
    assert instances.message in kubectl.refusal("scale", "sj/a", "--replicas=9")
    assert version(kubectl) == before


def test_scale_shows_workers_that_own_state_and_their_selector(kubectl: Kubectl) -> None:
    """What a HorizontalPodAutoscaler and `kubectl drain` read."""
    kubectl.apply(job(workers=3))
    selector = "ferry.dev/job=a,ferry.dev/role=worker"
    kubectl.patch("sj/a", {"status": {"workers": 2, "selector": selector}}, subresource="status")
    scale = json.loads(
        kubectl.run("get", "--raw", f"/apis/ferry.dev/v1alpha1/namespaces/{kubectl.namespace}/streamjobs/a/scale")
    )
    assert scale["spec"]["replicas"] == 3
    assert scale["status"] == {"replicas": 2, "selector": selector}


# --- status


def test_status_is_written_apart_from_the_spec(kubectl: Kubectl) -> None:
    kubectl.apply(job())
    kubectl.patch("sj/a", {"status": {"phase": "Running"}})
    assert "status" not in kubectl.get("sj", "a"), "a writer of the whole object must not touch the status"
    kubectl.patch("sj/a", {"status": {"phase": "Running"}, "spec": {"workers": 9}}, subresource="status")
    found = kubectl.get("sj", "a")
    assert (found["status"], found["spec"]["workers"]) == ({"phase": "Running"}, 2)
    assert found["metadata"]["generation"] == 1
    kubectl.apply(job(workers=3))
    assert kubectl.get("sj", "a")["status"] == {"phase": "Running"}
    assert "Unsupported value" in kubectl.refusal(
        "patch", "sj/a", "--type=merge", "--subresource=status", "-p", '{"status": {"phase": "Dancing"}}'
    )


def test_columns(kubectl: Kubectl) -> None:
    kubectl.apply(job(workers=4))
    status = {
        "phase": "Moving", "workers": 2, "moving": 12, "lastHandover": "0.042s",
        "progress": {"lag": "1.2s", "state": "12Mi", "replicaLag": "3ms"},
    }  # fmt: skip
    kubectl.patch("sj/a", {"status": status}, subresource="status")
    head, row = (line.split() for line in kubectl.run("get", "sj").splitlines())
    assert head == ["NAME", "STATUS", "DESIRED", "CURRENT", "MOVING", "LAG", "STATE", "AGE"]
    assert row[:7] == ["a", "Moving", "4", "2", "12", "1.2s", "12Mi"]
    head, row = (line.split() for line in kubectl.run("get", "streamjobs", "-o", "wide").splitlines())
    wide = dict(zip(head, row))
    assert (wide["REPLICA-LAG"], wide["LAST-HANDOVER"]) == ("3ms", "0.042s")


def test_wait_sees_a_condition(kubectl: Kubectl) -> None:
    kubectl.apply(job())
    kubectl.patch("sj/a", {"status": {"conditions": [{**READY, "status": "False", "reason": "Starting"}]}}, "status")
    assert "timed out" in kubectl.refusal("wait", "--for=condition=Ready", "sj/a", "--timeout=1s")
    waiting = kubectl.start("wait", "--for=condition=Ready", "sj/a", "--timeout=30s")
    try:
        kubectl.patch("sj/a", {"status": {"conditions": [READY]}}, "status")
        said, _ = waiting.communicate(timeout=40)
    finally:
        waiting.kill()
    assert (waiting.returncode, said) == (0, "streamjob.ferry.dev/a condition met\n")


# --- the resource itself


def test_it_has_its_names(kubectl: Kubectl) -> None:
    kubectl.apply(job())
    for name in ("sj", "streamjob", "streamjobs", "streamjobs.ferry.dev", "ferry", "all"):
        assert "a" in kubectl.run("get", name, "-o", "name").rpartition("/")[2], name
    assert "spec" in kubectl.run("explain", "sj")
    assert "power of two" in kubectl.run("explain", "sj.spec.state.virtualNodes")


def test_a_job_is_deleted_at_once_when_nobody_holds_it(kubectl: Kubectl) -> None:
    kubectl.apply(job())
    kubectl.run("delete", "sj", "a", "--timeout=10s")
    wait_until(lambda: kubectl.items("sj") == [], "deleted job", 5)


# --- pods


RDMA: dict[str, Document] = {
    "shared": {"mode": "shared", "resource": "rdma/hca"},
    "sriov": {"mode": "sriov", "resource": "example.com/vf", "networks": "fast, other/slow@eth2"},
    "hostNetwork": {"mode": "hostNetwork", "resource": "rdma/hca"},
}


@pytest.mark.parametrize("mode", RDMA)
def test_pods_with_rdma_are_accepted_and_need_no_privilege(kubectl: Kubectl, mode: str) -> None:
    host = mode == "hostNetwork"
    made = job("a", transport={"mode": "rdma", "rdma": RDMA[mode]}, kubernetes={"network": "host" if host else "pod"})
    kubectl.apply(made)
    owner = kubectl.get("sj", "a")
    kubectl.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "jobs"}})
    release = Installation(str(kubectl.namespace), "ferry:1", "redis://nowhere.invalid:6379/0", "key", "jobs")
    pod = pods.worker(owner, spec.check(owner), release, 0, {})
    for level in ("privileged", "restricted"):
        kubectl.run(
            "label", "namespace", str(kubectl.namespace), f"pod-security.kubernetes.io/enforce={level}", "--overwrite"
        )
        document, said = yaml.safe_dump(pod), ("create", "--dry-run=server", "-o", "json", "-f", "-")
        if host and level == "restricted":
            assert "host namespaces (hostNetwork=true)" in kubectl.refusal(*said, stdin=document)
            continue
        found = json.loads(kubectl.run(*said, stdin=document))
        (sidecar,) = found["spec"]["initContainers"]
        assert sidecar["resources"]["limits"][RDMA[mode]["resource"]] == "1"
        assert RDMA[mode]["resource"] not in found["spec"]["containers"][0]["resources"]["limits"]
        assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert found["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks") == RDMA[mode].get("networks")


CLASSES: list[Document] = [
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "streams"}, "value": 1000},
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "sandboxed"}, "handler": "sandboxed"},
]


def test_pods_with_every_kind_of_field_of_a_template_are_accepted_under_the_restricted_standard(
    kubectl: Kubectl,
) -> None:
    """Kubernetes reads the fields as the grammar does, and containers of the job's own get no token of the account."""
    section = {
        "driverPodTemplate": templates.DRIVER,
        "workerPodTemplate": templates.WORKER,
        "env": [{"name": "A", "value": "$(POD_IP)"}],
    }
    kubectl.apply(job("a", kubernetes=section))
    kubectl.apply(*CLASSES)
    owner = kubectl.get("sj", "a")
    assert owner["spec"]["kubernetes"]["workerPodTemplate"] == templates.WORKER, "nothing is dropped"
    kubectl.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "jobs"}})
    release = Installation(str(kubectl.namespace), "ferry:1", "redis://nowhere.invalid:6379/0", "key", "jobs")
    kubectl.run(
        "label", "namespace", str(kubectl.namespace), "pod-security.kubernetes.io/enforce=restricted", "--overwrite"
    )
    parsed = spec.check(owner)
    for pod in (pods.driver(owner, parsed, release, {}), pods.worker(owner, parsed, release, 0, {})):
        found = json.loads(
            kubectl.run(
                "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", stdin=yaml.safe_dump(pod)
            )
        )
        assert found["spec"]["priority"] == 1000
        holders = [
            container["name"]
            for container in (*found["spec"]["initContainers"], *found["spec"]["containers"])
            for mounted in container.get("volumeMounts", [])
            if mounted["mountPath"] == ACCOUNT and mounted["name"].startswith("kube-api-access")
        ]
        assert holders == (["driver"] if pod["metadata"]["name"].endswith("-driver") else [])
