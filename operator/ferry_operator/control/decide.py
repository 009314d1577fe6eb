"""The next actions for one job: a pure function of one look at the job, the same on Kubernetes and on one machine.

Level-triggered: `Observed` is the whole input, and two calls share no memory. A job in its desired state gets no action.
The function reads no clock and does no I/O; `planner` decides where state should be.

| action | when |
|---|---|
| StartWorker | a wanted worker, or a worker with the last copy of a virtual node, is not running |
| SetInstances | a worker should have more instances, or has surplus instances that hold no state |
| StartDriver | no driver runs, and a driver may start |
| SubmitDesired | the usable instances, the copies, the pins or the driver's generation changed; copies are missing, or |
| | have waited too long for windows (`boundaries`); or the job is at rest and a move is worth it (`balancing`) |
| LimitCopies | the driver's bandwidth of copies differs from the spec |
| StopWorker | the worker is surplus and holds no state: neither a group nor the placement in force names it |
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from ferry.contract.backoff import back_off
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.plans import Plan
from ferry.contract.status import Status
from ferry_operator.control import balancing, boundaries, placing
from ferry_operator.control.balancing import Advice
from ferry_operator.control.observed import AT_ONCE, Basis, Due, Observed, Submitted
from ferry_operator.control.placing import Placements
from ferry_operator.placement.planner import Slot
from ferry_operator.placement.strategies import HandoverPolicy, steps

GRACE_SECONDS = 10.0
"""An expected instance that has been missing for less than this is awaited before a plan leaves it out."""

START_SECONDS = 60.0
"""An instance of a worker that started less than this ago is awaited: a first start compiles the kernels."""

RESTART_SECONDS, RESTART_SECONDS_MAX = 0.2, 5.0
"""Wait before the restart of a worker that died right after its start; doubles each time."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the sidecar of this worker, with its state directory if the worker has one."""

    index: int
    instances: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker that holds no state, and remove its state directory."""

    index: int


@dataclass(frozen=True, slots=True)
class SetInstances:
    """Set the number of instances of a running worker."""

    index: int
    instances: int


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the driver."""


@dataclass(frozen=True, slots=True)
class SubmitDesired:
    """Submit to the driver the placement of every virtual node and the steps to it; a higher number replaces a lower one."""

    plan: Plan
    generation: int
    basis: Basis
    why: str = ""
    """reason of a move for balance; empty for other plans"""

    def accepted(self) -> Submitted:
        """The plan in force once the driver has accepted this plan."""
        return Submitted(self.plan, self.generation, self.basis)


@dataclass(frozen=True, slots=True)
class LimitCopies:
    """Set the driver's bandwidth of copies."""

    bandwidth: int


Action = StartWorker | StopWorker | SetInstances | StartDriver | SubmitDesired | LimitCopies


def decide(observed: Observed) -> list[Action]:
    """The actions in their order of execution; empty if the job is in its desired state."""
    actions: list[Action | None] = [*_starts(observed)]
    if not observed.driver and observed.driver_may_start:
        actions.append(StartDriver())
    actions += [_submit(observed), *_releases(observed)]
    if observed.status is not None and observed.status.moves.bandwidth not in (None, observed.wanted.bandwidth):
        actions.append(LimitCopies(observed.wanted.bandwidth))
    return [action for action in actions if action is not None]


def _starts(observed: Observed) -> list[Action]:
    """Workers to start, and running workers that get more instances."""
    wanted, actions = observed.wanted.size, list[Action]()
    seen = {worker.index: worker for worker in observed.workers}
    needed, members = _last_copies(observed), dict.fromkeys(observed.members())
    for k in sorted({*members, *seen}):
        worker, stays = seen.get(k), k in members and k not in observed.drains
        instances = max(wanted.instances if stays else 1, needed.get(k, 0))
        if worker is not None and worker.running:
            if worker.instances < instances:
                actions.append(SetInstances(k, instances))
        elif stays or k in needed:
            if worker is None or worker.seconds >= back_off(worker.failures, RESTART_SECONDS, RESTART_SECONDS_MAX):
                actions.append(StartWorker(k, instances))
    return actions


