"""`diagnose`: the data of a job in one archive without secrets, for a diagnosis by others.

Secret objects are never read. Documents and logs go through `redact`. The archive lists data that could not be read.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ferry.system import files
from ferry_operator.cli.remote import logs, redact, tables
from ferry_operator.cli.remote.logs import LogSource
from ferry_operator.cli.remote.port import DEFINITIONS, UserApi
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.cli.terminal import PIPE_WIDTH
from ferry_operator.crd.schema import definition
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import LEASES, PODS, ApiError
from ferry_operator.local.timeline.console import PlainConsole

LINES_MAX = 5000
"""Lines from the end of each log."""

LOG_BYTES_MAX = 8 << 20
"""Bytes of each log, because lines may be long."""

LEASE = "ferry-operator"


@dataclass(slots=True)
class Bundle:
    """Files by name, and the missing files."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, content: Any) -> None:
        """Add a text or a document, without its secrets."""
        if isinstance(content, str):
            self.files[name] = redact.text(content).encode()
        else:
            self.files[name] = (json.dumps(redact.value(content), indent=1, ensure_ascii=False) + "\n").encode()

    def attempt(self, name: str, call: Callable[[], Any]) -> Any:
        """Add the answer of the API server and return it; None, with a note, if the server refuses."""
        try:
            answer = call()
        except ApiError as error:
            self.missing.append(f"{name}: {redact.text(str(error))}")
            return None
        self.add(name, answer)
        return answer


def collect(job: RemoteJob, say: Callable[[str], None]) -> Bundle:
    """Collect the data of a job. Raises NoSuchJob."""
    api, bundle, document = job.api, Bundle(), job.object()
    say("the job, its events and pods")
    bundle.add("streamjob.json", document)
    bundle.add("status.txt", shown(job))
    job_pods: list[Doc] = bundle.attempt("pods.json", lambda: api.find(PODS, f"{names.JOB}={job.name}")) or []
    events = [bundle.attempt(f"events/{name}.json", partial(api.events, name)) for name in _named(job, job_pods)]
    bundle.add("events.txt", "\n".join(_event_lines(events)) + "\n")
    operators = bundle.attempt("operator/pods.json", lambda: api.find(PODS, logs.OPERATOR)) or []
    bundle.attempt("operator/lease.json", lambda: api.get(LEASES, LEASE))
    crd = bundle.attempt("definition.json", lambda: api.get(DEFINITIONS, definition()["metadata"]["name"]))
    bundle.add("versions.json", _versions(crd or {}, api))
    for directory, pods in (("logs", job_pods), ("operator/logs", operators)):
        for pod in pods:
            say(f"logs of {pod['metadata']['name']}")
            for source in logs.containers(pod):
                _logs(bundle, api, directory, source, pod)
    bundle.add("missing.txt", "\n".join(bundle.missing or ["nothing"]) + "\n")
    return bundle


def shown(job: RemoteJob) -> str:
    """The output of `status`."""
    console = PlainConsole(file=io.StringIO(), soft_wrap=True, width=PIPE_WIDTH, force_terminal=False)
    try:
        console.print(job.table(job.describe()))
    except ApiError as error:
        console.print(str(error))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def write(bundle: Bundle, file: Path, directory: str, now: float) -> None:
    """Write the archive atomically; only its owner may read it."""
    with files.replacing(file, private=True) as new, tarfile.open(new, "w:gz") as archive:
        for name, data in sorted(bundle.files.items()):
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _named(job: RemoteJob, pods: Sequence[Doc]) -> Iterator[str]:
    yield job.name
    yield from (pod["metadata"]["name"] for pod in pods)


def _event_lines(lists: Iterable[list[Doc] | None]) -> list[str]:
    events = sorted((event for events in lists for event in events or []), key=tables.time_of)
    return [
        f"{tables.time_of(event)} {event.get('type', '')} {(event.get('involvedObject') or {}).get('name', '')} "
        f"{event.get('reason', '')} x{event.get('count') or 1}: {event.get('message', '')}"
        for event in events
    ]


def _logs(bundle: Bundle, api: UserApi, directory: str, source: LogSource, pod: Doc) -> None:
    statuses = pod.get("status") or {}
    every = [*(statuses.get("initContainerStatuses") or []), *(statuses.get("containerStatuses") or [])]
    again = any(status.get("name") == source.container and status.get("restartCount") for status in every)
    for previous in (False, True) if again else (False,):
        name = f"{directory}/{source.pod}.{source.container}{'.previous' if previous else ''}.log"
        bundle.attempt(name, partial(_log, api, source, previous))


def _log(api: UserApi, source: LogSource, previous: bool) -> str:
    lines, size = list[bytes](), 0
    for line in api.log(source.pod, source.container, previous=previous, tail=LINES_MAX):
        size += len(line)
        if size > LOG_BYTES_MAX:
            lines.append(b"... (cut here: the log is longer)\n")
            break
        lines.append(line)
    return b"".join(lines).decode("utf-8", "replace")


def _versions(installed: Doc, api: UserApi) -> Doc:
    try:
        own = version("ferry-stream")
    except PackageNotFoundError:
        own = "unknown"
    return {
        "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "ferry-stream of this command": own,
        "context": api.context,
        "namespace": api.namespace,
        "schema of this command": _digest(definition()),
        "schema of the cluster": _digest(installed) if installed else "not known",
        "served": [v["name"] for v in (installed.get("spec") or {}).get("versions", []) if v.get("served")],
    }


def _digest(crd: Doc) -> str:
    """A digest of the definition's schemas."""
    schemas = [version.get("schema") for version in (crd.get("spec") or {}).get("versions", [])]
    return hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:12]
