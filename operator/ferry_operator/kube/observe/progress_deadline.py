"""Reasons why a changed spec makes no progress: a pod that does not start, a lack of room, a lasting phase. Pure."""

from __future__ import annotations

from ferry_operator.kube.observe.facts import Pod, Problem
from ferry_operator.kube.observe.in_place import DOES_NOT_FIT
from ferry_operator.kube.observe.view import JobView

IMAGE_SECONDS = 300.0
"""Time to pull the image of a new spec: a registry may be down for a while, but a wrong name stays wrong."""


def blocking_problem(pod: Pod, now: float, deadline: float, in_place: bool = True) -> Problem | None:
    """The problem that has prevented the first start of a pod for too long.

    A pod that fits into the place of its predecessor (`in_place`) may wait for room without limit: nodes join, pods end.
    """
    waited = now - (pod.placed or pod.created) if pod.phase == "Pending" else 0.0
    for problem in pod.problems:
        patience = min(deadline, IMAGE_SECONDS) if problem.reason == "ImagePull" else deadline
        if waited >= patience and problem.reason != "Unschedulable":
            return problem
        if waited >= patience and not in_place:
            return Problem("DoesNotFit", f"{DOES_NOT_FIT}{problem.message}")
    return None


def stuck_at(view: JobView) -> str:
    """The point at which a spec makes no progress."""
    status, alive = view.seen.status, view.seen.status.alive if view.seen.status is not None else []
    for pod in view.seen.pods:
        if pod.problems:
            return pod.problems[0].message
        if status is not None and pod.worker is not None and f"{pod.worker}.0" not in alive:
            return f"{pod.name} does not join the driver"
    if status is None:
        return "the driver does not answer"
    return "; ".join(problem.text for problem in status.problems) or f"the driver is in phase {status.phase}"
