"""Ferry installed on a cluster with its chart, as a user does it, and jobs on it.

Knows kubectl and helm; of Ferry only what a user sees: the chart, the resource, its status, the files of a sink.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import runner
from tests.kube.conftest import installed_crd, own_namespace
from tests.kube.kubectl import Document, Kubectl, wait_until

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "ferry"
EXAMPLES = ROOT / "examples"
HELM = Path(sys.executable).with_name("helm")

CLAIM = "ferry-data"
MOUNT = "/data"

CLAIMED: Document = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": CLAIM},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}

READER: Document = {
    "containers": [
        {
            "name": "reader",
            "image": "localhost/ferry/runtime:dev",
            "args": ["sleep", "600"],
            "volumeMounts": [{"name": "data", "mountPath": MOUNT, "readOnly": True}],
        }
    ],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}],
}
"""A pod that sees the shared volume."""

PACK = "import sys, tarfile; tarfile.open(fileobj=sys.stdout.buffer, mode='w|').add(sys.argv[1], arcname='.')"

DISORDER: Document = {"seed": 7, "group": 1000, "delay_prob": 0.05, "keys": "zipf", "domain": 20_000}
"""Arguments of a pipeline: records that are late and out of order, and keys of which some are frequent."""

BRIEF: Document = {
    f"spark.{role}.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1" for role in ("driver", "executor")
}
"""Jobs of tests are short: what Java would compile a second time, better, is not worth it."""

PACE: Document = {"interval": "500ms", "maxRows": 10_000}

INSTALL_SECONDS = 180.0

UNEXPECTED = ("Traceback", "WARNING", "ERROR", "CRITICAL")
"""In the log of an operator."""


@dataclass(frozen=True)
class Installation:
    """One release of the chart in a namespace of its own, and a volume that all nodes share."""

    kubectl: Kubectl
    """in the namespace"""
    values: tuple[str, ...] = ()
    expected: list[str] = field(default_factory=list)
    """Words of lines that a test causes in the log of an operator."""

    def helm(self, *arguments: str) -> str:
        """Standard output of helm."""
        command = [str(HELM), *arguments, "--namespace", str(self.kubectl.namespace)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS + 60, env=self.kubectl.environment()
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}\n{describe(self.kubectl)}"
        return done.stdout

    def install(self) -> None:
        """Install the chart, and wait until it is ready."""
        sets = [word for value in self.values for word in ("--set", value)]
        self.helm("install", "ferry", str(CHART), "--wait", f"--timeout={INSTALL_SECONDS:g}s", *sets)

    def job(self, name: str, example: str = "nbq5", events: int = 2_000_000, **spec: Any) -> Document:
        """The job of an example, bounded, with its output and its offsets on the shared volume."""
        job: Document = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
        job["metadata"]["name"] = name
        job["spec"] |= {
            "output": f"{MOUNT}/{name}/out",
            "events": events,
            "spark": BRIEF,
            "kubernetes": {
                "checkpoint": f"{MOUNT}/{name}/checkpoint",
                "volumes": [{"name": "data", "mountPath": MOUNT, "claim": CLAIM}],
            },
        }
        for key, value in spec.items():
            if isinstance(value, dict) and isinstance(job["spec"].get(key), dict):
                job["spec"][key] |= value
            else:
                job["spec"][key] = value
        return job

    def start(self, job: Document) -> Job:
        """Apply a job."""
        self.kubectl.apply(job)
        return Job(self, job, time.monotonic())

    def fetch(self, path: str, to: Path) -> Path:
        """Copy a directory of the shared volume, as a pod sees it."""
        pod = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": f"reader-{uuid.uuid4().hex[:8]}"},
            "spec": READER,
        }
        self.kubectl.apply(pod)
        name = pod["metadata"]["name"]
        try:
            self.kubectl.run("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=120s", timeout=150)
            command = self.kubectl.command("exec", name, "--", "python3", "-c", PACK, f"{MOUNT}/{path}")
            packed = subprocess.check_output(command, timeout=120, env=self.kubectl.environment())
        finally:
            self.kubectl.run("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
        to.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-x", "-C", str(to)], input=packed, check=True, timeout=120)
        return to

    def assert_clean(self) -> None:
        """The operators' logs hold no unexpected line. One that has just been made again has to start before it can be read."""
        logs: list[str] = []

        def read() -> bool:
            logs.append(self.kubectl.run("logs", "-l", "app.kubernetes.io/component=operator", "--tail=-1", "--prefix"))
            return True

        wait_until(read, "logs of the operators", 60.0)
        lines = (line for line in logs[-1].splitlines() if not any(word in line for word in self.expected))
        complaints = [line for line in lines if any(word in line for word in UNEXPECTED)]
        assert not complaints, "the operator's log: " + "\n".join(complaints[:20])


@contextmanager
def installed_ferry(kubectl: Kubectl, *values: str, documents: Sequence[Document] = ()) -> Iterator[Installation]:
    """The chart in a namespace of its own, with a volume that all nodes share; at the end, operators have clean logs."""
    with contextmanager(installed_crd)(kubectl) as known, contextmanager(own_namespace)(known) as mine:
        mine.apply(CLAIMED, *documents)
        wait_until(lambda: mine.get("pvc", CLAIM)["status"].get("phase") == "Bound", "volume", 60.0)
        made = Installation(mine, ("nodes.read=true", *values))
        made.install()
        yield made
        made.assert_clean()
        made.helm("uninstall", "ferry", "--wait", "--timeout=60s")


