"""The hook of the chart before an upgrade: what it may do, for how long, and that it can be left out."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import yaml

from ferry_operator.kube.api.rbac import DEFINITION_RULES
from tests.unit.charts import ROOT, Document, of_kind, pods, render, rights
from tests.unit.test_chart import EVERYTHING, listed, unrestricted

HOOK = "helm.sh/hook"


def hooks(documents: list[Document]) -> list[Document]:
    return [one for one in documents if HOOK in (one["metadata"].get("annotations") or {})]


@cache
def upgraded(**values: bool) -> list[Document]:
    return render({key.replace("__", "."): value for key, value in values.items()}, upgrade=True)


def test_only_an_upgrade_has_hooks() -> None:
    """So `helm template` and Argo CD, which apply the definitions themselves, have none."""
    assert not hooks(render()) and not of_kind(render(), "ClusterRole")
    assert {one["kind"] for one in hooks(upgraded())} == {
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "NetworkPolicy", "Job",
    }  # fmt: skip


def test_without_the_hook_an_upgrade_has_no_object_outside_of_its_namespace() -> None:
    documents = upgraded(definitions__upgrade=False)
    assert not hooks(documents) and not [one for one in documents if one["kind"].startswith("ClusterRole")]


def test_the_hook_may_patch_the_definitions_of_ferry_alone() -> None:
    documents = upgraded()
    assert rights(documents, "ClusterRole", named=True) == listed(DEFINITION_RULES)
    assert not rights(documents, "ClusterRole")
    (role,), (binding,) = of_kind(documents, "ClusterRole"), of_kind(documents, "ClusterRoleBinding")
    files = [yaml.safe_load(file.read_text("utf-8")) for file in sorted((ROOT / "crds").glob("*.yaml"))]
    assert [rule["resourceNames"] for rule in role["rules"]] == [[one["metadata"]["name"] for one in files]]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (job,) = of_kind(documents, "Job")
    account = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "streams"}]
    assert not [one for one in of_kind(documents, "RoleBinding") if account in str(one["subjects"])]


def test_rights_and_account_go_with_the_hook_and_are_there_before_its_pod() -> None:
    found = hooks(upgraded())
    (job,) = of_kind(found, "Job")
    for one in found:
        note = one["metadata"]["annotations"]
        assert note[HOOK] == "pre-upgrade", "and no pre-rollback: a way back leaves the definitions as they are"
        assert note["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert one is job or int(note["helm.sh/hook-weight"]) < int(
            job["metadata"]["annotations"]["helm.sh/hook-weight"]
        )


def test_the_pod_reads_the_definitions_of_the_chart() -> None:
    documents = upgraded()
    ((_, pod),) = ((name, spec) for name, spec in pods(hooks(documents)))
    (container,) = pod["containers"]
    *_, folder = container["args"]
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    (config,) = (
        one for one in of_kind(documents, "ConfigMap") if one["metadata"]["name"] == volume["configMap"]["name"]
    )
    assert config["data"] == {file.name: file.read_text("utf-8") for file in (ROOT / "crds").glob("*.yaml")}
    (operators,) = of_kind(documents, "Deployment", "-operator")
    assert container["image"] == operators["spec"]["template"]["spec"]["containers"][0]["image"]


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_pod_is_restricted_and_taken_for_no_operator(values: Document) -> None:
    documents = render(values, upgrade=True)
    (job,) = of_kind(documents, "Job")
    assert unrestricted(job["spec"]["template"]["spec"]) == []
    labels = job["spec"]["template"]["metadata"]["labels"]
    for one in itertools.chain(of_kind(documents, "Service"), of_kind(documents, "Deployment")):
        selector = one["spec"]["selector"]
        assert not selector.get("matchLabels", selector).items() <= labels.items()
    (policy,) = of_kind(hooks(documents), "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
