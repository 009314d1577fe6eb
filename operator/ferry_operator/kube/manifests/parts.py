"""Parts that the pods of a job share: security, environment, volumes, placement. Pure builders of manifests.

Restricted pod security holds for all that is made here, but for what the job itself asks for: the host's network, a
directory of the node. An RDMA device breaks none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any
from zlib import crc32

from ferry.contract import ports, variables
from ferry_operator.job.models import API_VERSION, KIND, StreamJob
from ferry_operator.job.models_base import is_below
from ferry_operator.job.models_kubernetes import Resources, Volume
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.manifests.release import DIRECTORY, Installation

SETTINGS_DIRECTORY = "/etc/ferry"
RUN_JSON = f"{SETTINGS_DIRECTORY}/run.json"
INSTANCES_FILE = f"{SETTINGS_DIRECTORY}/pod/instances"

TEMPORARY = PurePosixPath("/", "tmp")
"""Directory for temporary files in a container; Java needs it."""

HOST_PORTS, HOST_JOBS = 21000, 4000
"""On the host's network each job has two ports of its own, which the scheduler keeps from clashing on one node."""

HOST_METRICS_PORTS, HOST_PODS = 17000, 4000
"""There each pod has one for its metrics, likewise. Those of one job lie side by side, so that its own pods never clash."""

RUN_LIMIT = "10Gi"
"""Limit of a driver's files: its timeline, offsets and dead letters, and the output of a job that has no volume. A driver
that writes more is replaced before it takes the disk of its neighbours."""

NETWORKS = "k8s.v1.cni.cncf.io/networks"

TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a silent node. The operator and the coordinator judge it: the pod may still work."""


def on_host(job: StreamJob) -> bool:
    """Whether the pods use the network of their nodes."""
    return job.spec.kubernetes.network == "host"


def control_port(job: StreamJob, uid: str) -> int:
    """Where the driver serves."""
    return _host_port(uid) if on_host(job) else ports.CONTROL


def master_port(job: StreamJob, uid: str) -> int:
    """Where Spark's master listens."""
    return _host_port(uid) + 1 if on_host(job) else ports.SPARK_MASTER


def metrics_port(job: StreamJob, uid: str, worker: int | None = None) -> int:
    """Where the driver, or a worker's sidecar, serves its metrics."""
    if not on_host(job):
        return ports.METRICS
    return HOST_METRICS_PORTS + (crc32(uid.encode()) + (0 if worker is None else 1 + worker)) % HOST_PODS


def _host_port(uid: str) -> int:
    return HOST_PORTS + 2 * (crc32(uid.encode()) % HOST_JOBS)


