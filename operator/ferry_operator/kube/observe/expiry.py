"""When a job that has ended is deleted, by `spec.ttlAfterFinished`. Pure."""

from __future__ import annotations

from ferry_operator.kube.observe.facts import Problem, when
from ferry_operator.kube.observe.view import JobView

KEPT = "KeptForItsState"


def expires_at(view: JobView) -> float | None:
    """The time at which the StreamJob is deleted; None: it is not deleted."""
    ttl, ended = _ttl(view), _ended_at(view)
    return None if ttl is None or ended is None or _has_only_state(view) else ended + ttl


def why_kept(view: JobView) -> Problem | None:
    """Why a job stays although its time is over."""
    ttl, ended = _ttl(view), _ended_at(view)
    if ttl is None or ended is None or view.seen.now < ended + ttl or not _has_only_state(view):
        return None
    text = "spec.ttlAfterFinished is over, and the job stays: its workers hold state, and it has no durable checkpoint"
    return Problem(KEPT, f"{text}; correct the job, or delete it")


def _ttl(view: JobView) -> float | None:
    """The time of the newest spec; None while it is refused: it may give another one."""
    job = view.effective.job
    if job is None or not view.effective.newest or job.spec.ttl_after_finished is None:
        return None
    return job.spec.ttl_after_finished.seconds


def _ended_at(view: JobView) -> float | None:
    if view.lifecycle.end is None or view.seen.deleting:
        return None
    driver = view.seen.driver
    if driver is not None and driver.ended is not None:
        return driver.ended.at
    ready = next((condition for condition in view.seen.before.conditions if condition.type == "Ready"), None)
    return None if ready is None else when(ready.last_transition_time)


def _has_only_state(view: JobView) -> bool:
    """Whether a failed job may have state that is nowhere else."""
    began = view.seen.last_epoch not in (None, -1)
    return view.lifecycle.end == "Failed" and began and view.seen.before.checkpoint is None
