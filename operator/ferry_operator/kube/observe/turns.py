"""The defaults of the installation that are in force for a job, while another default is rolled out in turns. Pure.

A job keeps the defaults from which its pods were created, in `status.memory.defaults`, until it has a turn. The note of its
turn, `status.memory.roll`, stays until all its pods are replaced and it is ready: the next operator reads the turns there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from ferry.contract.errors import SpecRefused
from ferry_operator.job import spec
from ferry_operator.job.status import JobMemory, JobStatus, PodDefaults, RollNote
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.redis_connection import where
from ferry_operator.kube.manifests.release import Installation, redis_seal, seal
from ferry_operator.kube.observe import effective_spec
from ferry_operator.kube.observe.facts import Pod, stamp, when
from ferry_operator.kube.observe.readiness import ready
from ferry_operator.kube.observe.view import JobView

Reason = Literal["", "Waiting", "Rolling", "Stopped", "Edited", "NotReady", "DefinitionOlder", "OtherRedis"]


@dataclass(frozen=True, slots=True)
class Turn:
    """The defaults in force for a job, and its place in a roll."""

    release: Installation
    """with the defaults in force"""
    note: tuple[PodDefaults, RollNote | None] | None = None
    """for the memory of the job; None: the memory is right"""
    reason: Reason = ""
    """of the condition; empty: the present defaults are in force, and all pods have them"""
    message: str = ""


def present(release: Installation) -> PodDefaults:
    """The present defaults of the installation."""
    return PodDefaults(
        image=release.image,
        service_account=release.service_account,
        redis=redis_seal(release),
        redis_at=where(release.redis),
    )


def with_defaults(release: Installation, defaults: PodDefaults) -> Installation:
    """The installation with these defaults."""
    other = None if defaults.redis == seal(release, release.redis) else defaults.redis
    return replace(release, image=defaults.image, service_account=defaults.service_account, redis_seal=other)


def with_redis(defaults: PodDefaults, of: PodDefaults) -> PodDefaults:
    """These defaults with the Redis of others."""
    return defaults.model_copy(update={"redis": of.redis, "redis_at": of.redis_at})


def matters(job: Doc, old: PodDefaults, new: PodDefaults) -> bool:
    """Whether pods of the job differ between two defaults. A job may name image and account itself."""
    own = (job.get("spec") or {}).get("kubernetes") or {}
    image = old.image != new.image and own.get("image") is None
    return image or (old.service_account != new.service_account and own.get("serviceAccount") is None)


def works(job: Doc, memory: JobMemory) -> bool:
    """Whether another default could damage anything: the job has worked, and is not waiting for an edit of its user."""
    status, generation = JobStatus.read(job.get("status")), int(job["metadata"].get("generation") or 0)
    if memory.good is None or status.phase == "Failed":
        return False
    return is_ready(status) or memory.good.generation >= generation


def is_ready(status: JobStatus) -> bool:
    """Whether the job was ready at the last reconcile."""
    condition = status.condition("Ready")
    return condition is not None and condition.status == "True"


def has_turn(job: Doc) -> bool:
    """Whether a job rolls. A job that is suspended, paused or being deleted gives its turn to others."""
    status, metadata = job.get("status") or {}, job["metadata"]
    rests = status.get("phase") in ("Suspending", "Suspended", "Finished", "Deleting") or metadata.get(
        "deletionTimestamp"
    )
    paused = (metadata.get("annotations") or {}).get(names.PAUSED) == "true"
    return bool((status.get("memory") or {}).get("roll")) and not rests and not paused


def overdue(job: Doc, now: float, deadline: float) -> bool:
    """Whether a roll stands still: for longer than the deadline no pod was replaced, and no state moves."""
    status = job.get("status") or {}
    note = (status.get("memory") or {}).get("roll") or {}
    moves = any(c.get("type") == "Handover" and c.get("status") == "True" for c in status.get("conditions") or ())
    since = when(note.get("since"))
    return since is not None and now - since > deadline and not moves


def begin(job: Doc, now: float) -> RollNote:
    """The note of a turn that begins."""
    return RollNote(since=stamp(now), spec=_digest(job))


def was_edited(job: Doc) -> bool:
    """Whether the spec of a job that rolls is another one than at the begin of its turn."""
    return (job["status"]["memory"]["roll"].get("spec") or _digest(job)) != _digest(job)


def _digest(job: Doc) -> str:
    """Of the spec without its size, which autoscalers change."""
    rest = {key: value for key, value in job["spec"].items() if key not in ("workers", "instancesPerWorker")}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]


def of_pods(job: Doc, pods: Sequence[Pod], memory: JobMemory, release: Installation) -> PodDefaults:
    """The defaults from which the pods of a job were created, for a job without a note of them; else the present ones."""
    first = next((pod for pod in pods if pod.ended is None and pod.image), None)
    if first is None:
        return present(release)
    account = None if release.service_account is None else first.account
    theirs, documents = PodDefaults(image=first.image, service_account=account), list(_specs(job, memory))
    for old in (present(release), theirs):
        for document in documents:
            # The image that a job names is no default: a container of root has the default image.
            defaults = old.model_copy(update={"image": release.image}) if _names_image(document) else old
            if _created(job, document, pods, with_defaults(release, defaults)):
                return defaults
    # Something else has changed, too, which replaces the pods; another default still waits for a turn.
    return present(release) if any(map(_names_image, documents)) else theirs


def _names_image(document: Mapping[str, Any]) -> bool:
    return (document.get("kubernetes") or {}).get("image") is not None


def _specs(job: Doc, memory: JobMemory) -> Iterator[Mapping[str, Any]]:
    """The last good spec and the newest spec."""
    with suppress(ValueError):
        if memory.good is not None:
            yield json.loads(memory.good.spec)
    yield job["spec"]


def _created(job: Doc, document: Mapping[str, Any], pods: Sequence[Pod], release: Installation) -> bool:
    """Whether a pod was created from this spec and these defaults."""
    try:
        mine = effective_spec.revisions(spec.check({**job, "spec": document}), str(job["metadata"]["uid"]), release)
    except SpecRefused:
        return False
    known = {mine.worker, mine.driver, mine.driver_before}
    return any(pod.annotations.get(names.REVISION) in known for pod in pods)


def note_of(view: JobView) -> tuple[PodDefaults, RollNote | None] | None:
    """What a job that has a turn records: another replaced pod, or the end of its turn; None: nothing new."""
    seen, note = view.seen, view.seen.memory.roll
    defaults = seen.memory.defaults
    if note is None or defaults is None or view.revisions is None or view.effective.job is None:
        return None
    mine = view.revisions
    old = [pod for pod in seen.pods if pod.annotations.get(names.REVISION) not in (mine.driver, mine.worker)]
    alive = {int(i.partition(".")[0]) for i in seen.status.alive} if seen.status is not None else set()
    here = {pod.worker for pod in seen.workers if pod.worker in alive and pod.deleting is None}
    if not old and seen.driver is not None and ready(view) and here >= set(view.members.numbers):
        return defaults, None
    count = len(seen.pods) - len(old)
    later = note.model_copy(update={"since": stamp(seen.now), "pods": count})
    return (defaults, later) if count > note.pods else None
