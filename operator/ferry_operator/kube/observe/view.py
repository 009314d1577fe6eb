"""From one look at a job (`seen`) to the input of `decide`, and to what is wrong. Pure but for `timers`, a clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.status import Status
from ferry_operator.control import autoscaling, balancing, handovers, plan_file
from ferry_operator.control.balancing import BalancePolicy
from ferry_operator.control.observed import Observed, Wanted, Worker
from ferry_operator.job.quantities import Duration
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.asked import asked_drains, asked_pins, asked_windows, nonsense
from ferry_operator.kube.observe.effective_spec import EffectiveSpec, Revisions
from ferry_operator.kube.observe.facts import OVERDUE_SECONDS, SILENT_SECONDS, Pod, Problem
from ferry_operator.kube.observe.lifecycle import DriverLifecycle, hangs, lifecycle_of
from ferry_operator.kube.observe.rolling import RollingReplacement, closed_nodes, plan_replacement, worker_pods
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.observe.shapes import InPlace, in_place_of
from ferry_operator.kube.observe.suspension import Stage, stage
from ferry_operator.kube.observe.timers import AbsenceTimers

UNKNOWN_SECONDS = 60.0
"""While no driver answers, a worker on a silent node may hold the last copy of some state: it is given up after this."""

STALLED_SECONDS = 60.0
"""An epoch that lasts longer is worth a warning."""

REDIS_REFUSES = "RedisRefuses"

NEVER_SECONDS = 1e9
"""Age of a worker whose problem lasts: `decide` does not wait for it."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A look with all that follows from it."""

    seen: Seen
    effective: EffectiveSpec
    revisions: Revisions | None
    """of the spec in force; None when there is no spec that can be followed"""
    lifecycle: DriverLifecycle
    rolling: RollingReplacement
    observed: Observed | None
    """None when there is no spec that can be followed"""
    lost: Mapping[str, str]
    """pods that will not come back, by name, and why"""
    stalled: float = 0.0
    """seconds for which an epoch has been under way"""
    hangs: str | None = None
    """why the driver is to be replaced"""
    resting: frozenset[int] = frozenset()
    """workers that had to leave a node a moment ago"""
    standing: float = 0.0
    """seconds for which a spec that is not good yet has made no progress"""
    stage: Stage = Stage.RUNS
    in_place: InPlace = field(default_factory=InPlace)
    closed: tuple[str, ...] = ()
    """nodes that new pods are kept from, while there are others"""
    advice: autoscaling.ScalingAdvice | None = None
    """of the autoscaler; None: the job has none"""

    @property
    def ignored(self) -> Iterator[Problem]:
        """Annotations that cannot be followed."""
        if self.effective.job is not None:
            one = self.effective.job.spec
            yield from nonsense(self.seen.annotations, self.seen.name, one.size, one.state.virtual_nodes)

    @property
    def suspending(self) -> bool:
        """It is not to run, or its run has ended."""
        return self.stage is not Stage.RUNS


