"""`kubectl streamjob` on a real API server without nodes: the real kubectl, the operator, stand-ins for pods."""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from ferry.contract import journals
from ferry.contract.names import InstanceId, Term
from ferry.contract.plans import Plan
from ferry.contract.routing import Group, Table, Version
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.operators import KEY, Operators, Running, job

pytestmark = [pytest.mark.kube, pytest.mark.timeout(240)]

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """#!/bin/sh
exec {python} -c 'from ferry_operator.cli.main import kubectl_plugin; kubectl_plugin()' "$@"
"""
"""What an installation puts on PATH."""

RULES = [
    {"apiGroups": ["ferry.dev"], "resources": ["streamjobs"], "verbs": ["get", "list", "patch"]},
    {"apiGroups": ["ferry.dev"], "resources": ["streamjobs/scale"], "verbs": ["patch"]},
    {"apiGroups": ["ferry.dev"], "resources": ["streamjobjournals"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
]
"""All that a user of the plugin needs."""


@dataclass(frozen=True)
class Plugin:
    """`kubectl streamjob`, as a user with few rights."""

    kubectl: Kubectl
    kubeconfig: Path
    path: Path
    """where kubectl finds the plugin"""

    def run(self, *arguments: str, wanted: int = 0, timeout: float = 90.0) -> str:
        """Standard output of a command that ends with the exit code `wanted`; its errors when that is not 0."""
        command = [self.kubectl.program, "streamjob", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=self.environment())
        assert done.returncode == wanted, f"{shlex.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout if wanted == 0 else done.stdout + done.stderr

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "operator")]),
            "FERRY_HOME": str(self.path / "home"),
        }


@pytest.fixture
def running(operators: Operators) -> Iterator[Running]:
    """A job with three workers whose virtual nodes move one by one."""
    with operators.job() as found:
        operators.kubectl.run("scale", "sj/a", "--replicas=3")
        found.wait_settled(3)
        found.driver.stride = 1
        yield found


@pytest.fixture
def plugin(running: Running, tmp_path: Path) -> Plugin:
    kubectl = running.kubectl
    program = tmp_path / "bin" / "kubectl-streamjob"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=shlex.quote(sys.executable)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Plugin(kubectl, user_of(kubectl, tmp_path), program.parent)


