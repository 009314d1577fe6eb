"""The `StreamJob` document as pydantic models: every field with its meaning, bounds and default.

The custom resource definition is generated from these models, so a field exists here or nowhere. Pure values: no I/O,
no cluster, no defaults taken from the environment. Reading files, `--set` and wording of refusals are in `spec`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from ferry.contract import limits
from ferry_operator.quantities import Duration, Quantity, at_least, between

API_VERSION = "ferry.dev/v1alpha1"
KIND = "StreamJob"

NAME_MAX = 52
"""So that names made of the job's, such as NAME-worker-255, are DNS labels of at most 63 characters, too."""

IMMUTABLE: JsonDict = {
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "cannot be changed: make a new job"}]
}
"""Marks a field that keeps its first value; `spec.immutable_changes` and the CRD both read it."""

SPARK_OWNED: dict[str, str] = {
    "spark.master": "Ferry chooses where Spark runs",
    "spark.submit.deployMode": "the driver is a pod of its own, in client mode",
    "spark.app.name": "it is the name of the job",
    "spark.executor.instances": "set spec.workers",
    "spark.dynamicAllocation.enabled": "Ferry requests and releases executors itself; set spec.workers",
    "spark.kubernetes.namespace": "it is the namespace of the job",
    "spark.kubernetes.executor.podTemplateFile": "Ferry adds the sidecar by its own template",
    "spark.kubernetes.executor.podNamePrefix": "worker pods are named after the job",
    "spark.sql.streaming.checkpointLocation": "offsets belong to the state of the job; set spec.state.directory",
}
"""Keys of Spark's configuration that a job may not set, each with its reason."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class _Part(BaseModel):
    """A part of the document: camelCase names, unknown fields refused, never changed after reading."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, validate_default=True, allow_inf_nan=False
    )


