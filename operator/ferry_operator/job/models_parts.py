"""The sections of a `StreamJob`'s spec that run anywhere: meaning, bounds, default, effect of a change.

Pure values with their checks, as in `models`; what only Kubernetes uses is in `models_kubernetes`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ferry.contract import limits, rings
from ferry_operator.job.models_base import PATH_MAX, Location, SpecPart, handover, live, refused, restart, rolling
from ferry_operator.job.quantities import Duration, Quantity, at_least, between

PROGRAM = restart(
    "The driver is restarted with it, and the state is kept. Only what is not part of an operator may change: transforms, "
    "sinks, sources' arguments. A pipeline with other operators (names, order, keys, windows, aggregates) is refused."
)
PACE = restart("The driver is restarted and goes on with the next epoch.")
SIDECARS = rolling("Workers are replaced one by one, each emptied before.", driver=False)
GIVEN = rolling("Workers are replaced one by one, each emptied before.", "kubernetes", driver=False)
EVERYBODY = rolling("Workers are replaced one by one, each emptied before; the driver is restarted.")


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


Argument = Annotated[Any, AfterValidator(_argument)]
"""Text, a number, a truth value, null, or a list of these."""


class Pipeline(SpecPart):
    """The user's program: exactly one of `module` and `file`."""

    module: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Importable Python module with the pipeline function.",
        json_schema_extra=PROGRAM,
    )
    file: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Python file with it, relative to the job file; on Kubernetes an absolute path in the image or on "
        "a volume.",
        json_schema_extra=PROGRAM,
    )
    args: dict[str, Argument] = Field(
        default_factory=dict, description="Arguments the pipeline reads; free names.", json_schema_extra=PROGRAM
    )
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Version shown in status; null: a digest of `module` or `file`, `args` and the image's name.",
        json_schema_extra=live("It is shown.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _one_source(self) -> Pipeline:
        if (self.module is None) == (self.file is None):
            raise ValueError("give exactly one of 'module' and 'file'")
        return self


class CheckpointSpec(SpecPart):
    """Durable checkpoints: what outlives all workers."""

    location: Location | None = Field(
        default=None,
        description="Where they go: a directory that driver and sidecars reach (on Kubernetes on one of "
        "`kubernetes.volumes`), or a URL such as s3://BUCKET/DIRECTORY, without a password. Those of a job are below "
        "NAME in it; null: there are none.",
        json_schema_extra=EVERYBODY,
    )
    every: Annotated[Duration, between("1s", "24h")] | None = Field(
        default=Duration("1m"),
        description="From the beginning of one to that of the next; null: only when somebody asks for one.",
        json_schema_extra=PACE,
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="So many stay, the newest, beside those that have a name.",
        json_schema_extra=PACE,
    )


class StateSpec(SpecPart):
    """What the instances keep and how many copies there are."""

    virtual_nodes: Annotated[int, AfterValidator(_power_of_two)] = Field(
        default=64,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Units of ownership, replication and handover; a power of two, fixed for the job's life.",
        json_schema_extra=refused("State is divided by it: make a new job."),
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=4,
        description="Copies beside the leader; as many as other workers can hold.",
        json_schema_extra=handover("Copies are warmed, or dropped."),
    )
    directory: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Where state files live on one machine; null: chosen by Ferry. On Kubernetes: "
        "`kubernetes.stateVolume`.",
        json_schema_extra=refused("The state is there: make a new job.", "one machine"),
    )
    memory: Annotated[Quantity, at_least("16Mi")] = Field(
        default=Quantity("1Gi"),
        description="Memory for state per instance, such as '512Mi'; state beyond it stays in files.",
        json_schema_extra=SIDECARS,
    )
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec, description="Durable checkpoints.")