def _last_copies(observed: Observed) -> dict[int, int]:
    """Workers that may hold the last copy of a virtual node, with the number of instances that the copy needs.

    Without a status, before the first plan, every worker with state may hold a last copy, because the run is resumed.
    A status may be older than a worker's end: instances of a worker that is not running are not alive.
    """
    status, needed = observed.status, dict[int, int]()
    if status is None:
        return {} if observed.submitted is not None else {worker.index: worker.instances for worker in observed.workers}
    down = {worker.index for worker in observed.workers if not worker.running}
    alive = {i for i in status.alive if worker_of(InstanceId(i)) not in down}
    for in_sync, _ in status.groups:
        for instance in in_sync if not any(i in alive for i in in_sync) else ():
            k = worker_of(InstanceId(instance))
            needed[k] = max(needed.get(k, 0), placing.index_of(instance) + 1)
    return needed


def _releases(observed: Observed) -> list[Action]:
    """Workers to stop and instances to end: no group and no placement in force names them."""
    held, wanted, actions = _held(observed), observed.wanted.size, list[Action]()
    if held is None:
        return []
    members = dict.fromkeys(observed.members())
    for worker in sorted(observed.workers, key=lambda w: w.index):
        k, keep = worker.index, held.get(worker.index, 0)
        if k not in members:
            if keep == 0:
                actions.append(StopWorker(k))
        elif worker.running and worker.instances > max(wanted.instances, keep):
            actions.append(SetInstances(k, max(wanted.instances, keep)))
    return actions


def empty(observed: Observed) -> tuple[int, ...]:
    """Workers that hold no state and will get none; empty while that is not known."""
    held = _held(observed)
    return () if held is None else tuple(w.index for w in observed.workers if held.get(w.index, 0) == 0)


def _held(observed: Observed) -> dict[int, int] | None:
    """The number of instances of each worker that groups and the placement in force name; None while that is not known."""
    status, submitted = observed.status, observed.submitted
    if not status or not submitted or submitted.plan.number != status.desired:
        return None
    held = [i for in_sync, learners in status.groups for i in (*in_sync, *learners)]
    return {k: i + 1 for k, i in placing.highest([*held, *chain(*submitted.plan.placements)]).items()}


def _submit(observed: Observed) -> SubmitDesired | None:
    """The plan to submit; None if no driver answers, instances are awaited, or the last plan is still right."""
    status, last = observed.status, observed.submitted
    if status is None or status.finished or not status.groups:
        return None
    alive, basis = dict.fromkeys(status.alive), _basis(observed, status)
    if not basis.usable or any(i not in alive and _may_come(observed, i) for i in observed.expected()):
        return None
    file = observed.plan_file_for(basis.usable)
    under_strength = placing.is_under_strength(status, basis.usable, basis.replicas)
    copies_only = file is None and _waits_for_workers(observed, status)
    if copies_only and not under_strength:
        return None
    policy = file.policy if file is not None else observed.wanted.handover
    due = AT_ONCE if copies_only else _due(observed, status, policy)
    in_force = _is_in_force(last, basis, status)
    if status.moves.prepared and (last is None or (in_force and last.due == due)):
        return None  # The waiting plan is not known yet (the driver has not reported it), or it is the right plan.
    retry = file is None and placing.may_be_tried_again(status)
    keep, balance = in_force and not status.moves.prepared and not retry, _balance(observed)
    overdue = keep and last is not None and boundaries.are_overdue(status, basis.at_window, last.plan.at_window)
    if keep and balance is None and not under_strength and not overdue:
        return None
    current = [tuple(map(InstanceId, in_sync)) for in_sync, _ in status.groups]
    if last is not None and overdue:
        due = AT_ONCE  # The plan has begun.
        placements = last.plan.placements
    elif file is not None:
        placements = placing.with_pins(file.targets, basis.pins)
    elif balance is not None:
        placements = balance.placements
    else:
        pins = placing.as_led(current, basis.usable) if copies_only else basis.pins
        placements = placing.place(current, status.load.vnodes, _slots(observed, basis), basis.replicas, pins)
    if keep and not overdue and last is not None and last.plan.placements == placements:
        return None
    cut = steps(current, placements, policy)
    warm = policy.warm or status.moves.members_gone > 0  # A repair does not delay epochs.
    automatic = policy.at_window == "auto" and warm and file is None and not status.moves.members_gone and not overdue
    at_window = boundaries.chosen(status, basis.at_window, current, placements, basis.usable, automatic)
    cut, number = cut if len(cut) > 1 else (), 1 + _last_number(observed, status)
    plan = Plan(number, placements, cut, policy.gap, warm, *due, policy.deadline_ms, at_window=at_window)
    return SubmitDesired(plan, status.generation, basis, balance.reason if balance is not None and not overdue else "")


