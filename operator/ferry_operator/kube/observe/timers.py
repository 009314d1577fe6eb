"""The clocks of a job between two reconciles. After a change of the leader they start again, and waits last longer."""

from __future__ import annotations

from dataclasses import dataclass, field

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.status import Status
from ferry_operator.control import autoscaling, scaling_sizes
from ferry_operator.control.observed import Observed
from ferry_operator.control.timers import LookTimers
from ferry_operator.kube.api import names
from ferry_operator.kube.observe import overruled
from ferry_operator.kube.observe.effective_spec import EffectiveSpec, Revisions
from ferry_operator.kube.observe.rolling import SETTLED_SECONDS
from ferry_operator.kube.observe.seen import Seen

EVICTION_SECONDS = 6.0
"""`kubectl drain` requests the eviction of a pod by name every 5 s, even if a new pod of this name is on another node."""


RESTS_SECONDS = 600.0
"""A worker whose pod has been on an open node for this long has come to rest; and the maximum of the waits before."""


@dataclass(slots=True)
class AbsenceTimers(LookTimers):
    """Clocks for the length of an epoch, for closed nodes, and for a spec without progress."""

    epoch: tuple[int, int, float] = (0, 0, 0.0)
    """(generation, last finished epoch, time of its first observation, or last time at which the query was idle)"""
    closed: dict[int, float] = field(default_factory=dict)
    """by worker, the last time at which its pod was on a node that takes no new pods"""

    returned: dict[int, tuple[str, int]] = field(default_factory=dict)
    """by worker: uid of its last pod on a cordoned node, and number of earlier such pods"""
    protected: tuple[frozenset[str], float] = (frozenset(), 0.0)
    """(uids of the protected pods, time of the first observation of these pods)"""
    progress: tuple[object, float] = ((), 0.0)
    """(progress of a spec that is not good yet, time of its first observation)"""
    scaling: autoscaling.History | None = None

    def advice(self, seen: Seen, effective: EffectiveSpec, observed: Observed) -> autoscaling.ScalingAdvice | None:
        """The autoscaler's advice. On Kubernetes a worker has its own slots, and the cores that its sidecar requests."""
        assert effective.job is not None
        spec = effective.job.spec
        policy = scaling_sizes.policy_for(spec, spec.cores, spec.kubernetes.sidecar.cpu.millis // 1000)
        if policy is None or spec.suspended or seen.deleting:
            self.scaling = None
            return None
        still = "the job is paused" if seen.paused else "" if effective.newest else "the newest spec is refused"
        work = observed.status.load.work if observed.status is not None else None
        kept = overruled.noticed(seen.memory.scaling, spec, seen.job["metadata"], seen.now)
        if not still and kept is not None and overruled.is_overruled(kept):
            self.scaling = None
            return autoscaling.overruled(policy, spec.size, overruled.why(kept), seen.now)
        hold = autoscaling.Hold(still, "nothing") if still else autoscaling.held_up(observed)
        advice, self.scaling = autoscaling.advise(policy, spec.size, work, hold, self.scaling, seen.now)
        return advice

    def cooling_down(self, seen: Seen) -> frozenset[int]:
        """Workers that left a closed node a moment ago: their new pods wait until evictions by name have stopped."""
        shut = [node.name for node in (seen.nodes or {}).values() if node.cordoned]
        self.closed |= {pod.worker: seen.now for pod in seen.workers if pod.worker is not None and pod.node in shut}
        self.closed = {k: at for k, at in self.closed.items() if seen.now - at < EVICTION_SECONDS}
        return frozenset(self.closed)

    def settling(self, seen: Seen) -> dict[int, float]:
        """By worker, the least age at which its pod leaves a cordoned node: longer for each earlier pod on such a node.

        A pod that tolerates cordons may come to cordoned nodes again and again, and it is emptied each time.
        """
        shut = {node.name for node in (seen.nodes or {}).values() if node.cordoned}
        for pod in seen.workers:
            if pod.worker is None or pod.node is None:
                continue
            uid, count = self.returned.get(pod.worker, (pod.uid, 0))
            if pod.node in shut:
                self.returned[pod.worker] = (pod.uid, count + (uid != pod.uid))
            elif seen.now - pod.created > RESTS_SECONDS:
                self.returned.pop(pod.worker, None)
        return {k: min(SETTLED_SECONDS * 2**count, RESTS_SECONDS) for k, (_, count) in self.returned.items()}

    def same_pods_for(self, seen: Seen) -> float:
        """Seconds for which the pods that the budget protects have been the same."""
        uids = frozenset(pod.uid for pod in seen.workers if pod.deleting is None and pod.may_leave is None)
        if not self.protected[1] or self.protected[0] != uids:
            self.protected = (uids, seen.now)
        return seen.now - self.protected[1]

    def without_progress(self, seen: Seen, effective: EffectiveSpec, revisions: Revisions) -> float:
        """Seconds without progress of a spec that is not good yet; waits for others do not count."""
        status, both = seen.status, revisions.all
        if effective.fallback is None or effective.fallback.all == both or _waits(seen, revisions):
            both = ""
        heard = {worker_of(InstanceId(i)) for i in status.alive} if status is not None else set()
        new = [
            p.uid for p in seen.workers if p.worker in heard and p.annotations.get(names.REVISION) == revisions.worker
        ]
        far = (both, *new, status.version if status is not None else None)
        if not both or self.progress[0] != far:
            self.progress = (far, seen.now)
        return seen.now - self.progress[1]

    def stalled(self, status: Status | None, now: float) -> float:
        """Seconds since the start of the present epoch; an epoch that waits for copies has not begun."""
        if status is None:
            return 0.0
        if status.phase in ("idle", "hold") or self.epoch[:2] != (status.generation, status.epoch):
            self.epoch = (status.generation, status.epoch, now)
        return now - self.epoch[2]


def _waits(seen: Seen, revisions: Revisions) -> bool:
    """Whether the spec waits for room, records, moves of state, the journal or its user."""
    status = seen.status
    if seen.paused or any(pod.unschedulable for pod in seen.pods):
        return True
    if status is None:
        return False
    old = [pod for pod in seen.workers if pod.annotations.get(names.REVISION) != revisions.worker]
    warming = any(learners for _, learners in status.groups)
    return warming or not status.journal_up or (status.phase == "idle" and not old)
