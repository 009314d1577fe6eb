"""What a change of a job would do, said before it is made: fields, workers, restarts, virtual nodes. Pure.

Whether the change is allowed says the API server, which is asked to try it without doing it; what the operator would do
says the same table that it acts on (`changes`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import NOTHING
from ferry_operator.cli.remote import forecast, intents
from ferry_operator.cli.remote.forecast import Capacity
from ferry_operator.job import changes, spec
from ferry_operator.job.models import StreamJob
from ferry_operator.job.status import JobMemory, JobStatus
from ferry_operator.kube.api.names import Doc

APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

SIMULATED_MAX = 1 << 16
"""Virtual nodes times workers to be replaced, beyond which nothing is played through."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The effects of a change."""

    job: str
    changes: tuple[changes.Change, ...]
    effects: tuple[str, ...]
    """in words, in the order in which they would happen"""
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """why the operator would not follow the change"""
    leaders: int | None = None
    """virtual nodes that change their leader, about; None: not known"""
    copies: int | None = None
    """copies that are made, about"""

    def to_wire(self) -> Doc:
        """For programs."""
        return {
            "job": self.job,
            "changes": [
                {
                    "path": c.path,
                    "before": _plain(c.before),
                    "after": _plain(c.after),
                    "kind": str(c.kind),
                    "what": c.entry.what,
                    "restartsDriver": c.entry.driver,
                    "replacesWorkers": c.entry.workers,
                }
                for c in self.changes
            ],
            "effects": list(self.effects),
            "warnings": list(self.warnings),
            "refusals": list(self.refusals),
            "leadersMoved": self.leaders,
            "copiesMade": self.copies,
        }


@dataclass(slots=True)
class _Moved:
    """Counts, while effects are told; None: not known."""

    leaders: int | None = 0
    copies: int | None = 0


def proposal(present: Doc, changed: Doc, nodes: Mapping[int, str]) -> Proposal:
    """From the object as it is and as the API server says that it would be. `nodes`: of the workers that there are."""
    name, before = str(present["metadata"]["name"]), in_force(present)
    try:
        after = spec.check(changed)
    except spec.JobRefused as error:
        return Proposal(name, (), ("nothing: the spec in force stays",), refusals=error.problems)
    warnings = [f"compared with the last good spec: {why}" for why in _not_in_force(present)]
    if before is None:
        return Proposal(name, (), ("the job is started",), (*warnings, *spec.warnings(after)))
    found = changes.classify(before.spec, after.spec)
    refusals = tuple(str(one) for one in changes.refusals(before.spec, after.spec))
    if refusals:
        return Proposal(name, tuple(found), ("nothing: the spec in force stays",), tuple(warnings), refusals)
    warnings += spec.warnings(after)
    if intents.paused(present):
        warnings.append("the job is paused: nothing of it happens before `resume`")
    if before.spec.suspended or after.spec.suspended:
        return Proposal(name, tuple(found), (_resting(before, after, present, bool(found)),), tuple(warnings))
    moved = _Moved()
    effects = tuple(_effects(before, after, found, present, changed, nodes, moved))
    return Proposal(name, tuple(found), effects, tuple(warnings), (), moved.leaders, moved.copies)


def in_force(present: Doc) -> StreamJob | None:
    """The spec that the operator acts on: the present one, or the last good one while the present one is refused."""
    document = present
    if _not_in_force(present):
        good = JobMemory.of(present).good
        document = {**present, "spec": json.loads(good.spec) if good is not None else {}}
    try:
        return spec.check(document)
    except SpecRefused:
        return None


def _not_in_force(present: Doc) -> list[str]:
    """Why the spec as it is written is not acted on."""
    degraded = JobStatus.read(present.get("status")).condition("Degraded")
    if degraded is None or degraded.reason != "SpecRefused" or JobMemory.of(present).good is None:
        return []
    return [f"the present one is refused ({degraded.message})"]


