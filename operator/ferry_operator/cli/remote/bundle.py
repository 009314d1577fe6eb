"""Everything about a job that helps to find out what is wrong, as one archive that may be handed on: no secrets.

Secrets are never read. Documents and logs go through `redact`. What could not be read is said in the archive.
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
"""Lines of each log, from its end."""

LOG_BYTES_MAX = 8 << 20
"""Bytes of each log: lines may be long."""

LEASE = "ferry-operator"


@dataclass(slots=True)
class Bundle:
    """Files by name, and what is missing."""

    files: dict[str, bytes] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, name: str, what: Any) -> None:
        """A document, or a text that may hold anything."""
        if isinstance(what, str):
            self.files[name] = redact.text(what).encode()
        else:
            self.files[name] = (json.dumps(redact.value(what), indent=1, ensure_ascii=False) + "\n").encode()

    def attempt(self, name: str, call: Callable[[], Any]) -> Any:
        """The API server's answer, also written into a file; None, and a note, when it refuses."""
        try:
            found = call()
        except ApiError as error:
            self.missing.append(f"{name}: {redact.text(str(error))}")
            return None
        self.add(name, found)
        return found


def collect(job: RemoteJob, say: Callable[[str], None]) -> Bundle:
    """Everything. Raises NoSuchJob."""
    api, bundle, document = job.api, Bundle(), job.object()
    say("the job, its events and pods")
    bundle.add("streamjob.json", document)
    bundle.add("status.txt", shown(job))
    found: list[Doc] = bundle.attempt("pods.json", lambda: api.find(PODS, f"{names.JOB}={job.name}")) or []
    events = [bundle.attempt(f"events/{name}.json", partial(api.events, name)) for name in _named(job, found)]
    bundle.add("events.txt", "\n".join(_event_lines(events)) + "\n")
    operators = bundle.attempt("operator/pods.json", lambda: api.find(PODS, logs.OPERATOR)) or []
    bundle.attempt("operator/lease.json", lambda: api.get(LEASES, LEASE))
    crd = bundle.attempt("definition.json", lambda: api.get(DEFINITIONS, definition()["metadata"]["name"]))
    bundle.add("versions.json", _versions(crd or {}, api))
    for directory, pods in (("logs", found), ("operator/logs", operators)):
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
    """The archive, readable by its owner alone, whole or not at all."""
    with files.replacing(file, private=True) as new, tarfile.open(new, "w:gz") as archive:
        for name, data in sorted(bundle.files.items()):
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(now), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _named(job: RemoteJob, pods: Sequence[Doc]) -> Iterator[str]:
    yield job.name
    yield from (pod["metadata"]["name"] for pod in pods)


def _event_lines(found: Iterable[list[Doc] | None]) -> list[str]:
    events = sorted((one for each in found for one in each or []), key=tables.time_of)
    return [
        f"{tables.time_of(one)} {one.get('type', '')} {(one.get('involvedObject') or {}).get('name', '')} "
        f"{one.get('reason', '')} x{one.get('count') or 1}: {one.get('message', '')}"
        for one in events
    ]


def _logs(bundle: Bundle, api: UserApi, directory: str, source: LogSource, pod: Doc) -> None:
    statuses = pod.get("status") or {}
    every = [*(statuses.get("initContainerStatuses") or []), *(statuses.get("containerStatuses") or [])]
    again = any(one.get("name") == source.container and one.get("restartCount") for one in every)
    for previous in (False, True) if again else (False,):
        name = f"{directory}/{source.pod}.{source.container}{'.previous' if previous else ''}.log"
        bundle.attempt(name, partial(_log, api, source, previous))


def _log(api: UserApi, source: LogSource, previous: bool) -> str:
    lines, size = list[bytes](), 0
    for line in api.log(source.pod, source.container, previous=previous, tail=LINES_MAX):
        size += len(line)
        if size > LOG_BYTES_MAX:
            lines.append(b"... (cut off here: it is longer)\n")
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
        "served": [one["name"] for one in (installed.get("spec") or {}).get("versions", []) if one.get("served")],
    }


def _digest(crd: Doc) -> str:
    """A digest of the definition's schemas."""
    schemas = [one.get("schema") for one in (crd.get("spec") or {}).get("versions", [])]
    return hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:12]
