"""Pods and nodes for decisions, parsed from objects of the API. Pure; a missing field is no error.

Times are seconds since 1970, by the clocks of their writers; differences of times are bounded below by zero.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ferry.contract.errors import NO_TRANSPORT
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import last_words
from ferry_operator.job.quantities import Cpus, Quantity
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc

SILENT_SECONDS = 5.0
"""A node that has not been ready for this long may be lost. The cluster itself waits before it sets a node not ready."""

OVERDUE_SECONDS = 10.0
"""A pod that exists this long after its grace period has a kubelet that does not answer."""

ZONE = "topology.kubernetes.io/zone"

BROKEN = {
    "ErrImagePull": "ImagePull",
    "ImagePullBackOff": "ImagePull",
    "InvalidImageName": "ImagePull",
    "ErrImageNeverPull": "ImagePull",
    "CreateContainerConfigError": "ContainerRefused",
    "CreateContainerError": "ContainerRefused",
    "RunContainerError": "ContainerRefused",
    "CrashLoopBackOff": "CrashLoop",
}
"""Waiting reasons of containers that need a change by a user -> reason of the condition."""


NO_TRANSPORT_REASON = "TransportUnavailable"

OUT_OF_MEMORY = "OOMKilled"
"""A kubelet's reason for a container with more memory than its limit."""

SIZED = ("driver", "executor", "sidecar")
"""Containers with a field of the same name below `spec.kubernetes`, which sets their memory."""

MAIN = ("driver", "executor", names.PLACEHOLDER_ROLE)
"""The main containers of Ferry's pods. Other containers are injected, for example by a service mesh: in any order, and
without an end of their own."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a part of the job does not work, for conditions and events."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the main container of a pod."""

    code: int | None
    """None: the pod was ended from outside, for example by an eviction"""
    reason: str
    message: str
    """the last lines of its log after a failure"""
    at: float


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a job."""

    name: str
    uid: str
    version: str
    role: str
    worker: int | None
    node: str | None
    phase: str
    ip: str | None
    created: float
    deleting: float | None
    """end of its grace period, for a deleted pod"""
    ready: bool
    silent_since: float | None
    """start of the time in which the pod is not ready although its containers last were: its node is silent"""
    ended: Ended | None
    problems: tuple[Problem, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """uid of its StreamJob"""
    placed: float | None = None
    """time of its scheduling"""
    not_ready_since: float | None = None
    """start of the time in which it runs, but its kubelet reports not ready; None: ready, or no report"""
    was_ready: bool = False
    """whether it was ready at some time since its start"""
    scheme: str | None = "http"
    """scheme in the probe of its main container: the spec may have changed since; None: a service mesh rewrote the probe"""
    image: str = ""
    """of its main container"""
    account: str | None = None
    """its service account"""
    cpus: float = 1.0
    """CPUs that its sidecar requests; default 1"""
    zone: str | None = None
    """zone of its node, from its own label, which Kubernetes 1.35 and newer sets"""
    state_bytes: int | None = None
    """bytes for its state: the size of the volume, else the memory of its sidecar"""
    may_leave: float | None = None
    """time since which an eviction may delete the pod"""

    @property
    def evicted(self) -> bool:
        """Whether a client has asked to evict the pod."""
        return names.EVICTION in self.annotations

    @property
    def unschedulable(self) -> bool:
        """Whether no node has room for the pod at present."""
        return any(problem.reason == "Unschedulable" for problem in self.problems)

    def number(self, annotation: str, default: int = 0) -> int:
        """The value of a numeric annotation, else `default`; users may have written anything there."""
        text = self.annotations.get(annotation, "")
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else default


@dataclass(frozen=True, slots=True)
class KubeNode:
    """One node of the cluster."""

    name: str
    silent_since: float | None
    """start of the time in which it is not Ready"""
    cordoned: bool
    zone: str | None


FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Format of a timestamp of the API, to the second."""


