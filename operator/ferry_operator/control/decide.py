"""What to do next for one job: a pure function from what was observed to actions, the same on Kubernetes and on one machine.

Level-triggered: nothing is remembered between two calls but what `Observed` says; when all is as it should be it gives no
action. It never reads a clock and never talks to anybody; `planner` says where state should live.

| action | when |
|---|---|
| StartWorker | a worker that should be there, or that holds the last copy of something, is not running |
| SetInstances | a worker should have more instances, or has ones that hold nothing and should not be there |
| StartDriver | there is none, and it may start |
| SubmitDesired | the usable instances, the copies, the pins or the driver's generation changed, copies are missing, or |
| | wait for windows for too long (`boundaries`); or all is at rest, and another one is worth a move (`balancing`) |
| LimitCopies | the driver lets copies use something else than they may |
| StopWorker | nobody wants it and nothing is on it: neither in a group nor in the placement in force |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from ferry.contract.backoff import back_off
from ferry.contract.documents import Status
from ferry.contract.names import InstanceId, worker_of
from ferry.contract.plans import Plan
from ferry_operator.control import balancing, boundaries, placing
from ferry_operator.control.balancing import Advice, BalancePolicy
from ferry_operator.control.placing import Placements
from ferry_operator.job.size import Size
from ferry_operator.placement.planner import Slot
from ferry_operator.placement.strategies import HandoverPolicy, steps

GRACE_SECONDS = 10.0
"""An instance that should be there and has been missing for less is waited for before anything is planned without it."""

START_SECONDS = 60.0
"""An instance of a worker that was started less long ago is waited for: a first start compiles the kernels."""
RESTART_SECONDS, RESTART_SECONDS_MAX = 0.2, 5.0
"""Wait before a worker that died right after its start is started again; doubles each time."""

Due = tuple[int, int | None]
"""The epoch, and the event time in milliseconds, before which a plan does not begin."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The numbers of the spec that decide where things are."""

    size: Size
    replicas: int
    handover: HandoverPolicy = field(default_factory=HandoverPolicy)
    balance: BalancePolicy = field(default_factory=BalancePolicy)
    bandwidth: int = 0
    """bytes a second that the copies of one instance may use; 0: no bound"""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker that runs, or that is not running and still has state."""

    index: int
    instances: int
    """how many it was last told to have"""
    running: bool
    failures: int = 0
    """ends in a row, each soon after its start"""
    seconds: float = 0.0
    """since it started (running) or ended (not running)"""
    node: str = "local"
    capacity: float = 1.0
    """what its instances can do, beside those of other workers; > 0"""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a placement was planned for: while it is the same, the placement stays in force."""

    usable: tuple[InstanceId, ...]
    replicas: int
    pins: tuple[tuple[int, InstanceId], ...]
    at_window: tuple[int, ...] = ()
    """those of the pins that are brought about at the boundary of a window"""
    given: str = ""
    """name of the plan that a user has handed in for these instances; empty: the planner's"""


@dataclass(frozen=True, slots=True)
class Given:
    """Placements that somebody has worked out beforehand. They count while the instances are those that they are for."""

    name: str
    usable: tuple[InstanceId, ...]
    replicas: int
    placements: Placements
    handover: HandoverPolicy


@dataclass(frozen=True, slots=True)
class Submitted:
    """The last plan that a driver accepted, or has found in the journal."""

    number: int
    generation: int
    basis: Basis
    placements: Placements
    due: Due = (0, None)
    at_window: tuple[int, ...] = ()
    """what it moves at the boundary of a window"""


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at a job."""

    wanted: Wanted
    workers: tuple[Worker, ...]
    driver: bool
    """a driver is running"""
    driver_may_start: bool = True
    """False during back-off, and when the job is ending"""
    status: Status | None = None
    """None while no driver answers"""
    submitted: Submitted | None = None
    drains: tuple[int, ...] = ()
    """workers that are to be emptied and stay"""
    pins: tuple[tuple[int, InstanceId], ...] = ()
    """(vnode, instance that is to lead it)"""
    at_window: tuple[int, ...] = ()
    """of these, virtual nodes that get there at the boundary of a window"""
    missing: Mapping[InstanceId, float] = field(default_factory=dict)
    """seconds since an instance that should be usable was last alive, or since it is wanted"""
    given: Given | None = None
    advice: Advice | None = None
    """what `advice` said of this look, or of one a moment ago"""
    uneven: float = 0.0
    """seconds for which every advice was worth a move"""

    @property
    def ripe(self) -> Advice | None:
        """An advice that was worth a move for long enough to be told, or followed."""
        return self.advice if self.uneven >= self.wanted.balance.ripe else None

    def given_for(self, usable: tuple[InstanceId, ...]) -> Given | None:
        """The placements that were handed in, if they are for this job as it is; with a date not as its first plan."""
        one, status = self.given, self.status
        if one is None or status is None or (one.usable, one.replicas) != (usable, self.wanted.replicas):
            return None
        first = self.submitted is None and status.desired == 0
        return one if len(one.placements) == len(status.groups) and not (first and one.handover.has_date) else None


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the sidecar of this worker, with its state directory if it has one."""

    index: int
    instances: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker that holds nothing, and forget its state."""

    index: int


@dataclass(frozen=True, slots=True)
class SetInstances:
    """Tell a running worker how many instances it should have."""

    index: int
    instances: int


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Start the driver."""


