"""Logs of a job's pods and of the operator's, in the order in which they come; several at once have their name in front."""

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
"""Lines that wait to be printed while several logs are followed."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """One container."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class WantedLogs:
    """How much of a log."""

    follow: bool = False
    previous: bool = False
    tail: int | None = None


def of_driver(job: str) -> list[LogSource]:
    """The driver's."""
    return [LogSource(names.driver_pod(job), "driver")]


def of_worker(api: UserApi, job: str, index: int, container: str | None) -> list[LogSource]:
    """A worker's: of its sidecar and its executor, or of one of them."""
    selector = f"{names.workers_selector(job)},{names.WORKER}={index}"
    found = [one for pod in api.find(PODS, selector) for one in containers(pod)]
    if not found:
        raise Refusal(f"{job} has no pod of worker {index}")
    chosen = [one for one in found if container in (None, one.container)]
    if not chosen:
        raise Refusal(f"worker {index} has no container {container!r}: {', '.join(one.container for one in found)}")
    return chosen


def of_operator(api: UserApi) -> list[LogSource]:
    """Logs of every replica of the operator."""
    found = [one for pod in api.find(PODS, OPERATOR) for one in containers(pod)]
    if not found:
        raise Refusal(f"namespace {api.namespace} has no pod of the operator ({OPERATOR})")
    return found


def containers(pod: Doc) -> list[LogSource]:
    """All containers of a pod that leave a log worth reading: those that go on."""
    spec = pod.get("spec") or {}
    lasting = [one for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"]
    return [LogSource(pod["metadata"]["name"], one["name"]) for one in (*lasting, *(spec.get("containers") or []))]


def lines(api: UserApi, sources: Sequence[LogSource], wanted: WantedLogs) -> Iterator[bytes]:
    """Lines of all of them; one after another, or as they come when they are followed."""
    if len(sources) == 1 or not wanted.follow:
        for source in sources:
            yield from _lines(api, source, wanted, len(sources) > 1)
        return
    waiting: queue.Queue[bytes | ApiError | None] = queue.Queue(LINES_MAX)
    for source in sources:
        threading.Thread(target=_read, args=(api, source, wanted, waiting), daemon=True).start()
    left = len(sources)
    while left:
        one = waiting.get()
        if one is None:
            left -= 1
        elif isinstance(one, ApiError):
            raise one
        else:
            yield one


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
