"""On a real API server: one release for many namespaces, with the rights that the chart renders and no others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.conftest import own_namespace
from tests.kube.kubectl import Document, Kubectl, wait_until
from tests.kube.operators import KEY, LEASE, Operators, job
from tests.unit.charts import environment, of_kind, pods, render, rights

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount")
LABEL = "ferry.dev/jobs-of"


@contextmanager
def release(
    kubectl: Kubectl, directory: Path, calls: Path, values: Mapping[str, Any], name: str = "ferry"
) -> Iterator[Operators]:
    """A release of the chart: its rights, its key and its operators, in the namespace of kubectl."""
    home = str(kubectl.namespace)
    documents = render(dict(values), release=name, namespace=home)
    objects = [one for kind in RIGHTS for one in of_kind(documents, kind)]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-operator"},
        "stringData": {"key": KEY},
    }
    kubectl.within(None).run("apply", "-f", "-", stdin=yaml.safe_dump_all([*map(placed(home), [*objects, secret])]))
    everywhere = [one for one in objects if one["kind"].startswith("Cluster")]
    token = kubectl.run("create", "token", f"{name}-operator", "--duration=1h").strip()
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    directory.mkdir()
    file = directory / "operator.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    ((_, spec),) = pods(of_kind(documents, "Deployment", "-operator"))
    container = spec["containers"][0]
    words = container["args"][container["args"].index("--lease") :]
    chosen = {"FERRY_NAMESPACE_OBJECTS": environment(container)["FERRY_NAMESPACE_OBJECTS"]}
    variables = {**chosen, "FERRY_KEY_SECRET": f"{name}-operator", "FERRY_READ_NODES": "false"}
    operators = Operators(kubectl, directory, file, calls, arguments=tuple(words), variables=variables)
    try:
        yield operators
    finally:
        operators.close()
        for one in everywhere:
            kubectl.run("delete", one["kind"], one["metadata"]["name"], "--ignore-not-found")
    for one in operators.running:
        assert not one.complaints(), "\n".join(one.complaints())


def placed(home: str) -> Any:
    """Objects of the chart without a namespace belong to the release's."""

    def place(document: Document) -> Document:
        if document["kind"].startswith("Cluster"):
            return document
        return {**document, "metadata": {"namespace": home, **document["metadata"]}}

    return place


@pytest.fixture
def two(kubectl: Kubectl, controllers: None) -> Iterator[tuple[Kubectl, Kubectl]]:
    """Two namespaces of teams."""
    with contextmanager(own_namespace)(kubectl) as left, contextmanager(own_namespace)(kubectl) as right:
        yield left, right


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: Kubectl) -> Path:
    """Where the calls of this test are noted."""
    monkeypatch.setenv("KUBECONFIG", str(kubectl.kubeconfig))
    return tmp_path / "calls.jsonl"


def has_pods(kubectl: Kubectl) -> bool:
    """Whether the job has its pods, all of the account of jobs."""
    return len(kubectl.items("pods", "-l", "ferry.dev/job=a")) == 3


def made(calls: Path) -> set[tuple[Any, ...]]:
    return {tuple(json.loads(line).values()) for line in calls.read_text().splitlines()}


def test_jobs_of_listed_namespaces_run_and_a_namespace_without_roles_disturbs_none(
    kubectl: Kubectl, two: tuple[Kubectl, Kubectl], noted: Path, tmp_path: Path
) -> None:
    left, right = two
    names = [str(one.namespace) for one in two]
    with release(kubectl, tmp_path / "one", noted, {"namespaces.list": names}) as operators:
        binding = right.get("rolebinding", "ferry-operator")
        right.run("delete", "rolebinding", "ferry-operator")
        for team in two:
            team.apply(job())
        operator = operators.start(hasty=True)
        wait_until(lambda: has_pods(left), "pods of the namespace with roles", 60)
        wait_until(
            lambda: f"the jobs of the namespace {names[1]} are not managed" in operator.log.read_text(), "line", 30
        )
        assert operator.log.read_text().count("are not managed") == 1 and not has_pods(right)
        assert "ferry_operator_namespaces_failing 1.0" in operator.get("/metrics")
        left.run("scale", "sj/a", "--replicas=3")
        wait_until(lambda: len(left.items("pods")) >= 3, "the other goes on", 20)
        metadata = {"name": binding["metadata"]["name"], "namespace": names[1]}
        right.create({**binding, "metadata": metadata})
        wait_until(lambda: has_pods(right), "pods of the namespace that has roles by now", 60)
        wait_until(lambda: "ferry_operator_namespaces_failing 0.0" in operator.get("/metrics"), "metric", 20)
        uids = {team.get("sj", "a")["metadata"]["uid"] for team in two}
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for team in two for pod in team.items("pods")}
        assert owners == uids and kubectl.items("pods") == []
        operator.log.write_text(operator.log.read_text().replace("WARNING", "expected"))