class Epoch(SpecPart):
    """How epochs are run, when one begins and how much it takes."""

    mode: Literal["auto", "continuous", "micro-batch"] = Field(
        default="auto",
        description="'continuous': tasks of Spark hold their place and are dealt the records of one epoch after another, in "
        "milliseconds; a pipeline with .transform before an operator, or with Spark's own sources, cannot have that. "
        "'micro-batch': each epoch is a job of Spark's. 'auto': continuous where it can be; the status says which, and why. "
        "Results are the same. But for 'micro-batch' an executor has twice as many task slots as `cores`.",
        json_schema_extra=PACE,
    )
    interval: Annotated[Duration, between("0s", "1h")] = Field(
        default=Duration("0s"),
        description="Time from one epoch's begin to the next; '0s': back to back.",
        json_schema_extra=PACE,
    )
    max_rows: int = Field(
        default=1_000_000,
        ge=1,
        description="Rows that one epoch reads at most, from all of Ferry's sources together; a file is read whole, "
        "whatever it holds. Spark's own sources have options of their own, such as maxFilesPerTrigger.",
        json_schema_extra=PACE,
    )


class DriverSpec(SpecPart):
    """The process that runs the epochs."""

    standby: bool = Field(
        default=False,
        description="A second driver with a Spark of its own waits for the end of the first one, and takes its place in a "
        "second; it loads the program, too. Only with `ferry run`.",
        json_schema_extra=restart("The driver is restarted.", "one machine"),
    )


class Rdma(SpecPart):
    """Whether and how the sidecars are given an RDMA device, and how they use it."""

    mode: Literal["off", "shared", "sriov", "hostNetwork"] = Field(
        default="off",
        description="Not 'off': RDMA is expected. 'shared' and 'sriov': a device plugin's resource; 'hostNetwork': "
        "that, with the node's network.",
    )
    resource: str | None = Field(
        default=None,
        max_length=253,
        pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Resource that a sidecar requests, such as 'rdma/shared_device_a', of those that the installation "
        "allows (`jobs.allow.devices`); needed unless the mode is 'off'.",
        json_schema_extra=GIVEN,
    )
    networks: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="With 'sriov': networks of the worker pods, as `k8s.v1.cni.cncf.io/networks` has them, of those that "
        "the installation allows (`jobs.allow.networks`).",
        json_schema_extra=GIVEN,
    )
    device: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9][-A-Za-z0-9_.]*$",
        description="Name of the device, such as 'mlx5_0'; null: the first that can be used.",
    )
    gid_index: int | None = Field(
        default=None,
        ge=0,
        le=255,
        description="Which address of the device; null: the best, the pod's own if it has it.",
    )
    slots: int = Field(
        default=rings.SLOTS, ge=1, le=rings.SLOTS_MAX, description="Slots of a ring; each link pins two rings."
    )
    slot_bytes: int = Field(
        default=rings.SLOT_BYTES,
        ge=rings.SLOT_BYTES_MIN,
        le=rings.SLOT_BYTES_MAX,
        multiple_of=8,
        description="Bytes of a slot, a multiple of 8.",
    )
    notify: Literal["auto", "footer", "imm"] = Field(
        default="auto",
        description="How a receiver learns of a slot; 'auto': 'imm' unless the device keeps bytes in order.",
    )
    pinned: Quantity = Field(
        default=Quantity(f"{rings.PINNED_BYTES_MAX >> 20}Mi"),
        description="Memory that one instance may pin, two rings for each other instance; see docs/rdma.md for more "
        f"than {rings.LOCKED_BYTES >> 20}Mi.",
    )
    lend: Quantity = Field(
        default=Quantity("0"),
        description="Bytes of the mapped delta log, in whole pages, that deltas are sent from where they lie; pinned once "
        "for every other instance, so it needs a higher 'pinned'.",
    )

    @model_validator(mode="after")
    def _has_its_resource(self) -> Rdma:
        if self.mode != "off" and self.resource is None:
            raise ValueError(f"'resource' is needed for the mode {self.mode!r}")
        if self.networks is not None and self.mode != "sriov":
            raise ValueError(f"'networks' are for the mode 'sriov', not {self.mode!r}")
        needed = rings.link_bytes(self.slots, self.slot_bytes, self.lend.bytes)
        if self.pinned.bytes < needed:
            raise ValueError(f"'pinned' is less than the {needed} bytes that one link pins, with what is lent")
        return self