def user_of(kubectl: Kubectl, directory: Path) -> Path:
    """A kubeconfig with the rights that a user needs, whose context names the namespace."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "user"}, "rules": RULES}
    kubectl.run("create", "serviceaccount", "user")
    kubectl.apply(role)
    kubectl.run("create", "rolebinding", "user", "--role=user", f"--serviceaccount={kubectl.namespace}:user")
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    token = kubectl.run("create", "token", "user", "--duration=1h").strip()
    for one in config["users"]:
        one["user"] = {"token": token}
    for one in config["contexts"]:
        one["context"]["namespace"] = kubectl.namespace
    file = directory / "user.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


def test_status_and_names_that_are_not_there(plugin: Plugin, running: Running) -> None:
    text = plugin.run("status", "a")
    for words in ("3 of 3 own state", "ReplicasInSync", "worker 2", "WorkerStarted"):
        assert words in text, text
    found = json.loads(plugin.run("status", "a", "--json"))
    assert found["status"]["phase"] == "Running" and len(found["workers"]) == 3
    assert "no StreamJob called 'b'" in plugin.run("status", "b", wanted=4)
    assert "forbidden" in plugin.run("status", "a", "-n", "default", wanted=2)
    assert "there is no cluster to look at" in plugin.run("status", "a", "--kubeconfig", "/nowhere", wanted=2)
    assert "cannot be used" in plugin.run("status", "a", "--context", "nobody", wanted=2)
    assert "a" in plugin.run("ps") and "3/3" in plugin.run("ps", "--namespace", str(running.kubectl.namespace))


def test_a_scale_is_watched_to_its_end(plugin: Plugin, running: Running) -> None:
    running.driver.stride = 0  # nothing moves before it is watched
    plugin.run("scale", "a", "--workers", "4")
    command = [plugin.kubectl.program, "streamjob", "watch", "a", "--json", "--timeout", "150"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plugin.environment())
    lines = []
    try:
        assert watch.stdout is not None
        for line in watch.stdout:
            lines.append(json.loads(line))
            if "virtual nodes on their way" in lines[-1]["text"]:
                running.driver.stride = 1
        assert watch.wait(20) == 0 and lines[-1]["state"] == "rest" and lines[-1]["workers"] == 4, lines
        assert "the handover took" in lines[-1]["text"] and running.settled(4), lines
        assert any(one["kind"] == "event" and "HandoverFinished" in one["text"] for one in lines), lines
    finally:
        watch.kill()
    plugin.run("scale", "a", "--workers", "2")
    assert "at rest with 2 workers" in plugin.run("watch", "a")


def test_drain_move_and_their_undoing(plugin: Plugin, running: Running) -> None:
    plugin.run("drain", "a", "1")
    plugin.run("watch", "a", "--timeout", "60")
    assert running.driver.used() == {0, 2} and len(running.pods()) == 4
    assert "drained" in plugin.run("status", "a")
    plugin.run("undrain", "a", "1")
    plugin.run("watch", "a", "--timeout", "60")
    assert running.driver.used() == {0, 1, 2}
    plugin.run("move", "a", "5", "2.0")
    wait_until(lambda: running.driver.groups[5][0] == "2.0", "leader of virtual node 5", 30)
    plugin.run("unpin", "a", "5")
    assert json.loads(plugin.run("status", "a", "--json"))["pins"] == {}
    for words in (("drain", "a", "7"), ("move", "a", "9", "0.0"), ("undrain", "a", "0"), ("unpin", "a", "5")):
        plugin.run(*words, wanted=2)


def test_pause_resume_and_restart(plugin: Plugin, running: Running) -> None:
    plugin.run("pause", "a")
    assert "once the job is not paused" in plugin.run("scale", "a", "--workers", "4")
    assert "paused" in plugin.run("watch", "a", wanted=1)
    assert len(running.pods()) == 4
    plugin.run("resume", "a")
    plugin.run("watch", "a", "--timeout", "60")
    assert running.settled(4)
    plugin.run("restart", "a")
    wait_until(lambda: len(running.kubelets.lives) == 2, "second driver", 40)
    plugin.run("watch", "a", "--timeout", "60")
    assert running.kubectl.get("sj", "a")["spec"]["restartNonce"] == 1


def test_checkpoint_suspend_restore_and_resume(plugin: Plugin, operators: Operators) -> None:
    """On the job of the fixture, which gets a location: its workers are replaced once."""
    kubectl = operators.kubectl
    assert "spec.state.checkpoint.location" in plugin.run("checkpoint", "a", wanted=2)
    kubectl.patch("sj/a", {"spec": {"state": {"checkpoint": {"location": "s3://bucket/ferry"}}}})
    plugin.run("watch", "a", "--timeout", "90", timeout=100)
    found = json.loads(plugin.run("checkpoint", "a", "--name", "before-upgrade", "--json"))
    assert (found["number"], found["totalBytes"]) == (1, 2)
    status = kubectl.get("sj", "a")["status"]["checkpoint"]
    assert status["name"] == "before-upgrade" and status["at"].endswith("Z")
    assert any(e["reason"] == "CheckpointComplete" for e in kubectl.items("events"))
    assert "`suspend` it first" in plugin.run("restore", "a", "--from", "1", wanted=2)
    plugin.run("suspend", "a")
    assert "it has no pods" in plugin.run("watch", "a", "--timeout", "60")
    plugin.run("restore", "a", "--from", "before-upgrade", "--sink", "keep", "--workers", "2")
    plugin.run("watch", "a", "--timeout", "60")
    assert kubectl.get("sj", "a")["spec"]["restoreSink"] == "keep" and len(kubectl.items("pods")) == 3
    plugin.run("suspend", "a")
    plugin.run("watch", "a", "--timeout", "60")
    assert "continues from its latest" in plugin.run("resume", "a")
    plugin.run("watch", "a", "--timeout", "60")


def test_plan_changes_nothing_and_the_rules_speak(plugin: Plugin, running: Running, tmp_path: Path) -> None:
    before = running.kubectl.get("sj", "a")["metadata"]["generation"]
    text = plugin.run("plan", "a", "--set", "workers=5")
    assert "started: workers 3 to 4" in text and "handover" in text
    assert "more instances" in plugin.run("plan", "a", "--set", "workers=50", wanted=2)
    assert "virtualNodes" in plugin.run("plan", "a", "--patch", '{"spec":{"state":{"virtualNodes":16}}}', wanted=2)
    assert "unknown field" in plugin.run("plan", "a", "--patch", '{"spec":{"worker":3}}', wanted=2)
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(job(workers=3, state={"virtualNodes": 8, "memory": "2Gi"})))
    found = json.loads(plugin.run("plan", "-f", str(file), "--json"))
    assert [(one["path"], one["kind"]) for one in found["changes"]] == [("spec.state.memory", "rolling")]
    assert any(effect.startswith("emptied and replaced one by one") for effect in found["effects"])
    assert running.kubectl.get("sj", "a")["metadata"]["generation"] == before


def journaled(running: Running) -> None:
    """What a real driver keeps there all the time."""
    kubectl = running.kubectl
    name = journals.name("a", kubectl.get("sj", "a")["metadata"]["uid"])
    groups = tuple(Group(Term(1, 1), tuple(map(InstanceId, group))) for group in running.driver.groups)
    plan = Plan.from_wire(running.driver.desired) if running.driver.desired else None
    table = Table(Version(1, 1), groups, plan=plan)
    kubectl.patch(f"streamjobjournal/{name}", {"spec": {"table": journals.packed(table)}})


def test_a_plan_is_handed_in_and_taken_back(plugin: Plugin, running: Running, tmp_path: Path) -> None:
    journaled(running)
    file = tmp_path / "plan.json"
    assert "3 -> 2" in plugin.run("plan", "a", "--set", "workers=2", "--strategy", "fluid", "-o", str(file))
    document = json.loads(file.read_text())
    document["placements"][0] = ["1.0", "0.0"]
    file.write_text(json.dumps(document))
    plugin.run("submit", "a", str(file), "--at-epoch", "1")
    running.wait_settled(2)
    assert running.driver.groups == document["placements"]
    journaled(running)
    assert "submitted" in plugin.run("plans", "a")
    plugin.run("cancel", "a")
    running.wait_settled(3)
    plugin.run("cancel", "a", wanted=2)


def test_a_change_that_is_refused_ends_a_watch(plugin: Plugin, running: Running) -> None:
    assert "more instances" in plugin.run("scale", "a", "--workers", "50", wanted=2)
    running.kubectl.patch("sj/a", {"spec": {"pipeline": {"args": {"depth": {"of": "maps"}}}}})
    assert "spec.pipeline.args" in plugin.run("watch", "a", "--timeout", "60", wanted=2)


def test_logs_of_pods_that_no_node_has(plugin: Plugin, running: Running) -> None:
    assert plugin.run("logs", "a") == ""
    assert "no pod of worker 9" in plugin.run("logs", "a", "--worker", "9", wanted=2)
    assert "no pod of the operator" in plugin.run("logs", "a", "--operator", wanted=2)


def test_top_refreshes_until_the_job_is_gone(plugin: Plugin, running: Running) -> None:
    command = [plugin.kubectl.program, "streamjob", "top", "a", "--json", "--every", "0.2"]
    top = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin.environment())
    try:
        assert top.stdout is not None
        first, second = (json.loads(top.stdout.readline()) for _ in range(2))
        assert first["status"]["workers"] == 3 and second["job"] == "a"
        running.kubelets.over = True
        running.kubectl.run("delete", "sj", "a", "--timeout=30s")
        _, said = top.communicate(timeout=30)
        assert top.returncode == 0, said
    finally:
        top.kill()


def test_the_bundle_has_no_secret_of_the_run(plugin: Plugin, running: Running, tmp_path: Path) -> None:
    kubectl = running.kubectl
    kubectl.patch("sj/a", {"spec": {"spark": {"spark.db.password": "pw-of-spark"}}})
    wait_until(lambda: len(running.kubelets.lives) == 2, "second driver", 40)
    running.wait_settled(3)
    settings = base64.b64decode(kubectl.get("secret", "a-run")["data"]["run.json"])
    run = json.loads(settings)["secret"]
    assert len(run) == 48 and b"pw-of-spark" in settings
    file = tmp_path / "a.tar.gz"
    began = time.monotonic()
    assert plugin.run("diagnose", "a", "-o", str(file)).strip() == str(file)
    print(f"collected in {time.monotonic() - began:.1f} s")
    with tarfile.open(file) as archive:
        files = {Path(one.name).name: archive.extractfile(one) for one in archive.getmembers()}
        data = {name: opened.read() for name, opened in files.items() if opened is not None}
    for secret in (run, KEY, "pw-of-spark"):
        assert not [name for name, one in data.items() if secret.encode() in one], secret
    assert json.loads(data["streamjob.json"])["spec"]["spark"] == {"spark.db.password": "REDACTED"}
    assert json.loads(data["lease.json"])["spec"]["holderIdentity"].startswith("operator-0")
    assert "DriverReplaced" in data["events.txt"].decode() and "a-driver.driver.log" in data
    assert "definition.json" in data["missing.txt"].decode()  # this user may not read it


def test_who_may_only_scale_can_scale(plugin: Plugin, running: Running) -> None:
    rules = [
        {"apiGroups": ["ferry.dev"], "resources": ["streamjobs"], "verbs": ["get"]},
        {"apiGroups": ["ferry.dev"], "resources": ["streamjobs/scale"], "verbs": ["patch"]},
        {"apiGroups": ["ferry.dev"], "resources": ["streamjobjournals"], "verbs": ["get"]},
    ]
    running.kubectl.patch("role/user", {"rules": rules})
    wait_until(lambda: "may not be read" in plugin.run("status", "a"), "fewer rights", 20)
    plugin.run("scale", "a", "--workers", "4")
    plugin.run("watch", "a", "--timeout", "60")
    assert running.settled(4)
    assert "forbidden" in plugin.run("drain", "a", "1", wanted=2)
