"""What users ask of the operator, by annotations of the StreamJob: drained workers, pinned virtual nodes, a pause, a
checkpoint; and by its spec: to rest, and to go on.

Pure: from the object to the merge patch that changes it. Asked for what a job does not have, it refuses in the words
of `ferry run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ferry.contract.errors import Refusal
from ferry.contract.names import InstanceId, worker_of
from ferry_operator.control import plan_file
from ferry_operator.control.commands import AT_WINDOW, check_command, parse_command
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.size import Size
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.notes import AskedCheckpoint
from ferry_operator.kube.observe.asked import asked_drains, asked_pins, asked_windows, of_another_size
from ferry_operator.kube.observe.suspension import asked


def size_of(job: Doc) -> Size:
    """The size in its spec."""
    return Size.of(job.get("spec") or {})


def virtual_nodes_of(job: Doc) -> int:
    """The number of its virtual nodes."""
    return int(((job.get("spec") or {}).get("state") or {}).get("virtualNodes", 64))


def drains(job: Doc) -> tuple[int, ...]:
    """Workers that are to stay empty; of those that there are."""
    return tuple(k for k in asked_drains(_annotations(job).get(names.DRAIN)) if k < size_of(job).workers)


def pins(job: Doc) -> dict[int, InstanceId]:
    """Virtual nodes that are to be led by an instance."""
    return dict(asked_pins(_annotations(job).get(names.PINS), virtual_nodes_of(job)))


def paused(job: Doc) -> bool:
    """Whether nothing is to be changed."""
    return _annotations(job).get(names.PAUSED) == "true"


def drain(job: Doc, worker: int) -> Doc:
    """Empty a worker."""
    command = parse_command(f"drain={worker}")
    check_command(command, size_of(job), virtual_nodes_of(job))
    wanted = sorted({*drains(job), worker})
    if not size_of(job).holding(wanted):
        raise Refusal(f"{command}: no other worker is left to take its state")
    return _drained(wanted)


def undrain(job: Doc, worker: int) -> Doc:
    """Let a worker hold state again."""
    if worker not in drains(job):
        raise Refusal(f"worker {worker} is not drained; drained: {_listed(drains(job))}")
    return _drained(k for k in drains(job) if k != worker)


def resized(job: Doc) -> Doc | None:
    """Forget at once what was asked of another size, as the operator would; None: there is nothing."""
    forgotten = of_another_size(job)
    return {"metadata": {"annotations": forgotten}} if forgotten else None


def move(job: Doc, vnodes: Sequence[int], instance: str, at_window: bool = False) -> Doc:
    """Have virtual nodes led by an instance, and kept there; `at_window`: at the boundary of a window, without state."""
    pinned, waiting = dict(pins(job)), _waiting(job)
    for vnode in vnodes:
        command = parse_command(f"move={vnode}:{instance}{AT_WINDOW if at_window else ''}")
        assert command.instance is not None
        check_command(command, size_of(job), virtual_nodes_of(job))
        worker = worker_of(command.instance)
        if worker in drains(job):
            raise Refusal(f"{command}: worker {worker} is drained")
        pinned[vnode] = command.instance
        waiting[vnode] = at_window
    return _pinned(pinned, waiting)


def unpin(job: Doc, vnode: int) -> Doc:
    """Let a virtual node be where the planner wants it."""
    held = pins(job)
    if vnode not in held:
        raise Refusal(f"virtual node {vnode} is not kept anywhere; kept: {_listed(held)}")
    return _pinned({v: i for v, i in held.items() if v != vnode}, _waiting(job))


def handed_in(job: Doc) -> PlanFile | None:
    """The plan that was handed in last."""
    text = _annotations(job).get(names.PLAN)
    return plan_file.unpacked(text) if text else None


def running_size(job: Doc) -> Size:
    """The size in its spec. Raises Refusal for a job that is suspended: it has no state to move."""
    size = size_of(job)
    if asked(job) or size.workers == 0:
        raise Refusal("the job is suspended: nothing of it can be moved")
    return size


def unfit(job: Doc, one: PlanFile) -> str:
    """Why the job as it is cannot follow a plan; empty: it can."""
    replicas = int(((job.get("spec") or {}).get("state") or {}).get("replicas", 1))
    return plan_file.unfit(one, str(job["metadata"]["name"]), virtual_nodes_of(job), replicas, drains(job))


def submit(job: Doc, one: PlanFile) -> Doc:
    """Have a plan followed: its size, and its placements."""
    if why := unfit(job, one):
        raise Refusal(why)
    plan_file.check_begin(one, running_size(job))
    return {"spec": one.size.to_wire(), **annotate(names.PLAN, plan_file.packed(one))}


def cancel(job: Doc) -> Doc:
    """Take back the plan that was handed in: the size is as before, unless it has been changed since."""
    if (one := handed_in(job)) is None:
        raise Refusal("no plan was handed in; `scale`, `move` and `drain` are taken back by themselves")
    back = {"spec": one.before.to_wire()} if one.size == size_of(job) else {}
    return {**back, **annotate(names.PLAN, None)}


def pause(on: bool) -> Doc:
    """Change nothing from now on, or go on."""
    return annotate(names.PAUSED, "true" if on else None)


def shelf(job: Doc) -> str | None:
    """Where durable checkpoints go."""
    found = (((job.get("spec") or {}).get("state") or {}).get("checkpoint") or {}).get("location")
    return None if found is None else str(found)


def checkpoint(job: Doc, request: AskedCheckpoint) -> Doc:
    """Take one now."""
    if shelf(job) is None:
        raise Refusal("it has no durable checkpoints: set spec.state.checkpoint.location")
    if asked(job):
        raise Refusal("the job is suspended: its last checkpoint is all that there is to take")
    if paused(job):
        raise Refusal("the job is paused: nothing reaches its driver before `resume`")
    return annotate(names.CHECKPOINT, request.text())


def suspend(job: Doc) -> Doc | None:
    """Have no pods; None: it is so already."""
    if shelf(job) is None:
        raise Refusal("suspend needs spec.state.checkpoint.location: nothing else outlives the pods")
    return None if asked(job) else {"spec": {"suspend": True}}


def resume(job: Doc, workers: int | None = None) -> Doc | None:
    """Follow changes again, and go on if it is suspended; None: there is nothing to resume."""
    wanted: Doc = annotate(names.PAUSED, None) if paused(job) else {}
    return {**wanted, **_begin(job, workers, {})} or None


def restore(job: Doc, origin: str, sink: str | None, workers: int | None) -> Doc:
    """Have a suspended job go on from this checkpoint."""
    if not asked(job):
        raise Refusal(
            "it runs, and has state: `suspend` it first; with another name a new job may begin from it at once"
        )
    return _begin(job, workers, {"restoreFrom": origin, **({"restoreSink": sink} if sink is not None else {})})


def _begin(job: Doc, workers: int | None, more: Doc) -> Doc:
    if not asked(job):
        if workers is not None:
            raise Refusal("it is not suspended: `scale` it")
        return {}
    if size_of(job).workers == 0 and workers is None:
        raise Refusal("it has 0 workers: say with how many it goes on, --workers N")
    size = {} if workers is None else {"workers": workers}
    return {"spec": {"suspend": False, **size, **more}}


def restart(job: Doc) -> Doc:
    """Another number restarts the driver."""
    return {"spec": {"restartNonce": int((job.get("spec") or {}).get("restartNonce") or 0) + 1}}


def annotate(name: str, text: str | None) -> Doc:
    """A patch of one annotation; None or nothing in it takes it away."""
    return {"metadata": {"annotations": {name: text or None}}}


def _drained(workers: Iterable[int]) -> Doc:
    return annotate(names.DRAIN, ",".join(str(k) for k in workers))


def _waiting(job: Doc) -> dict[int, bool]:
    """Virtual nodes that get to their place at the boundary of a window."""
    return dict.fromkeys(asked_windows(_annotations(job).get(names.PINS)), True)


def _pinned(wanted: Mapping[int, InstanceId], waiting: Mapping[int, bool]) -> Doc:
    ends = {v: AT_WINDOW for v, waits in waiting.items() if waits}
    return annotate(names.PINS, ",".join(f"{v}={instance}{ends.get(v, '')}" for v, instance in sorted(wanted.items())))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(one) for one in numbers) or "none"


def _annotations(job: Doc) -> Mapping[str, str]:
    return (job.get("metadata") or {}).get("annotations") or {}
