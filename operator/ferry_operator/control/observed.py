"""The input of `decide`: one look at a job, the same on a laptop and on a cluster. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ferry.contract.names import InstanceId
from ferry.contract.plans import Plan
from ferry.contract.status import Status
from ferry_operator.control.balancing import Advice, BalancePolicy
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.size import Size
from ferry_operator.placement.strategies import HandoverPolicy

Due = tuple[int, int | None]
"""The epoch, and the event time in milliseconds, before which a plan must not begin."""

AT_ONCE: Due = (0, None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The fields of the spec that decide where state is."""

    size: Size
    replicas: int
    handover: HandoverPolicy = field(default_factory=HandoverPolicy)
    balance: BalancePolicy = field(default_factory=BalancePolicy)
    bandwidth: int = 0
    """bytes a second that the copies of one instance may use; 0: no bound"""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that runs, or that is down and still has state."""

    index: int
    instances: int
    """the last requested number of its instances"""
    running: bool
    failures: int = 0
    """consecutive ends soon after a start"""
    seconds: float = 0.0
    """since it started (running) or ended (not running)"""
    node: str = "local"
    capacity: float = 1.0
    """capacity of each of its instances, relative to instances of other workers; > 0"""
    state_bytes: int | None = None
    """bytes for the state of all its instances; None: not known"""


@dataclass(frozen=True, slots=True)
class Basis:
    """The input of a placement: the placement stays in force while its basis is the same."""

    usable: tuple[InstanceId, ...]
    replicas: int
    pins: tuple[tuple[int, InstanceId], ...]
    at_window: tuple[int, ...] = ()
    """pinned virtual nodes that move at the boundary of a window"""
    plan_file: str = ""
    """name of the plan file with the placements; empty: the planner made the placements"""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The last plan that a driver accepted, or read from the journal."""

    plan: Plan
    generation: int
    basis: Basis

    @property
    def due(self) -> Due:
        """The earliest begin of the plan."""
        return self.plan.at_epoch, self.plan.at_time


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at a job."""

    wanted: Wanted
    workers: tuple[Worker, ...]
    driver: bool
    """a driver is running"""
    driver_may_start: bool = True
    """False during back-off, and while the job ends"""
    status: Status | None = None
    """None while no driver answers"""
    submitted: Submitted | None = None
    drains: tuple[int, ...] = ()
    """workers to empty; the workers keep running"""
    gaps: tuple[int, ...] = ()
    """numbers that no worker has, below the highest worker"""
    pins: tuple[tuple[int, InstanceId], ...] = ()
    """(virtual node, its wanted leader)"""
    at_window: tuple[int, ...] = ()
    """pinned virtual nodes that move at the boundary of a window"""
    missing: Mapping[InstanceId, float] = field(default_factory=dict)
    """by expected instance: seconds since the instance was last alive, or since the spec wants it"""
    plan_file: PlanFile | None = None
    """the plan file that a user has submitted"""
    advice: Advice | None = None
    """the result of `decide.advice` for this look, or for a recent look"""
    uneven: float = 0.0
    """seconds for which every advice was worth a move"""

    @property
    def ripe(self) -> Advice | None:
        """The advice if it has been worth a move long enough to be shown or followed, else None."""
        return self.advice if self.uneven >= self.wanted.balance.ripe else None

    def members(self) -> list[int]:
        """The wanted workers."""
        return self.wanted.size.members(self.gaps)

    def expected(self) -> list[InstanceId]:
        """Instances that should hold state: all of wanted workers that are not drained, sorted by worker and index."""
        return self.wanted.size.instance_ids(self.drains, self.gaps)

    def plan_file_for(self, usable: tuple[InstanceId, ...]) -> PlanFile | None:
        """The submitted plan file, if it is for these instances. A plan with a date cannot be the first plan of a job."""
        file, status = self.plan_file, self.status
        if file is None or status is None or (file.instances, file.replicas) != (usable, self.wanted.replicas):
            return None
        first = self.submitted is None and status.desired == 0
        return file if len(file.placements) == len(status.groups) and not (first and file.policy.has_date) else None
