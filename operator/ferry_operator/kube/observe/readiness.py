"""Whether a job is ready, and whether an epoch was finished under the spec in force. Pure."""

from __future__ import annotations

from ferry_operator.kube.api import names
from ferry_operator.kube.observe.view import JobView


def proven(view: JobView) -> bool:
    """Whether driver and workers of the spec in force have finished an epoch. A spec that replaces no pod needs no epoch."""
    seen, mine, driver, status = view.seen, view.revisions, view.seen.driver, view.seen.status
    if driver is None or mine is None or status is None or not ready(view):
        return False
    worker = [pod.annotations.get(names.REVISION) == mine.worker for pod in seen.workers]
    if driver.annotations.get(names.REVISION) != mine.driver or not all(worker):
        return False
    if view.effective.fallback is not None and view.effective.fallback.all == mine.all:
        return True
    began = status.progress.began if status.progress.began is not None else driver.number(names.EPOCH, -1)
    return status.epoch > max([began, *(pod.number(names.EPOCH, -1) for pod in seen.workers)])


def ready(view: JobView) -> bool:
    """Whether the driver answers, has recovered, and every virtual node has a live leader."""
    status = view.seen.status
    if status is None or status.phase in ("journal", "ask", "stopped") or not status.groups or status.finished:
        return False
    alive = frozenset(status.alive)
    return all(in_sync and in_sync[0] in alive for in_sync, _ in status.groups)
