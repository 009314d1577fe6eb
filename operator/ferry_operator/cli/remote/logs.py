"""Logs of the pods of a job and of the operator, in order of arrival; lines of several logs begin with their source."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ferry.contract.errors import Refusal
from ferry_operator.cli.remote.port import UserApi
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import PODS, ApiError

OPERATOR = "app.kubernetes.io/component=operator,app.kubernetes.io/name=ferry"
"""Pods of the chart's operator, as a label selector."""

LINES_MAX = 10_000
"""Greatest number of waiting lines while several logs are followed."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """One container of a pod."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class WantedLogs:
    """The requested part of a log."""

    follow: bool = False
    previous: bool = False
    tail: int | None = None


def of_driver(job: str) -> list[LogSource]:
    """The log of the driver."""
    return [LogSource(names.driver_pod(job), "driver")]


def of_worker(api: UserApi, job: str, index: int, container: str | None) -> list[LogSource]:
    """Logs of a worker: of all its containers, or of one container."""
    selector = f"{names.workers_selector(job)},{names.WORKER}={index}"
    sources = [source for pod in api.find(PODS, selector) for source in containers(pod)]
    if not sources:
        raise Refusal(f"{job} has no pod of worker {index}")
    chosen = [source for source in sources if container in (None, source.container)]
    if not chosen:
        raise Refusal(f"worker {index} has no container {container!r}: {', '.join(s.container for s in sources)}")
    return chosen


def of_operator(api: UserApi) -> list[LogSource]:
    """Logs of every replica of the operator."""
    sources = [source for pod in api.find(PODS, OPERATOR) for source in containers(pod)]
    if not sources:
        raise Refusal(f"namespace {api.namespace} has no pod of the operator ({OPERATOR})")
    return sources


def containers(pod: Doc) -> list[LogSource]:
    """The long-running containers of a pod, without init containers that end."""
    spec = pod.get("spec") or {}
    lasting = [c for c in spec.get("initContainers") or [] if c.get("restartPolicy") == "Always"]
    return [LogSource(pod["metadata"]["name"], c["name"]) for c in (*lasting, *(spec.get("containers") or []))]


def lines(api: UserApi, sources: Sequence[LogSource], wanted: WantedLogs) -> Iterator[bytes]:
    """Lines of all sources: one source after the other, or in order of arrival if the logs are followed."""
    if len(sources) == 1 or not wanted.follow:
        for source in sources:
            yield from _lines(api, source, wanted, len(sources) > 1)
        return
    waiting: queue.Queue[bytes | ApiError | None] = queue.Queue(LINES_MAX)
    for source in sources:
        threading.Thread(target=_read, args=(api, source, wanted, waiting), daemon=True).start()
    left = len(sources)
    while left:
        line = waiting.get()
        if line is None:
            left -= 1
        elif isinstance(line, ApiError):
            raise line
        else:
            yield line


def _read(api: UserApi, source: LogSource, wanted: WantedLogs, waiting: queue.Queue[bytes | ApiError | None]) -> None:
    try:
        for line in _lines(api, source, wanted, True):
            waiting.put(line)
    except ApiError as error:
        waiting.put(error)
    waiting.put(None)


def _lines(api: UserApi, source: LogSource, wanted: WantedLogs, named: bool) -> Iterator[bytes]:
    front = f"[{source.pod} {source.container}] ".encode() if named else b""
    for line in api.log(source.pod, source.container, wanted.follow, wanted.previous, wanted.tail):
        yield front + line.removesuffix(b"\n") + b"\n"
