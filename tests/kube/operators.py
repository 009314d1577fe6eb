"""Processes of the operator for tests, with no more rights than the operator has, and a job that they look after."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ferry_operator.crd.rules import BASE, patched
from ferry_operator.kube.manifests.release import Installation, run_key
from tests.kube.kubectl import Kubectl, wait_until
from tests.kube.stand_ins import VNODES, Driver, Kubelets
from tests.unit.charts import of_kind, render

ROOT = Path(__file__).resolve().parents[2]
KEY = "a key for tests"
LEASE = "ferry-operator"
"""Name of the Lease, and of the Secret with the key."""
METRICS_TOKEN = "a token for tests"

EXPECTED = ("the Lease is lost", "the Lease was created again")
"""Parts of warnings that a test may cause."""

HASTY = """
import sys
from ferry_operator.kube import __main__, reconcile
from ferry_operator.kube.process import leader
leader.RESYNC_SECONDS = leader.TICK_SECONDS = reconcile.EVENT_SECONDS = 1.0
sys.exit(__main__.main(sys.argv[1:]))
"""
"""A program: the operator, but what it does every now and then comes every second."""

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
        command = ["curl", "-s", "-H", f"Authorization: Bearer {METRICS_TOKEN}", f"http://127.0.0.1:{self.port}{path}"]
        done = subprocess.run(command, capture_output=True, text=True)
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
    arguments: tuple[str, ...] = ()
    """further arguments of the processes"""
    variables: dict[str, str] = field(default_factory=dict)
    """further variables of their environment"""

    @contextmanager
    def job(self, hasty: bool = False, **spec: Any) -> Iterator[Running]:
        """A job with two workers, looked after by one more operator; see `start`."""
        self.start(hasty)  # it has a lot to import
        self.kubectl.apply(job(**spec))
        driver, kubelets = stand_in(self)
        found = Running(self.kubectl, self, driver, kubelets)
        try:
            found.wait_settled(2)
            yield found
            assert not kubelets.violations, kubelets.violations
        finally:
            kubelets.close()
            driver.close()

    def start(self, hasty: bool = False, root: Path = ROOT, program: str = HASTY, **more: str) -> Operator:
        """One more operator; a hasty one lists everything, and repeats an event, after a second already.

        `root`: sources of another release; `program`: of a hasty one; `more`: environment.
        """
        number = len(self.running)
        port = free_port()
        log = self.directory / f"operator-{number}.log"
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "PYTHONPATH": os.pathsep.join([str(root / "runtime"), str(root / "operator")]),
            "FERRY_IMAGE": "ferry:1", "FERRY_REDIS_URL": "redis://127.0.0.1:1/0", "FERRY_KEY_SECRET": LEASE, "POD_NAME": f"operator-{number}",
            "FERRY_RECORD_CALLS": str(self.calls), "FERRY_METRICS_TOKEN": METRICS_TOKEN, **self.variables, **more,
        }  # fmt: skip
        begin = ["-c", program] if hasty else ["-m", "ferry_operator.kube"]
        command = [
            sys.executable,
            *begin,
            "--namespace",
            str(self.kubectl.namespace),
            "--port",
            str(port),
            *self.arguments,
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


@cache
def roles() -> tuple[Document, ...]:
    """The Roles of the operator, as the chart has them: for jobs, and for the objects of the release."""
    documents = render(release="ferry")
    return (*of_kind(documents, "Role", "-operator"), *of_kind(documents, "Role", "-own"))


def bound(role: Document, account: Document) -> tuple[Document, Document]:
    """A Role under its own name, and its RoleBinding to a service account."""
    name = role["metadata"]["name"]
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [account],
    }
    return {**role, "metadata": {"name": name}}, binding


def restricted(kubectl: Kubectl, directory: Path) -> Path:
    """A kubeconfig with the rights that the chart gives to the operator, in the test's namespace; and the key."""
    account = {"kind": "ServiceAccount", "name": "operator", "namespace": str(kubectl.namespace)}
    user = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": LEASE}, "stringData": {"key": KEY}}
    kubectl.create(user, secret)
    for role in roles():
        kubectl.create(*bound(role, account))
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


addresses = (f"127.{64 + os.getpid() % 60}.{os.getpid() // 60 % 250 + 1}.{n}" for n in range(2, 250))
"""Of this process alone: several may test at the same time."""


def stand_in(operators: Operators) -> tuple[Driver, Kubelets]:
    uid = operators.kubectl.get("sj", "a")["metadata"]["uid"]
    release = Installation(str(operators.kubectl.namespace), "", "", KEY)
    driver = Driver(next(addresses), run_key(release, uid))
    return driver, Kubelets(str(operators.kubectl.namespace), "a", driver)
