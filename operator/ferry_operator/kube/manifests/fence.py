"""The fence around what a job may have the operator create: names in its fields, its variables and its pod templates. Pure.

The grammar of templates (`job.pod_template`) says which fields there are; the fence says which names they may have here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry_operator.job.container_template import is_device
from ferry_operator.job.models import StreamJob
from ferry_operator.job.template_grammar import Template
from ferry_operator.kube.api import names
from ferry_operator.kube.manifests import allowed
from ferry_operator.kube.manifests.allowed import Allowed, Defaults, matches, remedy

SYSTEM_PRIORITIES = "system-"
"""Prefix of classes of the cluster's own pods, which evict all others."""

API_AUDIENCES = ("https://kubernetes.default", "kubernetes.default")
"""Prefixes of audiences of the API server: a pattern does not allow them, only the whole name does."""


def check(job: StreamJob, allow: Allowed, defaults: Defaults) -> None:
    """Raises SpecRefused with all names of the job that are not allowed."""
    wrong = [*allowed.refusals(job, allow, defaults), *_wrong(job, allow, defaults)]
    if wrong:
        raise SpecRefused("; ".join(wrong))


def _wrong(job: StreamJob, allow: Allowed, defaults: Defaults) -> Iterator[str]:
    kubernetes = job.spec.kubernetes
    for variable in kubernetes.env:
        yield from _variable(variable, "spec.kubernetes.env", allow)
    pods = (
        ("driverPodTemplate", kubernetes.driver_pod_template, names.driver_pod(job.metadata.name)),
        ("workerPodTemplate", kubernetes.worker_pod_template, names.worker_pod(job.metadata.name, 0)),
    )
    for field, template, pod in pods:
        if template is not None:
            yield from (f"spec.kubernetes.{field}.{text}" for text in _template(template, pod, allow, defaults))


def _template(template: Template, pod: str, allow: Allowed, defaults: Defaults) -> Iterator[str]:
    metadata, fields = template.get("metadata") or {}, template.get("spec") or {}
    for kind, patterns in (("labels", allow.labels), ("annotations", allow.annotations)):
        for key in metadata.get(kind) or {}:
            yield from _listed(f"metadata.{kind}", key, kind, patterns)
    priority = fields.get("priorityClassName")
    if priority is not None and priority.startswith(SYSTEM_PRIORITIES):
        yield f"spec.priorityClassName: {priority!r} is for pods of the cluster: no job may have it"
    elif priority is not None:
        yield from _listed("spec.priorityClassName", priority, "priorityClasses", allow.priority_classes)
    if "runtimeClassName" in fields:
        yield from _listed("spec.runtimeClassName", fields["runtimeClassName"], "runtimeClasses", allow.runtime_classes)
    if "schedulerName" in fields:
        yield from _listed("spec.schedulerName", fields["schedulerName"], "schedulers", allow.schedulers)
    for toleration in fields.get("tolerations") or []:
        yield from (f"spec.tolerations: {text}" for text in allowed.wrong_taint(toleration, allow))
    if allowed.of_other_namespaces(fields.get("affinity")):
        yield "spec.affinity: no job may select pods of other namespaces"
    for secret in fields.get("imagePullSecrets") or []:
        yield from (f"spec.imagePullSecrets: {text}" for text in allowed.wrong_secret(secret["name"], allow))
    for volume in fields.get("volumes") or []:
        yield from (f"spec.volumes.{volume['name']}.{text}" for text in _volume(volume, pod, allow))
    for kind in ("containers", "initContainers"):
        for container in fields.get(kind) or []:
            yield from (f"spec.{kind}.{container['name']}.{text}" for text in _container(container, allow, defaults))


def _container(container: Template, allow: Allowed, defaults: Defaults) -> Iterator[str]:
    image = container.get("image")
    if image not in (None, defaults.image) and not matches(image, allow.images):
        yield f"image: no job may run {image!r}; {remedy('images', allow.images)}"
    for variable in container.get("env") or []:
        yield from _variable(variable, "env", allow)
    for source in container.get("envFrom") or []:
        yield from _objects(source, "secretRef", "configMapRef", "envFrom", allow)
    for resource in (container.get("resources") or {}).get("limits") or {}:
        if is_device(resource):
            yield from _listed("resources.limits", resource, "devices", allow.devices)


def _variable(variable: Template, path: str, allow: Allowed) -> Iterator[str]:
    source, where = variable.get("valueFrom") or {}, f"{path}.{variable['name']}"
    yield from _objects(source, "secretKeyRef", "configMapKeyRef", where, allow)


def _objects(source: Template, secret: str, config_map: str, path: str, allow: Allowed) -> Iterator[str]:
    """Names of a Secret and of a ConfigMap in these fields."""
    if secret in source:
        yield from (f"{path}: {text}" for text in allowed.wrong_secret(source[secret]["name"], allow))
    if config_map in source:
        yield from _config_map(path, source[config_map]["name"], allow)


def _config_map(path: str, name: str, allow: Allowed) -> Iterator[str]:
    if not matches(name, allow.config_maps):
        yield f"{path}: no job may read the ConfigMap {name!r}; {remedy('configMaps', allow.config_maps)}"


def _volume(volume: Template, pod: str, allow: Allowed) -> Iterator[str]:
    if "secret" in volume:
        yield from (f"secret: {text}" for text in allowed.wrong_secret(volume["secret"]["secretName"], allow))
    if "configMap" in volume:
        yield from _config_map("configMap", volume["configMap"]["name"], allow)
    if "persistentVolumeClaim" in volume:
        claim = volume["persistentVolumeClaim"]["claimName"]
        yield from (f"persistentVolumeClaim: {text}" for text in allowed.wrong_claim(claim, allow))
    if "ephemeral" in volume:
        claim = f"{pod}-{volume['name']}"
        yield from (f"ephemeral: {text}" for text in allowed.wrong_claim(claim, allow))
    if "hostPath" in volume:
        path = volume["hostPath"]["path"]
        yield from (f"hostPath: {text}" for text in allowed.wrong_directory(path, allow))
    if "csi" in volume:
        yield from _listed("csi", volume["csi"]["driver"], "csiDrivers", allow.csi_drivers)
    for source in (volume.get("projected") or {}).get("sources") or []:
        yield from _objects(source, "secret", "configMap", "projected", allow)
        if "serviceAccountToken" in source:
            yield from _audience(source["serviceAccountToken"]["audience"], allow.token_audiences)


def _audience(audience: str, patterns: Sequence[str]) -> Iterator[str]:
    of_api_server = audience.startswith(API_AUDIENCES)
    if audience not in patterns and (of_api_server or not matches(audience, patterns)):
        yield f"projected: no job may have a token for {audience!r}; {remedy('tokenAudiences', patterns)}"


def _listed(path: str, name: Any, value: str, patterns: Sequence[str]) -> Iterator[str]:
    if not matches(name, patterns):
        yield f"{path}: no job may have {name!r}; {remedy(value, patterns)}"