def _effects(
    before: StreamJob,
    after: StreamJob,
    found: list[changes.Change],
    present: Doc,
    changed: Doc,
    nodes: Mapping[int, str],
    moved: _Moved,
) -> Iterator[str]:
    old, new = _capacity(before, present), _capacity(after, changed)
    if not found and old == new:
        yield "nothing changes"
        return
    yield from _size_changes(old, new)
    rolling, driver = [c for c in found if c.entry.workers], [c for c in found if c.entry.driver]
    if old != new and old.holding and new.holding:
        move = forecast.resized(old, new, nodes)
        moved.leaders, moved.copies = move.switchovers, move.copies
        yield _moved(move.switchovers, move.copies, new.virtual_nodes)
    if rolling:
        of = _paths(rolling)
        yield f"replaced one by one, each emptied before: {_workers(range(new.size.workers))} ({of})"
        if new.virtual_nodes * new.size.workers <= SIMULATED_MAX and new.holding and not new.drained:
            move = forecast.rolled(new, nodes)
            moved.leaders = (moved.leaders or 0) + move.switchovers
            moved.copies = (moved.copies or 0) + move.copies
            yield "meanwhile there is a surge worker; " + _moved(move.switchovers, move.copies, new.virtual_nodes)
        else:
            moved.leaders = moved.copies = None
            yield f"every one of the {new.virtual_nodes} virtual nodes moves at least once"
    if driver:
        yield f"the driver is restarted, and goes on from the state that the workers hold ({_paths(driver)})"
    live = [c for c in found if c.kind is changes.ChangeKind.LIVE]
    if live:
        yield f"without a restart or a move: {_paths(live)}"


def _resting(before: StreamJob, after: StreamJob, present: Doc, changed: bool) -> str:
    """The effects on a job that is suspended, or will be."""
    if not after.spec.suspended:
        origin = JobMemory.of(present).restore_from(after.spec.restore_from)
        begins = f"goes on from checkpoint {origin}" if origin not in (None, NOTHING) else "begins"
        return f"the job {begins}, with {after.spec.workers} workers"
    if before.spec.suspended:
        return "it holds when the job is resumed" if changed else "nothing changes"
    return "the driver takes a last durable checkpoint, and then all pods go; all else that changes holds when it is resumed"


def _size_changes(old: Capacity, new: Capacity) -> Iterator[str]:
    if new.size.workers > old.size.workers:
        yield f"started: {_workers(range(old.size.workers, new.size.workers))}; state moves there"
    elif new.size.workers < old.size.workers:
        yield f"emptied, and then stopped: {_workers(range(new.size.workers, old.size.workers))}"
    for worker in (k for k in new.drained if k not in old.drained):
        yield f"emptied, and stays: worker {worker}"
    for worker in (k for k in old.drained if k not in new.drained and k < new.size.workers):
        yield f"worker {worker} may hold state again"
    if new.size.instances != old.size.instances:
        yield f"every worker gets {new.size.instances} instances instead of {old.size.instances}"
    if new.replicas != old.replicas:
        yield f"every virtual node gets {new.replicas} copies beside its leader instead of {old.replicas}"


def _moved(leaders: int, copies: int, total: int) -> str:
    return (
        f"about {leaders} changes of the leader among {total} virtual nodes, and {copies} copies to be warmed"
        " (counts for an even placement: the status does not say where they are)"
    )


def _capacity(job: StreamJob, document: Doc) -> Capacity:
    one = job.spec
    drained = tuple(k for k in intents.drains(document) if k < one.workers)
    return Capacity(one.size, one.state.replicas, one.state.virtual_nodes, drained)


def _paths(found: list[changes.Change]) -> str:
    return ", ".join(one.path for one in found)


def _workers(numbers: range) -> str:
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {numbers[0]} to {numbers[-1]}"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda one: one.model_dump(mode="json", by_alias=True)))


# ---- what would be changed, as a merge patch


def of_file(text: Doc, present: Doc) -> Doc:
    """The patch of `kubectl apply`: the fields of a document, and nulls for fields that only the last applied one had."""
    annotations = present["metadata"].get("annotations") or {}
    try:
        last = json.loads(annotations.get(APPLIED) or "{}")
    except ValueError:
        last = {}
    return {"spec": _applied(last.get("spec") or {}, text.get("spec") or {})}


def _applied(last: Any, new: Any) -> Any:
    if not isinstance(new, dict):
        return new
    last = last if isinstance(last, dict) else {}
    gone = {key: None for key in last if key not in new}
    return {**gone, **{key: _applied(last.get(key), value) for key, value in new.items()}}