def _is_in_force(last: Submitted | None, basis: Basis, status: Status) -> bool:
    """Whether this driver executes the last plan, with this basis. A driver takes over the plan of its predecessor."""
    if last is None or last.basis != basis:
        return False
    return last.generation == status.generation or last.plan.number == status.desired


def _last_number(observed: Observed, status: Status) -> int:
    """The highest number of a plan of this job."""
    return max(status.desired, observed.submitted.plan.number if observed.submitted is not None else 0)


def advice(observed: Observed, kept: Placements | None = None) -> Advice | None:
    """A more even placement; None if balancing is off or a change is pending.

    `kept`: the placement that an earlier look advised for the same groups.
    """
    status, policy = observed.status, observed.wanted.balance
    if policy.mode == "off" or status is None or not _at_rest(observed, status):
        return None
    basis = _basis(observed, status)
    return balancing.advise(status, _slots(observed, basis), basis.replicas, basis.pins, policy, kept)


def _balance(observed: Observed) -> Advice | None:
    """The advice to follow now; None if there is none."""
    status, policy, ripe = observed.status, observed.wanted.balance, observed.ripe
    if policy.mode != "auto" or status is None or ripe is None or status.moves.quiet_seconds < policy.horizon:
        return None
    return ripe if _at_rest(observed, status) else None


def _at_rest(observed: Observed, status: Status) -> bool:
    """Whether all expected instances are alive, and the planner's placement for them is in force and complete."""
    last = observed.submitted
    if last is None or last.plan.number != status.desired or observed.drains or observed.missing:
        return False
    basis = _basis(observed, status)
    return last.basis == basis and not basis.plan_file and placing.is_carried_out(status, last.plan.placements)


def _basis(observed: Observed, status: Status) -> Basis:
    """The basis of a placement at this look."""
    alive = dict.fromkeys(status.alive)
    usable = tuple(i for i in observed.expected() if i in alive)
    pins, file = tuple((v, i) for v, i in observed.pins if i in usable), observed.plan_file_for(usable)
    at_window = tuple(v for v, _ in pins if v in observed.at_window and not status.moves.unbounded)
    return Basis(usable, observed.wanted.replicas, pins, at_window, file.name if file is not None else "")


def _slots(observed: Observed, basis: Basis) -> list[Slot]:
    workers = observed.workers
    nodes, capacities = {w.index: w.node for w in workers}, {w.index: w.capacity for w in workers}
    rooms = {w.index: w.state_bytes // w.instances for w in workers if w.state_bytes is not None}
    return placing.slots(basis.usable, nodes, capacities, rooms)


def _waits_for_workers(observed: Observed, status: Status) -> bool:
    """Whether a plan file for the expected instances has not begun because some of these instances are missing."""
    file, last = observed.plan_file, observed.submitted
    if file is None or status.moves.members_gone or last is None or last.basis.plan_file == file.name:
        return False
    return file.instances == tuple(observed.expected()) and file.replicas == observed.wanted.replicas


def _due(observed: Observed, status: Status, policy: HandoverPolicy) -> Due:
    """The earliest begin of a plan. The first plan, a repair, and a plan that drains a worker are due at once."""
    waits = observed.submitted is not None and not status.moves.members_gone and not observed.drains
    return (policy.at_epoch or 0, policy.at_time) if waits else AT_ONCE


def _may_come(observed: Observed, instance: InstanceId) -> bool:
    """Whether a missing instance is awaited."""
    if observed.missing.get(instance, 0.0) < GRACE_SECONDS:
        return True
    k = worker_of(instance)
    return any(w.index == k and w.running and w.seconds < START_SECONDS for w in observed.workers)
