"""Seconds until the next reconcile of a job. Pure."""

from __future__ import annotations

from ferry.contract.backoff import back_off
from ferry_operator.kube.observe.expiry import expires_at
from ferry_operator.kube.observe.program import is_answered
from ferry_operator.kube.observe.suspension import Stage
from ferry_operator.kube.observe.view import JobView

SOON_SECONDS, BUSY_SECONDS, CALM_SECONDS = 0.2, 1.0, 5.0
"""Seconds until the next reconcile: after a step, while a change is in progress, and otherwise."""

CALM_RATE, CALM_SECONDS_MAX = 20, 60.0
"""Reconciles a second of all jobs at rest, where jobs are many; and the maximum between two reconciles of a job."""


def after_steps(repeats: int) -> float:
    """Seconds until the next reconcile after steps; longer and longer while the same steps repeat."""
    return back_off(repeats + 1, SOON_SECONDS, CALM_SECONDS)


def calm_seconds(jobs: int) -> float:
    """Seconds between two reconciles of a job at rest. Edits, changes of pods and trouble do not wait for it."""
    return min(max(CALM_SECONDS, jobs / CALM_RATE), CALM_SECONDS_MAX)


def when_idle(view: JobView, calm: float) -> float | None:
    """Seconds until the next reconcile after one without steps; None: at the next event."""
    if view.lifecycle.end is not None or view.seen.paused or view.stage is Stage.SUSPENDED:
        reads = view.effective.job is not None and view.effective.job.spec.pipeline.config_map is not None
        if reads and view.lifecycle.end == "Failed":
            return CALM_SECONDS  # The user may edit the ConfigMap.
        expires = None if view.seen.paused else expires_at(view)
        return None if expires is None else max(expires - view.seen.now, SOON_SECONDS)
    wait = view.lifecycle.retry_at - view.seen.now
    if view.lifecycle.retry_at and wait > 0:
        return min(max(wait, SOON_SECONDS), CALM_SECONDS)
    status = view.seen.status
    deploys = status is not None and bool(status.programs)  # a driver of 0.1.0 reports no programs
    if deploys and view.seen.program is not None and not is_answered(view.seen.program, status):
        return BUSY_SECONDS
    settled = status is not None and status.settled and view.observed is not None and not view.observed.missing
    if not settled or view.rolling.drains:
        return BUSY_SECONDS
    job = view.effective.job
    return CALM_SECONDS if job is not None and job.spec.autoscale.mode == "auto" else calm  # it measures the load
