"""The grammar of containers in a pod template: variables, mounts, resources, probes, and containers of the job's own.

Pure. The grammar of the pod around them is in `pod_template`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from ferry_operator.job.models_base import NAME_PATTERN, RESERVED, is_below
from ferry_operator.job.quantities import Cpus, Quantity
from ferry_operator.job.template_grammar import (
    Check,
    Items,
    Map,
    choice,
    cpus,
    flag,
    path_in_pod,
    size,
    text,
    whole,
)

RESERVED_ENV = ("FERRY_", "SPARK_", "_SPARK_", "PYSPARK_", "_PYSPARK_", "KUBERNETES_", "LD_", "PYTHON")
"""Prefixes of variables that change what Ferry's processes are."""

FERRY_ENV = ("POD_IP", "POD_NAME", "NODE_NAME", "PATH", "JAVA_HOME", "NUMBA_CPU_NAME")
ALLOWED_ENV = ("PYTHONPATH",)

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts the token of the pod's account."""

TEMPORARY = str(PurePosixPath("/", "tmp"))
HIDDEN = (*RESERVED, "/opt/ferry", "/opt/venv", "/opt/java", "/var/run/secrets/kubernetes.io", "/run/secrets/kubernetes.io",
          "/proc", "/sys", "/dev")  # fmt: skip
"""Directories that no mount may contain or lie in."""

EXTENDED = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
HUGE = re.compile(r"hugepages-[0-9]+[KMG]i")

OBJECT_NAME = text(NAME_PATTERN.strip("^$"), "a name of an object of Kubernetes", 253)
LABEL_NAME = text(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "lower-case letters, digits and '-'", 50)


