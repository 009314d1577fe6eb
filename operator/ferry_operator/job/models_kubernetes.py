"""The part of a `StreamJob` that only Kubernetes uses: image, network, room, placement and volumes of the job's pods.

Pure values with their checks, as in `models`. `ferry run` reads and checks the section and uses nothing of it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ferry_operator.job.models_base import (
    PATH_MAX,
    AbsolutePath,
    DnsLabel,
    FreeMap,
    ObjectName,
    SpecPart,
    is_below,
    live,
    refused,
    restart,
    rolling,
)
from ferry_operator.job.quantities import Cpus, Quantity, at_least, cpus_at_least

RESERVED = ("/etc/ferry", "/var/lib/ferry")
"""Directories of a pod in which Ferry mounts what it needs."""

VOLUMES_MAX = 16
SECRETS_MAX = 16

ALL_PODS = rolling("Worker pods are replaced one by one, each emptied before; the driver is restarted.", "kubernetes")
WORKER_PODS = rolling("Worker pods are replaced one by one, each emptied before.", "kubernetes", driver=False)


class Resources(SpecPart):
    """What a container is given."""

    cpu: Annotated[Cpus, cpus_at_least("10m")] = Field(
        default=Cpus("500m"), description="CPUs it requests, such as '500m' or 2; it may use more when they are free."
    )
    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1Gi"), description="Memory it requests, and may not exceed."
    )


class ExecutorResources(Resources):
    """What an executor is given: its JVM, a process of Python for every task slot, the worker of Spark that starts it."""

    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1536Mi"),
        description="Memory it requests, and may not exceed; the heap is what is left of it beside an overhead of 40 % of "
        "the heap, and at least 384Mi, unless `spark` sets spark.executor.memory.",
        json_schema_extra=ALL_PODS,
    )


class DriverResources(Resources):
    """What the driver is given: Spark's JVM, the coordinator, and the processes that plan epochs (1.06 GB were seen)."""

    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1536Mi"), description="Memory it requests, and may not exceed."
    )


class SidecarResources(Resources):
    """What a sidecar is given; state is files, which count as memory only where the medium is memory."""

    cpu: Annotated[Cpus, cpus_at_least("10m")] = Field(
        default=Cpus("250m"), description="CPUs it requests, such as '500m' or 2; it may use more when they are free."
    )
    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("512Mi"), description="Memory it requests, and may not exceed."
    )


class StateVolume(SpecPart):
    """Where the state files of a worker live: 'hostPath' needs `path`, 'memory' needs `size`."""

    medium: Literal["disk", "memory", "hostPath"] = Field(
        default="disk",
        description="'disk' and 'memory' end with the pod; 'hostPath' is found again by the next pod on the node.",
    )
    path: AbsolutePath | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="Directory of the node for 'hostPath', of those that the installation allows (`jobs.allow.hostPaths`); "
        "each job has its own below it.",
    )
    size: Annotated[Quantity, at_least("16Mi")] | None = Field(
        default=None, description="Most that the files of one worker may take; null on a disk: no limit."
    )

    @property
    def lasting(self) -> bool:
        """Whether it is found again after the pod."""
        return self.medium == "hostPath"

    @model_validator(mode="after")
    def _fits_the_medium(self) -> StateVolume:
        if (self.path is not None) != (self.medium == "hostPath"):
            raise ValueError("'path' belongs to the medium 'hostPath', and to no other")
        if self.medium == "memory" and self.size is None:
            raise ValueError("'size' is needed for the medium 'memory'")
        if self.medium == "hostPath" and self.size is not None:
            raise ValueError("'size' cannot be kept by the medium 'hostPath'")
        return self


class Volume(SpecPart):
    """A volume for inputs, outputs or the checkpoint, mounted in the driver and the executors."""

    name: DnsLabel = Field(min_length=1, max_length=50, description="Name of the volume, a DNS label.")
    mount_path: AbsolutePath = Field(max_length=256, description="Where it is mounted.")
    claim: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of a PersistentVolumeClaim of the namespace, of those that the installation allows "
        "(`jobs.allow.claims`).",
    )
    host_path: AbsolutePath | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="A directory of the node, of those that the installation allows (`jobs.allow.hostPaths`).",
    )
    read_only: bool = Field(default=False, description="It is mounted for reading.")

    @model_validator(mode="after")
    def _one_source(self) -> Volume:
        if (self.claim is None) == (self.host_path is None):
            raise ValueError("give exactly one of 'claim' and 'hostPath'")
        if any(is_below(self.mount_path, one) or is_below(one, self.mount_path) for one in RESERVED):
            raise ValueError(f"'mountPath' may not hold or be in {' or '.join(RESERVED)}: Ferry mounts its own there")
        return self


