"""The `StreamJob` document as pydantic models: every field with its meaning, bounds and default.

The custom resource definition is generated from these models, so a field exists here or nowhere. Pure values: no I/O,
no cluster, no defaults taken from the environment. Reading files, `--set` and wording of refusals are in `spec`; the
effect of a change of a field is in `changes`. The sections are in `models_parts` and `models_kubernetes`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from ferry_operator.job.models_autoscale import Autoscale, why_not_scaled
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_base import (
    PATH_MAX,
    DnsLabel,
    Location,
    SpecPart,
    handover,
    live,
    never_running,
    restart,
)
from ferry_operator.job.models_deploy import DeployPolicy
from ferry_operator.job.models_handover import Handover
from ferry_operator.job.models_kubernetes import Kubernetes
from ferry_operator.job.models_parts import (
    PACE,
    DeadLetter,
    DriverSpec,
    Epoch,
    FailureSpec,
    Pipeline,
    Security,
    SinkSpec,
    StateSpec,
    Transport,
)
from ferry_operator.job.quantities import Duration
from ferry_operator.job.size import Size

API_VERSION = "ferry.dev/v1alpha1"
KIND = "StreamJob"

NAME_MAX = 52
"""Names that contain the name of the job, such as NAME-worker-255, are DNS labels too: at most 63 characters."""

SPARK_OWNED: dict[str, str] = {
    "spark.master": "Ferry chooses where Spark runs",
    "spark.submit.deployMode": "Ferry starts the driver, in client mode",
    "spark.app.name": "Ferry makes it from the name of the job",
    "spark.executor.instances": "set spec.workers",
    "spark.executor.cores": "set spec.cores",
    "spark.executor.memoryOverhead": "set spec.kubernetes.executor.memory, and spark.executor.memory for another heap",
    "spark.executor.memoryOverheadFactor": "set spec.kubernetes.executor.memory, and spark.executor.memory for another heap",
    "spark.driver.memoryOverhead": "set spec.kubernetes.driver.memory, and spark.driver.memory for another heap",
    "spark.driver.memoryOverheadFactor": "set spec.kubernetes.driver.memory, and spark.driver.memory for another heap",
    "spark.sql.streaming.checkpointLocation": "set spec.state.directory, or on Kubernetes spec.kubernetes.checkpoint",
}
"""Keys of Spark's configuration that a job may not set, each with its reason."""

SPARK_UNUSED: dict[str, str] = {
    "spark.kubernetes.": "the operator creates the pods; set their resources and options in spec.kubernetes",
    "spark.dynamicAllocation.": "executors come and go with the workers; set spec.workers",
    "spark.shuffle.service.": "executors come and go with the workers; set spec.workers",
    "spark.yarn.": "the operator creates the pods; set their resources and options in spec.kubernetes",
}
"""Prefixes of keys without effect in a job, each with the setting to use."""


def why_not(key: str) -> str | None:
    """The reason why a job may not set this key of Spark's configuration; None: the job may set it."""
    if not key.startswith("spark."):
        return f"{key!r}: keys begin with 'spark.'; did you mean 'spark.{key}'?"
    if key in SPARK_OWNED:
        return f"{key!r} belongs to Ferry: {SPARK_OWNED[key]}"
    unused = (instead for beginning, instead in SPARK_UNUSED.items() if key.startswith(beginning))
    return next((f"{key!r} does nothing here: {instead}" for instead in unused), None)


def _spark_conf(value: dict[str, str]) -> dict[str, str]:
    for key in value:
        if (reason := why_not(key)) is not None:
            raise ValueError(reason)
    return value


class Metadata(SpecPart):
    """Name and labels of the job."""

    name: DnsLabel = Field(min_length=1, max_length=NAME_MAX, description="Name of the job, a DNS label.")
    namespace: str | None = Field(default=None, description="Namespace of the job; not used on one machine.")
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels. The pods of the job get the labels that the installation allows (`jobs.allow.labels`).",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict,
        description="Annotations; on Kubernetes Ferry obeys ferry.dev/paused, ferry.dev/drain, ferry.dev/pins, "
        "ferry.dev/plan and ferry.dev/checkpoint.",
    )