class Transport(SpecPart):
    """How sidecars talk to each other."""

    mode: Literal["auto", "rdma", "tcp"] = Field(
        default="auto",
        description="'auto': RDMA where both ends have it, else TCP, said aloud if RDMA is expected; 'rdma': nothing else.",
        json_schema_extra=SIDECARS,
    )
    rdma: Rdma = Field(default_factory=Rdma, description="RDMA device of the sidecars.", json_schema_extra=SIDECARS)

    @model_validator(mode="after")
    def _may_use_it(self) -> Transport:
        if self.rdma.mode != "off" and self.mode == "tcp":
            raise ValueError("'rdma' is asked for, and mode 'tcp' would not use it")
        return self


class Security(SpecPart):
    """What others on the network can read."""

    tls: Literal["off", "run"] = Field(
        default="run",
        description="'run': the driver's endpoint, Flight and Spark's connections are encrypted, with certificates that are "
        "derived for the run; 'off': they are not. Channels between sidecars and connections to Redis are as they are.",
        json_schema_extra=refused("A job begins and ends with or without."),
    )


class FailureSpec(SpecPart):
    """When a member counts as gone, and how long the job waits for it."""

    heartbeat: Annotated[Duration, between("50ms", "30s")] = Field(
        default=Duration(f"{limits.HEARTBEAT_MS}ms"),
        description="Time between two signs of life.",
        json_schema_extra=SIDECARS,
    )
    timeout: Annotated[Duration, between("200ms", "5m")] = Field(
        default=Duration(f"{limits.HEARTBEAT_TTL_MS}ms"),
        description="Silence after which a member is gone; more than two heartbeats. A process that stands still while its "
        "parent goes on is gone after four times as long.",
        json_schema_extra=EVERYBODY,
    )
    return_deadline: Annotated[Duration, between("0s", "24h")] = Field(
        default=Duration(f"{limits.RETURN_DEADLINE_MS // 1000}s"),
        description="Wait for the only holder of a vnode before the driver ends; the next one waits again.",
        json_schema_extra=PACE,
    )
    slow: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration(f"{limits.SLOW_MS // 1000}s"),
        description="Time after which the user's code that runs is said to be slow (`SlowCode`); it has the time it needs.",
        json_schema_extra=PACE,
    )
    progress_deadline: Annotated[Duration, between("10s", "24h")] = Field(
        default=Duration("15m"),
        description="Time without progress, or without a node that has room, after which a changed spec is refused and the "
        "last good one put back; what waits for records, or for the room of a pod before it, is not counted.",
        json_schema_extra=live("It is counted from then on.", "kubernetes"),
    )
    stall_deadline: Annotated[Duration, between("10s", "24h")] | None = Field(
        default=Duration("15m"),
        description="An epoch that stands for longer, although all instances are there and nothing is said to fail, is "
        "begun again by another driver; null: never.",
        json_schema_extra=live("It is counted from then on.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _some_heartbeats(self) -> FailureSpec:
        if self.timeout.seconds <= 2 * self.heartbeat.seconds:
            raise ValueError(f"'timeout' must be more than two heartbeats of {self.heartbeat!s}: one may get lost")
        return self


class SinkSpec(SpecPart):
    """What happens when a sink fails."""

    patience: Annotated[Duration, between("1s", "168h")] | None = Field(
        default=None,
        description="A sink that fails for longer stops the job, which goes on there when it is started again; null: it is "
        "tried for ever, and the job is Degraded. An error of the code of your own sink stops it after a few tries.",
        json_schema_extra=PACE,
    )

    @model_validator(mode="before")
    @classmethod
    def _of_a_release(cls, values: Any) -> Any:
        """Stored objects of version 0.1.0 all have `attempts`, by its default."""
        return {k: v for k, v in values.items() if k != "attempts"} if isinstance(values, dict) else values


class DeadLetter(SpecPart):
    """Where malformed records go."""

    directory: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Directory for them, one folder an epoch; null: beside the output, else with the run. Beyond "
        f"{limits.DEAD_LETTER_BYTES_MAX >> 30}Gi the oldest epochs are deleted.",
        json_schema_extra=restart("The driver is restarted; later epochs write there."),
    )
    on_crash: Literal["stop", "set-aside"] = Field(
        default="stop",
        description="A record of which the task that reads it dies: stop the job with the record's place, or set the record "
        "aside and go on without it.",
        json_schema_extra=PACE,
    )
