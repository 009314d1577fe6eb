"""Values of the autoscaler: the sizes that a job may have, and the share of their time that a load needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ferry.contract.work import WORK_SECONDS
from ferry_operator.job.models import Spec
from ferry_operator.job.size import Size

BAND = 0.1
"""Half of the hysteresis, as a share of the load: with noise of 9 % either way a constant load changes nothing twice."""

LASTING_SECONDS = 2 * WORK_SECONDS
"""Time after which all measurements are of one load, so that a change of the load is judged without its beginning. A job
with a shorter cooldown prefers to react quickly."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The sizes that the autoscaler may choose, and its waits."""

    min: int
    max: int
    utilisation: float
    """in (0, 1]"""
    cooldown: float
    """seconds"""
    mode: Literal["advise", "auto"] = "auto"
    """'advise': the size stays, and the advised size is judged"""
    slots: int = 0
    """slots for tasks that each worker adds; 0: workers add none"""
    instances_max: int = 1
    """most instances of a worker, by its cores; 1: the number of instances does not change"""
    virtual_nodes: int = 1 << 15

    @property
    def lasting(self) -> float:
        """Seconds for which a size has to be too small before it grows."""
        return min(LASTING_SECONDS, self.cooldown)

    def sizes(self, instances: int) -> Iterator[Size]:
        """The sizes that `spec.autoscale` allows, the smallest first. `instances`: of a worker now, kept if cores lack."""
        several = range(1, self.instances_max + 1) if instances <= self.instances_max > 1 else (instances,)
        for workers in range(self.min, self.max + 1):
            for per_worker in several:
                if self.max * per_worker <= self.virtual_nodes:
                    yield Size(workers, per_worker)


@dataclass(frozen=True, slots=True)
class Demand:
    """Useful time that the arriving records need, in seconds per second, of all tasks and of all instances."""

    tasks: float = 0.0
    instances: float = 0.0

    def share(self, size: Size, slots: int) -> float:
        """The share of the time of this size that the load needs; above 1: the size is too small."""
        by_tasks = self.tasks / (slots * size.workers) if slots else 0.0
        return by_tasks + self.instances / (size.workers * size.instances)

    def times(self, factor: float) -> Demand:
        """The demand of a load that is this many times as large."""
        return Demand(self.tasks * factor, self.instances * factor)

    def most(self, other: Demand) -> Demand:
        """The maximum of both demands, for tasks and for instances."""
        return Demand(max(self.tasks, other.tasks), max(self.instances, other.instances))


def policy_for(spec: Spec, slots: int, instances_max: int) -> ScalingPolicy | None:
    """The policy of a job; None: no autoscaling. `slots`, `instances_max`: of its workers, as in ScalingPolicy."""
    scale, nodes = spec.autoscale, spec.state.virtual_nodes
    if scale.max is None:
        return None
    least = scale.min if scale.min is not None else min(scale.max, spec.state.replicas + 1)
    cooldown, most = scale.cooldown.seconds, max(1, instances_max)
    return ScalingPolicy(least, scale.max, scale.share, cooldown, scale.mode, slots, most, nodes)
