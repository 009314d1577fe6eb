"""The status of a job, from one view of the job and the previous status. Pure; the time is an argument.

The transition time of a condition changes only with its status. Counters change all the time, and are written rarely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ferry.contract.names import InstanceId, worker_of
from ferry.contract.settings import NOTHING
from ferry.contract.status import CheckpointStatus, Status
from ferry_operator.job.status import (
    MESSAGE_MAX,
    NAME_MAX,
    REASON_MAX,
    BalanceReport,
    CheckpointReport,
    Condition,
    JobStatus,
    Phase,
    ProgressReport,
)
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.effective_spec import version_of
from ferry_operator.kube.observe.facts import Problem, stamp, when
from ferry_operator.kube.observe.readiness import ready
from ferry_operator.kube.observe.suspension import Stage, asked
from ferry_operator.kube.observe.view import JobView
from ferry_operator.kube.report.conditions import all_problems, conditions, event_problems, intended, moving
from ferry_operator.kube.report.program import program_report
from ferry_operator.kube.report.transport import transport_status
from ferry_operator.kube.report.untimed import UntimedCondition
from ferry_operator.kube.steps import Step

COUNTERS = ("epoch", "progress", "autoscale")
"""Fields that change with every observation."""

COUNTERS_SECONDS, COUNTERS_SECONDS_MAX = 5.0, 180.0
"""Maximum age of counters while no other field changes: of few jobs, and of many."""

WRITES_MAX = 8.0
"""Maximum writes per second for counters, of all jobs together: each write costs the API server."""

RESULTS = ("checkpoint", "balance")
"""Fields that change rarely, and that users wait for."""

RESULTS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A new status, the previous status, and facts for events."""

    status: JobStatus
    before: JobStatus
    handover_seconds: float | None = None
    """length of a handover that ended with this observation"""
    problems: tuple[Problem, ...] = ()
    """problems for events"""
    restored: str | None = None
    """the checkpoint from which the run began, only with the first finished epoch of the run"""

    def patience(self, jobs: int) -> float | None:
        """Seconds between the last write and this write, by the number of jobs; None: the status has not changed."""
        if self.status == self.before:
            return None
        first = self.before.epoch in (None, -1) and self.status.epoch not in (None, -1)
        if first or not self._differs_only_in(*COUNTERS, *RESULTS):
            return 0.0
        if not self._differs_only_in(*COUNTERS):
            return RESULTS_SECONDS
        return min(max(jobs / WRITES_MAX, COUNTERS_SECONDS), COUNTERS_SECONDS_MAX)

    def _differs_only_in(self, *fields: str) -> bool:
        """Whether no other fields have changed."""
        return self.status.model_copy(update={name: getattr(self.before, name) for name in fields}) == self.before


def report(view: JobView, steps: Sequence[Step], token: int, image: str) -> StatusReport:
    """The status after this observation, and before its steps; `image`: the default image."""
    seen, before = view.seen, view.seen.before
    problems = all_problems(view)
    untimed = conditions(view, steps, problems)
    generation = int(seen.job["metadata"].get("generation") or 0)
    timed = tuple(_with_times(condition, before, generation, seen.now) for condition in untimed)
    status, job, took = seen.status, view.effective.job, _handover_seconds(untimed, before, seen.now)
    new = JobStatus(
        observed_generation=generation,
        phase=_phase(view, untimed),
        desired=job.spec.workers if job is not None and not asked(seen.job) else 0,
        workers=_workers(view),
        selector=names.workers_selector(seen.name),
        moving=moving(view),
        epoch=seen.epoch,
        progress=_progress(view, status) if status is not None else before.progress,
        last_handover=duration(took) if took is not None else before.last_handover,
        last_handover_seconds=round(took, 1) if took is not None else before.last_handover_seconds,
        intended=(intended(steps) or "")[:MESSAGE_MAX] or None,
        generation=status.generation if status is not None else before.generation,
        token=token,
        run=seen.run,
        version=version_of(job, image) if job is not None else None,
        transport=transport_status(status.transport, job.spec)
        if status is not None and job is not None
        else before.transport,
        checkpoint=_checkpoint(status.checkpoint, before.checkpoint) if status is not None else before.checkpoint,
        autoscale=view.advice.report if view.advice is not None else None,
        program=program_report(view) or before.program,
        balance=_balance(view),
        memory=before.memory,
        conditions=timed,
    )
    return StatusReport(new, before, took, event_problems(problems), _restored(view, new, before))


def _restored(view: JobView, now: JobStatus, before: JobStatus) -> str | None:
    if view.effective.job is None or now.epoch in (None, -1) or before.epoch not in (None, -1):
        return None
    origin = view.seen.memory.restore_from(view.effective.job.spec.restore_from)
    return None if origin == NOTHING else origin