class Spec(SpecPart):
    """The program of a job, its size and its settings."""

    pipeline: Pipeline = Field(description="The program.")
    deploy: DeployPolicy = Field(
        default_factory=DeployPolicy,
        description="How a changed program is deployed; on one machine `ferry deploy` has options.",
    )
    workers: int = Field(
        default=2,
        ge=0,
        le=256,
        description="Number of Spark executors, each with a sidecar. The number may change at any time. On Kubernetes "
        "0 has the effect of `suspend`; any other number resumes the job with that many workers.",
        json_schema_extra=handover(
            "New workers are started and state moves to them. Workers that must go hand over their state and are then "
            "stopped. 0 suspends the job."
        ),
    )
    instances_per_worker: int = Field(
        default=1,
        ge=1,
        le=64,
        description="State processes (instances) per sidecar. The number may change at any time.",
        json_schema_extra=handover(
            "New processes are started and state moves to them. Processes that must go hand over their state and are "
            "then ended."
        ),
    )
    cores: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Spark's task slots: on one machine of the whole job, on Kubernetes of each executor.",
        json_schema_extra=PACE,
    )
    output: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Replaces the directory of parquet sinks. null: the directory that the pipeline names; on "
        "Kubernetes NAME/out on the first volume of the job, or without a volume a directory in the driver's pod. "
        "Files there are lost with the pod, and the pod is replaced when its files exceed 10Gi.",
        json_schema_extra=restart("The driver is restarted; later epochs write there."),
    )
    events: int | None = Field(
        default=None,
        ge=1,
        description="Number of events of generator sources: the job finishes after them. null: the job runs for ever. "
        "The program reads the number as `args['events']`; a program that does not read it is refused.",
        json_schema_extra=PACE,
    )
    restart_nonce: int | None = Field(
        default=None,
        ge=0,
        description="A change of this number restarts the driver.",
        json_schema_extra=restart("The driver is restarted.", "kubernetes"),
    )
    suspend: bool = Field(
        default=False,
        description="true: the job takes a last checkpoint, and has no pods until the field is false again.",
        json_schema_extra=live(
            "true: the driver takes a last checkpoint and ends, and all pods are removed. false: the job resumes from "
            "that checkpoint.",
            "kubernetes",
        ),
    )
    ttl_after_finished: Duration | None = Field(
        default=None,
        description="Time after the end of the job at which the operator deletes the StreamJob, with its pods, its "
        "settings and its journal. Durable checkpoints and rows in sinks stay. A job that has failed is deleted only "
        "if it has finished no epoch, or has a durable checkpoint: its workers may hold its only state. null: never.",
        json_schema_extra=live("The operator takes the new time for a job that ends, or has ended.", "kubernetes"),
    )
    restore_from: Location | None = Field(
        default=None,
        description="Checkpoint from which a job without state begins: 'latest', a name or a number of a checkpoint "
        "of this job in `state.checkpoint.location`, or the path or URL of a manifest. A suspended job resumes from "
        "its latest checkpoint, unless this field was changed while it was suspended. 'none': the job begins without "
        "state. null: a new job begins without state too, unless the location holds checkpoints of a job of this "
        "name: then the job does not begin until this field is 'latest' or 'none'.",
        json_schema_extra=never_running(
            "A job with state never reads this field: suspend the job, change the field, and resume the job. A job "
            "that failed before its first epoch begins again with the new value."
        ),
    )
    restore_sink: Literal["truncate", "keep"] = Field(
        default="truncate",
        description="Rows in sinks of epochs after that checkpoint: 'truncate' removes them, 'keep' sets them aside.",
        json_schema_extra=live("The field is read when a job begins from a checkpoint."),
    )
    state: StateSpec = Field(default_factory=StateSpec, description="Virtual nodes, copies, memory and checkpoints.")
    autoscale: Autoscale = Field(default_factory=Autoscale, description="Number of workers by the load.")
    epoch: Epoch = Field(default_factory=Epoch, description="Pace of the epochs.")
    driver: DriverSpec = Field(default_factory=DriverSpec, description="Settings of the driver process.")
    handover: Handover = Field(default_factory=Handover, description="How state moves.")
    balance: BalanceSpec = Field(
        default_factory=BalanceSpec, description="Whether state moves automatically to even out the load."
    )
    transport: Transport = Field(default_factory=Transport, description="Channels between sidecars.")
    security: Security = Field(default_factory=Security, description="Encryption of connections.")
    failure: FailureSpec = Field(default_factory=FailureSpec, description="Failure detection.")
    sink: SinkSpec = Field(default_factory=SinkSpec, description="Failing sinks.")
    dead_letter: DeadLetter = Field(default_factory=DeadLetter, description="Malformed records.")
    spark: Annotated[dict[str, str], AfterValidator(_spark_conf)] = Field(
        default_factory=dict,
        max_length=128,
        description="Further configuration of Spark; keys begin with 'spark.', values are text.",
        json_schema_extra=restart("The driver and Spark's executors are restarted; sidecars stay."),
    )
    kubernetes: Kubernetes = Field(
        default_factory=Kubernetes, description="Pods of the job; `ferry run` checks the section and does not use it."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        if self.transport.rdma.mode == "hostNetwork" and self.kubernetes.network != "host":
            raise ValueError("'transport.rdma.mode' hostNetwork needs 'kubernetes.network' host")
        if self.suspended and self.state.checkpoint.location is None:
            raise ValueError(
                f"{'suspend' if self.suspend else 'workers 0'} needs 'state.checkpoint.location': without pods only a "
                "checkpoint keeps the state"
            )
        why = why_not_scaled(self.autoscale, self.state.replicas, self.instances_per_worker, self.state.virtual_nodes)
        if why is not None:
            raise ValueError(why)
        return self

    @property
    def size(self) -> Size:
        """Its workers and their instances."""
        return Size(self.workers, self.instances_per_worker)

    @property
    def suspended(self) -> bool:
        """There should be no pods."""
        return self.suspend or self.workers == 0


class StreamJob(SpecPart):
    """The whole document; `status` is not read."""

    api_version: Literal["ferry.dev/v1alpha1"] = Field(description="Version of this format.")
    kind: Literal["StreamJob"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="Program, size, state and pace of the job.")


assert get_args(StreamJob.model_fields["api_version"].annotation) == (API_VERSION,)
assert get_args(StreamJob.model_fields["kind"].annotation) == (KIND,)
