"""The number of workers that the load needs: a pure function of measurements, as in DS2 (Kalavri et al., OSDI 2018, 3).

    true rate of a worker = records / its useful time          workers = offered rate / (true rate * utilisation), rounded up

The useful time of a worker is the time of its tasks per slot plus the time of its instances per instance: tasks and
instances take turns within an epoch, so the two add up. On one machine all workers share the slots of the job: only
instances count. A backlog may use all of the time: the share above `utilisation` is the reserve for it.

No clock, and no memory but `History`. An operator that starts without a history only waits one cooldown longer.

| rule | reason |
|---|---|
| more only if the load needs more than utilisation * (1 + BAND) for LASTING_SECONDS | noise and bursts change nothing |
| fewer only if they would have been enough with BAND to spare for the cooldown | the removed workers are not missed |
| of all sizes that are enough: the fewest workers, then the fewest instances per worker | free cores are used first |
| never fewer while the backlog grows, or while work and epoch overhead exceed utilisation | errors do no harm |
| not more while workers idle beside a backlog, or if the last scale-out did not help | the sinks may be the limit |
| no change while state moves, a member is missing, or measurements are too short | only a job at rest is judged |
| but bounds apply at once, and a worker that does not start may be removed | the job does not wait for it in vain |
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from ferry.contract.names import worker_of
from ferry.contract.work import WORK_SECONDS, WorkReport
from ferry_operator.control.observed import Observed
from ferry_operator.control.scaling_sizes import BAND, Demand, ScalingPolicy
from ferry_operator.job.models_autoscale import MESSAGE_MAX, AutoscaleReport, ScalingReason
from ferry_operator.job.size import Size

CHANGES = ("Bounds", "ScaleOut", "ScaleIn")
"""Reasons of a decision to change the size."""

IDLE = 0.5
"""Workers that are busy for less than this share of `utilisation` do not cause a backlog."""

AWAITED_SECONDS = 120.0
"""After this time a missing worker is not awaited any more: the cluster may have no room for it."""


@dataclass(frozen=True, slots=True)
class History:
    """State that one decision passes to the next."""

    actual: Size
    judged: Size
    """the actual size, or the advised size"""
    since: float
    high_since: float | None = None
    """time since when the load needs more than this size has"""
    low_since: float | None = None
    """time since when fewer workers would be enough"""
    peak: Demand = field(default_factory=Demand)
    """the greatest demand since `low_since`, without its first LASTING_SECONDS"""
    tried: tuple[Size, float] | None = None
    """the size of the last scale-out, and the records per second before it"""


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """A decision."""

    target: Size
    acts: bool
    """the size has to change now"""
    report: AutoscaleReport
    """the decision with all its inputs"""
    overruled: bool = False
    """another writer puts the size back: nothing is decided any more"""


class Hold(NamedTuple):
    """A reason not to judge the size."""

    why: str = ""
    """empty: the size is judged"""
    may: Literal["nothing", "bounds", "shrink"] = "bounds"
    """changes that are allowed all the same; 'shrink': bounds, and fewer workers"""


def held_up(observed: Observed) -> Hold:
    """The reason why the size cannot be judged at present."""
    status = observed.status
    if status is not None and status.finished:
        return Hold("all input was read", "nothing")
    if observed.plan_file is not None:  # The view drops a plan for another size.
        return Hold("the submitted plan is for this size: submit another plan, or cancel it", "nothing")
    if status is None:
        return Hold("no driver answers")
    if observed.drains:
        return Hold(f"workers {', '.join(map(str, observed.drains))} are emptied")
    running = sorted(worker.index for worker in observed.workers if worker.running)
    if len(running) != len(observed.workers) or running != observed.members():
        return Hold("workers come or go")
    if status.problems:
        return Hold(f"a failing action is tried again: {status.problems[0].reason}")
    if status.moves.prepared:
        return Hold(status.moves.prepared)
    if status.moves.rolled_back:
        return Hold(f"a plan was rolled back: {status.moves.rolled_back}")
    away = sorted({worker_of(i) for i in observed.missing})
    late = away and min(observed.missing.values()) >= AWAITED_SECONDS
    if away and not (late and away == observed.members()[-len(away) :] and len(away) < observed.wanted.size.workers):
        return Hold(f"{_workers(away)} awaited")
    if not status.settled or status.moves.members_gone or any(learners for _, learners in status.groups):
        return Hold("state is on its way")
    return Hold(f"{_workers(away)} awaited, and may be let go", "shrink") if away else Hold()


def _workers(indexes: list[int]) -> str:
    return f"worker {indexes[0]} is" if len(indexes) == 1 else f"workers {', '.join(map(str, indexes))} are"


def advise(
    policy: ScalingPolicy, size: Size, work: WorkReport | None, hold: Hold, history: History | None, now: float
) -> tuple[ScalingAdvice, History]:
    """The decision of one look, and the history for the next look.

    `size`: the requested size. `hold`: the result of `held_up`. `history`: None at the first look. `now`: in seconds.
    """
    if history is None or history.actual != size:
        tried = history.tried if history is not None and history.tried is not None else None
        history = History(size, size, now, tried=tried if tried is not None and tried[0] == size else None)
    history = _not_after(history, now)
    at = size if policy.mode == "auto" else history.judged
    bounded = Size(min(max(at.workers, policy.min), policy.max), at.instances)
    judged = bounded == at and (not hold.why or hold.may == "shrink")
    demand = _demand(work, policy) if judged else None
    history = _remember(policy, history, at, demand, work, now)
    reason: ScalingReason
    if hold.may == "nothing" or (hold.why and bounded == at and not judged):
        reason, target = "Waiting", at
    elif bounded != at:
        reason, target = "Bounds", bounded
    elif demand is None or work is None:
        reason, target = "NotMeasured", at
    else:
        reason, target = _judge(policy, at, demand, work, history, now)
    if hold.why and reason not in ("Bounds", "ScaleIn", "LoadIsLow"):
        reason, target, history = "Waiting", at, replace(history, high_since=None)
    report = _Decision(policy, at, target, reason, hold.why, work, demand).report(history, now)
    acts = policy.mode == "auto" and reason in CHANGES
    if policy.mode == "advise" and reason in CHANGES:
        history = History(size, target, now)
    elif reason == "ScaleOut" and work is not None:
        history = replace(history, tried=(target, work.records_per_second))
    return ScalingAdvice(target, acts, report), history


def overruled(policy: ScalingPolicy, size: Size, why: str, now: float) -> ScalingAdvice:
    """The decision to keep the size, because another writer puts it back; `why` names the writer."""
    report = _Decision(policy, size, size, "Waiting", why, None, None).report(History(size, size, now), now)
    return ScalingAdvice(size, False, report, overruled=True)


def _not_after(history: History, now: float) -> History:
    """The history with no time after `now`: a clock may be set back."""
    high, low = (None if at is None else min(at, now) for at in (history.high_since, history.low_since))
    return replace(history, since=min(history.since, now), high_since=high, low_since=low)


def _demand(work: WorkReport | None, policy: ScalingPolicy) -> Demand | None:
    """The time of workers that the arriving records need; None: not known."""
    if work is None or work.seconds < WORK_SECONDS:
        return None
    used, done = Demand(work.tasks, work.instances), work.records_per_second
    backlog = work.backlog or 0
    if done <= 0:
        return None if backlog > 0 else used
    catching_up = (work.arriving_per_second + backlog / policy.cooldown) * policy.utilisation
    return used.times(max(work.arriving_per_second, catching_up) / done)


def _enough(policy: ScalingPolicy, at: Size, demand: Demand, more: bool) -> Size:
    """The smallest size that is enough, else the greatest.

    `more`: only sizes with at least as many instances per worker as `at`; else at most as many.
    """
    sizes = [
        s for s in policy.sizes(at.instances) if (s.instances >= at.instances if more else s.instances <= at.instances)
    ]
    fitting = (size for size in sizes if demand.share(size, policy.slots) <= policy.utilisation)
    return next(fitting, sizes[-1] if sizes else at)


def _may_shrink(policy: ScalingPolicy, at: Size, work: WorkReport | None) -> bool:
    """Whether the backlog does not grow, and work with the overhead of epochs stays below `utilisation`."""
    grows = work is not None and bool(work.backlog) and work.arriving_per_second > work.records_per_second * (1 + BAND)
    return work is not None and not grows and _all_work(work).share(at, policy.slots) <= policy.utilisation


def _all_work(work: WorkReport) -> Demand:
    """Useful time plus the overhead of epochs."""
    return Demand(work.tasks + work.epochs - work.instance_epochs, work.instances + work.instance_epochs)


def _remember(
    policy: ScalingPolicy, history: History, at: Size, demand: Demand | None, work: WorkReport | None, now: float
) -> History:
    """The history with the times since when the size is too small, or too large; an unknown demand resets both."""
    high, low, peak, tried = history.high_since, history.low_since, history.peak, history.tried
    share = 0.0 if demand is None else demand.share(at, policy.slots)
    if share <= policy.utilisation * (1 + BAND if high is None else 1.0):
        high, tried = None, tried if demand is None else None
    elif high is None:
        high = now
    fewer = demand is not None and _enough(policy, at, demand.times(1 + BAND), more=False).workers < at.workers
    if demand is None or not fewer or not _may_shrink(policy, at, work):
        low, peak = None, Demand()
    elif low is None:
        low = now
    elif now - low >= policy.lasting:
        peak = peak.most(demand)
    return replace(history, high_since=high, low_since=low, peak=peak, tried=tried)


def _judge(
    policy: ScalingPolicy, at: Size, demand: Demand, work: WorkReport, history: History, now: float
) -> tuple[ScalingReason, Size]:
    rested = now - history.since >= policy.cooldown
    if history.high_since is not None:
        target = _enough(policy, at, demand, more=True)
        if now - history.high_since < policy.lasting:
            return "Cooldown", at
        if _is_limited_elsewhere(policy, work, history):
            return "NotLimitedByWorkers", at
        if demand.share(target, policy.slots) >= demand.share(at, policy.slots):
            return "AtMaximum", at
        return ("ScaleOut", target) if rested else ("Cooldown", at)
    if history.low_since is None:
        return "Fits", at
    if rested and now - history.low_since >= policy.cooldown + policy.lasting:
        target = _enough(policy, at, history.peak.times(1 + BAND), more=False)
        return ("ScaleIn", target) if target.workers < at.workers else ("LoadIsLow", at)
    return "LoadIsLow", at


def _is_limited_elsewhere(policy: ScalingPolicy, work: WorkReport, history: History) -> bool:
    """Whether records wait although workers idle, or although the last scale-out did not raise the records per second."""
    if not work.backlog:
        return False
    if _all_work(work).share(history.actual, policy.slots) < policy.utilisation * IDLE:
        return True
    tried = history.tried
    return tried is not None and tried[0] == history.actual and work.records_per_second <= tried[1] * (1 + BAND)


@dataclass(frozen=True, slots=True)
class _Decision:
    """A decision with its inputs, for the report."""

    policy: ScalingPolicy
    at: Size
    target: Size
    reason: ScalingReason
    held: str
    work: WorkReport | None
    demand: Demand | None

    def report(self, history: History, now: float) -> AutoscaleReport:
        work, policy, low = self.work, self.policy, history.low_since
        return AutoscaleReport(
            mode=policy.mode,
            reason=self.reason,
            message=self._words()[:MESSAGE_MAX],
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
            size_seconds=round(max(now - history.since, 0.0), 1),
            low_seconds=0.0 if low is None else round(max(now - low, 0.0), 1),
            cooldown_seconds=policy.cooldown,
        )

    def _used(self) -> float | None:
        return None if self.demand is None else self.demand.share(self.at, self.policy.slots)

    def _true_rate(self) -> float | None:
        """Records of one worker per second of its useful time."""
        if self.work is None:
            return None
        worker, used = Size(1, self.at.instances), Demand(self.work.tasks, self.work.instances)
        useful = used.share(worker, self.policy.slots)
        return self.work.records_per_second / useful if useful > 0 else None

    def _words(self) -> str:
        """The decision with its inputs."""
        at, policy, work, used, rate = self.at, self.policy, self.work, self._used(), self._true_rate()
        if self.reason == "Waiting":
            return f"nothing is decided: {self.held}"
        if self.reason == "Bounds":
            return f"{at} -> {self.target} workers x instances: the bounds are {policy.min} to {policy.max} workers"
        if work is None or used is None:
            return "nothing is decided: the demand of the load is not known yet"
        waiting = "" if work.backlog is None else f", {work.backlog:,} wait"
        most = "" if rate is None else f"; a worker can process {rate:,.0f}/s at most"
        load = (
            f"{work.arriving_per_second:,.0f} records/s arrive{waiting}{most}; that needs {used:.0%} of the time of {at} "
            f"workers x instances, and the target is {policy.utilisation:.0%}"
        )
        texts = {
            "ScaleOut": f"{at} -> {self.target}: {load}",
            "ScaleIn": f"{at} -> {self.target}: {load}; fewer workers would have been enough for {policy.cooldown:g} s",
            "Cooldown": f"more workers come if the need lasts, once this size is {policy.cooldown:g} s old: {load}",
            "LoadIsLow": f"fewer workers would be enough; some go if that lasts for {policy.cooldown:g} s: {load}",
            "NotLimitedByWorkers": f"records wait, but workers are not the limit; sinks, `maxRows` or skew may be: {load}",
            "AtMaximum": f"more workers are needed, but spec.autoscale allows no more: {load}",
        }
        return texts.get(self.reason, load)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