def _with_times(untimed: UntimedCondition, before: JobStatus, generation: int, now: float) -> Condition:
    old = before.condition(untimed.type)
    since = old.last_transition_time if old is not None and old.status == untimed.status else stamp(now)
    return Condition(
        type=untimed.type,
        status=untimed.status,
        reason=untimed.reason,
        message=untimed.message[:MESSAGE_MAX],
        last_transition_time=since,
        observed_generation=generation,
    )


def _phase(view: JobView, untimed: Sequence[UntimedCondition]) -> Phase:
    truth = {condition.type: condition.status == "True" for condition in untimed}
    if view.seen.deleting:
        return "Deleting"
    if view.lifecycle.end is not None:
        return view.lifecycle.end
    if view.stage is Stage.SUSPENDED:
        return "Suspended"
    if view.effective.job is None:
        return "Failed"
    if view.suspending:
        return "Suspending"
    if not truth["Ready"]:
        driver = view.seen.driver
        if view.seen.before.phase in ("Running", "Moving", "Degraded"):
            return "Degraded"
        starts = driver is not None and driver.ended is None and driver.phase == "Running"
        return "Starting" if starts else "Pending"
    if truth["Degraded"]:
        return "Degraded"
    return "Moving" if truth["Handover"] else "Running"


def _progress(view: JobView, status: Status) -> ProgressReport:
    seen, lag, state = view.seen, _lag(view, status), sum(size for _, size in status.load.vnodes)
    return ProgressReport(
        lag=None if lag is None else duration(lag),
        lag_seconds=None if lag is None else round(lag, 1),
        state=_size(state),
        state_bytes=int(state),
        rows=seen.counted.progress.rows if seen.counted is not None else seen.before.progress.rows,
        replica_lag=_epochs(status.moves.replica_lag),
        replica_lag_epochs=status.moves.replica_lag,
        epoch_mode=status.progress.epoch_mode[:REASON_MAX] or None,
    )


def _checkpoint(now: CheckpointStatus | None, before: CheckpointReport | None) -> CheckpointReport | None:
    """The last checkpoint of the job: the previous status has it while the present driver has taken none."""
    if now is None or now.number is None:
        return before
    return CheckpointReport(
        number=now.number,
        name=now.name[:NAME_MAX] if now.name else None,
        epoch=now.epoch,
        at=None if now.at is None else stamp(now.at),
        bytes=now.bytes,
        total_bytes=now.total_bytes,
    )


def _balance(view: JobView) -> BalanceReport | None:
    """The balance of the load. It contains a move once the move has been worth its cost for a while."""
    observed = view.observed
    if observed is None or observed.advice is None:
        return None
    ratio, ripe = round(observed.advice.before, 2), observed.ripe
    if ripe is None:
        return BalanceReport(imbalance=f"{ratio:.2f}", imbalance_ratio=ratio)
    return BalanceReport(
        imbalance=f"{ratio:.2f}",
        imbalance_ratio=ratio,
        possible=f"{ripe.after:.2f}",
        possible_ratio=round(ripe.after, 2),
        advice=ripe.reason,
    )


def _workers(view: JobView) -> int:
    """Number of workers with state; while no driver answers, the previous number."""
    status = view.seen.status
    if status is None:
        return view.seen.before.workers if view.seen.workers else 0
    return len({worker_of(InstanceId(i)) for in_sync, _ in status.groups for i in in_sync})


def _handover_seconds(untimed: Sequence[UntimedCondition], before: JobStatus, now: float) -> float | None:
    """Length of a handover that ended with this observation; None for no such handover."""
    old = before.condition("Handover")
    new = next(condition for condition in untimed if condition.type == "Handover")
    if old is None or old.status != "True" or new.reason != "Settled":
        return None
    since = when(old.last_transition_time)
    return None if since is None else max(0.0, now - since)


def _lag(view: JobView, status: Status) -> float | None:
    """Seconds of the watermark behind the clock."""
    watermark = status.progress.watermark
    return max(0.0, view.seen.now - watermark / 1000) if watermark is not None and ready(view) else None


def duration(seconds: float) -> str:
    """A length of time in a few characters."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.1f}s"


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def _size(count: float) -> str:
    """A number of bytes in a few characters."""
    for unit in ("", "Ki", "Mi", "Gi"):
        if count < 10_000:
            return f"{count:.0f}{unit}"
        count /= 1024
    return f"{count:.0f}Ti"


def replacing(before: Doc, now: Doc) -> Doc:
    """The merge patch from one document to the other; it removes missing fields at every depth."""
    gone: Doc = {key: None for key in before if key not in now}
    kept = {
        key: replacing(before.get(key) or {}, value) if isinstance(value, dict) else value for key, value in now.items()
    }
    return {**gone, **kept}
