"""A driver that asks for more than the one before is first given a place by a pod that does nothing: its placeholder. Pure.

There is one driver, and it ends before the next one begins. Where no node has room for the next one, the old one stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferry_operator.kube.api import names
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.suspension import Stage
from ferry_operator.kube.observe.view import JobView


def placeholder(view: JobView) -> Pod | None:
    """The placeholder of the driver that is made now."""
    assert view.revisions is not None
    name = names.placeholder_pod(view.seen.name, view.revisions.driver)
    return next((pod for pod in view.seen.pods if pod.name == name and pod.deleting is None), None)


def has_place(pod: Pod) -> bool:
    """A node has taken it."""
    return pod.node is not None or pod.phase == "Running"


def over(view: JobView, here: Sequence[Pod]) -> Iterator[tuple[Pod, str]]:
    """Pods to delete, and why: placeholders that no driver waits for; pods that wait, and avoid a node that stays."""
    driver, mine = view.seen.driver, view.revisions
    waited_for = ""
    if view.stage is Stage.RUNS and view.lifecycle.end is None and mine is not None and not view.in_place.driver:
        if driver is not None and driver.ended is None and driver.annotations.get(names.REVISION) != mine.driver:
            waited_for = names.placeholder_pod(view.seen.name, mine.driver)
    for pod in here:
        if pod.role == names.PLACEHOLDER_ROLE and pod.name != waited_for:
            yield pod, "no driver waits for its place"
        elif pod.unschedulable and pod.node is None and not avoided(pod) <= frozenset(view.closed):
            yield pod, "it avoids a node that stays"


def avoided(pod: Pod) -> frozenset[str]:
    """Nodes that a pod may not be put on."""
    return frozenset(filter(None, pod.annotations.get(names.AVOIDS, "").split(",")))
