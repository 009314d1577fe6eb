"""Requests of users to the operator: by annotations of the StreamJob (drained workers, pinned virtual nodes, a pause, a
checkpoint, a plan), and by its spec (suspend and resume).

Pure: functions from the object to a merge patch. An impossible request is refused with the text of `ferry run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.names import InstanceId, worker_of
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW, check_command, parse_command
from ferry_operator.control.members import gaps_of, grown
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.size import Size
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.checkpoint_request import CheckpointRequest
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.annotations import (
    requested_drains,
    requested_pins,
    requested_windows,
)
from ferry_operator.kube.observe.suspension import asked


def size_of(job: Doc) -> Size:
    """The size in the spec of a job."""
    return Size.of(job.get("spec") or {})


def virtual_nodes_of(job: Doc) -> int:
    """The number of virtual nodes of a job."""
    return int(((job.get("spec") or {}).get("state") or {}).get("virtualNodes", 64))


def drains(job: Doc) -> tuple[int, ...]:
    """The drained workers of a job."""
    size, free = size_of(job), gaps(job)
    return tuple(k for k in requested_drains(_annotations(job).get(names.DRAIN)) if size.has(k, 0, free))


def gaps(job: Doc) -> tuple[int, ...]:
    """The numbers that no worker has. After a change of the size, as if the lowest workers stayed."""
    try:
        known = JobMemory.of(job).members
    except SpecRefused:
        return ()
    return () if known is None else gaps_of(grown(known, size_of(job).workers))


def pins(job: Doc) -> dict[int, InstanceId]:
    """The pinned virtual nodes, with their wanted leaders."""
    return dict(requested_pins(_annotations(job).get(names.PINS), virtual_nodes_of(job)))


def paused(job: Doc) -> bool:
    """Whether the job is paused."""
    return _annotations(job).get(names.PAUSED) == "true"


def drain(job: Doc, worker: int) -> Doc:
    """Drain a worker."""
    command = parse_command(f"drain={worker}")
    check_command(command, size_of(job), virtual_nodes_of(job), gaps(job))
    wanted = sorted({*drains(job), worker})
    if not size_of(job).holding(wanted, gaps(job)):
        raise Refusal(f"{command}: no other worker is left that could take its state")
    return _drained(wanted)


def undrain(job: Doc, worker: int) -> Doc:
    """Undo `drain`."""
    if worker not in drains(job):
        raise Refusal(f"worker {worker} is not drained; drained: {_listed(drains(job))}")
    return _drained(k for k in drains(job) if k != worker)


def resized(job: Doc) -> Doc | None:
    """Remove a plan for another size at once; the operator would do it later. None: there is none.

    Drains stay: drained workers are the first to leave the job, and the operator removes their drains.
    """
    plan = submitted_plan(job)
    return annotate(names.PLAN, None) if plan is not None and plan.size != size_of(job) else None


def move(job: Doc, vnodes: Sequence[int], instance: str, at_window: bool = False) -> Doc:
    """Move virtual nodes to an instance, and pin them. `at_window`: at the boundary of a window, without state."""
    pinned, waiting = dict(pins(job)), _waiting(job)
    for vnode in vnodes:
        command = parse_command(f"move={vnode}:{instance}{AT_WINDOW if at_window else ''}")
        assert command.instance is not None
        check_command(command, size_of(job), virtual_nodes_of(job), gaps(job))
        worker = worker_of(command.instance)
        if worker in drains(job):
            raise Refusal(f"{command}: worker {worker} is drained")
        pinned[vnode] = command.instance
        waiting[vnode] = at_window
    return _pinned(pinned, waiting)


def unpin(job: Doc, vnode: int) -> Doc:
    """Undo `move`: the planner places the virtual node again."""
    pinned = pins(job)
    if vnode not in pinned:
        raise Refusal(f"virtual node {vnode} is not pinned; pinned: {_listed(pinned)}")
    return _pinned({v: i for v, i in pinned.items() if v != vnode}, _waiting(job))


def submitted_plan(job: Doc) -> PlanFile | None:
    """The submitted plan of a job."""
    text = _annotations(job).get(names.PLAN)
    return plan_file.unpacked(text) if text else None


def running_size(job: Doc) -> Size:
    """The size in the spec. Raises Refusal for a suspended job, which has no state to move."""
    size = size_of(job)
    if asked(job) or size.workers == 0:
        raise Refusal("the job is suspended: it has no state to move")
    return size


def unfit(job: Doc, plan: PlanFile) -> str:
    """Why the job cannot follow a plan; empty: it can."""
    replicas = int(((job.get("spec") or {}).get("state") or {}).get("replicas", 1))
    return plan_file.unfit(plan, str(job["metadata"]["name"]), virtual_nodes_of(job), replicas, drains(job))


def submit(job: Doc, plan: PlanFile) -> Doc:
    """Submit a plan: its size, and its placements."""
    if why := unfit(job, plan):
        raise Refusal(why)
    plan_file.check_begin(plan, running_size(job))
    return {"spec": plan.size.to_wire(), **annotate(names.PLAN, plan_file.packed(plan))}


def cancel(job: Doc) -> Doc:
    """Withdraw the submitted plan, and restore the previous size unless the size has changed since."""
    if (plan := submitted_plan(job)) is None:
        raise Refusal("no plan is submitted; `cancel` does not undo `scale`, `move` or `drain`")
    back = {"spec": plan.before.to_wire()} if plan.size == size_of(job) else {}
    return {**back, **annotate(names.PLAN, None)}


def pause(on: bool) -> Doc:
    """Pause the job, or end the pause."""
    return annotate(names.PAUSED, "true" if on else None)


def checkpoint_location(job: Doc) -> str | None:
    """The location of durable checkpoints; None: the job has none."""
    location = (((job.get("spec") or {}).get("state") or {}).get("checkpoint") or {}).get("location")
    return None if location is None else str(location)


def checkpoint(job: Doc, request: CheckpointRequest) -> Doc:
    """Request a durable checkpoint."""
    if checkpoint_location(job) is None:
        raise Refusal("the job has no durable checkpoints: set spec.state.checkpoint.location")
    if asked(job):
        raise Refusal("the job is suspended: it has taken its last checkpoint")
    if paused(job):
        raise Refusal("the job is paused: `resume` it, because a paused job takes no checkpoint on request")
    return annotate(names.CHECKPOINT, request.text())


def suspend(job: Doc) -> Doc | None:
    """Suspend the job; None: it is suspended already."""
    if checkpoint_location(job) is None:
        raise Refusal("suspend needs spec.state.checkpoint.location: only durable checkpoints outlive the pods")
    return None if asked(job) else {"spec": {"suspend": True}}


def resume(job: Doc, workers: int | None = None) -> Doc | None:
    """End the pause, and resume a suspended job; None: the job is neither paused nor suspended."""
    wanted: Doc = annotate(names.PAUSED, None) if paused(job) else {}
    return {**wanted, **_begin(job, workers, {})} or None


def restore(job: Doc, origin: str, sink: str | None, workers: int | None) -> Doc:
    """Resume a suspended job from this checkpoint."""
    if not asked(job):
        raise Refusal(
            "the job runs, and has state: `suspend` it first; a new job with another name may restore the checkpoint at once"
        )
    return _begin(job, workers, {"restoreFrom": origin, **({"restoreSink": sink} if sink is not None else {})})


def _begin(job: Doc, workers: int | None, more: Doc) -> Doc:
    if not asked(job):
        if workers is not None:
            raise Refusal("the job is not suspended: `scale` it")
        return {}
    if size_of(job).workers == 0 and workers is None:
        raise Refusal("the job has 0 workers: give their number by --workers N")
    size = {} if workers is None else {"workers": workers}
    return {"spec": {"suspend": False, **size, **more}}


def restart(job: Doc) -> Doc:
    """Restart the driver, by a change of `spec.restartNonce`."""
    return {"spec": {"restartNonce": int((job.get("spec") or {}).get("restartNonce") or 0) + 1}}


def annotate(name: str, text: str | None) -> Doc:
    """A patch of one annotation; None or an empty text removes it."""
    return {"metadata": {"annotations": {name: text or None}}}


def _drained(workers: Iterable[int]) -> Doc:
    return annotate(names.DRAIN, ",".join(str(k) for k in workers))


def _waiting(job: Doc) -> dict[int, bool]:
    """Pinned virtual nodes that move at the boundary of a window."""
    return dict.fromkeys(requested_windows(_annotations(job).get(names.PINS)), True)


def _pinned(wanted: Mapping[int, InstanceId], waiting: Mapping[int, bool]) -> Doc:
    ends = {v: AT_WINDOW for v, waits in waiting.items() if waits}
    return annotate(names.PINS, ",".join(f"{v}={instance}{ends.get(v, '')}" for v, instance in sorted(wanted.items())))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _annotations(job: Doc) -> Mapping[str, str]:
    return (job.get("metadata") or {}).get("annotations") or {}
