"""The spec in force: the newest spec, or the last good spec when the newest one is refused. Pure.

A spec is good once an epoch was finished under it. A good spec is kept with a seal, as a proof that the API server has
admitted it. The last good spec stays in force when the newest one is invalid, changes an immutable field, or could not
run; another `restartNonce` tries the newest one again.
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
from ferry_operator.kube.manifests import fence
from ferry_operator.kube.manifests.release import Installation, redis_address, redis_seal, run_key, seal, settings_of
from ferry_operator.kube.observe.facts import Problem
from ferry_operator.kube.observe.in_place import DOES_NOT_FIT

SPEC_MAX = 256 << 10
"""Bytes of a spec as JSON. The object holds it twice, and `managedFields` has the names of its fields again."""


@dataclass(frozen=True, slots=True)
class EffectiveSpec:
    """The spec in force."""

    job: StreamJob | None
    """None: no spec of the job was ever valid"""
    newest: bool
    """whether it is the newest spec of the user"""
    good: bool
    """whether it is recorded as the last good spec"""
    problem: Problem | None = None
    fallback: Revisions | None = None
    """revisions of the last good spec, while another spec is in force"""
    last: StreamJob | None = None
    """the last good spec, if any"""
    began_from: str | None = None
    """`restoreFrom` at the start of the run"""
    ends_run: bool = False
    """the user gives up this run, whose key is lost"""


@dataclass(frozen=True, slots=True)
class Revisions:
    """Digests of the fields from which pods are created: a pod with another digest is outdated."""

    driver: str
    worker: str
    settings: str
    """digest of the fields of run.json that running processes do not reload"""
    program: str = ""
    """digest of the fields that a deploy changes: of no pod"""
    driver_before: str = ""
    """the driver's digest in 0.1.0, which had the program: an upgrade of the operator restarts no driver"""

    @property
    def all(self) -> str:
        """The key of a refused spec."""
        return f"{self.driver}-{self.worker}-{self.program}"

    @property
    def before(self) -> str:
        """The same in 0.1.0."""
        return f"{self.driver_before}-{self.worker}"


def read(document: Doc, release: Installation) -> tuple[EffectiveSpec, Revisions | None]:
    """The spec in force with its revisions. `release`: the installation with the key of the run."""
    effective = in_force(document, release)
    return effective, None if effective.job is None else _revisions(effective.job, document["metadata"]["uid"], release)


def reads_same(old: Doc, new: Doc) -> bool:
    """Whether `read` gives the same for two versions of an object: most writes change counters of the status alone."""
    if old is new:
        return True
    before, now = old["metadata"], new["metadata"]
    if any(before.get(key) != now.get(key) for key in ("uid", "generation", "labels", "annotations")):
        return False
    memories = [(document.get("status") or {}).get("memory") for document in (old, new)]
    return memories[0] == memories[1] and old.get("spec") == new.get("spec")


def in_force(document: Doc, release: Installation) -> EffectiveSpec:
    """The spec in force of a StreamJob object.

    During a suspend this is the last good spec: other changes come into force at the resume.
    """
    try:
        memory = JobMemory.of(document)
    except SpecRefused as error:
        return EffectiveSpec(None, newest=False, good=False, problem=Problem("MemoryUnreadable", str(error)))
    last, uid = _last_good(document, memory.good, release), str(document["metadata"]["uid"])
    try:
        job = spec.check(document)
        mine = revisions(job, uid, release)
        if last is None or job.spec != last.spec:
            _bound(job)
        refused = [str(change) for change in changes.refusals(last.spec, job.spec)] if last else []
        if refused:
            raise SpecRefused("; ".join(refused))
    except SpecRefused as error:
        text = str(error).replace("\n", "; ")
        also = ": the last good spec stays in force" if last is not None else ""
        return replace(_of(last), newest=False, problem=Problem("SpecRefused", text + also))
    if last is None:
        # A spec with 0 workers does not tell how many workers take the last checkpoint.
        sized = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": max(1, job.spec.workers)})})
        return EffectiveSpec(sized, newest=True, good=False, began_from=job.spec.restore_from)
    if job.spec.suspended:
        return _of(last)
    no = memory.refused
    if no is not None and no.revision in (mine.all, mine.before):
        text = f"{no.why}: the last good spec stays in force; another spec.restartNonce tries this one again"
        reason = "DoesNotFit" if no.why.startswith(DOES_NOT_FIT) else "SpecRefused"
        return replace(_of(last), newest=False, problem=Problem(reason, text))
    if job.spec == last.spec:
        last = job  # one copy in memory, for each of many jobs
    same = not changes.classify(last.spec, job.spec)
    return replace(_of(last), job=job, good=same, fallback=None if same else _revisions(last, uid, release))


def _of(last: StreamJob | None) -> EffectiveSpec:
    return EffectiveSpec(
        last, newest=True, good=True, began_from=None if last is None else last.spec.restore_from, last=last
    )