@dataclass(frozen=True, slots=True)
class SubmitDesired:
    """Tell the driver where every virtual node should be, and how it gets there; a higher number replaces a lower one."""

    plan: Plan
    generation: int
    basis: Basis
    why: str = ""
    """of what moves for balance"""

    def accepted(self) -> Submitted:
        """The placement that is in force as soon as the driver has accepted this one."""
        p = self.plan
        return Submitted(p.number, self.generation, self.basis, p.placements, (p.at_epoch, p.at_time), p.at_window)


@dataclass(frozen=True, slots=True)
class LimitCopies:
    """Tell the driver what copies may use."""

    bandwidth: int


Action = StartWorker | StopWorker | SetInstances | StartDriver | SubmitDesired | LimitCopies


def decide(observed: Observed) -> list[Action]:
    """Actions in the order in which they should be done; empty when nothing is needed."""
    actions: list[Action | None] = [*_starts(observed)]
    if not observed.driver and observed.driver_may_start:
        actions.append(StartDriver())
    actions += [_submit(observed), *_releases(observed)]
    if observed.status is not None and observed.status.bandwidth not in (None, observed.wanted.bandwidth):
        actions.append(LimitCopies(observed.wanted.bandwidth))
    return [one for one in actions if one is not None]


def expected(observed: Observed) -> list[InstanceId]:
    """Instances that should hold state: of wanted workers that are not drained, sorted by worker and index."""
    return observed.wanted.size.instance_ids(observed.drains)


def _starts(observed: Observed) -> list[Action]:
    """Workers to start, and running ones to grow."""
    wanted, actions = observed.wanted.size, list[Action]()
    seen = {worker.index: worker for worker in observed.workers}
    needed = _last_copies(observed)
    for k in sorted({*range(wanted.workers), *seen}):
        worker, stays = seen.get(k), k < wanted.workers and k not in observed.drains
        instances = max(wanted.instances if stays else 1, needed.get(k, 0))
        if worker is not None and worker.running:
            if worker.instances < instances:
                actions.append(SetInstances(k, instances))
        elif stays or k in needed:
            if worker is None or worker.seconds >= back_off(worker.failures, RESTART_SECONDS, RESTART_SECONDS_MAX):
                actions.append(StartWorker(k, instances))
    return actions