@dataclass
class Job:
    """One job on the cluster."""

    ferry: Installation
    document: Document
    applied: float

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def kubectl(self) -> Kubectl:
        """kubectl in its namespace."""
        return self.ferry.kubectl

    def status(self) -> Document:
        """What the resource says; empty when it is gone."""
        found = self.kubectl.find("streamjob", self.name) or {}
        return dict(found.get("status") or {})

    def pods(self, role: str | None = None) -> list[Document]:
        """Its pods."""
        chosen = f"ferry.dev/job={self.name}" + (f",ferry.dev/role={role}" if role else "")
        return self.kubectl.items("pods", "-l", chosen)

    def driver(self) -> Document:
        """The driver's pod."""
        return self.kubectl.get("pod", f"{self.name}-driver")

    def node_of(self, pod: str) -> str:
        """The node a pod of it is on."""
        return str(self.kubectl.get("pod", f"{self.name}-{pod}")["spec"]["nodeName"])

    def nodes(self) -> dict[str, str]:
        """The nodes of its pods that have one."""
        found = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in self.pods()}
        return {name.removeprefix(f"{self.name}-"): node for name, node in found.items() if node}

    def claims(self) -> set[str]:
        """Claims of volumes that its pods have."""
        named = (one.get("persistentVolumeClaim") for pod in self.pods() for one in pod["spec"]["volumes"])
        return {one["claimName"] for one in named if one}

    def life_of(self, pod: str) -> tuple[str, list[int]]:
        """Which pod it is, and how often its sidecar was started again: while it is the same, so is what it holds."""
        found = self.kubectl.get("pod", f"{self.name}-{pod}")
        restarts = [one["restartCount"] for one in found["status"].get("initContainerStatuses") or ()]
        return found["metadata"]["uid"], restarts

    def until_replaced(self, pod: str, life: tuple[str, list[int]], seconds: float = 180.0) -> float:
        """Seconds until another pod has this one's name, and a node."""

        def replaced() -> bool:
            found = self.kubectl.find("pod", f"{self.name}-{pod}")
            return bool(found and found["metadata"]["uid"] != life[0] and found["spec"].get("nodeName"))

        return wait_until(replaced, f"{self.name}: another {pod}", seconds, 0.5)

    def until(self, true: Callable[[Document], Any], what: str, seconds: float = 120.0) -> float:
        """Seconds until the status is so."""
        try:
            return wait_until(lambda: true(self.status()), f"{self.name}: {what}", seconds, 0.5)
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.story()}") from late

    def until_epoch(self, more: int, seconds: float = 120.0) -> float:
        """Seconds until so many more epochs are finished."""
        begin = int(self.status().get("epoch", -1))
        return self.until(lambda s: s.get("epoch", -1) >= begin + more, f"{more} epochs after {begin}", seconds)

    def until_workers(self, workers: int, seconds: float = 300.0) -> float:
        """Seconds until so many workers own state and nothing moves."""
        return self.until(
            lambda s: s.get("workers") == workers and not s.get("moving") and s.get("phase") == "Running",
            f"{workers} workers that own state",
            seconds,
        )

    def finish(self, seconds: float = 600.0) -> None:
        """Wait for the end of the bounded input."""
        self.until(lambda s: s.get("phase") in ("Finished", "Failed"), "end", seconds)
        assert self.status()["phase"] == "Finished", self.story()

    def right(self, work: Path, example: str = "nbq5") -> None:
        """What it wrote is what the oracle says."""
        args = self.document["spec"]["pipeline"]["args"]
        output = self.ferry.fetch(f"{self.name}/out", work / "out")
        missing, extra = runner.difference(example, self.document["spec"]["events"], args, output, work)
        assert not missing and not extra, (
            f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}\n{self.story()}"
        )

    def delete(self) -> float:
        """Delete it; seconds until nothing of it is left."""
        begin = time.monotonic()
        self.kubectl.run("delete", "streamjob", self.name, "--wait=false", "--ignore-not-found")
        kinds = "pods,secrets,poddisruptionbudgets,streamjobs"
        chosen = f"ferry.dev/job={self.name}"

        def gone() -> bool:
            return not self.kubectl.find("streamjob", self.name) and not self.kubectl.items(kinds, "-l", chosen)

        wait_until(gone, f"end of {self.name}", 60.0, 0.5)
        return time.monotonic() - begin

    def story(self) -> str:
        """What a human would look at."""
        return describe(self.kubectl, self.name)


def describe(kubectl: Kubectl, job: str | None = None) -> str:
    """Resource, pods, events, and the ends of the logs."""
    lines = [kubectl.run("get", "pods", "-o", "wide")]
    if job is not None:
        lines.append(json.dumps((kubectl.find("streamjob", job) or {}).get("status"), indent=1))
    lines.append(kubectl.run("get", "events", "--sort-by=.lastTimestamp")[-5000:])
    for pod in kubectl.items("pods"):
        for kind in ("initContainers", "containers"):
            for container in pod["spec"].get(kind, ()):
                name = pod["metadata"]["name"]
                try:
                    text = kubectl.run("logs", name, "-c", container["name"], "--tail=25", timeout=20)
                except Exception as error:
                    text = str(error)
                lines.append(f"--- {name} {container['name']}\n{text}")
    return "\n".join(lines)