def _variable(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    variable = str(value.get("name"))
    if (variable.startswith(RESERVED_ENV) or variable in FERRY_ENV) and variable not in ALLOWED_ENV:
        yield f"{path}.name: {variable!r} belongs to Ferry, Spark, Python or the image"


_key_of: dict[str, Check] = {"name": OBJECT_NAME, "key": text(r"[-._a-zA-Z0-9]+", "a key", 253), "optional": flag}
POD_FIELD = Map({"apiVersion": choice("v1"), "fieldPath": text(r"(metadata|spec|status)\..+", "a field of the pod", 512)},
             needed=("fieldPath",))  # fmt: skip
RESOURCE_FIELD = Map({"containerName": LABEL_NAME, "resource": text(r"(limits|requests)\..+", "such as 'limits.cpu'"),
                 "divisor": text()}, needed=("resource",))  # fmt: skip
_value_from = Map(
    {
        "secretKeyRef": Map(_key_of, needed=("name", "key")),
        "configMapKeyRef": Map(_key_of, needed=("name", "key")),
        "fieldRef": POD_FIELD,
        "resourceFieldRef": RESOURCE_FIELD,
    },
    one_of=("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef"),
)
_env_fields: dict[str, Check] = {
    "name": text(r"[A-Za-z_][A-Za-z0-9_]*", "letters, digits and '_'", 253),
    "value": text(),
    "valueFrom": _value_from,
}
ENV = Items(Map(_env_fields, needed=("name",), one_of=("value", "valueFrom"), more=_variable), keys=("name",))
"""Variables of Ferry's containers."""

_own_env = Items(Map(_env_fields, needed=("name",), one_of=("value", "valueFrom")), keys=("name",))
_reference = Map({"name": OBJECT_NAME, "optional": flag}, needed=("name",))
ENV_FROM = Items(
    Map({"secretRef": _reference, "configMapRef": _reference, "prefix": text(r"[A-Za-z_][A-Za-z0-9_]*", "a prefix")},
        one_of=("secretRef", "configMapRef"))
)  # fmt: skip


def _mount_point(value: Any, path: str) -> Iterator[str]:
    yield from path_in_pod(value, path)
    if isinstance(value, str) and (value == TEMPORARY or any(_meet(value, own) for own in HIDDEN)):
        yield f"{path}: {value!r} belongs to Ferry, Kubernetes or the image"


def _meet(one: str, other: str) -> bool:
    return is_below(one, other) or is_below(other, one)


SUB_PATH = text(r"(?!/)(?!(.*/)?\.\.(/|$)).+", "a relative path without '..'", 1024)
MOUNTS = Items(
    Map({"name": LABEL_NAME, "mountPath": _mount_point, "subPath": SUB_PATH, "readOnly": flag},
        needed=("name", "mountPath")),
    keys=("mountPath",),
)  # fmt: skip


def _amounts(value: Any, path: str, limits: bool, own: bool) -> Iterator[str]:
    """Amounts of resources; `own`: of a container of Ferry, whose CPUs and memory have fields of their own."""
    if not isinstance(value, dict):
        yield f"{path}: must be a map of amounts"
        return
    for resource, amount in value.items():
        where = f"{path}.{resource}"
        if resource == "ephemeral-storage" or (resource == "memory" and not own):
            yield from size(amount, where)
        elif resource == "cpu" and (limits or not own):
            yield from cpus(amount, where)
        elif resource in ("cpu", "memory"):
            yield f"{where}: a template may not set it; use spec.kubernetes.CONTAINER.{resource}"
        elif not limits:
            yield f"{where}: a template sets it in 'limits'; the request is the same"
        elif HUGE.fullmatch(str(resource)):
            yield from size(amount, where)
        elif is_device(str(resource)):
            yield from text(r"[1-9][0-9]{0,5}", "a number of devices")(str(amount), where)
        else:
            allowed = "cpu, memory, ephemeral-storage, hugepages-2Mi, DOMAIN/DEVICE"
            yield f"{where}: no resource of a container; allowed: {allowed}"


def is_device(resource: str) -> bool:
    """Whether this is a resource of a device plugin."""
    return re.fullmatch(EXTENDED, resource) is not None and not resource.split("/")[0].endswith("kubernetes.io")


def _requests_below_limits(value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict) or not all(isinstance(part, dict) for part in value.values()):
        return
    for resource, kind in (("ephemeral-storage", Quantity), ("memory", Quantity), ("cpu", Cpus)):
        try:
            request, limit = (kind(str(value[part][resource])) for part in ("requests", "limits"))
        except (KeyError, ValueError):
            continue
        if _number(request) > _number(limit):
            yield f"{path}.requests.{resource}: more than the limit"


def _number(amount: Quantity | Cpus) -> int:
    return amount.millis if isinstance(amount, Cpus) else amount.bytes


def resources(own: bool) -> Map:
    """Requests and limits; `own`: of a container of Ferry."""
    return Map(
        {"requests": partial(_amounts, limits=False, own=own), "limits": partial(_amounts, limits=True, own=own)},
        more=_requests_below_limits,
    )


TEXTS = Items(text())
_port = whole(1, 65535)
_named_port = text(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "a name of a port", 15)


def _port_or_name(value: Any, path: str) -> Iterator[str]:
    yield from (_named_port if isinstance(value, str) else _port)(value, path)


_no_host = {"host": "a kubelet would ask another host: probes ask the pod"}
_probe = Map(
    {
        "exec": Map({"command": TEXTS}, needed=("command",)),
        "tcpSocket": Map({"port": _port_or_name}, needed=("port",), why=_no_host),
        "httpGet": Map({"port": _port_or_name, "path": text(), "scheme": choice("HTTP", "HTTPS")},
                       needed=("port",), why=_no_host),
        "grpc": Map({"port": _port, "service": text()}, needed=("port",)),
        "initialDelaySeconds": whole(0, 3600),
        "periodSeconds": whole(1, 3600),
        "timeoutSeconds": whole(1, 3600),
        "failureThreshold": whole(1, 10_000),
    },
    one_of=("exec", "tcpSocket", "httpGet", "grpc"),
)  # fmt: skip

CONTEXT = "Ferry sets the context of the restricted standard; use spec.kubernetes.user for another user"
_OWN = "it belongs to Ferry's container"
FERRY_CONTAINER_WHY = {
    "image": "use spec.kubernetes.image", "imagePullPolicy": "use spec.kubernetes.imagePullPolicy",
    "securityContext": CONTEXT, **dict.fromkeys(("args", "command", "lifecycle", "livenessProbe", "ports", "readinessProbe",
    "restartPolicy", "startupProbe", "terminationMessagePath", "terminationMessagePolicy", "workingDir"), _OWN),
}  # fmt: skip
INIT_CONTAINER = Map(
    {
        "name": LABEL_NAME,
        "image": text(r"[^\s]+", "an image", 1024),
        "imagePullPolicy": choice("IfNotPresent", "Always", "Never"),
        "command": TEXTS,
        "args": TEXTS,
        "workingDir": path_in_pod,
        "env": _own_env,
        "envFrom": ENV_FROM,
        "volumeMounts": MOUNTS,
        "resources": resources(own=False),
        "restartPolicy": choice("Always"),
        "startupProbe": _probe,
        "livenessProbe": _probe,
        "ports": Items(Map({"name": _named_port, "containerPort": _port, "protocol": choice("TCP", "UDP", "SCTP")},
                           needed=("containerPort",), why={"hostPort": "use a Service"})),
    },
    needed=("name", "image"),
    why={"securityContext": CONTEXT, "readinessProbe": "a pod is ready when Ferry's containers are; use 'startupProbe'",
         "lifecycle": "use 'command', or 'startupProbe'"},
)  # fmt: skip
