"""On a real API server: the Secrets of a release are created once and kept, and its keys are rotated under a running job."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferry_operator.kube.manifests.release import Installation, run_key
from tests.kube.installation import CHART, HELM
from tests.kube.kubectl import wait_until
from tests.kube.operators import KEY, LEASE, ROOT, Operators
from tests.kube.stand_ins import VNODES

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

KEPT = {"virtualNodes": VNODES, "checkpoint": {"location": "s3://bucket/ferry"}}
FIRST = ("ferry-operator=key", "ferry-redis=password", "ferry-metrics=token")
CERTIFICATE = ("--certificate", "ferry-redis-tls=ferry-redis.streams.svc")


def first_secrets(operators: Operators, *secrets: str) -> subprocess.CompletedProcess[str]:
    """The init container of an operator's pod, with the rights of its account."""
    path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "operator")])
    command = [sys.executable, "-m", "ferry_operator.kube.first_secrets"]
    place = ["--namespace", str(operators.kubectl.namespace), "--release", "ferry"]
    environment = {**os.environ, "KUBECONFIG": str(operators.kubeconfig), "PYTHONPATH": path}
    return subprocess.run([*command, *place, *secrets], capture_output=True, text=True, env=environment, timeout=60)


def test_secrets_are_created_once_and_kept_over_a_second_start(operators: Operators) -> None:
    kubectl = operators.kubectl
    kubectl.run("delete", "secret", LEASE)
    began = first_secrets(operators, *FIRST, *CERTIFICATE)
    assert began.returncode == 0 and began.stdout.count("was created") == 4, began.stdout + began.stderr
    names = [word.split("=")[0] for word in (*FIRST, CERTIFICATE[1])]
    before = [kubectl.get("secret", name) for name in names]
    certificate = {"authority", "ca.crt", "tls.crt", "tls.key"}
    assert {entry for secret in before for entry in secret["data"]} == {"key", "password", "token"} | certificate
    again = first_secrets(operators, *FIRST, *CERTIFICATE)
    assert again.returncode == 0 and again.stdout.count("exists") == 4, again.stdout + again.stderr
    assert [kubectl.get("secret", name) for name in names] == before
    refused = first_secrets(operators, "somebody-else=key")
    assert refused.returncode == 1 and "the Role of the operator" in refused.stdout.splitlines()[0], refused.stdout


def test_an_upgrade_with_which_helm_would_delete_the_keys_is_refused(operators: Operators, tmp_path: Path) -> None:
    """The chart of 0.1.0 had the Secrets of a release as its objects."""
    kubectl = operators.kubectl
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: ferry, version: 0.1.0}")
    text = "{apiVersion: v1, kind: Secret, metadata: {name: old-ferry-operator}, stringData: {key: old}}"
    (tmp_path / "templates/operator.yaml").write_text(text)

    def helm(verb: str, chart: Path, *more: str) -> subprocess.CompletedProcess[str]:
        place = ["--namespace", str(kubectl.namespace), *more]
        command = [str(HELM), verb, "old", str(chart), *place]
        return subprocess.run(command, capture_output=True, text=True, env=kubectl.environment(), timeout=60)

    installed = helm("install", tmp_path)
    assert installed.returncode == 0, installed.stderr
    refused = helm("upgrade", CHART, "--dry-run=server")
    assert (
        refused.returncode != 0 and "annotate secret old-ferry-operator helm.sh/resource-policy=keep" in refused.stderr
    )
    kubectl.run("annotate", "secret", "old-ferry-operator", "helm.sh/resource-policy=keep")
    accepted = helm("upgrade", CHART, "--dry-run=server")
    assert accepted.returncode == 0, accepted.stderr
    subprocess.run(
        [str(HELM), "uninstall", "old", "--namespace", str(kubectl.namespace)], env=kubectl.environment(), timeout=60
    )


