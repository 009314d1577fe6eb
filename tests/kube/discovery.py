"""What Prometheus' discovery for Kubernetes finds in a namespace, as files for one that was built without it (Debian's is).

Groups of targets with the `__meta_kubernetes_*` labels on which monitors choose; nothing is chosen here.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.kube.kubectl import Document, Kubectl, KubectlError

LOOK_SECONDS = 1.0

ROLES = ("pod", "endpoints")
"""Each has a file; the names are those of Prometheus' roles."""


class Discovery:
    """Looks again and again, on a thread, while it is used as a context."""

    def __init__(self, kubectl: Kubectl, directory: Path) -> None:
        self._kubectl, self._directory = kubectl, directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    def __enter__(self) -> Discovery:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._look()
            except KubectlError as error:
                logging.getLogger(__name__).warning("%s", error)

    def _look(self) -> None:
        found = self._kubectl.items("pods,services")
        pods = [one for one in found if one["kind"] == "Pod" and one["status"].get("podIP")]
        services = [one for one in found if one["kind"] == "Service"]
        for role, groups in zip(ROLES, (of_pods(pods), of_services(services, pods))):
            hidden = self._directory / f".{role}"
            hidden.write_text(json.dumps(list(groups)))
            hidden.rename(file_of(self._directory, role))


def file_of(directory: Path, role: str) -> Path:
    """Where the targets of a role are."""
    return directory / f"{role}.json"


def meta(label: str) -> str:
    """A label of the discovery."""
    return f"__meta_kubernetes_{re.sub('[^a-zA-Z0-9_]', '_', label)}"


def of_pods(pods: Sequence[Document]) -> Iterator[Document]:
    """One target for every port that a container of a pod names; also of sidecars, which are init containers."""
    for pod in pods:
        for port in _ports(pod):
            yield _target(pod, port["containerPort"], {"pod_container_port_name": port.get("name", "")})


def of_services(services: Sequence[Document], pods: Sequence[Document]) -> Iterator[Document]:
    """One target for every port of a service on every pod behind it."""
    for service in services:
        selector = service["spec"].get("selector")
        for pod in pods if selector else ():
            if selector.items() <= pod["metadata"].get("labels", {}).items():
                numbers = {one.get("name"): one["containerPort"] for one in _ports(pod)}
                for port in service["spec"]["ports"]:
                    labels = _labels("service", service) | {"endpoint_port_name": port.get("name", "")}
                    yield _target(pod, numbers.get(port["targetPort"], port["targetPort"]), labels)


def _ports(pod: Document) -> list[Document]:
    containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return [port for container in containers for port in container.get("ports", ())]


def _labels(kind: str, one: Document) -> dict[str, str]:
    return {f"{kind}_label_{label}": value for label, value in one["metadata"].get("labels", {}).items()}


def _target(pod: Document, port: int, more: Mapping[str, str]) -> Document:
    labels = {
        "namespace": pod["metadata"]["namespace"],
        "pod_name": pod["metadata"]["name"],
        "pod_phase": pod["status"]["phase"],
        **_labels("pod", pod),
        **more,
    }
    address = f"{pod['status']['podIP']}:{port}"
    return {"targets": [address], "labels": {meta(label): value for label, value in labels.items()}}