class Kubernetes(SpecPart):
    """How the pods of the job are made."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Image with Ferry's runtime and the pipeline, of those that the installation allows "
        "(`jobs.allow.images`); null: the operator's own default.",
        json_schema_extra=ALL_PODS,
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent",
        description="When a node fetches the image.",
        json_schema_extra=live("Pods that are made from then on use it; running ones have their image.", "kubernetes"),
    )
    network: Literal["pod", "host"] = Field(
        default="pod",
        description="The pods' own network, or, where the installation allows it (`jobs.allow.hostNetwork`), that of their "
        "nodes (for RDMA; ports are chosen so that none clash).",
        json_schema_extra=ALL_PODS,
    )
    service_account: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Service account of the pods, under which drivers may use journals, of those that the installation "
        "allows (`jobs.driverAccounts`, `jobs.allow.serviceAccounts`); null: the operator's default.",
        json_schema_extra=ALL_PODS,
    )
    user: int | None = Field(
        default=None,
        ge=1,
        le=2_147_483_647,
        description="User and group of the processes, and group of the volumes; null: the operator's default, which may "
        "leave it to the cluster. Another one has to be allowed by the installation (`jobs.allow.users`).",
        json_schema_extra=ALL_PODS,
    )
    node_selector: dict[str, str] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels that the nodes of the pods must have.",
        json_schema_extra=ALL_PODS,
    )
    tolerations: list[FreeMap] = Field(
        default_factory=list,
        max_length=32,
        description="Taints of nodes that the pods tolerate, as in the specification of a pod, of those that the "
        "installation allows (`jobs.allow.taints`).",
        json_schema_extra=ALL_PODS,
    )
    affinity: FreeMap | None = Field(
        default=None,
        description="Affinity of the pods, as in the specification of a pod, to nodes and to pods of the namespace; "
        "null: workers prefer different nodes.",
        json_schema_extra=ALL_PODS,
    )
    env_from: list[ObjectName] = Field(
        default_factory=list,
        max_length=SECRETS_MAX,
        description="Secrets of the namespace whose keys become variables of all processes of the job, such as "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of those that the installation allows (`jobs.allow.secrets` of the "
        "chart, by default 'for-jobs-*'). The operator never reads them. What changes in a Secret is read by "
        "pods that are made from then on.",
        json_schema_extra=ALL_PODS,
    )
    driver: DriverResources = Field(
        default_factory=DriverResources,
        description="What the driver is given.",
        json_schema_extra=restart("The driver is restarted in a new pod.", "kubernetes"),
    )
    executor: ExecutorResources = Field(
        default_factory=ExecutorResources,
        description="What the Spark executor of a worker is given.",
        json_schema_extra=WORKER_PODS,
    )
    sidecar: SidecarResources = Field(
        default_factory=SidecarResources,
        description="What the sidecar of a worker is given.",
        json_schema_extra=WORKER_PODS,
    )
    state_volume: StateVolume = Field(
        default_factory=StateVolume,
        description="Where state files live.",
        json_schema_extra=refused("The state is there: make a new job.", "kubernetes"),
    )
    volumes: list[Volume] = Field(
        default_factory=list,
        max_length=VOLUMES_MAX,
        description="Volumes of the driver and the executors: inputs, outputs, the checkpoint.",
        json_schema_extra=ALL_PODS,
    )
    checkpoint: AbsolutePath | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="Directory on one of `volumes` for Spark's checkpoint; null: it ends with the driver's pod, and is "
        "written again from the state unless a source is Spark's own.",
        json_schema_extra=refused("The offsets are there: make a new job.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Kubernetes:
        for one in ("name", "mount_path"):
            values = [getattr(volume, one) for volume in self.volumes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"'volumes': {twice[0]!r} is used by two of them")
        if self.checkpoint is not None and not self.writable(self.checkpoint):
            raise ValueError("'checkpoint' must be below the mountPath of one of 'volumes' that is not read-only")
        size = self.state_volume.size
        if self.state_volume.medium == "memory" and size is not None and size.bytes > self.sidecar.memory.bytes:
            raise ValueError(
                "'stateVolume.size' of the medium 'memory' counts as memory of the sidecar, which has less"
            )
        return self

    def writable(self, path: str) -> bool:
        """Whether a path lies on one of the volumes that can be written."""
        return any(is_below(path, volume.mount_path) and not volume.read_only for volume in self.volumes)