def test_a_label_puts_a_namespace_in_the_care_of_the_operator_and_takes_it_out(
    kubectl: Kubectl, two: tuple[Kubectl, Kubectl], noted: Path, tmp_path: Path
) -> None:
    left, right = two
    home = str(kubectl.namespace)
    selector = {"namespaces.selector": {"matchLabels": {LABEL: home}}, "networkPolicies.jobEgress": []}
    with release(kubectl, tmp_path / "one", noted, selector) as operators:
        operator = operators.start(hasty=True)
        operators.leader()
        for team in two:
            team.apply(job())
        kubectl.run("label", "namespace", str(left.namespace), f"{LABEL}={home}")
        wait_until(lambda: has_pods(left), "pods of the chosen namespace", 60)
        created = ("rolebinding/ferry-operator", "rolebinding/ferry-driver", "sa/ferry-job")
        created += ("networkpolicy/ferry-jobs", "networkpolicy/ferry-drivers")
        assert all(left.find(one) for one in created) and not any(right.find(one) for one in created)
        assert right.items("pods") == [], "not chosen"
        left.run("scale", "sj/a", "--replicas=3")
        wait_until(lambda: left.get("sj", "a")["status"]["desired"] == 3, "an edit, by the watch", 20)
        kubectl.run("label", "namespace", str(left.namespace), f"{LABEL}-")
        left.run("scale", "sj/a", "--replicas=2")
        wait_until(lambda: left.get("sj", "a")["status"]["desired"] == 2, "the job is managed until it is deleted", 20)
        left.run("delete", "sj", "a")
        left.run("delete", "pods", "--all", "--force", "--grace-period=0")
        wait_until(lambda: not any(left.find(one) for one in created), "a namespace that is cleared", 40)
        assert "is cleared" in operator.log.read_text()
        kubectl.run("label", "namespace", str(right.namespace), f"{LABEL}={home}")
        wait_until(lambda: has_pods(right), "pods of another namespace", 60)
    chart = render(selector, release="ferry", namespace=home)
    allowed = {
        *((*right_, False) for right_ in rights(chart, "ClusterRole", "-namespaces")),
        *((*right_, True) for right_ in rights(chart, "ClusterRole", "-operator")),
        *((*right_, True) for right_ in rights(chart, "ClusterRole", "-operator", named=True)),
        *((*right_, True) for right_ in rights(chart, "Role", "-own")),
        *((*right_, True) for right_ in rights(chart, "Role", "-own", named=True)),
        # Created with the right of the ClusterRole for all namespaces.
        ("create", "rbac.authorization.k8s.io", "rolebindings", True),
    }
    assert made(noted) <= allowed, made(noted) - allowed


def test_an_operator_that_chooses_namespaces_gives_itself_no_other_role(
    kubectl: Kubectl, two: tuple[Kubectl, Kubectl], noted: Path, tmp_path: Path
) -> None:
    left, _ = two
    with release(kubectl, tmp_path / "one", noted, {"namespaces.all": True}) as operators:
        mine = Kubectl(kubectl.program, operators.kubeconfig, str(left.namespace))
        home = str(kubectl.namespace)
        account = f"--serviceaccount={home}:ferry-operator"
        assert "forbidden" in mine.refusal("create", "rolebinding", "evil", "--clusterrole=admin", account)
        assert "forbidden" in mine.refusal("get", "secrets")
        assert "forbidden" in mine.refusal("create", "configmap", "x")
        mine.run("create", "rolebinding", "ferry-operator", f"--clusterrole={home}-ferry-operator", account)
        wait_until(lambda: mine.run("get", "pods") is not None, "rights of the role", 10)
        assert "forbidden" in mine.refusal("get", "secrets"), "it writes Secrets of jobs, and reads none"
        left.run("delete", "rolebinding", "ferry-operator")


