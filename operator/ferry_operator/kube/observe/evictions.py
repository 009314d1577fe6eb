"""Evictions: which pods may leave at once, and the number of pods that the budget protects. Pure.

A worker may leave once it is drained and holds no state; a driver, once the next driver has a node. A label says so, and
the budget does not select pods with this label. The budget protects all other workers: its number is raised before a pod
needs it, and lowered some time after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferry_operator.control import decide as d
from ferry_operator.kube.api import names
from ferry_operator.kube.observe import holds, placeholders
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.view import JobView

PATIENCE_SECONDS = 15.0
"""A client that evicts a pod asks again, and its eviction deletes the pod. After this time the operator deletes the pod."""

CALM_SECONDS = 10.0
"""The number of protected pods is lowered when they have been the same for this long: the controller of budgets may see a
change of the budget before a change of a pod."""


def relabelled(view: JobView) -> Iterator[tuple[Pod, bool]]:
    """Pods whose label is wrong, and whether they may leave."""
    for pod in view.seen.pods:
        if pod.deleting is None and pod.ended is None and pod.name not in view.lost:
            allowed = _may_leave(view, pod)
            if allowed != (pod.may_leave is not None):
                yield pod, allowed


def minimum(view: JobView, actions: Sequence[d.Action]) -> int | None:
    """The new number of the budget; None: the present one is right, or may be too high for a moment."""
    started = {action.index for action in actions if isinstance(action, d.StartWorker)}
    kept = {
        pod.worker
        for pod in view.seen.workers
        if pod.deleting is None and pod.ended is None and (pod.may_leave is None or not _may_leave(view, pod))
    }
    needed, present = 0 if view.unprotected else len(kept | started), view.seen.budget
    if present is None or needed > present or (needed < present and view.same_pods_for >= CALM_SECONDS):
        return needed
    return None


def is_awaited(view: JobView, pod: Pod) -> bool:
    """Whether a pod that may leave waits for its eviction."""
    return pod.evicted and (pod.may_leave is None or view.seen.now - pod.may_leave < PATIENCE_SECONDS)


def refusal(pod: Pod, held: str | None = None) -> str | None:
    """Why the pod may not be evicted yet; None: it may. `held`: why no pod of the job is emptied, as `holds.reason`."""
    if pod.may_leave is not None or pod.ended is not None or pod.deleting is not None or pod.phase != "Running":
        return None
    if held is not None:
        return f"{holds.staying((pod.name,), held)}; ask again"
    if pod.role == names.DRIVER_ROLE:
        return f"{pod.name} leaves once another node has room for the driver: ask again"
    return (
        f"{pod.name} is being emptied, and leaves once it holds no state: ask again" if pod.worker is not None else None
    )


def _may_leave(view: JobView, pod: Pod) -> bool:
    if view.unprotected:
        return True
    if pod.worker is None:
        placeholder = placeholders.placeholder(view) if view.driver_leaves and view.revisions is not None else None
        return pod.evicted and placeholder is not None and placeholders.has_node(placeholder)
    observed, leaves = view.observed, pod.worker in view.rolling.leaving and not pod.evicted
    # A pod that leaves a cordoned node is deleted at once.
    return observed is not None and not leaves and pod.worker in observed.drains and pod.worker in d.empty(observed)
