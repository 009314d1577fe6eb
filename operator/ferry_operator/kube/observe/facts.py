"""Pods and nodes as the decisions see them, read from objects of the API. Pure; what is missing in an object is no error.

Times are seconds since 1970, by the clocks of their writers: durations made from them are never negative.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ferry.contract.errors import NO_TRANSPORT
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import last_words
from ferry_operator.job.quantities import Cpus
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc

SILENT_SECONDS = 5.0
"""A node that has not been ready for this long may be lost; that it is not says the cluster after a wait of its own."""

OVERDUE_SECONDS = 10.0
"""A pod that is still there so long after its grace period has a kubelet that does not answer."""

ZONE = "topology.kubernetes.io/zone"

LEAVING = (
    "node.kubernetes.io/unschedulable",
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
)
"""Taints of nodes that are about to go away: they count as cordoned."""

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
"""Reasons for which a container waits that do not pass by themselves, and what they are called in conditions."""


NO_TRANSPORT_REASON = "TransportUnavailable"

OUT_OF_MEMORY = "OOMKilled"
"""A kubelet's reason for the end of a container that needed more memory than its limit."""

SIZED = ("driver", "executor", "sidecar")
"""Containers whose memory a job sets, by the fields of the same names below `spec.kubernetes`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a part of the job from working, for conditions and events."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """How the main container of a pod ended."""

    code: int | None
    """None: the pod was ended from outside, such as by an eviction"""
    reason: str
    message: str
    """the last lines of its log, when it failed"""
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
    """when it should be gone"""
    ready: bool
    silent_since: float | None
    """since when it is not ready although its containers last were: its node is silent"""
    ended: Ended | None
    problems: tuple[Problem, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """uid of the StreamJob that it belongs to"""
    placed: float | None = None
    """when it was given a node"""
    unwell_since: float | None = None
    """since when it runs and its kubelet finds it not ready; None: it is ready, or its kubelet does not say"""
    was_well: bool = False
    """it has been ready since it was started"""
    scheme: str = "http"
    """scheme of its main container, by its probe: the spec may have changed meanwhile"""
    cpus: float = 1.0
    """CPUs that its sidecar requests; 1 when the pod does not say"""

    @property
    def unschedulable(self) -> bool:
        """No node takes it at present."""
        return any(one.reason == "Unschedulable" for one in self.problems)

    def number(self, annotation: str, default: int = 0) -> int:
        """A number among the annotations; `default` when there is none."""
        text = self.annotations.get(annotation, "")
        return int(text) if text.removeprefix("-").isdigit() else default


@dataclass(frozen=True, slots=True)
class KubeNode:
    """One node of the cluster."""

    name: str
    silent_since: float | None
    """since when it is not Ready"""
    cordoned: bool
    zone: str | None


FORMAT = "%Y-%m-%dT%H:%M:%S"
"""Format of a timestamp of the API, to the second."""


def when(text: Any) -> float | None:
    """A timestamp of the API."""
    try:
        return datetime.strptime(str(text)[:19], FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def stamp(seconds: float) -> str:
    """The inverse of `when`, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime(f"{FORMAT}Z")


def why_ended(container: str, reason: str) -> str:
    """The kubelet's reason for the end of a container, with a remedy; '' when the exit code says all."""
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
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    ready, scheduled = conditions.get("Ready") or {}, conditions.get("PodScheduled") or {}
    main = [_Container(one) for one in status.get("containerStatuses") or []]
    # Sidecars stand among the init containers.
    every = [*(_Container(one) for one in status.get("initContainerStatuses") or []), *main]
    started = [one for one in every if one.running is not None]
    believed = bool(main) and all(one.ready for one in main) and all(one.ready for one in started)
    # A kubelet gives a reason with its No; the node controller, which speaks for a silent kubelet, gives none.
    silent = believed and ready.get("status") == "False" and not ready.get("reason")
    unwell, began = _unwell(ready, main)
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
        ended=_ended(metadata, status, main),
        problems=tuple(_problems(metadata["name"], conditions, every)),
        annotations=metadata.get("annotations") or {},
        owner=owner(metadata),
        scheme=_scheme(document),
        cpus=_cpus(document),
        unwell_since=unwell,
        was_well=unwell is not None and unwell > began,
        placed=when(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
    )


