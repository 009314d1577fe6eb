"""Placeholders: an idle pod finds a node for a driver that requests more than the present driver, or leaves its node. Pure.

A job has one driver, and it ends before the next driver starts. While no node has room for the next driver, the present
driver stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ferry_operator.kube.api import names
from ferry_operator.kube.observe.facts import Pod
from ferry_operator.kube.observe.suspension import Stage
from ferry_operator.kube.observe.view import JobView


def placeholder(view: JobView) -> Pod | None:
    """The placeholder for a driver of the spec in force, if any."""
    assert view.revisions is not None
    name = names.placeholder_pod(view.seen.name, view.revisions.driver)
    return next((pod for pod in view.seen.pods if pod.name == name and pod.deleting is None), None)


def has_node(pod: Pod) -> bool:
    """Whether the pod has a node."""
    return pod.node is not None or pod.phase == "Running"


def unneeded(view: JobView, here: Sequence[Pod]) -> Iterator[tuple[Pod, str]]:
    """Pods to delete, with reasons: unneeded placeholders, and pending pods that exclude a node which is open again."""
    driver, mine = view.seen.driver, view.revisions
    waited_for = ""
    if view.stage is Stage.RUNS and view.lifecycle.end is None and mine is not None:
        if driver is not None and driver.ended is None:
            outdated = not view.in_place.driver and driver.annotations.get(names.REVISION) != mine.driver
            if outdated or view.driver_leaves:
                waited_for = names.placeholder_pod(view.seen.name, mine.driver)
    for pod in here:
        if pod.role == names.PLACEHOLDER_ROLE and pod.name != waited_for:
            yield pod, "no driver needs its place"
        elif pod.unschedulable and pod.node is None and not excluded_nodes(pod) <= frozenset(view.closed):
            yield pod, "it excludes a node that is open again"


def excluded_nodes(pod: Pod) -> frozenset[str]:
    """Nodes that the affinity of a pod excludes."""
    return frozenset(filter(None, pod.annotations.get(names.AVOIDS, "").split(",")))
