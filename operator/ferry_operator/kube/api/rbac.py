"""What the operator may do: a Role in its namespace, and reading nodes where the cluster's owner allows it.

The one list of it: a test holds what the chart gives against it, and another one the calls that are made against the chart.
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
    ("", "events"): ("create", "patch"),
    ("policy", "poddisruptionbudgets"): ("list", "create"),
    ("coordination.k8s.io", "leases"): ("get", "create", "update"),
}
"""(group, resource) -> verbs, in the namespace. Secrets are written, never read; journals made, and then left to drivers
until their run is over."""

DRIVER_RULES: dict[tuple[str, str], tuple[str, ...]] = {(GROUP, journals.PLURAL): ("get", "patch")}
"""What a driver may do, and with it the user's code beside it. Not list: the name of a journal has the uid of its job, which
other jobs do not know."""

NODE_RULES: dict[tuple[str, str], tuple[str, ...]] = {("", "nodes"): ("list",)}
"""The same, of the whole cluster; without it nodes that are cordoned are not seen."""

UNCALLED: tuple[tuple[str, str, str], ...] = (("update", GROUP, f"{PLURAL}/finalizers"),)
"""(verb, group, resource) that no call is made of: some clusters, such as OpenShift, ask for it of whoever makes objects
that hold up the end of their owner (`blockOwnerDeletion`: a job that is deleted in the foreground waits for its pods)."""