def look(seen: Seen, effective: EffectiveSpec, revisions: Revisions | None, timers: AbsenceTimers) -> JobView:
    """The view of a job."""
    lost = {pod.name: why for pod in seen.pods if (why := _lost(pod, seen)) is not None}
    driver = seen.driver if seen.driver is not None and seen.driver.name not in lost else None
    revision = revisions.driver if revisions is not None else ""
    finished = seen.before.phase == "Finished"
    lifecycle = lifecycle_of(driver, revision, seen.last_epoch, finished, seen.now)
    at = Stage.RUNS if finished else stage(seen.job, seen.memory, seen.pods, seen.last_epoch)
    if effective.job is None or revisions is None:
        return JobView(seen, effective, None, lifecycle, RollingReplacement(0), None, lost, stage=at)
    one = effective.job.spec
    running, status = [pod for pod in seen.workers if _runs(pod, lost)], _stays(seen)
    workers = worker_pods(one.workers, running, revisions.worker, status, seen.now)
    in_place = in_place_of(effective.last, effective.job)
    drains = asked_drains(seen.annotations.get(names.DRAIN))
    rolling = plan_replacement(workers, seen.nodes, drains, in_place.worker)
    observed = Observed(
        wanted=Wanted(
            replace(one.size, workers=rolling.workers),
            one.state.replicas,
            handovers.policy_of(one.handover),
            balancing.policy_of(one.balance) if at is Stage.RUNS else BalancePolicy("off"),
            handovers.bandwidth_of(one.handover),
        ),
        workers=tuple(_worker(pod, lost, seen, one.state.replicas) for pod in seen.workers),
        driver=lifecycle.running,
        driver_may_start=lifecycle.may_start and not seen.deleting,
        status=status,
        submitted=seen.submitted,
        drains=rolling.drains,
        pins=asked_pins(seen.annotations.get(names.PINS), one.state.virtual_nodes),
        at_window=asked_windows(seen.annotations.get(names.PINS)),
        plan_file=plan_file.of_job(text, seen.name) if (text := seen.annotations.get(names.PLAN)) else None,
    )
    observed = timers.timed(observed, seen.now)
    stalled, resting = timers.stalled(seen.status, seen.now), timers.resting(seen)
    standing = timers.standing(seen, effective, revisions)
    why = _hangs(seen, lifecycle, stalled, one.failure.stall_deadline)
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
        resting=resting,
        standing=standing,
        stage=at,
        in_place=in_place,
        closed=closed_nodes(seen.nodes, [pod.node for pod in seen.pods]),
        advice=timers.advice(seen, effective, observed) if at is Stage.RUNS else None,
    )


def _hangs(seen: Seen, lifecycle: DriverLifecycle, stalled: float, deadline: Duration | None) -> str | None:
    """Why a driver that runs is to be replaced; one that says what fails, or waits for others, does not hang."""
    if seen.driver is None or not lifecycle.running:
        return None
    status = seen.status
    if status is not None and deadline is not None and stalled >= deadline.seconds:
        alive = frozenset(status.alive)
        if status.journal_up and not status.problems and all(i in alive for group, _ in status.groups for i in group):
            return f"the epoch after {status.epoch} has stood for {stalled:.0f} s, in phase {status.phase}"
    # One that starts waits for Redis before it serves.
    waits = status is not None or any(one.reason == REDIS_REFUSES for one in seen.problems)
    return hangs(seen.driver, waits, seen.now)


def _stays(seen: Seen) -> Status | None:
    """The driver's status without live instances whose pods are ending, or still pending.

    They are no place for state: a drain may evict a pending pod whatever the budget says.
    """
    passing = {pod.worker for pod in seen.workers if pod.deleting is not None or pod.phase == "Pending"}
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
    )


def failure_domain(pod: Pod, seen: Seen, replicas: int) -> str:
    """The domain of a pod over which copies are spread: its zone when each copy can have its own, else its node."""
    if pod.node is None:
        return f"node of {pod.name}"
    nodes = seen.nodes or {}
    zones = [nodes[p.node].zone if p.node in nodes else None for p in seen.workers if p.node is not None]
    own = nodes[pod.node].zone if pod.node in nodes else None
    if own is not None and None not in zones and len(set(zones)) > replicas:
        return own
    return pod.node


def _lost(pod: Pod, seen: Seen) -> str | None:
    """Why a pod will not come back by itself, or None.

    A worker that the driver hears is never lost, whatever the cluster believes of its node: it may lead something.
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
    """Since when nothing was heard of the node of a pod."""
    if seen.nodes is None:
        return pod.silent_since, f"node {pod.node} is not heard of"
    node = seen.nodes.get(pod.node or "")
    why = f"node {pod.node} is not ready" if node else f"node {pod.node} is gone"
    since = node.silent_since if node else 0.0
    if since is not None and since < pod.created:
        # Nodes are listed now and then: it was put there because the node has joined, or is back.
        since = pod.created + UNKNOWN_SECONDS - SILENT_SECONDS
    return since, why
