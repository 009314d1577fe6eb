"""The grammar of pod templates and environment variables: the fields that a job may give its pods.

Pure. Fields are allowed one by one, so a field of a later Kubernetes is refused. Names of objects (Secrets, classes, images)
are checked where the installation is known, by `kube.manifests.fence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ferry_operator.job.container_template import (
    CONTEXT,
    ENV,
    ENV_FROM,
    FERRY_CONTAINER_WHY,
    INIT_CONTAINER,
    LABEL_NAME,
    MOUNTS,
    OBJECT_NAME,
    POD_FIELD,
    RESOURCE_FIELD,
    SUB_PATH,
    TEXTS,
    resources,
)
from ferry_operator.job.template_grammar import (
    Check,
    Items,
    Map,
    Template,
    TextMap,
    choice,
    flag,
    free,
    path_in_pod,
    size,
    text,
    whole,
)

DRIVER_CONTAINERS = ("driver",)
WORKER_CONTAINERS = ("executor", "sidecar")
FERRY_CONTAINERS = (*DRIVER_CONTAINERS, *WORKER_CONTAINERS, "state-owner", "placeholder")

FERRY_VOLUMES = ("settings", "run", "tmp", "state")
VOLUME_PREFIXES = ("ferry-", "user-", "kube-api-access")
"""Prefixes of volumes that Ferry and Kubernetes add to a pod."""

RESERVED_KEYS = (
    "app.kubernetes.io/", "ferry.dev/", "spark-", "spark.apache.org/", "kubectl.kubernetes.io/", "k8s.v1.cni.cncf.io/",
    "kubernetes.io/", "pod-template-hash", "batch.kubernetes.io/", "statefulset.kubernetes.io/",
)  # fmt: skip
"""Labels and annotations by which programs find or steer pods. Networks are attached by spec.transport.rdma.networks."""

LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
KEY = r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"


def _free_key(value: Any, path: str) -> Iterator[str]:
    yield from text(KEY, "a key such as 'team' or 'example.com/team'", 317)(value, path)
    if str(value).startswith(RESERVED_KEYS):
        yield f"{path}: belongs to Ferry, Spark or Kubernetes"


_mode = whole(0, 0o777)
_item = Map({"key": text(r"[-._a-zA-Z0-9]+", "a key", 253), "path": SUB_PATH, "mode": _mode}, needed=("key", "path"))
_downward = Items(Map({"path": SUB_PATH, "fieldRef": POD_FIELD, "resourceFieldRef": RESOURCE_FIELD, "mode": _mode},
                      needed=("path",), one_of=("fieldRef", "resourceFieldRef")))  # fmt: skip
_files: dict[str, Check] = {"items": Items(_item), "optional": flag}
_token = Map({"audience": text(r"\S+", "an audience", 1024), "expirationSeconds": whole(600, 1 << 32), "path": SUB_PATH},
             needed=("audience", "path"))  # fmt: skip
_projected: dict[str, Check] = {
    "secret": Map({"name": OBJECT_NAME, **_files}, needed=("name",)),
    "configMap": Map({"name": OBJECT_NAME, **_files}, needed=("name",)),
    "downwardAPI": Map({"items": _downward}, needed=("items",)),
    "serviceAccountToken": _token,
}
_claim_spec = Map(
    {
        "accessModes": Items(choice("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")),
        "storageClassName": OBJECT_NAME,
        "volumeMode": choice("Filesystem"),
        "resources": Map({"requests": Map({"storage": size}, needed=("storage",))}, needed=("requests",)),
    },
    needed=("accessModes", "resources"),
)
_medium = text(r"(Memory|HugePages(-[0-9]+[KMG]i)?)?", "'', 'Memory' or 'HugePages-2Mi'")
SOURCES: dict[str, Check] = {
    "configMap": Map({"name": OBJECT_NAME, "defaultMode": _mode, **_files}, needed=("name",)),
    "secret": Map({"secretName": OBJECT_NAME, "defaultMode": _mode, **_files}, needed=("secretName",)),
    "projected": Map({"sources": Items(Map(_projected, one_of=tuple(_projected))), "defaultMode": _mode},
                     needed=("sources",)),
    "downwardAPI": Map({"items": _downward, "defaultMode": _mode}, needed=("items",)),
    "emptyDir": Map({"medium": _medium, "sizeLimit": size}),
    "persistentVolumeClaim": Map({"claimName": OBJECT_NAME, "readOnly": flag}, needed=("claimName",)),
    "ephemeral": Map({"volumeClaimTemplate": Map({"spec": _claim_spec}, needed=("spec",))},
                     needed=("volumeClaimTemplate",)),
    "hostPath": Map({"path": path_in_pod, "type": choice("Directory", "File")}, needed=("path", "type")),
    "csi": Map({"driver": OBJECT_NAME, "readOnly": flag, "fsType": text(longest=64),
                "volumeAttributes": TextMap(text(longest=253), text())}, needed=("driver",)),
}  # fmt: skip


def _volume_name(value: Any, path: str) -> Iterator[str]:
    yield from LABEL_NAME(value, path)
    if value in FERRY_VOLUMES or str(value).startswith(VOLUME_PREFIXES):
        yield f"{path}: {value!r} belongs to Ferry or Kubernetes"


_volume = Map({"name": _volume_name, **SOURCES}, needed=("name",), one_of=tuple(SOURCES))
_toleration = Map({
    "key": text(longest=317), "operator": choice("Exists", "Equal"), "value": text(longest=63),
    "effect": choice("", "NoSchedule", "PreferNoSchedule", "NoExecute"), "tolerationSeconds": whole(0, 1 << 31),
})  # fmt: skip
_spread = Map(
    {
        "maxSkew": whole(1, 10_000), "topologyKey": text(KEY, "a label of nodes", 317), "labelSelector": free,
        "whenUnsatisfiable": choice("DoNotSchedule", "ScheduleAnyway"), "minDomains": whole(1, 10_000),
        "nodeAffinityPolicy": choice("Honor", "Ignore"), "nodeTaintsPolicy": choice("Honor", "Ignore"),
        "matchLabelKeys": Items(text(KEY, "a label", 317)),
    },
    needed=("maxSkew", "topologyKey", "whenUnsatisfiable"),
)  # fmt: skip
_label = text(LABEL, "at most 63 letters, digits, '-', '_' and '.'", 63)
_metadata = Map({"labels": TextMap(_free_key, _label), "annotations": TextMap(_free_key, text())})

_POD_WHY = {
    "serviceAccountName": "use spec.kubernetes.serviceAccount", "serviceAccount": "use spec.kubernetes.serviceAccount",
    "automountServiceAccountToken": "use a projected volume with a token for another audience",
    "hostNetwork": "use spec.kubernetes.network", "securityContext": CONTEXT,
    **dict.fromkeys(("hostPID", "hostIPC", "shareProcessNamespace"), "Ferry's processes are seen by no other process"),
    **dict.fromkeys(("nodeName", "schedulingGates"), "use 'nodeSelector' or 'affinity'"),
    "priority": "use 'priorityClassName'", "restartPolicy": "Ferry restarts pods",
    "terminationGracePeriodSeconds": "Ferry takes the time that its processes need",
    "activeDeadlineSeconds": "Ferry ends pods",
}  # fmt: skip
_ferry_container = Map(
    {"name": LABEL_NAME, "env": ENV, "envFrom": ENV_FROM, "volumeMounts": MOUNTS, "resources": resources(own=True)},
    needed=("name",),
    why=FERRY_CONTAINER_WHY,
)
POD_FIELDS: dict[str, Check] = {
    "nodeSelector": TextMap(text(KEY, "a label", 317), _label),
    "affinity": Map({"nodeAffinity": free, "podAffinity": free, "podAntiAffinity": free}),
    "tolerations": Items(_toleration),
    "topologySpreadConstraints": Items(_spread, keys=("topologyKey", "whenUnsatisfiable")),
    "priorityClassName": OBJECT_NAME,
    "runtimeClassName": OBJECT_NAME,
    "schedulerName": OBJECT_NAME,
    "imagePullSecrets": Items(Map({"name": OBJECT_NAME}, needed=("name",)), keys=("name",)),
    "dnsConfig": Map({"nameservers": TEXTS, "searches": TEXTS,
                      "options": Items(Map({"name": text(), "value": text()}, needed=("name",)))}),
    "hostAliases": Items(Map({"ip": text(r"[0-9a-fA-F:.]+", "an address"), "hostnames": TEXTS},
                             needed=("ip", "hostnames")), keys=("ip",)),
    "volumes": Items(_volume, keys=("name",)),
    "containers": Items(_ferry_container, keys=("name",)),
    "initContainers": Items(INIT_CONTAINER, keys=("name",)),
}  # fmt: skip
TEMPLATE = Map({"metadata": _metadata, "spec": Map(POD_FIELDS, why=_POD_WHY)})


def problems(template: Any, containers: tuple[str, ...]) -> Iterator[str]:
    """The problems of a template for pods with these containers of Ferry."""
    further = f"Ferry's containers here are {', '.join(containers)}; a further container belongs to 'initContainers', "
    further += "with restartPolicy Always if it runs beside them: a pod ends with Ferry's containers"
    yield from TEMPLATE(template, "")
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict):
        return
    volumes = {volume.get("name") for volume in _maps(pod.get("volumes"))}
    for kind in ("containers", "initContainers"):
        for at, container in enumerate(_maps(pod.get(kind))):
            path = f"spec.{kind}[{at}]"
            if kind == "containers" and container.get("name") not in containers:
                yield f"{path}.name: {further}"
            if kind == "initContainers" and container.get("name") in FERRY_CONTAINERS:
                yield f"{path}.name: {container['name']!r} is a container of Ferry"
            for number, mount in enumerate(_maps(container.get("volumeMounts"))):
                if mount.get("name") not in volumes:
                    yield f"{path}.volumeMounts[{number}].name: the template has no volume {mount.get('name')!r}"


def _maps(value: Any) -> list[Template]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def driver_template(value: Template) -> Template:
    """The template of the driver's pod; raises ValueError with all problems."""
    return _checked(value, [*problems(value, DRIVER_CONTAINERS)])


def worker_template(value: Template) -> Template:
    """The template of the workers' pods; raises ValueError with all problems."""
    return _checked(value, [*problems(value, WORKER_CONTAINERS)])


def variables(value: list[Template]) -> list[Template]:
    """Environment variables of Ferry's containers; raises ValueError with all problems."""
    found = [problem.removeprefix("env") for problem in ENV(value, "env")]
    if found:
        raise ValueError("; ".join(found))
    return value


def _checked(value: Template, found: list[str]) -> Template:
    if found:
        raise ValueError("; ".join(found))
    return value


def containers_of(template: Template | None, kind: str = "containers") -> list[Template]:
    """Containers that a checked template has."""
    return list(((template or {}).get("spec") or {}).get(kind) or [])
