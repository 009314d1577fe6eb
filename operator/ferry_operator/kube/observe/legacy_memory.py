"""Reads the memory that an operator of an older release kept in annotations of a StreamJob. Pure.

Users can write annotations, so they count only if the status agrees: it has the name of the run, which contains the uid of
the object. A status without a memory is from an older release: this release writes both at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from ferry_operator.job.status import MESSAGE_MAX, CheckpointAnswer, JobMemory, RefusedSpec
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc

RUN = "ferry.dev/run"
"""{"number": ..., "over": ..., "before": ...}"""
ANSWERED = "ferry.dev/checkpoint-answered"
"""{"id": ..., "number": ..., "refused": ...}"""
LAST_GOOD = "ferry.dev/last-good-spec"
REFUSED = "ferry.dev/refused"
"""[revision, reason]"""

RUNS_MAX = 1000
"""Numbers of runs whose names are compared with the name in the status."""

Kept = TypeVar("Kept", JobMemory, CheckpointAnswer, RefusedSpec)


@dataclass(frozen=True, slots=True)
class LegacyMemory:
    """The memory of an older release, in the format of this release."""

    memory: JobMemory
    good: str | None
    """the last good spec, as JSON; the API server has not yet admitted it in this release"""


def legacy_memory(job: Doc) -> LegacyMemory | None:
    """The memory of an older release about its job; None for other jobs."""
    metadata, status = job["metadata"], job.get("status") or {}
    if "memory" in status or not status.get("run"):
        return None
    name, uid = str(metadata["name"]), str(metadata["uid"])
    run = next((n for n in range(1, RUNS_MAX + 1) if names.run_name(name, uid, n) == status["run"]), None)
    if run is None:
        return None
    annotations = metadata.get("annotations") or {}
    note = _read(annotations.get(RUN))
    memory = JobMemory(uid=uid, run=run, before=(job.get("spec") or {}).get("restoreFrom"))
    # The older release wrote the number a moment before the status had the name of the next run.
    if isinstance(note, dict) and note.get("number") in (run, run + 1):
        kept = {"uid": uid, "run": note["number"], "over": note.get("over") is True, "before": note.get("before")}
        memory = _valid(JobMemory, kept) or memory
    return LegacyMemory(
        memory.model_copy(
            update={
                "answered": _valid(CheckpointAnswer, _read(annotations.get(ANSWERED))),
                "refused": _refused(_read(annotations.get(REFUSED))),
            }
        ),
        annotations.get(LAST_GOOD),
    )


def _refused(note: Any) -> RefusedSpec | None:
    if not isinstance(note, list) or len(note) != 2:
        return None
    return _valid(RefusedSpec, {"revision": note[0], "why": str(note[1])[:MESSAGE_MAX]})


def _valid(kind: type[Kept], note: Any) -> Kept | None:
    try:
        return kind.model_validate(note) if isinstance(note, Mapping) else None
    except ValidationError:
        return None


def _read(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
