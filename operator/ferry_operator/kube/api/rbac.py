"""RBAC rules of the operator: a Role in its namespace, and, where the cluster's administrator allows it, listing nodes.

This is the source: one test compares the chart with these rules, and another test compares recorded calls with the chart.
"""

from __future__ import annotations

from ferry.contract import journals
from ferry_operator.kube.api.names import GROUP, PLURAL

RULES: dict[tuple[str, str], tuple[str, ...]] = {
    (GROUP, PLURAL): ("list", "watch", "patch"),
    (GROUP, f"{PLURAL}/status"): ("patch",),
    (GROUP, f"{PLURAL}/finalizers"): ("update",),
    (GROUP, journals.PLURAL): ("create", "delete"),
    ("", "pods"): ("list", "watch", "create", "patch", "delete"),
    ("", "secrets"): ("create", "patch"),
    ("", "configmaps"): ("get",),
    ("", "events"): ("create", "patch"),
    ("policy", "poddisruptionbudgets"): ("list", "create"),
    ("coordination.k8s.io", "leases"): ("get", "create", "update"),
}
"""(group, resource) -> verbs, in the namespace. The operator writes Secrets, and never reads them. It creates journals, and
deletes them at the end of their run; between, only drivers use them."""

DRIVER_RULES: dict[tuple[str, str], tuple[str, ...]] = {(GROUP, journals.PLURAL): ("get", "patch")}
"""Rules of a driver, and so of the user's code in its process. Without list: the name of a journal contains the uid of its
job, and other jobs do not know this uid."""

NODE_RULES: dict[tuple[str, str], tuple[str, ...]] = {("", "nodes"): ("list",)}
"""Cluster-wide rules of the operator; without them it does not notice cordoned nodes."""

UNCALLED: tuple[tuple[str, str, str], ...] = (("update", GROUP, f"{PLURAL}/finalizers"),)
"""(verb, group, resource) of rules without a call. Some clusters, such as OpenShift, require them to create objects with
`blockOwnerDeletion`: the foreground deletion of a job waits for its pods."""
