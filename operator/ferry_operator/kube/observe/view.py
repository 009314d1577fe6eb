"""From an observation of a job (`seen`) to the input of `decide`, and to problems. Pure except for `timers`, its clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.settings import JOURNAL, SETTINGS
from ferry.contract.status import Status
from ferry_operator.control import autoscaling, balancing, handovers, plan_file
from ferry_operator.control.balancing import BalancePolicy
from ferry_operator.control.observed import Observed, Wanted, Worker
from ferry_operator.job.quantities import Duration
from ferry_operator.kube.api import names
from ferry_operator.kube.observe import holds
from ferry_operator.kube.observe.annotations import (
    invalid_annotations,
    requested_drains,
    requested_pins,
    requested_windows,
)
from ferry_operator.kube.observe.effective_spec import EffectiveSpec, Revisions
from ferry_operator.kube.observe.facts import OVERDUE_SECONDS, SILENT_SECONDS, Pod, Problem
from ferry_operator.kube.observe.in_place import InPlace, in_place_of
from ferry_operator.kube.observe.lifecycle import DriverLifecycle, hangs, is_edited, lifecycle_of
from ferry_operator.kube.observe.members import WorkerNumbers, members_of
from ferry_operator.kube.observe.rolling import (
    SETTLED_SECONDS,
    RollingReplacement,
    closed_nodes,
    no_node_is_open,
    plan_replacement,
    worker_pods,
)
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.suspension import Stage, stage
from ferry_operator.kube.observe.timers import AbsenceTimers

UNKNOWN_SECONDS = 60.0
"""While no driver answers, a worker on a silent node, possibly with the last copy of a state, counts as lost after this."""

STALLED_SECONDS = 60.0
"""A longer epoch is a problem in the status."""

REDIS_REFUSES, REDIS_WITHDRAWN = "RedisRefuses", "RedisWithdrawn"

NEVER_SECONDS = 1e9
"""The age, for `decide`, of a worker with a problem: `decide` does not wait for this worker."""


@dataclass(frozen=True, slots=True)
class JobView:
    """An observation, and all conclusions from it."""

    seen: Seen
    effective: EffectiveSpec
    revisions: Revisions | None
    """revisions of the spec in force; None without a valid spec"""
    lifecycle: DriverLifecycle
    rolling: RollingReplacement
    observed: Observed | None
    """None without a valid spec"""
    lost: Mapping[str, str]
    """pods that will not come back: reasons by name"""
    stalled: float = 0.0
    """seconds since the start of the present epoch"""
    hangs: str | None = None
    """the reason to replace a hanging driver"""
    cooling_down: frozenset[int] = frozenset()
    """workers that left a closed node a moment ago"""
    without_progress: float = 0.0
    """seconds without progress of a spec that is not good yet"""
    stage: Stage = Stage.RUNS
    in_place: InPlace = field(default_factory=InPlace)
    closed: tuple[str, ...] = ()
    """nodes that new pods exclude, while other nodes are open"""
    driver_leaves: bool = False
    """whether the driver is to be evicted, or is on a node that takes no new pods, while other nodes are open"""
    members: WorkerNumbers = field(default_factory=WorkerNumbers)
    unprotected: bool = False
    """whether the job has no budget, by its spec"""
    same_pods_for: float = 0.0
    """seconds for which the protected pods have been the same"""
    advice: autoscaling.ScalingAdvice | None = None
    """advice of the autoscaler; None: the job has no autoscaler"""

    @property
    def held(self) -> str | None:
        """Why pods stay on nodes that they are to leave; None if they need not leave, or can."""
        nodes = self.seen.nodes
        cordoned = {node.name for node in (nodes or {}).values() if node.cordoned}
        leaving = [pod for pod in self.seen.pods if pod.ended is None and (pod.evicted or pod.node in cordoned)]
        if not leaving or self.unprotected or self.seen.deleting:
            return None
        if why := holds.reason(self.seen.paused, self.lifecycle.end == "Failed"):
            kept = [pod.name for pod in leaving if pod.may_leave is None]
            return holds.staying(kept, why) if kept else None
        return holds.NO_NODE if nodes is not None and self.lifecycle.end is None and no_node_is_open(nodes) else None

    @property
    def ignored(self) -> Iterator[Problem]:
        """Problems of invalid annotations."""
        if self.effective.job is not None:
            spec = self.effective.job.spec
            gaps, vnodes = self.members.gaps, spec.state.virtual_nodes
            yield from invalid_annotations(self.seen.annotations, self.seen.name, spec.size, vnodes, gaps)

    @property
    def begins_with(self) -> str:
        """The program of a new driver: of the journal, because the state of the job belongs to it, or of the spec.

        The spec's one if the job has failed and its user has edited the program, or if the spec names another module or file
        together with another image: the new image need not have the old program.
        """
        mine, program, effective = self.revisions, self.seen.program, self.effective
        if program is None or mine is None or effective.job is None:
            return JOURNAL
        if is_edited(self.seen.driver, program.identity):
            return SETTINGS
        if effective.last is None or effective.fallback is None or mine.driver == effective.fallback.driver:
            return JOURNAL
        now, before = effective.job.spec.pipeline, effective.last.spec.pipeline
        moved = program.text is None and (now.module, now.file) != (before.module, before.file)
        return SETTINGS if moved else JOURNAL

    @property
    def zones_are_unknown(self) -> bool:
        """Whether copies may share a zone because the operator knows neither nodes nor zones."""
        placed = [pod for pod in self.seen.workers if pod.node is not None]
        return self.seen.nodes is None and bool(placed) and not any(pod.zone for pod in placed)

    @property
    def suspending(self) -> bool:
        """Whether the job is to be suspended, or its run has ended."""
        return self.stage is not Stage.RUNS


def look(seen: Seen, effective: EffectiveSpec, revisions: Revisions | None, timers: AbsenceTimers) -> JobView:
    """The view of a job."""
    lost = {pod.name: why for pod in seen.pods if (why := _lost(pod, seen)) is not None}
    driver = seen.driver if seen.driver is not None and seen.driver.name not in lost else None
    if revisions is not None and driver is not None and driver.ended is None:
        if driver.annotations.get(names.REVISION) == revisions.driver_before:
            revisions = replace(revisions, driver=revisions.driver_before)
    revision = revisions.driver if revisions is not None else ""
    program = seen.program.identity if seen.program is not None else ""
    finished = seen.before.phase == "Finished"
    lifecycle = lifecycle_of(driver, revision, seen.last_epoch, finished, seen.now, program)
    at = Stage.RUNS if finished else stage(seen.job, seen.memory, seen.pods, seen.last_epoch)
    if effective.job is None or revisions is None:
        return JobView(seen, effective, None, lifecycle, RollingReplacement(0), None, lost, stage=at)
    spec = effective.job.spec
    unprotected = spec.kubernetes.disruption_budget == "off"
    running, status = [pod for pod in seen.workers if _runs(pod, lost)], _stays(seen, unprotected)
    driver_leaves = _leaves(driver, seen)
    no_room = any(pod.role == names.PLACEHOLDER_ROLE and pod.unschedulable for pod in seen.pods)
    stay = driver_leaves and lifecycle.running and not no_room
    file = plan_file.of_job(text, seen.name) if (text := seen.annotations.get(names.PLAN)) else None
    members = members_of(seen, effective.job, effective.last, status, file)
    settling, gaps = timers.settling(seen), members.gaps
    workers = worker_pods(spec.workers, running, revisions.worker, status, seen.now, settling, stay, gaps)
    in_place = in_place_of(effective.last, effective.job)
    drains = requested_drains(seen.annotations.get(names.DRAIN))
    rolling = plan_replacement(workers, seen.nodes, drains, in_place.worker)
    observed = Observed(
        wanted=Wanted(
            replace(spec.size, workers=rolling.workers),
            spec.state.replicas,
            handovers.policy_of(spec.handover),
            balancing.policy_of(spec.balance) if at is Stage.RUNS else BalancePolicy("off"),
            handovers.bandwidth_of(spec.handover),
        ),
        workers=tuple(_worker(pod, lost, seen, spec.state.replicas) for pod in seen.workers),
        driver=lifecycle.running,
        driver_may_start=lifecycle.may_start and not seen.deleting,
        status=status,
        submitted=seen.submitted,
        drains=rolling.drains,
        gaps=gaps,
        pins=requested_pins(seen.annotations.get(names.PINS), spec.state.virtual_nodes),
        at_window=requested_windows(seen.annotations.get(names.PINS)),
        plan_file=file,
    )
    observed = timers.timed(observed, seen.now)
    stalled, cooling_down = timers.stalled(seen.status, seen.now), timers.cooling_down(seen)
    without_progress = timers.without_progress(seen, effective, revisions)
    why = _hangs(seen, lifecycle, stalled, spec.failure.stall_deadline)
    return JobView(
        seen,
        effective,
        revisions,
        lifecycle,
        rolling,
        observed,
        lost,
        stalled,
        hangs=why,
        cooling_down=cooling_down,
        without_progress=without_progress,
        stage=at,
        in_place=in_place,
        closed=closed_nodes(seen.nodes, [pod.node for pod in seen.pods]),
        driver_leaves=driver_leaves,
        unprotected=unprotected,
        members=members,
        same_pods_for=timers.same_pods_for(seen),
        advice=timers.advice(seen, effective, observed) if at is Stage.RUNS else None,
    )


def _leaves(driver: Pod | None, seen: Seen) -> bool:
    """Whether the driver leaves its pod. It goes before the workers, which then move their state under the next driver."""
    if driver is None or driver.ended is not None or no_node_is_open(seen.nodes):
        return False
    settled = driver.phase == "Running" and seen.now - driver.created >= SETTLED_SECONDS
    return driver.evicted or (settled and driver.node in closed_nodes(seen.nodes))


def _hangs(seen: Seen, lifecycle: DriverLifecycle, stalled: float, deadline: Duration | None) -> str | None:
    """The reason to replace a running driver, or None. A driver with a known problem, or with a wait, does not hang."""
    if seen.driver is None or not lifecycle.running:
        return None
    status = seen.status
    if status is not None and deadline is not None and stalled >= deadline.seconds:
        alive = frozenset(status.alive)
        if status.journal_up and not status.problems and all(i in alive for group, _ in status.groups for i in group):
            return f"the epoch after {status.epoch} makes no progress for {stalled:.0f} s, in phase {status.phase}"
    # A starting driver waits for Redis before it serves.
    fine = status is not None or any(problem.reason == REDIS_REFUSES for problem in seen.problems)
    return hangs(seen.driver, fine, seen.now)


def _stays(seen: Seen, unprotected: bool) -> Status | None:
    """The driver's status without live instances whose pods terminate, are still pending, or may leave.

    Such instances must get no state: an eviction may delete a pending pod in spite of the budget.
    """
    passing = {
        pod.worker
        for pod in seen.workers
        if pod.deleting is not None or pod.phase == "Pending" or (pod.may_leave is not None and not unprotected)
    }
    if seen.status is None or not passing:
        return seen.status
    return replace(seen.status, alive=[i for i in seen.status.alive if worker_of(InstanceId(i)) not in passing])


def _runs(pod: Pod, lost: Mapping[str, str]) -> bool:
    return pod.phase in ("Pending", "Running") and pod.deleting is None and pod.name not in lost


def _worker(pod: Pod, lost: Mapping[str, str], seen: Seen, replicas: int) -> Worker:
    assert pod.worker is not None
    running = _runs(pod, lost)
    ended = pod.ended.at if pod.ended is not None else pod.deleting or seen.now
    seconds = max(0.0, seen.now - (pod.created if running else ended))
    return Worker(
        index=pod.worker,
        instances=max(1, pod.number(names.INSTANCES)),
        running=running,
        failures=0 if running or pod.ended is None else pod.number(names.FAILURES) + 1,
        seconds=NEVER_SECONDS if running and pod.problems else seconds,
        node=failure_domain(pod, seen, replicas),
        capacity=pod.cpus,
        state_bytes=pod.state_bytes,
    )


def failure_domain(pod: Pod, seen: Seen, replicas: int) -> str:
    """The failure domain of a pod, for the spread of copies: its zone if each copy can have its own zone, else its node."""
    if pod.node is None:
        return f"node of {pod.name}"
    zones, own = [zone_of(p, seen) for p in seen.workers if p.node is not None], zone_of(pod, seen)
    if own is not None and None not in zones and len(set(zones)) > replicas:
        return own
    return pod.node


def zone_of(pod: Pod, seen: Seen) -> str | None:
    """The zone of a pod: of its node, if the operator may read nodes, else by its own label."""
    node = (seen.nodes or {}).get(pod.node or "")
    return node.zone if node is not None else pod.zone


def _lost(pod: Pod, seen: Seen) -> str | None:
    """The reason why a pod will not come back, or None.

    A worker that answers the driver is never lost, even if its node is not ready: it may lead virtual nodes.
    """
    if pod.deleting is not None:
        return "its kubelet does not answer" if seen.now > pod.deleting + OVERDUE_SECONDS else None
    if pod.ended is not None or pod.node is None:
        return None
    since, why = _silence(pod, seen)
    if since is None or seen.now - since < SILENT_SECONDS:
        return None
    if pod.worker is None:
        return why if seen.status is None else None
    if seen.status is not None:
        heard = any(worker_of(InstanceId(i)) == pod.worker for i in seen.status.alive)
        return None if heard else why
    return why if seen.now - since >= UNKNOWN_SECONDS else None


def _silence(pod: Pod, seen: Seen) -> tuple[float | None, str]:
    """(start of the silence of the node of a pod, or None; the reason)"""
    if seen.nodes is None:
        return pod.silent_since, f"node {pod.node} is silent"
    node = seen.nodes.get(pod.node or "")
    why = f"node {pod.node} is not ready" if node else f"node {pod.node} is gone"
    since = node.silent_since if node else 0.0
    if since is not None and since < pod.created:
        # Our list of nodes is older than the pod: the scheduler has chosen a node that has joined, or is ready again.
        since = pod.created + UNKNOWN_SECONDS - SILENT_SECONDS
    return since, why