def when(text: Any) -> float | None:
    """The seconds of a timestamp of the API; None for an invalid text."""
    try:
        return datetime.strptime(str(text)[:19], FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def stamp(seconds: float) -> str:
    """The inverse of `when`, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime(f"{FORMAT}Z")


def why_ended(container: str, reason: str) -> str:
    """The kubelet's reason for the end of a container, with a remedy; '' when the exit code is the whole reason."""
    if reason in ("Error", "Completed"):
        return ""
    if reason == OUT_OF_MEMORY and container in SIZED:
        return f"{reason}: raise spec.kubernetes.{container}.memory"
    return reason


def pod(document: Doc) -> Pod:
    """The facts of a pod."""
    metadata, status = document["metadata"], document.get("status") or {}
    label = metadata.get("labels") or {}
    index = str(label.get(names.WORKER, ""))
    conditions = {entry["type"]: entry for entry in status.get("conditions") or []}
    ready, scheduled = conditions.get("Ready") or {}, conditions.get("PodScheduled") or {}
    regular = [_Container(entry) for entry in status.get("containerStatuses") or []]
    main = next((container for container in regular if container.name in MAIN), None)
    # Native sidecars are init containers.
    every = [*(_Container(entry) for entry in status.get("initContainerStatuses") or []), *regular]
    started = [container for container in every if container.running is not None]
    believed = bool(regular) and all(container.ready for container in (*regular, *started))
    # A kubelet sets the reason of a condition that is False. The node controller, in place of a silent kubelet, does not.
    silent = believed and ready.get("status") == "False" and not ready.get("reason")
    not_ready_since, began = _not_ready(ready, main)
    return Pod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
        role=str(label.get(names.ROLE, "")),
        worker=int(index) if index.isdigit() else None,
        node=(document.get("spec") or {}).get("nodeName"),
        phase=status.get("phase", "Pending"),
        ip=status.get("podIP"),
        created=when(metadata.get("creationTimestamp")) or 0.0,
        deleting=when(metadata.get("deletionTimestamp")),
        ready=ready.get("status") == "True",
        silent_since=when(ready.get("lastTransitionTime")) if silent else None,
        ended=_ended(document, status, main),
        problems=tuple(_problems(metadata["name"], conditions, every)),
        annotations=metadata.get("annotations") or {},
        labels=label,
        owner=owner(metadata),
        scheme=_scheme(document),
        cpus=_cpus(document),
        zone=label.get(ZONE) or None,
        state_bytes=_state_bytes(document),
        may_leave=float(since) if (since := str(label.get(names.MAY_LEAVE, ""))).isdigit() else None,
        image=next((str(c.get("image", "")) for c in _containers(document) if c.get("name") in MAIN), ""),
        account=(document.get("spec") or {}).get("serviceAccountName"),
        not_ready_since=not_ready_since,
        was_ready=not_ready_since is not None and not_ready_since > began,
        placed=when(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
    )


def _containers(document: Doc) -> list[Doc]:
    containers: list[Doc] = (document.get("spec") or {}).get("containers") or []
    return containers


def owner(metadata: Doc) -> str:
    """The uid of the controlling owner of an object; '' without an owner."""
    references = metadata.get("ownerReferences") or []
    return next((str(reference.get("uid")) for reference in references if reference.get("controller")), "")


def node(document: Doc, leaving: Sequence[str] = names.LEAVING) -> KubeNode:
    """The facts of a node. `leaving`: taints of nodes that will be removed, KEY or KEY=VALUE: they count as a cordon."""
    conditions = {entry["type"]: entry for entry in (document.get("status") or {}).get("conditions") or []}
    ready, spec = conditions.get("Ready") or {}, document.get("spec") or {}
    since = None if ready.get("status") == "True" else when(ready.get("lastTransitionTime")) or 0.0
    return KubeNode(
        name=document["metadata"]["name"],
        silent_since=since,
        cordoned=bool(spec.get("unschedulable"))
        or any(
            taint.get("key") in leaving or f"{taint.get('key')}={taint.get('value', '')}" in leaving
            for taint in spec.get("taints") or []
        ),
        zone=(document["metadata"].get("labels") or {}).get(ZONE),
    )


class _Container:
    """The status of one container."""

    def __init__(self, status: Doc) -> None:
        state, last = status.get("state") or {}, status.get("lastState") or {}
        self.name: str = status.get("name", "")
        self.ready = bool(status.get("ready"))
        self.waiting: Doc = state.get("waiting") or {}
        self.running: Doc | None = state.get("running")
        self.terminated: Doc | None = state.get("terminated")
        self.before: Doc = last.get("terminated") or {}

    @property
    def last_words(self) -> str | None:
        """The last log line of a sidecar without a transport, which has not become ready since; else None."""
        ended = self.terminated or self.before
        if self.name != "sidecar" or self.ready or ended.get("exitCode") != ExitCode.NO_TRANSPORT:
            return None
        lines = [line for line in str(ended.get("message") or "").splitlines() if line.startswith(NO_TRANSPORT)]
        return lines[-1] if lines else f"{NO_TRANSPORT}its log says why"


def _scheme(document: Doc) -> str | None:
    """The scheme of the main container's probe; None for a probe that a service mesh rewrote."""
    containers = (document.get("spec") or {}).get("containers") or []
    main: Doc = next((container for container in containers if container.get("name") in MAIN), {})
    check = (main.get("readinessProbe") or {}).get("httpGet") or {}
    if check.get("path", names.HEALTH_PATH) != names.HEALTH_PATH:
        return None  # Istio rewrites path, port and scheme
    return str(check.get("scheme") or "http").lower()


def _cpus(document: Doc) -> float:
    """CPUs that the sidecar of this pod requests: the spec may have changed, or the pod was resized."""
    with contextlib.suppress(KeyError, ValueError):
        return max(Cpus(_sidecar(document)["resources"]["requests"]["cpu"]).millis, 1) / 1000
    return 1.0


def _state_bytes(document: Doc) -> int | None:
    """Bytes for the state in this pod; None when they are not known."""
    volumes = (document.get("spec") or {}).get("volumes") or []
    sizes = [(volume.get("emptyDir") or {}).get("sizeLimit") for volume in volumes if volume.get("name") == "state"]
    with contextlib.suppress(KeyError, ValueError):
        size = next(filter(None, sizes), None) or _sidecar(document)["resources"]["limits"]["memory"]
        return Quantity(str(size)).bytes
    return None


def _sidecar(document: Doc) -> Doc:
    spec = document.get("spec") or {}
    containers: list[Doc] = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return next((container for container in containers if container.get("name") == "sidecar"), {})


def _not_ready(ready: Doc, main: _Container | None) -> tuple[float | None, float]:
    """(start of the time in which the kubelet reports the running main container not ready, or None; its start)"""
    began = when(main.running.get("startedAt")) if main is not None and main.running is not None else None
    if began is None or ready.get("status") != "False" or not ready.get("reason"):
        return None, 0.0
    return max(began, when(ready.get("lastTransitionTime")) or 0.0), began


def _ended(document: Doc, status: Doc, main: _Container | None) -> Ended | None:
    """The end of the main container. Injected containers never end, so the phase of their pod stays Running."""
    never = (document.get("spec") or {}).get("restartPolicy") == "Never"
    terminated = main.terminated if main is not None else None
    if status.get("phase") not in ("Failed", "Succeeded") and not (never and terminated is not None):
        return None
    at = when(document["metadata"].get("creationTimestamp")) or 0.0
    if terminated is not None and terminated.get("reason") != "ContainerStatusUnknown":
        code = int(terminated.get("exitCode", 1))
        message = str(terminated.get("message") or "").strip()
        at = when(terminated.get("finishedAt")) or at
        if not str(status.get("reason") or ""):
            return Ended(code, str(terminated.get("reason") or ""), message, at)
    return Ended(None, str(status.get("reason") or "PodEnded"), str(status.get("message") or ""), at)


def _problems(name: str, conditions: Mapping[str, Doc], containers: Iterable[_Container]) -> Iterable[Problem]:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and scheduled.get("reason") in ("Unschedulable", "SchedulingGated"):
        yield Problem("Unschedulable", f"{name}: {scheduled.get('message', 'no node has room')}")
    for container in containers:
        if (words := container.last_words) is not None:
            yield Problem(NO_TRANSPORT_REASON, f"{name}: {words}")
            continue
        kind = BROKEN.get(str(container.waiting.get("reason", "")))
        if kind is not None:
            text = str(container.waiting.get("message") or container.waiting["reason"])
            if kind == "CrashLoop":
                message = str(container.before.get("message") or "")
                parts = (
                    why_ended(container.name, str(container.before.get("reason") or "")),
                    last_words(message.split("\n")) or message,
                )
                text = (
                    f"ends with {container.before.get('exitCode', '?')}: {'; '.join(filter(None, parts)) or 'no log'}"
                )
            yield Problem(kind, f"{name}, {container.name}: {text.strip()}")