def owner(metadata: Doc) -> str:
    """The uid of what an object belongs to; '' when it belongs to nothing."""
    return next((str(one.get("uid")) for one in metadata.get("ownerReferences") or [] if one.get("controller")), "")


def node(document: Doc) -> KubeNode:
    """The facts of a node."""
    conditions = {one["type"]: one for one in (document.get("status") or {}).get("conditions") or []}
    ready, spec = conditions.get("Ready") or {}, document.get("spec") or {}
    since = None if ready.get("status") == "True" else when(ready.get("lastTransitionTime")) or 0.0
    return KubeNode(
        name=document["metadata"]["name"],
        silent_since=since,
        cordoned=bool(spec.get("unschedulable"))
        or any(taint.get("key") in LEAVING for taint in spec.get("taints") or []),
        zone=(document["metadata"].get("labels") or {}).get(ZONE),
    )


class _Container:
    """Status of one container."""

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
        """The last words of a sidecar that found no transport, and has not come up since."""
        ended = self.terminated or self.before
        if self.name != "sidecar" or self.ready or ended.get("exitCode") != ExitCode.NO_TRANSPORT:
            return None
        lines = [line for line in str(ended.get("message") or "").splitlines() if line.startswith(NO_TRANSPORT)]
        return lines[-1] if lines else f"{NO_TRANSPORT}its log says why"


def _scheme(document: Doc) -> str:
    """The scheme of the main container's probe."""
    (main, *_) = (document.get("spec") or {}).get("containers") or [{}]
    return str(((main.get("readinessProbe") or {}).get("httpGet") or {}).get("scheme") or "http").lower()


def _cpus(document: Doc) -> float:
    """CPUs that the sidecar requests: not those of the spec while it changes, or after a resize of the pod."""
    spec = document.get("spec") or {}
    for one in (*(spec.get("initContainers") or []), *(spec.get("containers") or [])):
        if one.get("name") == "sidecar":
            with contextlib.suppress(KeyError, ValueError):
                return max(Cpus(one["resources"]["requests"]["cpu"]).millis, 1) / 1000
    return 1.0


def _unwell(ready: Doc, main: list[_Container]) -> tuple[float | None, float]:
    """Since when the main container runs without being ready, by its kubelet; and when it was started."""
    began = when(main[0].running.get("startedAt")) if main and main[0].running is not None else None
    if began is None or ready.get("status") != "False" or not ready.get("reason"):
        return None, 0.0
    return max(began, when(ready.get("lastTransitionTime")) or 0.0), began


def _ended(metadata: Doc, status: Doc, main: list[_Container]) -> Ended | None:
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    at = when(metadata.get("creationTimestamp")) or 0.0
    for one in main:
        if one.terminated is not None and one.terminated.get("reason") != "ContainerStatusUnknown":
            code = int(one.terminated.get("exitCode", 1))
            message = str(one.terminated.get("message") or "").strip()
            at = when(one.terminated.get("finishedAt")) or at
            if not str(status.get("reason") or ""):
                return Ended(code, str(one.terminated.get("reason") or ""), message, at)
    return Ended(None, str(status.get("reason") or "PodEnded"), str(status.get("message") or ""), at)


def _problems(name: str, conditions: Mapping[str, Doc], containers: Iterable[_Container]) -> Iterable[Problem]:
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False" and scheduled.get("reason") in ("Unschedulable", "SchedulingGated"):
        yield Problem("Unschedulable", f"{name}: {scheduled.get('message', 'no node takes it')}")
    for one in containers:
        if (words := one.last_words) is not None:
            yield Problem(NO_TRANSPORT_REASON, f"{name}: {words}")
            continue
        kind = BROKEN.get(str(one.waiting.get("reason", "")))
        if kind is not None:
            text = str(one.waiting.get("message") or one.waiting["reason"])
            if kind == "CrashLoop":
                message = str(one.before.get("message") or "")
                parts = (
                    why_ended(one.name, str(one.before.get("reason") or "")),
                    last_words(message.split("\n")) or message,
                )
                text = f"ends with {one.before.get('exitCode', '?')}: {'; '.join(filter(None, parts)) or 'no log'}"
            yield Problem(kind, f"{name}, {one.name}: {text.strip()}")