def _argument(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    for one in values:
        if not (one is None or isinstance(one, str | int | float)):
            raise ValueError("an argument is text, a number, true, false, null, or a list of these")
        if isinstance(one, float) and not math.isfinite(one):
            raise ValueError("an argument must be a finite number")
    return value


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(f"must be a power of two, such as {below} or {2 * below}")
    return value


def _name(value: str) -> str:
    if not _DNS_LABEL.fullmatch(value):
        raise ValueError("must be lower-case letters, digits and '-', beginning and ending with a letter or digit")
    return value


def _spark_conf(value: dict[str, str]) -> dict[str, str]:
    for key in value:
        if not key.startswith("spark."):
            raise ValueError(f"{key!r}: keys begin with 'spark.'; did you mean 'spark.{key}'?")
        if key in SPARK_OWNED:
            raise ValueError(f"{key!r} belongs to Ferry: {SPARK_OWNED[key]}")
    return value


Argument = Annotated[Any, AfterValidator(_argument)]
"""Text, a number, a truth value, null, or a list of these."""


class Metadata(_Part):
    """What names the job."""

    name: Annotated[str, AfterValidator(_name)] = Field(
        min_length=1, max_length=NAME_MAX, description="Name of the job, a DNS label."
    )
    namespace: str | None = Field(default=None, description="Namespace of the job; not used on one machine.")
    labels: dict[str, str] = Field(default_factory=dict, description="Labels, also put on the pods of the job.")
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations; Ferry does not read them.")


class Pipeline(_Part):
    """The user's program: exactly one of `module` and `file`."""

    module: str | None = Field(
        default=None, min_length=1, description="Importable Python module with the pipeline function."
    )
    file: str | None = Field(default=None, min_length=1, description="Python file with it, relative to the job file.")
    args: dict[str, Argument] = Field(default_factory=dict, description="Arguments the pipeline reads; free names.")
    version: str | None = Field(
        default=None, min_length=1, description="Version shown in status; null: the content's hash."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Pipeline:
        if (self.module is None) == (self.file is None):
            raise ValueError("give exactly one of 'module' and 'file'")
        return self


class State(_Part):
    """What the instances keep and how many copies there are."""

    virtual_nodes: Annotated[int, AfterValidator(_power_of_two)] = Field(
        default=64,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Units of ownership, replication and handover; a power of two, fixed for the job's life.",
        json_schema_extra=IMMUTABLE,
    )
    replicas: int = Field(
        default=1, ge=0, le=4, description="Copies beside the leader; as many as other workers can hold."
    )
    directory: str | None = Field(
        default=None, min_length=1, description="Where state files live; null: chosen by Ferry."
    )
    memory: Annotated[Quantity, AfterValidator(at_least("16Mi"))] = Field(
        default=Quantity("1Gi"),
        description="Memory for state per instance, such as '512Mi'; state beyond it stays in files.",
    )


class Epoch(_Part):
    """When an epoch begins and how much it takes."""

    interval: Annotated[Duration, AfterValidator(between("0s", "1h"))] = Field(
        default=Duration("0s"), description="Time from one epoch's begin to the next; '0s': back to back."
    )
    max_rows: int = Field(default=1_000_000, ge=1, description="Rows that one epoch reads from all sources at most.")


class Handover(_Part):
    """How virtual nodes move between instances."""

    strategy: Literal["all-at-once", "batched", "fluid"] = Field(
        default="all-at-once",
        description="How a plan is cut into steps: one step, `batch` per step, or one vnode per step.",
    )
    batch: int = Field(default=16, ge=1, le=limits.VIRTUAL_NODES_MAX, description="Vnodes per step of 'batched'.")
    gap: int = Field(default=0, ge=0, le=1_000_000, description="Epochs between two steps.")
    bandwidth: Annotated[Quantity, AfterValidator(at_least("64Ki"))] | None = Field(
        default=Quantity("32Mi"),
        description="Bytes per second that warming may use per instance, such as '100M'; null: unlimited.",
    )
    deadline: Annotated[Duration, AfterValidator(between("1s", "24h"))] = Field(
        default=Duration(f"{limits.WARM_DEADLINE_SECONDS:g}s"), description="A move that warms for longer is aborted."
    )


class Transport(_Part):
    """How sidecars talk to each other."""

    mode: Literal["auto", "tcp"] = Field(default="auto", description="'auto' takes the best that both ends offer.")


class Failure(_Part):
    """When a member counts as gone, and how long the job waits for it."""

    heartbeat: Annotated[Duration, AfterValidator(between("50ms", "30s"))] = Field(
        default=Duration("500ms"), description="Time between two signs of life."
    )
    timeout: Annotated[Duration, AfterValidator(between("200ms", "5m"))] = Field(
        default=Duration("2500ms"), description="Silence after which a member is gone; more than two heartbeats."
    )
    return_deadline: Annotated[Duration, AfterValidator(between("0s", "24h"))] = Field(
        default=Duration("60s"), description="Wait for the only holder of a vnode before the job stops."
    )

    @model_validator(mode="after")
    def _some_heartbeats(self) -> Failure:
        if self.timeout.seconds <= 2 * self.heartbeat.seconds:
            raise ValueError(f"'timeout' must be more than two heartbeats of {self.heartbeat!s}: one may get lost")
        return self


class Sink(_Part):
    """What happens when a sink fails."""

    attempts: int = Field(
        default=limits.SINK_ATTEMPTS, ge=1, le=100, description="Tries per epoch before the job stops."
    )


class DeadLetter(_Part):
    """Where malformed records go."""

    directory: str | None = Field(default=None, min_length=1, description="Directory for them; null: only counted.")


class Spec(_Part):
    """What should run."""

    pipeline: Pipeline = Field(description="The program.")
    workers: int = Field(
        default=2, ge=1, le=256, description="Spark executors, each with a sidecar; may change at any time."
    )
    instances_per_worker: int = Field(
        default=1, ge=1, le=64, description="State processes per sidecar; may change, too."
    )
    cores: int = Field(default=2, ge=1, le=256, description="Spark's task slots when the job runs on one machine.")
    state: State = Field(default_factory=State, description="Virtual nodes, copies and memory.")
    epoch: Epoch = Field(default_factory=Epoch, description="Pace of the epochs.")
    handover: Handover = Field(default_factory=Handover, description="How state moves.")
    transport: Transport = Field(default_factory=Transport, description="Channels between sidecars.")
    failure: Failure = Field(default_factory=Failure, description="Failure detection.")
    sink: Sink = Field(default_factory=Sink, description="Failing sinks.")
    dead_letter: DeadLetter = Field(default_factory=DeadLetter, description="Malformed records.")
    spark: Annotated[dict[str, str], AfterValidator(_spark_conf)] = Field(
        default_factory=dict, description="Further configuration of Spark; keys begin with 'spark.', values are text."
    )


class StreamJob(_Part):
    """The whole document; `status` is not part of what is read."""

    api_version: Literal["ferry.dev/v1alpha1"] = Field(description="Version of this format.")
    kind: Literal["StreamJob"] = Field(description="Kind of the document.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: Spec = Field(description="The program, its size, its state and its pace.")


assert get_args(StreamJob.model_fields["api_version"].annotation) == (API_VERSION,)
assert get_args(StreamJob.model_fields["kind"].annotation) == (KIND,)
assert Duration("500ms").seconds == limits.HEARTBEAT_SECONDS
assert Duration("2500ms").seconds == limits.HEARTBEAT_TTL_SECONDS
