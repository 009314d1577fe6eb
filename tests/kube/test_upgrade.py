"""From the first release to the present one, on a real API server: the operators of both, and the definitions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.kube.kubectl import Document, Kubectl, wait_until
from tests.kube.operators import KEY, ROOT, Operator, Operators, Running, job, stand_in
from tests.unit.charts import of_kind, render

pytestmark = [pytest.mark.kube, pytest.mark.timeout(300)]

RELEASE = "d3c80dfc"
"""The commit of release 0.1.0."""

DEFINITIONS, OLD_DEFINITIONS = ROOT / "crds", ROOT / "tests" / "released" / "v0.1.0" / "crds"
NAME = "streamjobs.ferry.dev"

REST_SECONDS = 8.0
"""Longer than a calm operator waits until its next look."""


def unpacked(folder: Path, *parts: str) -> Path:
    """Sources of the release, from the history."""
    packed = subprocess.run(["git", "archive", RELEASE, *parts], cwd=ROOT, capture_output=True)
    if packed.returncode != 0:
        pytest.skip(f"this clone has no history with {RELEASE}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator of the release."""
    return unpacked(tmp_path_factory.mktemp("released"), "runtime", "operator")


def pods(found: Running) -> dict[str, tuple[str, str]]:
    """uid and image of every pod."""
    items = found.kubectl.items("pods")
    return {one["metadata"]["name"]: (one["metadata"]["uid"], one["spec"]["containers"][0]["image"]) for one in items}


def follow(operators: Operators, before: Operator, root: Path = ROOT, **more: str) -> Operator:
    """Another operator takes over from one that ends."""
    before.process.terminate()
    before.process.wait(20)
    after = operators.start(root=root, FERRY_KEY=KEY, **more)
    wait_until(lambda: after.leads, "the next leader", 30.0)
    return after


def memory(found: Running) -> Document:
    return dict(found.status().get("memory") or {})


@pytest.mark.long
def test_pods_of_the_release_outlive_the_upgrade_and_the_way_back(operators: Operators, released: Path) -> None:
    operator = operators.start(root=released, FERRY_KEY=KEY)
    operators.kubectl.apply(job())
    driver, kubelets = stand_in(operators)
    found = Running(operators.kubectl, operators, driver, kubelets)
    try:
        found.wait_settled(2)
        wait_until(lambda: "good" in memory(found), "a good spec", 20.0)
        mine = pods(found)

        # The present operator, with the same default.
        operator = follow(operators, operator)
        wait_until(lambda: "defaults" in memory(found), "the defaults of the pods", 20.0)
        time.sleep(REST_SECONDS)
        assert pods(found) == mine and memory(found)["defaults"]["image"] == "ferry:1"
        found.kubectl.run("scale", "sj/a", "--replicas=3")
        found.wait_settled(3)
        mine |= pods(found)

        # Back to the release: it finds pods that the present operator has created.
        operator = follow(operators, operator, released)
        time.sleep(REST_SECONDS)
        assert pods(found) == mine
        found.kubectl.run("scale", "sj/a", "--replicas=2")
        found.wait_settled(2)
        left = pods(found)
        assert left.items() <= mine.items()

        # And once more the present one, with another default image: the job has a turn.
        follow(operators, operator, FERRY_IMAGE="ferry:2")
        wait_until(lambda: {image for _, image in pods(found).values()} == {"ferry:2"}, "pods with the image", 90.0)
        found.wait_settled(2)
        wait_until(lambda: not found.condition("RolledOut"), "end of the turn", 20.0)
        assert memory(found).get("roll") is None and not kubelets.violations
    finally:
        kubelets.close()
        driver.close()


# --- the hook that applies definitions


@pytest.fixture
def hook(kubectl: Kubectl, tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl with the rights of the hook, beside definitions of the release that Helm has created."""
    helm = "--server-side", "--force-conflicts", "--field-manager=helm"
    kubectl.run("apply", *helm, "-f", str(OLD_DEFINITIONS))
    documents = render(release="ferry", namespace=str(kubectl.namespace), upgrade=True)
    (role,), (binding,) = (of_kind(documents, kind, "-definitions") for kind in ("ClusterRole", "ClusterRoleBinding"))
    (account,) = of_kind(documents, "ServiceAccount", "-definitions")
    kubectl.create(account, role, binding)
    token = kubectl.run("create", "token", account["metadata"]["name"], "--duration=1h").strip()
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    file = tmp_path / "hook.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    yield replace(kubectl, kubeconfig=file)
    kubectl.run("delete", "clusterrole,clusterrolebinding", role["metadata"]["name"])
    kubectl.run("apply", "--server-side", "--force-conflicts", "-f", str(DEFINITIONS))


def run(hook: Kubectl, folder: Path) -> list[str]:
    """The lines that the command of the hook prints."""
    path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "operator")])
    command = [sys.executable, "-m", "ferry_operator.kube.definitions", str(folder)]
    done = subprocess.run(command, env={**hook.environment(), "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def fields(kubectl: Kubectl) -> set[str]:
    """The fields of a spec that the API server knows."""
    (version,) = kubectl.get("crd", NAME)["spec"]["versions"]
    return set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def managers(kubectl: Kubectl) -> set[str]:
    """Field managers that own the versions of the definition."""
    found = kubectl.get("crd", NAME, "--show-managed-fields")["metadata"]["managedFields"]
    return {one["manager"] for one in found if "f:versions" in one["fieldsV1"].get("f:spec", {})}


def test_definitions_of_the_release_are_widened_by_the_hook_and_never_narrowed(kubectl: Kubectl, hook: Kubectl) -> None:
    deployed = job("new", deploy={"keep": "3m"})
    assert "deploy" not in fields(kubectl) and managers(kubectl) == {"helm"}
    (journals, jobs) = run(hook, DEFINITIONS)
    assert "spec.deploy" in jobs and "is up to date" in journals
    assert {"deploy", "ttlAfterFinished"} <= fields(kubectl) and managers(kubectl) == {"ferry-definitions"}
    wait_until(lambda: kubectl.apply(deployed), "a job with a field of this release", 20.0)
    assert kubectl.get("sj", "new")["spec"]["deploy"]["keep"] == "3m"

    version = kubectl.get("crd", NAME)["metadata"]["resourceVersion"]
    assert all("is up to date" in line for line in run(hook, DEFINITIONS))
    (journals, jobs) = run(hook, OLD_DEFINITIONS)
    assert "stays: it is of a newer release" in jobs
    assert kubectl.get("crd", NAME)["metadata"]["resourceVersion"] == version
    assert kubectl.get("sj", "new")["spec"]["deploy"]["keep"] == "3m"


def test_the_hook_reaches_nothing_but_the_definitions(kubectl: Kubectl, hook: Kubectl) -> None:
    for words in (["get", "sj"], ["get", "secrets"], ["get", "crd"], ["delete", "crd", NAME], ["create", "-f", "-"]):
        assert "forbidden" in hook.refusal(*words, stdin=yaml.safe_dump(job()) if "-f" in words else None).lower(), (
            words
        )
    other = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "others.ferry.dev"},
    }
    assert "forbidden" in hook.refusal("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(other)).lower()


def test_an_administrator_may_apply_the_definitions_over_those_of_helm(kubectl: Kubectl, hook: Kubectl) -> None:
    """The words of the pages for people who apply the definitions themselves."""
    words = "apply", "--server-side", "-f", str(DEFINITIONS)
    assert "conflict" in kubectl.refusal(*words)
    kubectl.run(*words, "--force-conflicts")
    assert "deploy" in fields(kubectl)
