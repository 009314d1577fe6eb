"""Processes of the operator for tests, with no more rights than the operator has, and a job that they look after."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ferry_operator.crd_rules import BASE, patched
from ferry_operator.kube.release import Release, run_key
from ferry_operator.kube.rights import RIGHTS, rules
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.stand_ins import VNODES, Driver, Kubelets

ROOT = Path(__file__).resolve().parents[2]
KEY = "a key for tests"

EXPECTED = ("the Lease is lost",)
"""Parts of warnings that a test may cause."""

Document = dict[str, Any]


def job(name: str = "a", **spec: Any) -> Document:
    return patched(BASE, {"metadata": {"name": name}, "spec": {"state": {"virtualNodes": VNODES}, **spec}})


@dataclass
class Operator:
    """One process of the operator."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def get(self, path: str) -> str:
        done = subprocess.run(["curl", "-s", f"http://127.0.0.1:{self.port}{path}"], capture_output=True, text=True)
        return done.stdout

    @property
    def leads(self) -> bool:
        return "ferry_operator_lease_held 1.0" in self.get("/metrics")

    def complaints(self) -> list[str]:
        lines = [
            line for line in self.log.read_text().splitlines() if re.search(r" (WARNING|ERROR|CRITICAL) |^Traceb", line)
        ]
        return [line for line in lines if not any(part in line for part in EXPECTED)]


@dataclass
class Operators:
    """Processes of the operator in one namespace."""

    kubectl: Kubectl
    directory: Path
    kubeconfig: Path
    """of a service account with the rights of an operator, and no others"""
    calls: Path
    """where every call is noted"""
    running: list[Operator] = field(default_factory=list)

    def start(self) -> Operator:
        number = len(self.running)
        port = free_port()
        log = self.directory / f"operator-{number}.log"
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "operator")]),
            "FERRY_IMAGE": "ferry:1", "FERRY_REDIS_URL": "redis://127.0.0.1:1/0", "FERRY_KEY": KEY, "POD_NAME": f"operator-{number}",
            "FERRY_RECORD_CALLS": str(self.calls),
        }  # fmt: skip
        command = [
            sys.executable,
            "-m",
            "ferry_operator.kube",
            "--namespace",
            str(self.kubectl.namespace),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(command, env=environment, stderr=log.open("wb"), stdout=subprocess.DEVNULL)
        self.running.append(Operator(process, log, port))
        return self.running[-1]

    def leader(self, seconds: float = 30.0) -> Operator:
        found: list[Operator] = []

        def leads() -> bool:
            found[:] = [one for one in self.running if one.process.poll() is None and one.leads]
            return len(found) == 1

        wait_until(leads, "one leader", seconds)
        return found[0]

    def close(self) -> None:
        for one in self.running:
            if one.process.poll() is None:
                one.process.send_signal(signal.SIGCONT)
                one.process.terminate()
        for one in self.running:
            try:
                one.process.wait(20)
            except subprocess.TimeoutExpired:
                one.process.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def restricted(kubectl: Kubectl, directory: Path) -> Path:
    """A kubeconfig with the rights of the operator in the test's namespace."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "operator"},
        "rules": rules(RIGHTS),
    }
    kubectl.run("create", "serviceaccount", "operator")
    kubectl.apply(role)
    of = f"--serviceaccount={kubectl.namespace}:operator"
    kubectl.run("create", "rolebinding", "operator", "--role=operator", of)
    token = kubectl.run("create", "token", "operator", "--duration=1h").strip()
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    file = directory / "operator.kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@dataclass
class Running:
    """A job that runs, with what stands in for its pods."""

    kubectl: Kubectl
    operators: Operators
    driver: Driver
    kubelets: Kubelets

    def status(self) -> Document:
        found: Document = self.kubectl.get("sj", "a").get("status", {})
        return found

    def condition(self, kind: str) -> Document:
        return next((c for c in self.status().get("conditions", []) if c["type"] == kind), {})

    def pods(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.kubectl.items("pods"))

    def settled(self, workers: int) -> bool:
        status = self.status()
        truth = {c["type"]: c["status"] for c in status.get("conditions", [])}
        return (
            status.get("workers") == workers
            and len(self.pods()) == workers + 1
            and (truth["Ready"], truth["Progressing"], truth["Handover"]) == ("True", "False", "False")
        )

    def wait_settled(self, workers: int, seconds: float = 60.0) -> float:
        return wait_until(lambda: self.settled(workers), f"job at rest with {workers} workers", seconds)


addresses = iter(range(2, 250))


def stand_in(operators: Operators) -> tuple[Driver, Kubelets]:
    uid = operators.kubectl.get("sj", "a")["metadata"]["uid"]
    release = Release(str(operators.kubectl.namespace), "", "", KEY)
    driver = Driver(f"127.0.77.{next(addresses)}", run_key(release, uid))
    return driver, Kubelets(str(operators.kubectl.namespace), "a", driver)
