"""The part of a `StreamJob` that only Kubernetes uses: image, network, resources, placement and volumes of the job's pods.

Pure values with their checks, as in `models`. `ferry run` reads and checks the section and does not use it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ferry_operator.job import pod_template
from ferry_operator.job.models_base import (
    PATH_MAX,
    RESERVED,
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

VOLUMES_MAX = 16
SECRETS_MAX = 16

VARIABLES_MAX = 64
HUGE_PAGE = 2 << 20
HUGE_RESOURCE = "hugepages-2Mi"

ALL_PODS = rolling("Worker pods are emptied and replaced one by one; the driver is restarted.", "kubernetes")
WORKER_PODS = rolling("Worker pods are emptied and replaced one by one.", "kubernetes", driver=False)
DRIVER_POD = restart("The driver is restarted in a new pod.", "kubernetes")

DriverTemplate = Annotated[FreeMap, AfterValidator(pod_template.driver_template)]
WorkerTemplate = Annotated[FreeMap, AfterValidator(pod_template.worker_template)]


class Resources(SpecPart):
    """Resources of a container."""

    cpu: Annotated[Cpus, cpus_at_least("10m")] = Field(
        default=Cpus("500m"),
        description="Requested CPUs, such as '500m' or 2; the container may use more when CPUs are free.",
    )
    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1Gi"), description="Requested memory, which is also the limit."
    )


class ExecutorResources(Resources):
    """Resources of an executor: its JVM, a Python process for every task slot, the process that starts it."""

    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1536Mi"),
        description="Requested memory, which is also the limit. It holds the heap and an overhead of 40 % of the "
        "heap, at least 384Mi. `spark` can set another heap by spark.executor.memory.",
        json_schema_extra=ALL_PODS,
    )


class DriverResources(Resources):
    """Resources of the driver: Spark's JVM, the coordinator, the processes that plan epochs (1.06 GB were measured)."""

    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("1536Mi"), description="Requested memory, which is also the limit."
    )


class SidecarResources(Resources):
    """Resources of a sidecar; state files count as memory only if the medium is memory."""

    cpu: Annotated[Cpus, cpus_at_least("10m")] = Field(
        default=Cpus("250m"),
        description="Requested CPUs, such as '500m' or 2; the container may use more when CPUs are free.",
    )
    memory: Annotated[Quantity, at_least("64Mi")] = Field(
        default=Quantity("512Mi"), description="Requested memory, which is also the limit."
    )
    huge_pages: Annotated[Quantity, at_least("2Mi", or_zero=True)] = Field(
        default=Quantity("0"),
        description="Huge pages of 2 MiB (`hugepages-2Mi`) for the rings of RDMA links, of all instances of the worker "
        "together; a multiple of 2Mi. Rings that find no huge page are in small pages.",
    )

    @model_validator(mode="after")
    def _whole_pages(self) -> SidecarResources:
        if self.huge_pages.bytes % HUGE_PAGE:
            raise ValueError("'hugePages' must be a multiple of 2Mi")
        return self


class StateVolume(SpecPart):
    """Where the state files of a worker live: 'hostPath' needs `path`, 'memory' needs `size`."""

    medium: Literal["disk", "memory", "hostPath"] = Field(
        default="disk",
        description="Files on 'disk' and in 'memory' are lost with the pod; the next pod on the node uses the files "
        "of 'hostPath' again.",
    )
    path: AbsolutePath | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="Directory of the node for 'hostPath'. The installation must allow it (`jobs.allow.hostPaths`). "
        "Each job has a directory of its own in it.",
    )
    size: Annotated[Quantity, at_least("16Mi")] | None = Field(
        default=None, description="Largest size of the files of one worker; null: no limit ('memory' needs a size)."
    )

    @property
    def lasting(self) -> bool:
        """Whether the files outlive the pod."""
        return self.medium == "hostPath"

    @model_validator(mode="after")
    def _fits_the_medium(self) -> StateVolume:
        if (self.path is not None) != (self.medium == "hostPath"):
            raise ValueError("'path' belongs to the medium 'hostPath', and to no other")
        if self.medium == "memory" and self.size is None:
            raise ValueError("'size' is needed for the medium 'memory'")
        if self.medium == "hostPath" and self.size is not None:
            raise ValueError("'size' cannot be enforced for the medium 'hostPath'")
        return self