def owner(job: Doc) -> Doc:
    """The reference that makes an object go away with its StreamJob."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def user(job: StreamJob, release: Installation) -> int | None:
    """User and group of the processes; None: as the cluster chooses."""
    given = job.spec.kubernetes.user
    return given if given is not None else release.user


def pod_security(job: StreamJob, release: Installation) -> Doc:
    """Security context of a whole pod."""
    number = user(job, release)
    mine = {} if number is None else {"runAsUser": number, "runAsGroup": number, "fsGroup": number}
    return {
        "runAsNonRoot": True,
        **mine,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(name: str, job: StreamJob, release: Installation, arguments: list[str], given: Resources) -> Doc:
    """A container of the runtime image. `args`, not `command`: the image may begin with an init of its own."""
    kubernetes = job.spec.kubernetes
    return {
        "name": name,
        "image": kubernetes.image or release.image,
        "imagePullPolicy": kubernetes.image_pull_policy,
        "args": arguments,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "resources": {
            "requests": {"cpu": str(given.cpu), "memory": str(given.memory)},
            "limits": {"memory": str(given.memory)},
        },
        # The end of the log says why, also after the pod has gone from its node.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(job: StreamJob, more: Mapping[str, str]) -> list[Doc]:
    """Variables of every container: where the pod is, and `more`."""
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": variables.HOST, "value": "$(POD_IP)"},
        *([] if on_host(job) else [{"name": variables.PORTS, "value": variables.FIXED}]),
        *({"name": name, "value": value} for name, value in more.items()),
    ]


def given_secrets(job: StreamJob) -> Doc:
    """Secrets whose keys are variables of a container; what Ferry sets itself wins. The operator never reads them."""
    found = [{"secretRef": {"name": name}} for name in job.spec.kubernetes.env_from]
    return {"envFrom": found} if found else {}


def networks(job: StreamJob) -> dict[str, str]:
    """Annotation of a worker's pod that asks for networks of its own beside the cluster's."""
    wanted = job.spec.transport.rdma.networks
    return {NETWORKS: wanted} if wanted is not None else {}


def metrics_token(release: Installation) -> list[Doc]:
    """The token of processes that serve metrics; without it they serve none. A pod starts without the Secret, too."""
    if release.metrics_secret is None:
        return []
    reference = {"name": release.metrics_secret, "key": "token", "optional": True}
    return [{"name": variables.METRICS_TOKEN, "valueFrom": {"secretKeyRef": reference}}]


def mount(name: str, path: str, **more: Any) -> Doc:
    """A mount of a volume."""
    return {"name": name, "mountPath": path, **more}


def base_volumes(job: StreamJob, with_instances: bool) -> list[Doc]:
    """The run's settings, its directory, and room for temporary files."""
    sources: list[Doc] = [{"secret": {"name": names.run_secret(job.metadata.name)}}]
    if with_instances:
        field = {"fieldPath": f"metadata.annotations['{names.INSTANCES}']"}
        sources.append({"downwardAPI": {"items": [{"path": "pod/instances", "fieldRef": field}]}})
    return [
        {"name": "settings", "projected": {"defaultMode": 0o440, "sources": sources}},
        {"name": "run", "emptyDir": {} if with_instances else {"sizeLimit": RUN_LIMIT}},
        {"name": "tmp", "emptyDir": {}},
    ]


def base_mounts() -> list[Doc]:
    """Where `base_volumes` are mounted."""
    return [
        mount("settings", SETTINGS_DIRECTORY, readOnly=True),
        mount("run", str(DIRECTORY)),
        mount("tmp", str(TEMPORARY)),
    ]


def user_volumes(job: StreamJob) -> list[Doc]:
    """Volumes that the job names."""
    return [{"name": _name(volume), **_source(volume)} for volume in job.spec.kubernetes.volumes]


def user_mounts(job: StreamJob) -> list[Doc]:
    """Where they are mounted."""
    return [
        mount(_name(volume), volume.mount_path, **({"readOnly": True} if volume.read_only else {}))
        for volume in job.spec.kubernetes.volumes
    ]


def sidecar_mounts(job: StreamJob) -> list[Doc]:
    """Volumes of the job that a sidecar needs: that of durable checkpoints, and, to read, that of the pipeline's file, which
    instances load when it has a process."""
    file, location, found = job.spec.pipeline.file, job.spec.state.checkpoint.location, list[Doc]()
    for volume in job.spec.kubernetes.volumes:
        written, read = (one is not None and is_below(one, volume.mount_path) for one in (location, file))
        if written or read:
            found.append(mount(_name(volume), volume.mount_path, **({} if written else {"readOnly": True})))
    return found


def checkpoint_mount(job: StreamJob) -> list[Doc]:
    """The directory of the offsets on the volume that it lies on; without one they end with the pod."""
    path = job.spec.kubernetes.checkpoint
    holders = [v for v in job.spec.kubernetes.volumes if path is not None and is_below(path, v.mount_path)]
    if path is None or not holders:
        return []
    volume = max(holders, key=lambda v: len(v.mount_path))
    within = path[len(volume.mount_path) :].strip("/")
    return [mount(_name(volume), str(DIRECTORY / "checkpoint"), **({"subPath": within} if within else {}))]


def _name(volume: Volume) -> str:
    """Apart from the names that Ferry uses itself."""
    return f"user-{volume.name}"


def _source(volume: Volume) -> Doc:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


def placement(job: StreamJob) -> Doc:
    """Where the pods may be; what the job says wins."""
    kubernetes = job.spec.kubernetes
    silent = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in TOLERATED]
    return {
        **({"nodeSelector": dict(kubernetes.node_selector)} if kubernetes.node_selector else {}),
        "tolerations": [*kubernetes.tolerations, *silent],
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if on_host(job) else {}),
    }
