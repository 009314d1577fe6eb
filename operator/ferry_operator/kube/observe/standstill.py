"""Reasons for which a changed spec does not run: a pod that does not start, a missing node, a phase that lasts. Pure."""

from __future__ import annotations

from ferry_operator.kube.observe.facts import Pod, Problem
from ferry_operator.kube.observe.shapes import DOES_NOT_FIT
from ferry_operator.kube.observe.view import JobView

IMAGE_SECONDS = 300.0
"""An image of a new spec that could not be pulled for so long: a registry may be away, a name does not mend itself."""


def held_up(pod: Pod, now: float, deadline: float, in_place: bool = True) -> Problem | None:
    """The problem that has kept a pod from its first start for too long.

    Room is waited for, as nodes join and other pods go; but not by a pod that asks for more than the one before: `in_place`.
    """
    waited = now - (pod.placed or pod.created) if pod.phase == "Pending" else 0.0
    for one in pod.problems:
        patience = min(deadline, IMAGE_SECONDS) if one.reason == "ImagePull" else deadline
        if waited >= patience and one.reason != "Unschedulable":
            return one
        if waited >= patience and not in_place:
            return Problem("DoesNotFit", f"{DOES_NOT_FIT}{one.message}")
    return None


def where(view: JobView) -> str:
    """How far a spec has come that makes no progress."""
    status, alive = view.seen.status, view.seen.status.alive if view.seen.status is not None else []
    for pod in view.seen.pods:
        if pod.problems:
            return pod.problems[0].message
        if status is not None and pod.worker is not None and f"{pod.worker}.0" not in alive:
            return f"{pod.name} does not join the driver"
    if status is None:
        return "the driver does not answer"
    return "; ".join(one.text for one in status.problems) or f"the driver is in phase {status.phase}"
