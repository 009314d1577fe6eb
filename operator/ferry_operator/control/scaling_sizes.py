"""The sizes that a job may have, and the share of their time that a load needs: values of the autoscaler. Pure."""

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
"""After so long what is measured is all of one load: a change is judged by what came after it, not by its beginning. Who
has a shorter cooldown prefers to be quick."""


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
    """'advise': the size stays, and what is judged is the one that was advised"""
    slots: int = 0
    """tasks that a worker brings with it; 0: none"""
    instances_max: int = 1
    """of a worker, by its cores; 1: their number stays as it is"""
    virtual_nodes: int = 1 << 15

    @property
    def lasting(self) -> float:
        """Seconds for which there has to be too little, before there is more."""
        return min(LASTING_SECONDS, self.cooldown)

    def sizes(self, instances: int) -> Iterator[Size]:
        """All that `spec.autoscale` allows, the smallest first. `instances`: of a worker now; they stay if cores lack."""
        several = range(1, self.instances_max + 1) if instances <= self.instances_max > 1 else (instances,)
        for workers in range(self.min, self.max + 1):
            for many in several:
                if self.max * many <= self.virtual_nodes:
                    yield Size(workers, many)


@dataclass(frozen=True, slots=True)
class Demand:
    """Useful time that the offered records need: seconds a second, of all tasks and of all instances."""

    tasks: float = 0.0
    instances: float = 0.0

    def share(self, size: Size, slots: int) -> float:
        """The share of the time of this many workers that the load needs; above 1: they are too few."""
        by_tasks = self.tasks / (slots * size.workers) if slots else 0.0
        return by_tasks + self.instances / (size.workers * size.instances)

    def times(self, factor: float) -> Demand:
        """So much more."""
        return Demand(self.tasks * factor, self.instances * factor)

    def most(self, other: Demand) -> Demand:
        """The greater of each."""
        return Demand(max(self.tasks, other.tasks), max(self.instances, other.instances))


def policy_for(spec: Spec, slots: int, instances_max: int) -> ScalingPolicy | None:
    """The policy of a job; None: no autoscaling. `slots`, `instances_max`: as in ScalingPolicy, where it runs."""
    one, nodes = spec.autoscale, spec.state.virtual_nodes
    if one.max is None:
        return None
    least = one.min if one.min is not None else min(one.max, spec.state.replicas + 1)
    return ScalingPolicy(least, one.max, one.share, one.cooldown.seconds, one.mode, slots, max(1, instances_max), nodes)