def test_all_namespaces(kubectl: Kubectl, two: tuple[Kubectl, Kubectl], noted: Path, tmp_path: Path) -> None:
    with release(kubectl, tmp_path / "one", noted, {"namespaces.all": True}) as operators:
        for team in two:
            team.apply(job())
        operators.start(hasty=True)
        for team in two:
            wait_until(lambda team=team: has_pods(team), "pods", 90)
        assert kubectl.within("kube-system").find("rolebinding", "ferry-operator") is None
        for what in (
            "rolebinding/ferry-operator",
            "rolebinding/ferry-driver",
            "sa/ferry-job",
            "networkpolicy/ferry-jobs",
        ):
            kubectl.within("default").run("delete", what, "--ignore-not-found")


def test_two_releases_in_a_namespace_lead_side_by_side(
    kubectl: Kubectl, two: tuple[Kubectl, Kubectl], noted: Path, tmp_path: Path
) -> None:
    left, right = two
    one = {"namespaces.list": [str(left.namespace)]}
    other = {"namespaces.list": [str(right.namespace)]}
    with (
        release(kubectl, tmp_path / "one", noted, one) as first,
        release(kubectl, tmp_path / "other", noted, other, "ferry-b") as second,
    ):
        for team in two:
            team.apply(job())
        for operators in (first, second):
            operators.start(hasty=True)
        for operators in (first, second):
            operators.leader(60)
        wait_until(lambda: has_pods(left) and has_pods(right), "pods of both", 60)
        leases = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in kubectl.items("leases")}
        assert leases.keys() == {LEASE, "ferry-b-operator"} and len(set(leases.values())) == 2
        wait_until(lambda: first.leader().leads and second.leader().leads, "both lead", 10)
        mine = Kubectl(kubectl.program, first.kubeconfig, str(kubectl.namespace))
        assert "forbidden" in mine.refusal("get", "lease", "ferry-b-operator"), "the Role names its own Lease"
        assert "forbidden" in mine.refusal("get", "secret", "ferry-b-operator")


USERS = {
    "view": {"get streamjobs": True, "list streamjobs": True, "create streamjobs": False, "get streamjobjournals": False},
    "edit": {"create streamjobs": True, "patch streamjobs/scale": True, "patch streamjobs/status": False, "get streamjobs": True, "get streamjobjournals": False},
    "admin": {"delete streamjobs": True, "list streamjobjournals": True, "patch streamjobjournals": False, "patch streamjobs/status": False},
}  # fmt: skip
"""What users with the cluster's own roles may do once the chart adds its rules to them."""


def test_view_edit_and_admin_have_rights_to_jobs(
    kubectl: Kubectl, controllers: None, noted: Path, tmp_path: Path
) -> None:
    def may(user: str, what: str) -> bool:
        verb, _, resource = what.partition(" ")
        resource, _, part = resource.partition("/")
        words = [
            "auth",
            "can-i",
            verb,
            f"{resource}.ferry.dev",
            f"--as={user}",
            *([f"--subresource={part}"] if part else []),
        ]
        return _answer(kubectl, words)

    with release(kubectl, tmp_path / "one", noted, {"rbac.aggregate": True}):
        for role in USERS:
            kubectl.run("create", "rolebinding", f"user-{role}", f"--clusterrole={role}", f"--user=user-{role}")
        wait_until(lambda: may("user-view", "get streamjobs"), "rules of view", 30)
        wait_until(lambda: may("user-edit", "create streamjobs"), "rules of edit", 30)
        wait_until(lambda: may("user-admin", "list streamjobjournals"), "rules of admin", 30)
        for role, expected in USERS.items():
            assert {what: may(f"user-{role}", what) for what in expected} == expected, role


def _answer(kubectl: Kubectl, words: list[str]) -> bool:
    """The answer of `kubectl auth can-i`, whose exit code is 1 for a no."""
    done = subprocess.run(
        kubectl.command(*words), capture_output=True, text=True, env=kubectl.environment(), timeout=30
    )
    return done.stdout.strip().splitlines()[-1:] == ["yes"]
