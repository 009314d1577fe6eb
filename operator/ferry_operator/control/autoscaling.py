"""How many workers the load needs: a pure function of what was measured, as in DS2 (Kalavri et al., OSDI 2018, section 3).

    true rate of a worker = records / its useful time          workers = offered rate / (true rate * utilisation), rounded up

A worker's useful time is that of its tasks, over its slots, and that of its instances, over these: the two take
turns within an epoch, so they add up. On one machine the slots are the job's, whatever the workers: only instances count.
A backlog may use all of the time, not only the share `utilisation`: what is left of it is there for that.

No clock, and no memory but `History`, which a new operator may begin without: it waits a cooldown longer, that is all.

| rule | so that |
|---|---|
| more only when it needs more than utilisation * (1 + BAND), for LASTING_SECONDS | noise and short bursts change nothing |
| fewer only when they would have been enough with BAND to spare, for all of the cooldown | what goes is not missed |
| of all sizes that are enough: the fewest workers, then the fewest instances of each | cores that are free are used first |
| nothing while state moves, somebody is away, or too little was measured | only what is at rest is judged |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from ferry.contract.documents import WORK_SECONDS, WorkReport
from ferry_operator.control.decide import Observed
from ferry_operator.job.models import Spec
from ferry_operator.job.models_autoscale import AutoscaleReport, ScalingReason

BAND = 0.1
"""Half of the hysteresis, as a share of the load: with noise of 9 % either way a constant load changes nothing twice."""

LASTING_SECONDS = 2 * WORK_SECONDS
"""After so long what is measured is all of one load: a change is judged by what came after it, not by its beginning. Who
has a shorter cooldown prefers to be quick."""

CHANGES = ("Bounds", "ScaleOut", "ScaleIn")
"""Reasons with which the size is to be another one."""


@dataclass(frozen=True, slots=True, order=True)
class ClusterSize:
    """So many workers, with so many instances each."""

    workers: int
    instances: int

    def __str__(self) -> str:
        return f"{self.workers} x {self.instances}"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """What sizes there may be, and when."""

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

    def sizes(self, instances: int) -> Iterator[ClusterSize]:
        """All that `spec.autoscale` allows, the smallest first. `instances`: of a worker now."""
        several = range(1, self.instances_max + 1) if self.instances_max > 1 else (instances,)
        for workers in range(self.min, self.max + 1):
            for many in several:
                if self.max * many <= self.virtual_nodes:
                    yield ClusterSize(workers, many)


@dataclass(frozen=True, slots=True)
class Demand:
    """Useful time that the offered records need: seconds a second, of all tasks and of all instances."""

    tasks: float = 0.0
    instances: float = 0.0

    def share(self, size: ClusterSize, slots: int) -> float:
        """Of the time of workers of this size; above 1: they are not enough."""
        by_tasks = self.tasks / (slots * size.workers) if slots else 0.0
        return by_tasks + self.instances / (size.workers * size.instances)

    def times(self, factor: float) -> Demand:
        """So much more."""
        return Demand(self.tasks * factor, self.instances * factor)

    def most(self, other: Demand) -> Demand:
        """The greater of each."""
        return Demand(max(self.tasks, other.tasks), max(self.instances, other.instances))


@dataclass(frozen=True, slots=True)
class History:
    """What one decision leaves for the next one."""

    actual: ClusterSize
    judged: ClusterSize
    """the actual one, or the one that was advised"""
    since: float
    high_since: float | None = None
    """since when more is needed than there is"""
    low_since: float | None = None
    """since when fewer workers would be enough"""
    peak: Demand = field(default_factory=Demand)
    """the most that was needed in that time, but for its first LASTING_SECONDS"""


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """What was decided."""

    target: ClusterSize
    acts: bool
    """the size is to be changed now"""
    report: AutoscaleReport
    """with all inputs"""


def policy_for(spec: Spec, slots: int, instances_max: int) -> ScalingPolicy | None:
    """What a job wants; None: no autoscaling. `slots`, `instances_max`: as in ScalingPolicy, where it runs."""
    one, nodes = spec.autoscale, spec.state.virtual_nodes
    if one.max is None:
        return None
    return ScalingPolicy(
        one.min, one.max, one.share, one.cooldown.seconds, one.mode, slots, max(1, instances_max), nodes
    )


def held_up(observed: Observed) -> str:
    """Why nothing can be said of the size at present; empty: it can."""
    status = observed.status
    if status is None:
        return "no driver answers"
    if status.finished:
        return "all input was read"
    if observed.drains:
        return f"workers {', '.join(map(str, observed.drains))} are emptied"
    running = sorted(worker.index for worker in observed.workers if worker.running)
    if observed.missing or len(running) != len(observed.workers) or running != list(range(observed.wanted.workers)):
        return "workers come or go"
    if status.prepared:
        return status.prepared
    if status.rolled_back:
        return f"a plan was rolled back: {status.rolled_back}"
    if not status.settled or status.members_gone or any(learners for _, learners in status.groups):
        return "state is on its way"
    return ""


def advise(
    policy: ScalingPolicy, size: ClusterSize, work: WorkReport | None, held: str, history: History | None, now: float
) -> tuple[ScalingAdvice, History]:
    """The decision of one look, and what the next one is to be told.

    `size`: what is asked for at present. `held`: as `held_up` says. `history`: None at the first look. `now`: in seconds.
    """
    if history is None or history.actual != size:
        history = History(size, size, now)
    at = size if policy.mode == "auto" else history.judged
    bounded = ClusterSize(min(max(at.workers, policy.min), policy.max), at.instances)
    demand = None if held or bounded != at else _demand(work, policy)
    history = _remember(history, at, demand, policy, now)
    reason: ScalingReason
    if held:
        reason, target = "Waiting", at
    elif bounded != at:
        reason, target = "Bounds", bounded
    elif demand is None:
        reason, target = "NotMeasured", at
    else:
        reason, target = _judge(policy, at, demand, history, now)
    report = _Decision(policy, at, target, reason, held, work, demand).report(history, now)
    acts = policy.mode == "auto" and reason in CHANGES
    if policy.mode == "advise" and reason in CHANGES:
        history = History(size, target, now)
    return ScalingAdvice(target, acts, report), history


def _demand(work: WorkReport | None, policy: ScalingPolicy) -> Demand | None:
    """What the offered records need; None: not known."""
    if work is None or work.seconds < WORK_SECONDS:
        return None
    used, done = Demand(work.tasks, work.instances), work.records_per_second
    backlog = work.backlog or 0
    if done <= 0:
        return None if backlog > 0 else used
    catching_up = (work.arriving_per_second + backlog / policy.cooldown) * policy.utilisation
    return used.times(max(work.arriving_per_second, catching_up) / done)


def _enough(policy: ScalingPolicy, at: ClusterSize, demand: Demand, more: bool) -> ClusterSize:
    """The smallest size that is enough, else the greatest one; of at least as many instances, or at most as many."""
    sizes = [
        s for s in policy.sizes(at.instances) if (s.instances >= at.instances if more else s.instances <= at.instances)
    ]
    fitting = (size for size in sizes if demand.share(size, policy.slots) <= policy.utilisation)
    return next(fitting, sizes[-1] if sizes else at)


def _is_high(policy: ScalingPolicy, at: ClusterSize, demand: Demand) -> bool:
    return demand.share(at, policy.slots) > policy.utilisation * (1 + BAND)


def _remember(history: History, at: ClusterSize, demand: Demand | None, policy: ScalingPolicy, now: float) -> History:
    """With since when there is too little, or too much; what is not known breaks it off."""
    high, low, peak = history.high_since, history.low_since, history.peak
    if demand is None or not _is_high(policy, at, demand):
        high = None
    elif high is None:
        high = now
    if demand is None or _enough(policy, at, demand.times(1 + BAND), more=False).workers >= at.workers:
        low, peak = None, Demand()
    elif low is None:
        low = now
    elif now - low >= policy.lasting:
        peak = peak.most(demand)
    return replace(history, high_since=high, low_since=low, peak=peak)


def _judge(
    policy: ScalingPolicy, at: ClusterSize, demand: Demand, history: History, now: float
) -> tuple[ScalingReason, ClusterSize]:
    rested = now - history.since >= policy.cooldown
    if history.high_since is not None:
        target = _enough(policy, at, demand, more=True)
        if demand.share(target, policy.slots) >= demand.share(at, policy.slots):
            return "AtMaximum", at
        lasts = now - history.high_since >= policy.lasting
        return ("ScaleOut", target) if rested and lasts else ("Cooldown", at)
    if history.low_since is None:
        return "Fits", at
    if rested and now - history.low_since >= policy.cooldown + policy.lasting:
        target = _enough(policy, at, history.peak.times(1 + BAND), more=False)
        return ("ScaleIn", target) if target.workers < at.workers else ("LoadIsLow", at)
    return "LoadIsLow", at


@dataclass(frozen=True, slots=True)
class _Decision:
    """What was decided, for people and programs."""

    policy: ScalingPolicy
    at: ClusterSize
    target: ClusterSize
    reason: ScalingReason
    held: str
    work: WorkReport | None
    demand: Demand | None

    def report(self, history: History, now: float) -> AutoscaleReport:
        work, policy, low = self.work, self.policy, history.low_since
        return AutoscaleReport(
            mode=policy.mode,
            reason=self.reason,
            message=self._words(),
            workers=self.target.workers,
            min=policy.min,
            max=policy.max,
            instances_per_worker=self.target.instances,
            measured_seconds=None if work is None else round(work.seconds, 1),
            records_per_second=None if work is None else round(work.records_per_second, 1),
            arriving_per_second=None if work is None else round(work.arriving_per_second, 1),
            backlog=None if work is None else work.backlog,
            busy_tasks=None if work is None else round(work.tasks, 4),
            busy_instances=None if work is None else round(work.instances, 4),
            busy_epochs=None if work is None else round(work.epochs, 4),
            true_rate=_rounded(self._true_rate(), 1),
            used=_rounded(self._used(), 4),
            target=policy.utilisation,
            size_seconds=round(now - history.since, 1),
            low_seconds=0.0 if low is None else round(now - low, 1),
            cooldown_seconds=policy.cooldown,
        )

    def _used(self) -> float | None:
        return None if self.demand is None else self.demand.share(self.at, self.policy.slots)

    def _true_rate(self) -> float | None:
        """Records per second of useful time of one worker."""
        if self.work is None:
            return None
        one, used = ClusterSize(1, self.at.instances), Demand(self.work.tasks, self.work.instances)
        useful = used.share(one, self.policy.slots)
        return self.work.records_per_second / useful if useful > 0 else None

    def _words(self) -> str:
        """The decision with its inputs."""
        at, policy, work, used, rate = self.at, self.policy, self.work, self._used(), self._true_rate()
        if self.reason == "Waiting":
            return f"nothing is decided: {self.held}"
        if self.reason == "Bounds":
            return f"{at} -> {self.target} workers x instances: there are {policy.min} to {policy.max} workers"
        if work is None or used is None:
            return "nothing is decided: what the load needs is not known yet"
        waiting = "" if work.backlog is None else f", {work.backlog:,} wait"
        most = "" if rate is None else f"; a worker can work on {rate:,.0f}/s at most"
        load = (
            f"{work.arriving_per_second:,.0f} records/s arrive{waiting}{most}; that needs {used:.0%} of the time of {at} "
            f"workers x instances, and may need {policy.utilisation:.0%}"
        )
        what = {
            "ScaleOut": f"{at} -> {self.target}: {load}",
            "ScaleIn": f"{at} -> {self.target}: {load}; fewer have been enough for {policy.cooldown:g} s",
            "Cooldown": f"more are needed, if that lasts, once this size is {policy.cooldown:g} s old: {load}",
            "LoadIsLow": f"fewer would be enough, and will be if that lasts for {policy.cooldown:g} s: {load}",
            "AtMaximum": f"more are needed than there may be: {load}",
        }
        return what.get(self.reason, load)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
