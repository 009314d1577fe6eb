"""Parts that the pods of a job share: security, environment, volumes, placement. Pure builders of manifests.

All manifests obey the restricted pod security standard, except where the job itself asks for the host's network or for a
directory of the node. An RDMA device obeys it, too.
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
"""On the host's network each job has two ports of its own; the scheduler puts no two pods with equal ports on one node."""

HOST_METRICS_PORTS, HOST_PODS = 17000, 4000
"""On the host's network each pod has a port for its metrics. Ports of one job are consecutive: its pods never collide."""

RUN_LIMIT = "10Gi"
"""Limit of a driver's files: its timeline, offsets and dead letters, and the output of a job without a volume. The kubelet
evicts a driver with more files, before the disk of the node is full."""

NETWORKS = "k8s.v1.cni.cncf.io/networks"

TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of a silent node. Pods tolerate them: the operator and the coordinator decide whether a pod still works."""


def on_host(job: StreamJob) -> bool:
    """Whether the pods use the network of their nodes."""
    return job.spec.kubernetes.network == "host"


def control_port(job: StreamJob, uid: str) -> int:
    """Port of the driver's control server."""
    return _host_port(uid) if on_host(job) else ports.CONTROL


def master_port(job: StreamJob, uid: str) -> int:
    """Port of Spark's master, in an image of release 0.1."""
    return _host_port(uid) + 1 if on_host(job) else ports.SPARK_MASTER


def metrics_port(job: StreamJob, uid: str, worker: int | None = None) -> int:
    """Port for the metrics of the driver, or of a worker's sidecar."""
    if not on_host(job):
        return ports.METRICS
    return HOST_METRICS_PORTS + (crc32(uid.encode()) + (0 if worker is None else 1 + worker)) % HOST_PODS


def _host_port(uid: str) -> int:
    return HOST_PORTS + 2 * (crc32(uid.encode()) % HOST_JOBS)


def owner(job: Doc) -> Doc:
    """The owner reference to the StreamJob: a deleted job takes the object along."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def user(job: StreamJob, release: Installation) -> int | None:
    """User and group of the processes; None: the cluster chooses."""
    number = job.spec.kubernetes.user
    return number if number is not None else release.user


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


def container(name: str, job: StreamJob, release: Installation, arguments: list[str], resources: Resources) -> Doc:
    """A container of the runtime image. `args`, not `command`: the entrypoint of an image may be an init process."""
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
            "requests": {"cpu": str(resources.cpu), "memory": str(resources.memory)},
            "limits": {"memory": str(resources.memory)},
        },
        # The pod's status keeps the last lines of the log, even after the node has deleted the log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(job: StreamJob, more: Mapping[str, str]) -> list[Doc]:
    """Environment of every container: address, name and node of the pod, and `more`."""
    return [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": variables.HOST, "value": "$(POD_IP)"},
        *([] if on_host(job) else [{"name": variables.PORTS, "value": variables.FIXED}]),
        *({"name": name, "value": value} for name, value in more.items()),
    ]


def env_from(job: StreamJob) -> Doc:
    """Secrets of the job as environment variables; variables of Ferry win. The operator never reads these Secrets."""
    references = [{"secretRef": {"name": name}} for name in job.spec.kubernetes.env_from]
    return {"envFrom": references} if references else {}


def networks(job: StreamJob) -> dict[str, str]:
    """Annotation of a worker's pod that attaches further networks beside the cluster's."""
    wanted = job.spec.transport.rdma.networks
    return {NETWORKS: wanted} if wanted is not None else {}


def metrics_token(release: Installation, job: str) -> list[Doc]:
    """The bearer token of the metrics; without a token a process serves no metrics. The Secret is optional for a pod."""
    if release.metrics_secret is None:
        return []
    secret = release.metrics_secret if release.is_home else names.run_secret(job)
    reference = {"name": secret, "key": names.METRICS_TOKEN, "optional": True}
    return [{"name": variables.METRICS_TOKEN, "valueFrom": {"secretKeyRef": reference}}]


def mount(name: str, path: str, **more: Any) -> Doc:
    """A mount of a volume."""
    return {"name": name, "mountPath": path, **more}


def base_volumes(job: StreamJob, with_instances: bool) -> list[Doc]:
    """Volumes for the settings of the run, its directory, and temporary files."""
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
    """Mounts of `base_volumes`."""
    return [
        mount("settings", SETTINGS_DIRECTORY, readOnly=True),
        mount("run", str(DIRECTORY)),
        mount("tmp", str(TEMPORARY)),
    ]


def user_volumes(job: StreamJob) -> list[Doc]:
    """Volumes that the job names."""
    return [{"name": _name(volume), **_source(volume)} for volume in job.spec.kubernetes.volumes]


def user_mounts(job: StreamJob) -> list[Doc]:
    """Mounts of the volumes that the job names."""
    return [
        mount(_name(volume), volume.mount_path, **({"readOnly": True} if volume.read_only else {}))
        for volume in job.spec.kubernetes.volumes
    ]


def sidecar_mounts(job: StreamJob) -> list[Doc]:
    """Mounts of a sidecar: the volume of durable checkpoints, and, read-only, the volume of the pipeline's file, because
    instances load a pipeline with a process."""
    file, location, mounts = job.spec.pipeline.file, job.spec.state.checkpoint.location, list[Doc]()
    for volume in job.spec.kubernetes.volumes:
        written, read = (path is not None and is_below(path, volume.mount_path) for path in (location, file))
        if written or read:
            mounts.append(mount(_name(volume), volume.mount_path, **({} if written else {"readOnly": True})))
    return mounts


def checkpoint_mount(job: StreamJob) -> list[Doc]:
    """Mount of the offsets on their volume; without a volume the offsets are lost with the pod."""
    path = job.spec.kubernetes.checkpoint
    holders = [v for v in job.spec.kubernetes.volumes if path is not None and is_below(path, v.mount_path)]
    if path is None or not holders:
        return []
    volume = max(holders, key=lambda v: len(v.mount_path))
    within = path[len(volume.mount_path) :].strip("/")
    return [mount(_name(volume), str(DIRECTORY / "checkpoint"), **({"subPath": within} if within else {}))]


def _name(volume: Volume) -> str:
    """The name of a volume in the pod, with a prefix that no volume of Ferry has."""
    return f"user-{volume.name}"


def _source(volume: Volume) -> Doc:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    return {"hostPath": {"path": volume.host_path, "type": "Directory"}}


def scheduling(job: StreamJob) -> Doc:
    """Fields of a pod for the scheduler; values of the job win."""
    kubernetes = job.spec.kubernetes
    silent = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in TOLERATED]
    return {
        **({"nodeSelector": dict(kubernetes.node_selector)} if kubernetes.node_selector else {}),
        "tolerations": [*kubernetes.tolerations, *silent],
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if on_host(job) else {}),
    }
