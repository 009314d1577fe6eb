"""Workers that have to leave their pod: of nodes that are cordoned, of an older revision, or as the user asked. Pure.

A worker is emptied by an ordinary drain of `decide`, and its pod is made again once nothing is on it. Meanwhile as many
surge workers are added for those that leave, where there is room. Where there is none, it goes without, if what is made has
room where the worker is that it replaces; a worker that asks for more leaves nothing for it before one like it runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ferry.contract.status import Status
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.facts import KubeNode, Pod

SETTLED_SECONDS = 30.0
"""A worker that was made later leaves no node: pods that are put on closed nodes again and again are left there."""

AVOIDED_MAX = 64
"""Nodes that one pod can be kept from."""

NEVER = 1e18

WORKERS_MAX = 512
"""Wanted workers and surge workers."""


@dataclass(frozen=True, slots=True)
class RollingReplacement:
    """Values for `decide` beside the spec."""

    workers: int
    """how many there should be, with surge workers"""
    drains: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    """drained workers whose pods are made again when they are empty"""
    remade: tuple[int, ...] = ()
    """workers whose pods are out of date and never ran: nothing is in them"""
    without_surge: int | None = None
    """a worker that leaves without a surge worker, for lack of room: to be noted on its pod"""
    stuck: bool = False
    """a worker should leave, and no other can take its state"""


@dataclass(frozen=True, slots=True)
class WorkerPods:
    """The workers of a job as they are."""

    wanted: int
    pods: Mapping[int, Pod]
    """of workers that run, or are on their way"""
    alive: frozenset[int]
    """workers with an instance that obeys the driver"""
    revision: str
    """of a worker made now"""
    now: float = NEVER

    def old(self, k: int) -> bool:
        """Whether its pod is out of date."""
        return self.pods[k].annotations.get(names.REVISION) != self.revision

    def is_old(self, k: int) -> bool:
        """Whether there is one, and it is out of date."""
        return k in self.pods and self.old(k)

    def never_ran(self, k: int) -> bool:
        """Whether its pod is held up before its first start."""
        return self.pods[k].phase == "Pending" and bool(self.pods[k].problems) and k not in self.alive


def worker_pods(
    wanted: int, pods: Sequence[Pod], revision: str, status: Status | None, now: float = NEVER
) -> WorkerPods:
    """The workers, from their pods and what the driver says."""
    alive = frozenset(int(i.partition(".")[0]) for i in (status.alive if status is not None else []))
    return WorkerPods(wanted, {p.worker: p for p in pods if p.worker is not None}, alive, revision, now)


def plan_replacement(
    workers: WorkerPods, nodes: Mapping[str, KubeNode] | None, asked: Sequence[int] = (), in_place: bool = True
) -> RollingReplacement:
    """`asked`: workers that the user wants emptied, and kept as they are; `in_place`: what is made now has room where a
    worker of the spec before is."""
    kept = [k for k in asked if k < workers.wanted]
    leaving, without_surge = cordoned(workers, nodes), None
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


def cordoned(workers: WorkerPods, nodes: Mapping[str, KubeNode] | None) -> list[int]:
    """Workers on nodes that take no new pods, when there is another node that does.

    A pod that does not run yet was put there by a scheduler that knows better than a list of nodes made before; and if not,
    its eviction is not held up by anything.
    """
    closed = closed_nodes(nodes)
    return [
        k
        for k, pod in sorted(workers.pods.items())
        if pod.node in closed and pod.phase == "Running" and workers.now - pod.created >= SETTLED_SECONDS
    ]


def closed_nodes(nodes: Mapping[str, KubeNode] | None, first: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Nodes that take no new pods; none when there is no other node. `first`: which come first among too many."""
    if nodes is None or all(node.cordoned or node.silent_since is not None for node in nodes.values()):
        return ()
    return tuple(
        sorted((node.name for node in nodes.values() if node.cordoned), key=lambda name: (name not in first, name))
    )


def _next_old(workers: WorkerPods) -> int | None:
    """The worker that is to be replaced next: one at a time, and none while a new one does not come up."""
    if any(k < workers.wanted and k not in workers.alive and not workers.old(k) for k in workers.pods):
        return None
    return next((k for k in sorted(workers.pods) if workers.old(k) and k in workers.alive), None)


def _count(workers: WorkerPods, leaving: Sequence[int]) -> int:
    """How many workers there should be: the wanted ones, one for each that leaves, and for each that is away one
    surge worker that is there already."""
    count, missing = workers.wanted, sum(k in leaving for k in range(workers.wanted))
    while missing > 0 and count < WORKERS_MAX:
        missing -= count not in leaving
        count += 1
    away = sum(k not in leaving and k not in workers.alive for k in range(workers.wanted))
    while away > 0 and count in workers.alive and count in workers.pods and count not in leaving:
        away -= 1
        count += 1
    return count
