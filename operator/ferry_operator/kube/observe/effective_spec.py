"""Which spec is in force: the new one, or the last good one when the new one cannot be followed. Pure.

A spec is good once an epoch was finished under it. It is kept with a seal, so that only a spec comes into force that the API
server has admitted. The last good spec stays in force when the new one is invalid, changes an immutable field, or could
not run; with another `restartNonce` the new one is tried again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any

from pydantic import BaseModel

from ferry.contract.errors import SpecRefused
from ferry_operator.job import changes, spec
from ferry_operator.job.models import Spec, StreamJob, why_not
from ferry_operator.job.quantities import Cpus, Duration, Quantity, amount
from ferry_operator.job.status import GoodSpec, JobMemory
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests import allowed
from ferry_operator.kube.manifests.release import Installation, run_key, seal, settings_of
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.shapes import DOES_NOT_FIT


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """The spec that is acted on."""

    job: StreamJob | None
    """None: there never was one that could be read"""
    newest: bool
    """it is the one that the user wrote last"""
    good: bool
    """it is recorded as the last good one"""
    problem: Problem | None = None
    fallback: Revisions | None = None
    """of the last good spec, while that is another spec than the one in force"""
    last: StreamJob | None = None
    """the last good spec; None: there is none yet"""
    began_from: str | None = None
    """`restoreFrom` as it was when the run began"""


@dataclass(frozen=True, slots=True)
class Revisions:
    """Digests of what pods are made from: a pod with another digest is out of date."""

    driver: str
    worker: str
    settings: str
    """of run.json, as far as processes do not follow it anyway"""

    @property
    def both(self) -> str:
        """The text by which a refused spec is known again."""
        return f"{self.driver}-{self.worker}"


def in_force(document: Doc, release: Installation) -> EffectiveSpec:
    """The spec of a StreamJob object that is in force.

    During a suspend this is the last good spec: other changes come into force when the job is resumed.
    """
    try:
        memory = JobMemory.of(document)
    except SpecRefused as error:
        return EffectiveSpec(None, newest=False, good=False, problem=Problem("MemoryUnreadable", str(error)))
    last, uid = _last_good(document, memory.good, release), str(document["metadata"]["uid"])
    try:
        job = spec.check(document)
        mine = revisions(job, uid, release)
        refused = [str(change) for change in changes.refusals(last.spec, job.spec)] if last else []
        if refused:
            raise SpecRefused("; ".join(refused))
    except SpecRefused as error:
        text = str(error).replace("\n", "; ")
        also = ": the last good spec stays in force" if last is not None else ""
        return replace(_of(last), newest=False, problem=Problem("SpecRefused", text + also))
    if last is None:
        # How many workers there are while they go to rest is not told by a spec that wants none.
        sized = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": max(1, job.spec.workers)})})
        return EffectiveSpec(sized, newest=True, good=False, began_from=job.spec.restore_from)
    if job.spec.suspended:
        return _of(last)
    no = memory.refused
    if no is not None and no.revision == mine.both:
        text = f"{no.why}: the last good spec stays in force; another spec.restartNonce tries this one again"
        reason = "DoesNotFit" if no.why.startswith(DOES_NOT_FIT) else "SpecRefused"
        return replace(_of(last), newest=False, problem=Problem(reason, text))
    same = not changes.classify(last.spec, job.spec)
    return replace(_of(last), job=job, good=same, fallback=None if same else _revisions(last, uid, release))


def _of(last: StreamJob | None) -> EffectiveSpec:
    return EffectiveSpec(
        last, newest=True, good=True, began_from=None if last is None else last.spec.restore_from, last=last
    )


def last_good(job: StreamJob, uid: str, generation: int, release: Installation) -> GoodSpec:
    """A spec that the API server has admitted with this generation, with the seal of the operator."""
    text = json.dumps(job.spec.model_dump(mode="json", by_alias=True), separators=(",", ":"))
    return GoodSpec(generation=generation, spec=text, seal=_sealed(text, uid, generation, release))


def _sealed(text: str, uid: str, generation: int, release: Installation) -> str:
    return seal(release, f"good {uid} {generation} {text}")


def revisions(job: StreamJob, uid: str, release: Installation) -> Revisions:
    """Texts that differ when pods have to be made anew. Raises SpecRefused.

    Made from what the spec says beyond its defaults, never from manifests: another version of the operator, with
    further fields or other manifests, restarts nothing.
    """
    image = job.spec.kubernetes.image or release.image
    account = job.spec.kubernetes.service_account or release.service_account
    common = f"{image} {account} {seal(release, release.redis)} "
    allowed.check(job, release.allow, release.usual)
    settings_of(job, JobMemory(uid=uid), release)  # says no to what means nothing in a pod
    read = _fingerprint(job.spec, lambda entry: entry.used == "both" and (entry.driver or entry.workers))
    return Revisions(
        driver=_digest(common + _fingerprint(job.spec, lambda entry: entry.driver) + (job.spec.restore_from or "")),
        worker=_digest(common + _fingerprint(job.spec, lambda entry: entry.workers)),
        settings=seal(release, f"{run_key(release, uid)} {release.redis} {read}"),
    )


def _revisions(job: StreamJob, uid: str, release: Installation) -> Revisions | None:
    """The revisions of a good spec; None when the installation no longer allows it."""
    try:
        return revisions(job, uid, release)
    except SpecRefused:
        return None


def version_of(job: StreamJob, image: str) -> str:
    """The version in the status: the job's own, else a digest of its program; `image`: of jobs that name none."""
    image = job.spec.kubernetes.image or image
    program = _fingerprint(job.spec, lambda entry: entry.path.startswith("spec.pipeline."))
    return job.spec.pipeline.version or _digest(f"{image} {program}")


def _fingerprint(one: Spec, counts: Callable[[changes.FieldEntry], bool]) -> str:
    found = {}
    for entry in changes.TABLE:
        if not counts(entry) or entry.used == "one machine":
            continue
        value: Any = one
        for name in entry.names:
            value = getattr(value, name)
        if _plain(value) != _DEFAULTS[entry.path]:
            found[entry.path] = _plain(value)
    return json.dumps(found, sort_keys=True)


def _plain(value: Any) -> Any:
    """Equal for two spellings of the same."""
    if isinstance(value, Duration | Quantity | Cpus):
        return amount(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(one) for one in value] if isinstance(value, list) else value


_DEFAULTS = {
    entry.path: _plain(entry.field.get_default(call_default_factory=True, validated_data={})) for entry in changes.TABLE
}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _last_good(document: Doc, kept: GoodSpec | None, release: Installation) -> StreamJob | None:
    """The last good spec of this very object; None when its seal is wrong, or when it cannot be read."""
    uid = str(document["metadata"]["uid"])
    if kept is None or not compare_digest(kept.seal, _sealed(kept.spec, uid, kept.generation, release)):
        return None
    return read_kept(document, kept.spec)


def read_kept(document: Doc, text: str | None) -> StreamJob | None:
    """The job with this spec, in JSON; None when it cannot be read, such as what another version of the operator kept."""
    try:
        kept = json.loads(text or "")
        return spec.check({**document, "spec": _of_today(kept)}) if isinstance(kept, dict) else None
    except (ValueError, SpecRefused, RecursionError):
        return None


def _of_today(kept: Doc) -> Doc:
    """The spec without keys of Spark that this release refuses: a job that runs with them is still looked after."""
    given = kept.get("spark")
    if not isinstance(given, dict):
        return kept
    return {**kept, "spark": {key: value for key, value in given.items() if why_not(key) is None}}
