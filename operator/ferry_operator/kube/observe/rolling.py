"""Workers that leave their pod: on cordoned nodes, to be evicted, of an outdated revision, or at a user's request. Pure.

`decide` drains a leaving worker, and its pod is replaced once it holds no state. Meanwhile the job has one surge worker for
each leaving worker, if the cluster has room. Without room, a worker leaves without a surge worker, provided that its new pod
fits into the place of the old pod. A worker whose new pod requests more leaves only after such a new pod runs.

Inside of this module workers are numbered without gaps: the wanted workers first, then the surge workers. A worker whose
number is a gap is on its way out of the job, and nothing replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ferry.contract.status import Status
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.facts import KubeNode, Pod

SETTLED_SECONDS = 30.0
"""A younger pod does not leave a cordoned node. The time doubles for a worker whose next pod is on a cordoned node again."""

AVOIDED_MAX = 64
"""Nodes that the affinity of one pod can exclude."""

NEVER = 1e18

WORKERS_MAX = 512
"""Wanted workers and surge workers."""


@dataclass(frozen=True, slots=True)
class RollingReplacement:
    """Values for `decide` beside the spec."""

    workers: int
    """wanted workers, with surge workers"""
    drains: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    """drained workers whose pods are replaced once they are empty"""
    remade: tuple[int, ...] = ()
    """workers with outdated pods that never ran: they hold no state"""
    without_surge: int | None = None
    """a worker that leaves without a surge worker, for lack of room; its pod gets an annotation"""
    stuck: bool = False
    """whether a worker should leave, and no other worker can take its state"""


@dataclass(frozen=True, slots=True)
class WorkerPods:
    """The present workers of a job."""

    wanted: int
    pods: Mapping[int, Pod]
    """pods of workers that run or start"""
    alive: frozenset[int]
    """workers with a live instance, by the driver"""
    revision: str
    """of a new worker"""
    now: float = NEVER
    settling: Mapping[int, float] = field(default_factory=dict)
    """the least age at which the pod of a worker leaves a cordoned node, if not SETTLED_SECONDS"""
    stay: bool = False
    """whether cordons and evictions wait: the driver leaves first"""
    gaps: tuple[int, ...] = ()
    """numbers that no wanted worker and no surge worker has; all other fields are without these gaps"""

    def old(self, k: int) -> bool:
        """Whether the pod of the worker is outdated."""
        return self.pods[k].annotations.get(names.REVISION) != self.revision

    def is_old(self, k: int) -> bool:
        """Whether the worker has a pod, and the pod is outdated."""
        return k in self.pods and self.old(k)

    def never_ran(self, k: int) -> bool:
        """Whether a problem prevents the first start of the pod."""
        return self.pods[k].phase == "Pending" and bool(self.pods[k].problems) and k not in self.alive


def worker_pods(
    wanted: int,
    pods: Sequence[Pod],
    revision: str,
    status: Status | None,
    now: float = NEVER,
    settling: Mapping[int, float] | None = None,
    stay: bool = False,
    gaps: Collection[int] = (),
) -> WorkerPods:
    """The workers, from their pods and from the status of the driver."""
    alive = [int(i.partition(".")[0]) for i in (status.alive if status is not None else [])]
    return WorkerPods(
        wanted,
        {_without(p.worker, gaps): p for p in pods if p.worker is not None and p.worker not in gaps},
        frozenset(_without(k, gaps) for k in alive if k not in gaps),
        revision,
        now,
        {_without(k, gaps): least for k, least in (settling or {}).items() if k not in gaps},
        stay,
        tuple(gaps),
    )


def _without(k: int, gaps: Collection[int]) -> int:
    return k - sum(gap < k for gap in gaps)


def plan_replacement(
    workers: WorkerPods, nodes: Mapping[str, KubeNode] | None, requested: Sequence[int] = (), in_place: bool = True
) -> RollingReplacement:
    """`requested`: workers that the user drains, and whose pods stay; `in_place`: a pod of the spec in force fits into the
    place of a pod of the last good spec."""
    gaps = workers.gaps
    planned = _planned(workers, nodes, [_without(k, gaps) for k in requested if k not in gaps], in_place)
    if not gaps:
        return planned
    numbers = list(itertools.islice((k for k in itertools.count() if k not in gaps), WORKERS_MAX + 1))
    return replace(
        planned,
        drains=tuple(numbers[k] for k in planned.drains),
        leaving=tuple(numbers[k] for k in planned.leaving),
        remade=tuple(numbers[k] for k in planned.remade),
        without_surge=numbers[planned.without_surge] if planned.without_surge is not None else None,
    )


def _planned(
    workers: WorkerPods, nodes: Mapping[str, KubeNode] | None, requested: Sequence[int], in_place: bool
) -> RollingReplacement:
    kept = [k for k in requested if k < workers.wanted]
    leaving, without_surge = [] if workers.stay else sent_away(workers, nodes), None
    count = _count(workers, leaving)
    if not leaving and in_place:
        leaving = [
            k for k in sorted(workers.pods) if workers.old(k) and names.WITHOUT_SURGE in workers.pods[k].annotations
        ][:1]
    if not leaving and (old := _next_old(workers)) is not None:
        count = _count(workers, [old])
        others = [k for k in range(count) if k != old and k not in workers.alive]
        if not in_place and not any(k in workers.alive and not workers.old(k) for k in workers.pods):
            count = max(count, 1 + next(k for k in itertools.count(workers.wanted) if not workers.is_old(k)))
        elif not others:
            leaving = [old]
        elif in_place and all(
            k >= workers.wanted and k in workers.pods and workers.pods[k].unschedulable for k in others
        ):
            without_surge = old
    drains = sorted({*kept, *leaving})
    if all(k in drains for k in range(count)):
        return RollingReplacement(workers.wanted, stuck=bool(leaving))
    remade = tuple(k for k in sorted(workers.pods) if workers.old(k) and workers.never_ran(k))
    return RollingReplacement(
        count, tuple(drains), tuple(k for k in leaving if k < count and k not in kept), remade, without_surge
    )


def sent_away(workers: WorkerPods, nodes: Mapping[str, KubeNode] | None) -> list[int]:
    """Workers to be evicted, or on nodes that take no new pods, if another node does.

    A pending pod does not count: the decision of the scheduler is newer than our list of nodes. If the node is cordoned
    all the same, the pod holds no state that would delay an eviction.
    """
    closed = closed_nodes(nodes)
    return [
        k
        for k, pod in sorted(workers.pods.items())
        if pod.phase == "Running"
        and (
            (pod.evicted and not no_node_is_open(nodes))
            or (pod.node in closed and workers.now - pod.created >= workers.settling.get(k, SETTLED_SECONDS))
        )
    ]


def no_node_is_open(nodes: Mapping[str, KubeNode] | None) -> bool:
    """Whether all known nodes take no new pods."""
    return nodes is not None and all(node.cordoned or node.silent_since is not None for node in nodes.values())


def closed_nodes(nodes: Mapping[str, KubeNode] | None, first: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Nodes that take no new pods; empty if no other node is open. `first`: nodes at the beginning of the order."""
    if nodes is None or no_node_is_open(nodes):
        return ()
    return tuple(
        sorted((node.name for node in nodes.values() if node.cordoned), key=lambda name: (name not in first, name))
    )


def _next_old(workers: WorkerPods) -> int | None:
    """The next worker to replace: one at a time, and only while all new workers are alive."""
    if any(k < workers.wanted and k not in workers.alive and not workers.old(k) for k in workers.pods):
        return None
    return next((k for k in sorted(workers.pods) if workers.old(k) and k in workers.alive), None)


def _count(workers: WorkerPods, leaving: Sequence[int]) -> int:
    """The number of workers: the wanted workers, one surge worker for each leaving worker, and, for each missing worker, one
    surge worker that runs already."""
    count, missing = workers.wanted, sum(k in leaving for k in range(workers.wanted))
    while missing > 0 and count < WORKERS_MAX:
        missing -= count not in leaving
        count += 1
    away = sum(k not in leaving and k not in workers.alive for k in range(workers.wanted))
    while away > 0 and count in workers.alive and count in workers.pods and count not in leaving:
        away -= 1
        count += 1
    return count