def _last_copies(observed: Observed) -> dict[int, int]:
    """Workers whose state may be the last copy of something, with how many instances they need for it.

    Without a status, and before anything was submitted, that is every worker that has state: a job is being resumed.
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
    """Workers to stop and instances to end: what no group names and no driver will be told to use."""
    held, wanted, actions = _held(observed), observed.wanted.size, list[Action]()
    if held is None:
        return []
    for worker in sorted(observed.workers, key=lambda w: w.index):
        k, keep = worker.index, held.get(worker.index, 0)
        if k >= wanted.workers:
            if keep == 0:
                actions.append(StopWorker(k))
        elif worker.running and worker.instances > max(wanted.instances, keep):
            actions.append(SetInstances(k, max(wanted.instances, keep)))
    return actions


def empty(observed: Observed) -> tuple[int, ...]:
    """Workers on which nothing is and nothing will be; none while that is not known."""
    held = _held(observed)
    return () if held is None else tuple(w.index for w in observed.workers if held.get(w.index, 0) == 0)


def _held(observed: Observed) -> dict[int, int] | None:
    """How many instances of each worker a group or the placement in force names; None while that is not known."""
    status, submitted = observed.status, observed.submitted
    if not status or not submitted or submitted.number != status.desired:
        return None
    held = [i for in_sync, learners in status.groups for i in (*in_sync, *learners)]
    return {k: i + 1 for k, i in placing.highest([*held, *chain(*submitted.placements)]).items()}


def _submit(observed: Observed) -> SubmitDesired | None:
    """The placement to submit, or None: no driver answers, instances are waited for, or the last one still holds."""
    status, last = observed.status, observed.submitted
    if status is None or status.finished or not status.groups:
        return None
    alive, basis = dict.fromkeys(status.alive), _basis(observed, status)
    if not basis.usable or any(i not in alive and _may_come(observed, i) for i in expected(observed)):
        return None
    given, weak = observed.given_for(basis.usable), placing.is_under_strength(status, basis.usable, basis.replicas)
    waits = given is None and _waits_for_workers(observed, status)
    if waits and not weak:
        return None
    number = 1 + max(status.desired, last.number if last is not None else 0)
    policy = given.handover if given is not None else observed.wanted.handover
    due = (0, None) if waits else _due(observed, status, policy)
    # This driver has taken over the placement in force if another driver accepted it.
    same = last is not None and last.basis == basis and status.generation == last.generation
    same |= last is not None and last.basis == basis and status.desired == last.number
    if status.prepared and (last is None or (same and last.due == due)):
        return None  # It is not known what waits (the driver has not said it), or it waits for the right thing.
    again = given is None and placing.may_be_tried_again(status)
    holds, balance = same and not status.prepared and not again, _balance(observed)
    overdue = holds and last is not None and boundaries.are_overdue(status, basis.at_window, last.at_window)
    if holds and balance is None and not weak and not overdue:
        return None
    current = [tuple(map(InstanceId, in_sync)) for in_sync, _ in status.groups]
    if last is not None and overdue:
        due = (0, None)  # It has begun.
        placements = last.placements
    elif given is not None:
        placements = placing.with_pins(given.placements, basis.pins)
    elif balance is not None:
        placements = balance.placements
    else:
        pins = placing.as_led(current, basis.usable) if waits else basis.pins  # Then only copies are made.
        placements = placing.place(current, status.loads, _slots(observed, basis), basis.replicas, pins)
    if holds and not overdue and last is not None and last.placements == placements:
        return None
    cut = steps(current, placements, policy)
    warm = policy.warm or status.members_gone > 0  # Nobody is held up by what repairs.
    by_itself = policy.at_window == "auto" and warm and given is None and not status.members_gone and not overdue
    waiting = boundaries.chosen(status, basis.at_window, current, placements, basis.usable, by_itself)
    cut = cut if len(cut) > 1 else ()
    plan = Plan(number, placements, cut, policy.gap, warm, *due, policy.deadline_ms, at_window=waiting)
    return SubmitDesired(plan, status.generation, basis, balance.reason if balance is not None and not overdue else "")


def advice(observed: Observed, kept: Placements | None = None) -> Advice | None:
    """What would be more even; None: nobody wants to know, or something is open, and it is not known how things will be.

    `kept`: what was advised for the same groups at an earlier look.
    """
    status, policy = observed.status, observed.wanted.balance
    if policy.mode == "off" or status is None or not _at_rest(observed, status):
        return None
    basis = _basis(observed, status)
    return balancing.advise(status, _slots(observed, basis), basis.replicas, basis.pins, policy, kept)


def _balance(observed: Observed) -> Advice | None:
    """The advice to follow now, if any."""
    status, policy, found = observed.status, observed.wanted.balance, observed.ripe
    if policy.mode != "auto" or status is None or found is None or status.quiet_seconds < policy.horizon:
        return None
    return found if _at_rest(observed, status) else None


def _at_rest(observed: Observed, status: Status) -> bool:
    """All instances that should hold state are there, and the planner's plan for them is in force and carried out."""
    last = observed.submitted
    if last is None or last.number != status.desired or observed.drains or observed.missing:
        return False
    basis = _basis(observed, status)
    return last.basis == basis and not basis.given and placing.is_carried_out(status, last.placements)


def _basis(observed: Observed, status: Status) -> Basis:
    """What a placement would be planned for now."""
    alive = dict.fromkeys(status.alive)
    usable = tuple(i for i in expected(observed) if i in alive)
    pins, given = tuple((v, i) for v, i in observed.pins if i in usable), observed.given_for(usable)
    waiting = tuple(v for v, _ in pins if v in observed.at_window and not status.unbounded)
    return Basis(usable, observed.wanted.replicas, pins, waiting, given.name if given is not None else "")


def _slots(observed: Observed, basis: Basis) -> list[Slot]:
    workers = observed.workers
    return placing.slots(basis.usable, {w.index: w.node for w in workers}, {w.index: w.capacity for w in workers})


def _waits_for_workers(observed: Observed, status: Status) -> bool:
    """Whether what was handed in is for the instances that there should be, and has not begun for want of some of them."""
    given, last = observed.given, observed.submitted
    if given is None or status.members_gone or last is None or last.basis.given == given.name:
        return False
    return given.usable == tuple(expected(observed)) and given.replicas == observed.wanted.replicas


def _due(observed: Observed, status: Status, policy: HandoverPolicy) -> Due:
    """When a plan may begin. The first one, what repairs, and what empties a worker is due at once."""
    waits = observed.submitted is not None and not status.members_gone and not observed.drains
    return (policy.at_epoch or 0, policy.at_time) if waits else (0, None)


def _may_come(observed: Observed, instance: InstanceId) -> bool:
    """Whether an instance that is missing is waited for."""
    if observed.missing.get(instance, 0.0) < GRACE_SECONDS:
        return True
    k = worker_of(instance)
    return any(w.index == k and w.running and w.seconds < START_SECONDS for w in observed.workers)