class Volume(SpecPart):
    """A volume for inputs, outputs or the checkpoint, mounted in the driver and the executors."""

    name: DnsLabel = Field(min_length=1, max_length=50, description="Name of the volume, a DNS label.")
    mount_path: AbsolutePath = Field(max_length=256, description="Directory at which the volume is mounted.")
    claim: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name of a PersistentVolumeClaim of the namespace. The installation must allow it "
        "(`jobs.allow.claims`).",
    )
    host_path: AbsolutePath | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="Directory of the node. The installation must allow it (`jobs.allow.hostPaths`).",
    )
    read_only: bool = Field(default=False, description="true: the volume is mounted read-only.")

    @model_validator(mode="after")
    def _one_source(self) -> Volume:
        if (self.claim is None) == (self.host_path is None):
            raise ValueError("give exactly one of 'claim' and 'hostPath'")
        if any(is_below(self.mount_path, own) or is_below(own, self.mount_path) for own in RESERVED):
            raise ValueError(
                f"'mountPath' may not contain or be below {' or '.join(RESERVED)}: Ferry mounts its own files there"
            )
        return self


class Kubernetes(SpecPart):
    """Settings of the pods of the job."""

    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Image with Ferry's runtime and the pipeline. The installation must allow it "
        "(`jobs.allow.images`). null: the operator's default.",
        json_schema_extra=ALL_PODS,
    )
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        default="IfNotPresent",
        description="When a node fetches the image.",
        json_schema_extra=live("New pods use the new value; running pods keep their image.", "kubernetes"),
    )
    network: Literal["pod", "host"] = Field(
        default="pod",
        description="'pod': the network of the pods. 'host': the network of their nodes, for RDMA; Ferry chooses "
        "ports that do not clash. The installation must allow 'host' (`jobs.allow.hostNetwork`).",
        json_schema_extra=ALL_PODS,
    )
    service_account: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Service account of the pods. It gives drivers the right to use journals. The installation must "
        "allow it (`jobs.driverAccounts`, `jobs.allow.serviceAccounts`). null: the operator's default.",
        json_schema_extra=ALL_PODS,
    )
    user: int | None = Field(
        default=None,
        ge=1,
        le=2_147_483_647,
        description="User and group of the processes, and group of the volumes. The installation must allow it "
        "(`jobs.allow.users`). null: the operator's default, or the cluster's choice if the operator has no default.",
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
        description="Tolerations of the pods, as in the specification of a pod. The installation must allow the "
        "taints (`jobs.allow.taints`).",
        json_schema_extra=ALL_PODS,
    )
    affinity: FreeMap | None = Field(
        default=None,
        description="Affinity of the pods, as in the specification of a pod, to nodes and to pods of the namespace; "
        "null: workers prefer different nodes.",
        json_schema_extra=ALL_PODS,
    )
    disruption_budget: Literal["follows", "off"] = Field(
        default="follows",
        description="'follows': a PodDisruptionBudget protects workers with state from evictions; a drained worker may "
        "leave. 'off': evictions delete any pod at once, and its state comes back from replicas.",
        json_schema_extra=live("The budget and the labels of the pods are changed.", "kubernetes"),
    )
    env_from: list[ObjectName] = Field(
        default_factory=list,
        max_length=SECRETS_MAX,
        description="Secrets of the namespace. Their keys, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "become environment variables of all processes of the job. The installation must allow the Secrets "
        "(`jobs.allow.secrets` of the chart, by default 'for-jobs-*'). The operator never reads them. Only new pods "
        "see a change of a Secret.",
        json_schema_extra=ALL_PODS,
    )
    env: Annotated[list[FreeMap], AfterValidator(pod_template.variables)] = Field(
        default_factory=list,
        max_length=VARIABLES_MAX,
        description="Environment variables of all processes of the job, as in a container: `value`, or `valueFrom` a "
        "Secret, a ConfigMap or a field of the pod. The installation must allow the Secrets and ConfigMaps. Names of "
        "Ferry, Spark and Python are refused.",
        json_schema_extra=ALL_PODS,
    )
    driver_pod_template: DriverTemplate | None = Field(
        default=None,
        description="Template of the driver's pod (docs/operating/pods.md): a part of a pod, which is merged with Ferry's "
        "pod. Fields of Ferry, and names that the installation does not allow, are refused.",
        json_schema_extra=DRIVER_POD,
    )
    worker_pod_template: WorkerTemplate | None = Field(
        default=None,
        description="Template of the workers' pods, like `driverPodTemplate`. Their containers are 'executor' and "
        "'sidecar'.",
        json_schema_extra=WORKER_PODS,
    )
    driver: DriverResources = Field(
        default_factory=DriverResources,
        description="Resources of the driver.",
        json_schema_extra=DRIVER_POD,
    )
    executor: ExecutorResources = Field(
        default_factory=ExecutorResources,
        description="Resources of the Spark executor of a worker.",
        json_schema_extra=WORKER_PODS,
    )
    sidecar: SidecarResources = Field(
        default_factory=SidecarResources,
        description="Resources of the sidecar of a worker.",
        json_schema_extra=WORKER_PODS,
    )
    state_volume: StateVolume = Field(
        default_factory=StateVolume,
        description="Volume of the state files.",
        json_schema_extra=refused("The state is in this volume: create a new job.", "kubernetes"),
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
        description="Directory on one of `volumes` for Spark's checkpoint; null: the checkpoint is lost with the "
        "driver's pod, and the next driver writes it again from the state, unless a source is Spark's own.",
        json_schema_extra=refused("The offsets are in this directory: create a new job.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Kubernetes:
        for field in ("name", "mount_path"):
            values = [getattr(volume, field) for volume in self.volumes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"'volumes': {twice[0]!r} is used by two volumes")
        if self.checkpoint is not None and not self.writable(self.checkpoint):
            raise ValueError("'checkpoint' must be below the mountPath of a writable volume of 'volumes'")
        size = self.state_volume.size
        if self.state_volume.medium == "memory" and size is not None and size.bytes > self.sidecar.memory.bytes:
            raise ValueError(
                "'stateVolume.size' of the medium 'memory' counts as memory of the sidecar, and 'sidecar.memory' is "
                "smaller"
            )
        return self

    @model_validator(mode="after")
    def _templates_fit(self) -> Kubernetes:
        mounted = {volume.mount_path for volume in self.volumes}
        for field, template in (("driver", self.driver_pod_template), ("worker", self.worker_pod_template)):
            for container in pod_template.containers_of(template):
                where, name = f"'{field}PodTemplate': the container {container['name']!r}", container["name"]
                limits = (container.get("resources") or {}).get("limits") or {}
                resources: Resources = getattr(self, name)
                if name == "sidecar" and self.sidecar.huge_pages.bytes and HUGE_RESOURCE in limits:
                    raise ValueError(f"{where}: {HUGE_RESOURCE!r} is also in 'sidecar.hugePages'")
                if "cpu" in limits and Cpus(str(limits["cpu"])).millis < resources.cpu.millis:
                    raise ValueError(f"{where}: the limit of CPUs is less than '{name}.cpu'")
                for mount in container.get("volumeMounts") or []:
                    if mount["mountPath"] in mounted:
                        raise ValueError(f"{where}: {mount['mountPath']!r} is the mountPath of one of 'volumes'")
                twice = {variable["name"] for variable in self.env} & {v["name"] for v in container.get("env") or []}
                if twice:
                    raise ValueError(f"{where}: {min(twice)!r} is also in 'env'")
        return self

    def writable(self, path: str) -> bool:
        """Whether a path lies on a writable volume."""
        return any(is_below(path, volume.mount_path) and not volume.read_only for volume in self.volumes)
