"""The effects of a change of a job, before the change: fields, workers, restarts, virtual nodes. Pure.

The API server checks the change by a dry run. The actions of the operator come from the table by which it acts
(`changes`).
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
"""Greatest product of virtual nodes and workers for which a rolling replacement is simulated."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The effects of a change."""

    job: str
    changes: tuple[changes.Change, ...]
    effects: tuple[str, ...]
    """texts, in the order in which the effects would happen"""
    warnings: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    """why the operator would not follow the change"""
    leaders: int | None = None
    """estimated number of virtual nodes that change their leader; None: not known"""
    copies: int | None = None
    """estimated number of new copies; None: not known"""

    def to_wire(self) -> Doc:
        """The proposal for programs."""
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
    """Counts during `_effects`; None: not known."""

    leaders: int | None = 0
    copies: int | None = 0


def proposal(present: Doc, changed: Doc, nodes: Mapping[int, str]) -> Proposal:
    """The effects of a change from the present object to the changed object. `nodes`: by present worker."""
    name, before = str(present["metadata"]["name"]), in_force(present)
    try:
        after = spec.check(changed)
    except spec.JobRefused as error:
        return Proposal(name, (), ("nothing: the spec in force stays",), refusals=error.problems)
    warnings = [f"compared with the last good spec: {why}" for why in _not_in_force(present)]
    if before is None:
        return Proposal(name, (), ("the job is started",), (*warnings, *spec.warnings(after)))
    fields = changes.classify(before.spec, after.spec)
    refusals = tuple(map(str, changes.refusals(before.spec, after.spec)))
    if refusals:
        return Proposal(name, tuple(fields), ("nothing: the spec in force stays",), tuple(warnings), refusals)
    warnings += spec.warnings(after)
    if intents.paused(present):
        warnings.append("the job is paused: the effects begin after `resume`")
    if before.spec.suspended or after.spec.suspended:
        return Proposal(name, tuple(fields), (_resting(before, after, present, bool(fields)),), tuple(warnings))
    moved = _Moved()
    effects = tuple(_effects(before, after, fields, present, changed, nodes, moved))
    return Proposal(name, tuple(fields), effects, tuple(warnings), (), moved.leaders, moved.copies)


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
    """Why the present spec is not in force; empty: it is."""
    degraded = JobStatus.read(present.get("status")).condition("Degraded")
    if degraded is None or degraded.reason != "SpecRefused" or JobMemory.of(present).good is None:
        return []
    return [f"the present spec is refused ({degraded.message})"]


def _effects(
    before: StreamJob,
    after: StreamJob,
    fields: list[changes.Change],
    present: Doc,
    changed: Doc,
    nodes: Mapping[int, str],
    moved: _Moved,
) -> Iterator[str]:
    old, new = _capacity(before, present), _capacity(after, changed)
    if not fields and old == new:
        yield "nothing changes"
        return
    yield from _size_changes(old, new)
    rolling, driver = [c for c in fields if c.entry.workers], [c for c in fields if c.entry.driver]
    if old != new and old.holding and new.holding:
        move = forecast.resized(old, new, nodes)
        moved.leaders, moved.copies = move.switchovers, move.copies
        yield _moved(move.switchovers, move.copies, new.virtual_nodes)
    if rolling:
        of = _paths(rolling)
        yield f"emptied and replaced one by one: {_workers(new.members)} ({of})"
        if new.virtual_nodes * new.size.workers <= SIMULATED_MAX and new.holding and not new.drained:
            move = forecast.rolled(new, nodes)
            moved.leaders = (moved.leaders or 0) + move.switchovers
            moved.copies = (moved.copies or 0) + move.copies
            yield "a surge worker runs meanwhile; " + _moved(move.switchovers, move.copies, new.virtual_nodes)
        else:
            moved.leaders = moved.copies = None
            yield f"every one of the {new.virtual_nodes} virtual nodes moves at least once"
    if driver:
        yield f"the driver is restarted, and continues with the state in the workers ({_paths(driver)})"
    switched = [c for c in fields if c.kind is changes.ChangeKind.SWITCH]
    if switched:
        yield f"deployed while the job runs, in force from one epoch on, or refused without a change ({_paths(switched)})"
    live = [c for c in fields if c.kind is changes.ChangeKind.LIVE]
    if live:
        yield f"without a restart or a move: {_paths(live)}"


def _resting(before: StreamJob, after: StreamJob, present: Doc, changed: bool) -> str:
    """The effects on a job that is suspended before or after the change."""
    if not after.spec.suspended:
        origin = JobMemory.of(present).restore_from(after.spec.restore_from)
        begins = f"continues from checkpoint {origin}" if origin not in (None, NOTHING) else "begins"
        return f"the job {begins}, with {after.spec.workers} workers"
    if before.spec.suspended:
        return "the change applies when the job is resumed" if changed else "nothing changes"
    return "the driver takes a last durable checkpoint, then all pods end; other changes apply when the job is resumed"


def _size_changes(old: Capacity, new: Capacity) -> Iterator[str]:
    if new.size.workers > old.size.workers:
        yield f"started: {_workers([k for k in new.members if k not in old.members])}; state moves there"
    elif new.size.workers < old.size.workers:
        count = old.size.workers - new.size.workers
        which = "worker that leads" if count == 1 else f"{count} workers that lead"
        yield f"emptied, then stopped: the {which} the fewest bytes, drained ones and ones on cordoned nodes first"
    for worker in (k for k in new.drained if k not in old.drained):
        yield f"emptied, but kept: worker {worker}"
    for worker in (k for k in old.drained if k not in new.drained and k in new.members):
        yield f"worker {worker} may hold state again"
    if new.size.instances != old.size.instances:
        yield f"every worker gets {new.size.instances} instances instead of {old.size.instances}"
    if new.replicas != old.replicas:
        yield f"every virtual node gets {new.replicas} copies beside its leader instead of {old.replicas}"


def _moved(leaders: int, copies: int, total: int) -> str:
    return (
        f"about {leaders} changes of leaders among {total} virtual nodes, and {copies} new copies"
        " (an estimate for an even placement, because the status has no placement)"
    )


def _capacity(job: StreamJob, document: Doc) -> Capacity:
    gaps, size = intents.gaps(document), job.spec.size
    drained = tuple(k for k in intents.drains(document) if size.has(k, 0, gaps))
    return Capacity(size, job.spec.state.replicas, job.spec.state.virtual_nodes, drained, gaps)


def _paths(fields: list[changes.Change]) -> str:
    return ", ".join(change.path for change in fields)


def _workers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"worker {numbers[0]}"
    if numbers[-1] - numbers[0] < len(numbers):
        return f"workers {numbers[0]} to {numbers[-1]}"
    return f"workers {', '.join(map(str, numbers))}"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda part: part.model_dump(mode="json", by_alias=True)))


# ---- the change as a merge patch


def of_file(text: Doc, present: Doc) -> Doc:
    """The patch of `kubectl apply`: the fields of a document, and nulls for fields of only the last applied document."""
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
