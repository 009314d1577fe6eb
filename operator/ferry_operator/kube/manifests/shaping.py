"""A pod of Ferry, merged with the template of the job. Pure.

Ferry's values win: the grammar of templates (`job.pod_template`) has no field with which a template could replace one.
Lists are merged by their keys (names of containers and volumes, paths of mounts); tolerations are added.
"""

from __future__ import annotations

import copy
from typing import Any

from ferry_operator.job.container_template import ACCOUNT, HUGE, is_device
from ferry_operator.job.models import StreamJob
from ferry_operator.job.template_grammar import Template
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc

NO_ACCOUNT = "ferry-no-account"
"""Volume over the token of the pod's account: containers of the job's own get no token."""

_REPLACED = ("topologySpreadConstraints", "priorityClassName", "runtimeClassName", "schedulerName", "dnsConfig")
_ADDED = ("imagePullSecrets", "hostAliases", "volumes")

RESTRICTED: Doc = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Security context of a container of the job's own."""

OWN_RESOURCES: Doc = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}
"""Resources of a container of the job's own that names none."""


def shaped(pod: Doc, spec: StreamJob, template: Template | None) -> Doc:
    """The pod with the variables of the job and with a checked template; a copy."""
    pod, wanted = copy.deepcopy(pod), copy.deepcopy(template or {})
    metadata, fields = wanted.get("metadata") or {}, wanted.get("spec") or {}
    for kind in ("labels", "annotations"):
        pod["metadata"][kind] = {**(metadata.get(kind) or {}), **pod["metadata"][kind]}
    _place(pod, fields)
    own = {container["name"]: container for container in fields.get("containers") or []}
    main, init = pod["spec"]["containers"], pod["spec"].get("initContainers") or []
    for container in (*main, *init):
        if container["name"] in ("driver", "executor", "sidecar"):
            variables = copy.deepcopy(spec.spec.kubernetes.env)
            _merge(container, {**own.get(container["name"], {}), "more": variables})
    further = [_further(container) for container in fields.get("initContainers") or []]
    if further:
        pod["spec"]["initContainers"] = [*further, *init]
        if pod["spec"]["automountServiceAccountToken"]:
            _without_account(pod, further)
    return pod


def _place(pod: Doc, fields: Doc) -> None:
    """Fields for the scheduler and the kubelet."""
    inside = pod["spec"]
    if fields.get("nodeSelector"):
        inside["nodeSelector"] = {**inside.get("nodeSelector", {}), **fields["nodeSelector"]}
    if fields.get("affinity"):
        inside["affinity"] = {**inside.get("affinity", {}), **fields["affinity"]}
    more = [toleration for toleration in fields.get("tolerations") or [] if toleration not in inside["tolerations"]]
    inside["tolerations"] = [*inside["tolerations"], *more]
    inside |= {name: fields[name] for name in _REPLACED if fields.get(name)}
    labels = {key: pod["metadata"]["labels"][key] for key in (names.JOB, names.ROLE)}
    for constraint in inside.get("topologySpreadConstraints") or []:
        constraint.setdefault("labelSelector", {"matchLabels": labels})
    for name in _ADDED:
        if fields.get(name):
            inside[name] = [*inside.get(name, []), *fields[name]]


def _merge(container: Doc, wanted: Doc) -> None:
    """Add a container of the template to a container of Ferry."""
    variables = [*wanted["more"], *(wanted.get("env") or [])]
    if variables:
        container["env"] = [*container["env"], *variables]
    for name in ("envFrom", "volumeMounts"):
        if wanted.get(name):
            container[name] = [*container.get(name, []), *wanted[name]]
    _add_resources(container["resources"], wanted.get("resources") or {})


def _add_resources(resources: Doc, wanted: Doc) -> None:
    for kind in ("requests", "limits"):
        resources[kind] = {**(wanted.get(kind) or {}), **resources.get(kind, {})}
    for resource, amount in resources["limits"].items():
        if is_exact(resource):
            resources["requests"][resource] = amount


def is_exact(resource: str) -> bool:
    """Whether the request of a resource is its limit."""
    return HUGE.fullmatch(resource) is not None or is_device(resource)


def _further(wanted: Doc) -> Doc:
    """A container of the job's own, under the restricted standard."""
    container: dict[str, Any] = {**wanted, "securityContext": copy.deepcopy(RESTRICTED)}
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    resources: Doc = {}
    _add_resources(resources, wanted.get("resources") or OWN_RESOURCES)
    container["resources"] = resources
    return container


def _without_account(pod: Doc, containers: list[Doc]) -> None:
    """Kubernetes mounts the token of the account in every container that has no mount at its place."""
    pod["spec"]["volumes"] = [*pod["spec"]["volumes"], {"name": NO_ACCOUNT, "emptyDir": {"sizeLimit": "1Mi"}}]
    for container in containers:
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [*mounts, {"name": NO_ACCOUNT, "mountPath": ACCOUNT, "readOnly": True}]