def last_good(job: StreamJob, uid: str, generation: int, release: Installation) -> GoodSpec:
    """A spec that the API server has admitted in this generation, with the seal of the operator."""
    text = _text(job)
    return GoodSpec(generation=generation, spec=text, seal=_sealed(text, uid, generation, release))


def _text(job: StreamJob) -> str:
    return json.dumps(job.spec.model_dump(mode="json", by_alias=True), separators=(",", ":"))


def _bound(job: StreamJob) -> None:
    """Raises SpecRefused for a spec of which the status cannot hold a copy."""
    if (size := len(_text(job))) > SPEC_MAX:
        raise SpecRefused(
            f"the spec has {size:,} bytes as JSON, and at most {SPEC_MAX:,} are allowed: the status holds a copy of it, and "
            "the API server takes no object of more than 1.5 MB. Move long texts into a ConfigMap or into the image"
        )


def _sealed(text: str, uid: str, generation: int, release: Installation) -> str:
    return seal(release, f"good {uid} {generation} {text}")


def revisions(job: StreamJob, uid: str, release: Installation) -> Revisions:
    """Digests that change when pods need a replacement. Raises SpecRefused.

    They depend on fields of the spec with values other than their defaults, never on manifests: another version of the
    operator, with further fields or other manifests, restarts nothing.
    """
    image = job.spec.kubernetes.image or release.image
    account = job.spec.kubernetes.service_account or release.service_account
    common = f"{image} {account} {redis_seal(release)} "
    fence.check(job, release.allow, release.defaults)
    settings_of(job, JobMemory(uid=uid), release)  # raises SpecRefused for values that are invalid in a pod
    read = _fingerprint(job.spec, lambda entry: entry.used == "both" and (entry.driver or entry.workers))
    begins, switch = job.spec.restore_from or "", changes.ChangeKind.SWITCH
    before = _fingerprint(job.spec, lambda entry: entry.driver or entry.kind is switch)
    return Revisions(
        driver=_digest(common + _fingerprint(job.spec, lambda entry: entry.driver) + begins),
        driver_before=_digest(common + before + begins),
        program=_digest(_fingerprint(job.spec, lambda entry: entry.kind is switch)),
        worker=_digest(common + _fingerprint(job.spec, lambda entry: entry.workers)),
        settings=seal(release, f"{run_key(release, uid)} {redis_address(release)} {read}"),
    )


def _revisions(job: StreamJob, uid: str, release: Installation) -> Revisions | None:
    """The revisions of a good spec; None when the installation no longer allows it."""
    try:
        return revisions(job, uid, release)
    except SpecRefused:
        return None


def version_of(job: StreamJob, image: str) -> str:
    """The version in the status: `pipeline.version`, else a digest of the program; `image`: the default image."""
    image = job.spec.kubernetes.image or image
    program = _fingerprint(job.spec, lambda entry: entry.path.startswith("spec.pipeline."))
    return job.spec.pipeline.version or _digest(f"{image} {program}")


def _fingerprint(job_spec: Spec, counts: Callable[[changes.FieldEntry], bool]) -> str:
    fields = {}
    for entry in changes.TABLE:
        if not counts(entry) or entry.used == "one machine":
            continue
        value: Any = job_spec
        for name in entry.names:
            value = getattr(value, name)
        if _plain(value) != _DEFAULTS[entry.path]:
            fields[entry.path] = _plain(value)
    return json.dumps(fields, sort_keys=True)


def _plain(value: Any) -> Any:
    """A value that is equal for two spellings of the same amount."""
    if isinstance(value, Duration | Quantity | Cpus):
        return amount(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return [_plain(item) for item in value] if isinstance(value, list) else value


_DEFAULTS = {
    entry.path: _plain(entry.field.get_default(call_default_factory=True, validated_data={})) for entry in changes.TABLE
}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _last_good(document: Doc, kept: GoodSpec | None, release: Installation) -> StreamJob | None:
    """The last good spec of this object; None when its seal or its content is invalid."""
    if kept is None or not is_sealed(kept, str(document["metadata"]["uid"]), release):
        return None
    return read_kept(document, kept.spec)


def is_sealed(kept: GoodSpec, uid: str, release: Installation) -> bool:
    """Whether a last good spec was sealed for this object with this key."""
    return compare_digest(kept.seal, _sealed(kept.spec, uid, kept.generation, release))


def read_kept(document: Doc, text: str | None) -> StreamJob | None:
    """The job with this spec, in JSON; None when it is invalid, such as a spec from another version of the operator."""
    try:
        kept = json.loads(text or "")
        return spec.check({**document, "spec": _of_today(kept)}) if isinstance(kept, dict) else None
    except (ValueError, SpecRefused, RecursionError):
        return None


def _of_today(kept: Doc) -> Doc:
    """The spec without keys of Spark that this release refuses: a job that runs with such keys is still reconciled."""
    spark = kept.get("spark")
    if not isinstance(spark, dict):
        return kept
    return {**kept, "spark": {key: value for key, value in spark.items() if why_not(key) is None}}
