"""The `StreamJob` document as pydantic models: every field with its meaning, bounds and default.

The custom resource definition is generated from these models, so a field exists here or nowhere. Pure values: no I/O,
no cluster, no defaults taken from the environment. Reading files, `--set` and wording of refusals are in `spec`; what a
change of a field does is in `changes`. The sections are in `models_parts` and `models_kubernetes`.
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
from ferry_operator.job.size import Size

API_VERSION = "ferry.dev/v1alpha1"
KIND = "StreamJob"

NAME_MAX = 52
"""So that names made of the job's, such as NAME-worker-255, are DNS labels of at most 63 characters, too."""

SPARK_OWNED: dict[str, str] = {
    "spark.master": "Ferry chooses where Spark runs",
    "spark.submit.deployMode": "Ferry starts the driver, in client mode",
    "spark.app.name": "it is made of the name of the job",
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
    "spark.kubernetes.": "the operator makes the pods; set what they need in spec.kubernetes",
    "spark.dynamicAllocation.": "executors come and go with the workers; set spec.workers",
    "spark.shuffle.service.": "executors come and go with the workers; set spec.workers",
    "spark.yarn.": "the operator makes the pods; set what they need in spec.kubernetes",
}
"""Beginnings of keys that would do nothing in a job, each with what does."""


def why_not(key: str) -> str | None:
    """Why a job may not set this key of Spark's configuration; None: it may."""
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
        description="Labels, also put on the pods of the job, but for those below app.kubernetes.io/.",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict,
        description="Annotations; on Kubernetes Ferry obeys ferry.dev/paused, ferry.dev/drain, ferry.dev/pins, "
        "ferry.dev/plan and ferry.dev/checkpoint.",
    )


class Spec(SpecPart):
    """The program of a job, its size and its settings."""

    pipeline: Pipeline = Field(description="The program.")
    workers: int = Field(
        default=2,
        ge=0,
        le=256,
        description="Spark executors, each with a sidecar; may change at any time. On Kubernetes 0 is the same as "
        "`suspend`, and any other number begins anew with that size.",
        json_schema_extra=handover(
            "Workers are started and state moves to them, or they are emptied and then stopped; 0 suspends the job."
        ),
    )
    instances_per_worker: int = Field(
        default=1,
        ge=1,
        le=64,
        description="State processes per sidecar; may change, too.",
        json_schema_extra=handover(
            "Processes are started and state moves to them, or they are emptied and then ended."
        ),
    )
    cores: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Spark's task slots: of the job on one machine, of each executor on Kubernetes.",
        json_schema_extra=PACE,
    )
    output: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Replaces the directory of parquet sinks; null: as the pipeline says, or on Kubernetes NAME/out "
        "on the first volume of the job, or in the driver's pod: there it ends with the pod, which is replaced when "
        "its files exceed 10Gi.",
        json_schema_extra=restart("The driver is restarted; later epochs write there."),
    )
    events: int | None = Field(
        default=None,
        ge=1,
        description="Bound of generator sources: the job runs to its end; null: for ever. The program reads it as "
        "`args['events']`, and one that does not is refused.",
        json_schema_extra=PACE,
    )
    restart_nonce: int | None = Field(
        default=None,
        ge=0,
        description="Any other number restarts the driver.",
        json_schema_extra=restart("The driver is restarted.", "kubernetes"),
    )
    suspend: bool = Field(
        default=False,
        description="The job takes a last checkpoint, and has no pods until this is false again.",
        json_schema_extra=live(
            "The driver takes a last checkpoint and ends, and all pods go; with false the job goes on from there.",
            "kubernetes",
        ),
    )
    restore_from: Location | None = Field(
        default=None,
        description="Checkpoint that a job without state begins from: latest, a name or a number, below its own name in "
        "`state.checkpoint.location`, or the path or URL of a manifest. A suspended job begins from its latest one unless "
        "this was changed meanwhile. 'none': it begins from nothing. null: so does a new job, unless the location holds "
        "checkpoints of its name: then it does not begin until this says 'latest' or 'none'.",
        json_schema_extra=never_running(
            "A job that has state never reads it: suspend the job, change it, and resume. One that failed before its first "
            "epoch begins anew with it."
        ),
    )
    restore_sink: Literal["truncate", "keep"] = Field(
        default="truncate",
        description="What sinks have of epochs after that checkpoint: 'truncate' takes it away, 'keep' puts it aside.",
        json_schema_extra=live("It is read when a job begins from a checkpoint."),
    )
    state: StateSpec = Field(default_factory=StateSpec, description="Virtual nodes, copies, memory and checkpoints.")
    autoscale: Autoscale = Field(default_factory=Autoscale, description="Workers by the load.")
    epoch: Epoch = Field(default_factory=Epoch, description="Pace of the epochs.")
    driver: DriverSpec = Field(default_factory=DriverSpec, description="The process that runs them.")
    handover: Handover = Field(default_factory=Handover, description="How state moves.")
    balance: BalanceSpec = Field(
        default_factory=BalanceSpec, description="Whether it moves by itself to even out the load."
    )
    transport: Transport = Field(default_factory=Transport, description="Channels between sidecars.")
    security: Security = Field(default_factory=Security, description="What may be read on the way.")
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
        default_factory=Kubernetes, description="Pods of the job; `ferry run` checks it and uses nothing of it."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Spec:
        if self.transport.rdma.mode == "hostNetwork" and self.kubernetes.network != "host":
            raise ValueError("'transport.rdma.mode' hostNetwork needs 'kubernetes.network' host")
        if self.suspended and self.state.checkpoint.location is None:
            raise ValueError(
                f"{'suspend' if self.suspend else 'workers 0'} needs 'state.checkpoint.location': nothing else outlives the "
                "pods"
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
    """The whole document; `status` is not part of what is read."""

    api_version: Literal["ferry.dev/v1alpha1"] = Field(description="Version of this format.")
    kind: Literal["StreamJob"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="The program, its size, its state and its pace.")


assert get_args(StreamJob.model_fields["api_version"].annotation) == (API_VERSION,)
assert get_args(StreamJob.model_fields["kind"].annotation) == (KIND,)
