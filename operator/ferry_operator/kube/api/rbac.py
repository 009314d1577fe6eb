"""RBAC rules of the operator: a Role in its namespace, and, where the cluster's administrator allows it, watching nodes.

This is the source: one test compares the chart with these rules, and another test compares recorded calls with the chart.
"""

from __future__ import annotations

from ferry.contract import journals
from ferry_operator.kube.api.names import GROUP, PLURAL

RULES: dict[tuple[str, str], tuple[str, ...]] = {
    (GROUP, PLURAL): ("list", "watch", "patch", "delete"),
    (GROUP, f"{PLURAL}/status"): ("patch",),
    (GROUP, f"{PLURAL}/finalizers"): ("update",),
    (GROUP, journals.PLURAL): ("create", "delete"),
    ("", "pods"): ("list", "watch", "create", "patch", "delete"),
    ("", "secrets"): ("create", "patch"),
    ("", "configmaps"): ("get",),
    ("", "events"): ("create", "patch"),
    ("policy", "poddisruptionbudgets"): ("list", "create", "patch"),
}
"""(group, resource) -> verbs, in a namespace with jobs. The operator writes Secrets of jobs, and never reads them. It
creates journals, and deletes them at the end of their run; between, only drivers use them."""

OWN_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("coordination.k8s.io", "leases"): ("create",),
    ("", "secrets"): ("create",),
}
"""Rules in the namespace of the release, which need not have jobs. A right to create cannot name its objects."""

NAMED_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("coordination.k8s.io", "leases"): ("get", "update", "watch"),
    ("", "secrets"): ("get", "patch"),
}
"""Rules for objects of the release that the Role names: its Lease, its keys, and the Secrets that it creates once."""

DRIVER_RULES: dict[tuple[str, str], tuple[str, ...]] = {(GROUP, journals.PLURAL): ("get", "patch")}
"""Rules of a driver, and so of the user's code in its process. Without list: the name of a journal contains the uid of its
job, and other jobs do not know this uid."""

CHOICE_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "namespaces"): ("list",),
    ("rbac.authorization.k8s.io", "rolebindings"): ("list", "create"),
}
"""Cluster-wide rules of the operator where it chooses namespaces: to find them, and to bind two roles (`BIND_RULES`)."""

BIND_RULES: dict[tuple[str, str], tuple[str, ...]] = {("rbac.authorization.k8s.io", "clusterroles"): ("bind",)}
"""Rules for the two ClusterRoles with `RULES` and `DRIVER_RULES`: the operator cannot give other rights."""

PREPARE_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "serviceaccounts"): ("create",),
    ("networking.k8s.io", "networkpolicies"): ("create",),
}
"""Further rules in a chosen namespace, for the objects that the operator creates there."""

CLEAR_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("rbac.authorization.k8s.io", "rolebindings"): ("patch", "delete"),
    ("", "serviceaccounts"): ("patch", "delete"),
    ("networking.k8s.io", "networkpolicies"): ("patch", "delete"),
}
"""The same for objects that the ClusterRole names."""

NODE_RULES: dict[tuple[str, str], tuple[str, ...]] = {("", "nodes"): ("list", "watch")}
"""Cluster-wide rules of the operator; without them it does not notice cordoned nodes."""

WEBHOOK_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): ("patch",)
}
"""Cluster-wide rules for one object, which the ClusterRole names: the operator writes its authority there."""

DEFINITION_RULES: dict[tuple[str, str], tuple[str, ...]] = {
    ("apiextensions.k8s.io", "customresourcedefinitions"): ("get", "patch")
}
"""Cluster-wide rules for the definitions of Ferry, which the ClusterRole names. The hook before an upgrade of the chart has
these rights while it runs; the operator never has them."""

UNCALLED: tuple[tuple[str, str, str], ...] = (("update", GROUP, f"{PLURAL}/finalizers"),)
"""(verb, group, resource) of rules without a call. Some clusters, such as OpenShift, require them to create objects with
`blockOwnerDeletion`: the foreground deletion of a job waits for its pods."""