def test_a_running_job_keeps_its_key_and_its_next_run_takes_the_new_one(operators: Operators) -> None:
    with operators.job(hasty=True, state=KEPT) as running:
        kubectl = running.kubectl
        uid = kubectl.get("sj", "a")["metadata"]["uid"]
        release = Installation(str(kubectl.namespace), "", "", KEY)

        def secret() -> str:
            return str(json.loads(base64.b64decode(kubectl.get("secret", "a-run")["data"]["run.json"]))["secret"])

        before = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
        assert running.status()["memory"]["key"] == 1 and secret() == run_key(release, uid)
        kubectl.patch(f"secret/{LEASE}", {"stringData": {"key2": "another"}})
        log = running.operators.leader().log
        wait_until(lambda: "new runs take key 2" in log.read_text(), "the key that the operator reads", 20)
        kubectl.run("scale", "sj/a", "--replicas=3")
        running.wait_settled(3)
        assert before < {pod["metadata"]["uid"] for pod in kubectl.items("pods")}, "no pod was replaced"
        assert running.status()["memory"]["key"] == 1 and secret() == run_key(release, uid)
        kubectl.patch("sj/a", {"spec": {"suspend": True}})
        kubectl.run("wait", "--for=jsonpath={.status.phase}=Suspended", "sj/a", "--timeout=60s")
        kubectl.patch("sj/a", {"spec": {"suspend": False}})
        wait_until(lambda: running.status()["memory"]["key"] == 2, "another run with the new key", 30)
        wait_until(lambda: secret() == run_key(release.with_keys({1: KEY, 2: "another"}), uid), "its settings", 30)
        running.kubelets.over = True
        kubectl.run("delete", "sj", "a", "--wait=false")


def test_a_job_whose_key_is_gone_is_left_alone_until_the_key_is_back(operators: Operators) -> None:
    with operators.job(hasty=True, state=KEPT) as running:
        kubectl = running.kubectl
        before = {pod["metadata"]["uid"] for pod in kubectl.items("pods")}
        kubectl.patch(f"secret/{LEASE}", {"stringData": {"key2": "another"}, "data": {"key": None}})
        wait_until(lambda: running.condition("Degraded").get("reason") == "KeyMissing", "condition", 20)
        assert f"the entry `key` of the Secret {LEASE} in the namespace" in running.condition("Degraded")["message"]
        assert {pod["metadata"]["uid"] for pod in kubectl.items("pods")} == before
        kubectl.patch(f"secret/{LEASE}", {"stringData": {"key": KEY}})
        running.wait_settled(2)
        assert {pod["metadata"]["uid"] for pod in kubectl.items("pods")} == before


def test_a_restarted_operator_that_creates_another_key_says_so_and_leaves_running_jobs_alone(
    operators: Operators,
) -> None:
    with operators.job(hasty=True, state=KEPT) as running:
        kubectl = running.kubectl
        wait_until(lambda: running.status()["memory"]["good"], "the last good spec", 30)
        before, uid = running.pods(), kubectl.get("sj", "a")["metadata"]["uid"]
        operators.close()
        kubectl.run("delete", "secret", LEASE)
        assert "was created" in first_secrets(operators, f"{LEASE}=key").stdout
        created = base64.b64decode(kubectl.get("secret", LEASE)["data"]["key"]).decode()
        operators.start(hasty=True)
        wait_until(lambda: running.condition("Degraded").get("reason") == "KeyReplaced", "condition", 60)
        message = running.condition("Degraded")["message"]
        assert (
            f"the entry `key` of the Secret {LEASE} in the namespace {kubectl.namespace} has another value" in message
        )
        noted = [one for one in kubectl.items("events") if one["reason"] == "KeyReplaced"]
        assert noted and noted[0]["message"] in message and running.pods() == before
        kubectl.patch(f"secret/{LEASE}", {"stringData": {"key": KEY}})
        running.wait_settled(2)
        assert running.pods() == before, "the old value is back"
        kubectl.patch(f"secret/{LEASE}", {"stringData": {"key": created}})
        wait_until(lambda: running.condition("Degraded").get("reason") == "KeyReplaced", "condition", 20)
        command = message.partition("`kubectl ")[2].partition("`")[0]
        running.kubelets.over = True  # the user gives the state up
        kubectl.run(*command.split()[2:])  # without the namespace
        wait_until(lambda: running.status()["memory"]["run"] == 2, "the next run", 60)
        release = Installation(str(kubectl.namespace), "", "", created)

        def secret() -> str:
            return str(json.loads(base64.b64decode(kubectl.get("secret", "a-run")["data"]["run.json"]))["secret"])

        wait_until(lambda: secret() == run_key(release, uid), "settings with the new key", 60)
        running.kubelets.over = True
        kubectl.run("delete", "sj", "a", "--wait=false")
