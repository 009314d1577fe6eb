"""The sections of a `StreamJob`'s spec that run anywhere: meaning, bounds, default, effect of a change.

Pure values with their checks, as in `models`; sections for Kubernetes alone are in `models_kubernetes`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ferry.contract import limits, rings
from ferry_operator.job.models_base import (
    PATH_MAX,
    Location,
    ObjectName,
    SpecPart,
    handover,
    live,
    refused,
    restart,
    rolling,
    switch,
)
from ferry_operator.job.quantities import Duration, Quantity, at_least, between

DEPLOYED = (
    "The program is deployed while the job runs, from one epoch on. Operators keep their state by name. A program that "
    "cannot be deployed is refused: the job goes on as before, and the status has the reason."
)
PROGRAM = switch(DEPLOYED)
PACE = restart("The driver is restarted and goes on with the next epoch.")
SIDECARS = rolling("Workers are emptied and replaced one by one.", driver=False)
GIVEN = rolling("Workers are emptied and replaced one by one.", "kubernetes", driver=False)
ALL_PROCESSES = rolling("Workers are emptied and replaced one by one; the driver is restarted.")


def _argument(value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    for item in values:
        if not (item is None or isinstance(item, str | int | float)):
            raise ValueError("an argument is text, a number, true, false, null, or a list of these")
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError("an argument must be a finite number")
    return value


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(f"must be a power of two, such as {below} or {2 * below}")
    return value


Argument = Annotated[Any, AfterValidator(_argument)]
"""Text, a number, a truth value, null, or a list of these."""


class ConfigMapKey(SpecPart):
    """One text in a ConfigMap."""

    name: ObjectName = Field(description="Name of the ConfigMap, in the namespace of the job.")
    key: str = Field(
        max_length=253, pattern="^[-._a-zA-Z0-9]+$", description="Key of the text in its `data`, such as 'sales.py'."
    )

    @property
    def file(self) -> str:
        """The name of the text in messages and tracebacks."""
        return f"configmap/{self.name}/{self.key}"


class Pipeline(SpecPart):
    """The user's program: exactly one of `module`, `file` and `configMap`."""

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
        description="Python file with the pipeline function, relative to the job file; on Kubernetes an absolute path "
        "in the image or on a volume.",
        json_schema_extra=PROGRAM,
    )
    config_map: ConfigMapKey | None = Field(
        default=None,
        description="ConfigMap with the text of the program, in one file of at most 1 MiB. An edit of the ConfigMap deploys "
        "the text. Its imports are modules of the image.",
        json_schema_extra=switch(DEPLOYED, "kubernetes"),
    )
    args: dict[str, Argument] = Field(
        default_factory=dict, description="Arguments of the pipeline; the names are free.", json_schema_extra=PROGRAM
    )
    version: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Version in the status; null: a digest of `module`, `file` or `configMap`, `args` and the image's name.",
        json_schema_extra=live("The status shows the new value.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _one_source(self) -> Pipeline:
        if [self.module, self.file, self.config_map].count(None) != 2:
            raise ValueError("give exactly one of 'module', 'file' and 'configMap'")
        return self


class CheckpointSpec(SpecPart):
    """Durable checkpoints: state that outlives all workers."""

    location: Location | None = Field(
        default=None,
        description="Location of durable checkpoints: a directory that driver and sidecars reach (on Kubernetes on "
        "one of `kubernetes.volumes`), or a URL such as s3://BUCKET/DIRECTORY, without a password. The checkpoints of "
        "a job are in its directory NAME. null: the job takes no durable checkpoints.",
        json_schema_extra=ALL_PROCESSES,
    )
    every: Annotated[Duration, between("1s", "24h")] | None = Field(
        default=Duration("1m"),
        description="Time between the beginnings of two checkpoints; null: checkpoints on request only.",
        json_schema_extra=PACE,
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Number of newest checkpoints that are kept; checkpoints with a name are kept as well.",
        json_schema_extra=PACE,
    )


class StateSpec(SpecPart):
    """State of the instances and number of its copies."""

    virtual_nodes: Annotated[int, AfterValidator(_power_of_two)] = Field(
        default=64,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Units of ownership, replication and handover; a power of two, fixed for the job's life.",
        json_schema_extra=refused("The state is divided by this number: create a new job."),
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=4,
        description="Wanted copies beside the leader. Each copy needs a worker of its own: with fewer workers there "
        "are fewer copies.",
        json_schema_extra=handover("New copies are made by handovers; surplus copies are dropped."),
    )
    directory: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Directory of the state files on one machine; null: Ferry chooses a directory. On Kubernetes see "
        "`kubernetes.stateVolume`.",
        json_schema_extra=refused("The state is in this directory: create a new job.", "one machine"),
    )
    memory: Annotated[Quantity, at_least("16Mi")] = Field(
        default=Quantity("1Gi"),
        description="Memory for state per instance, such as '512Mi'; state beyond it stays in files.",
        json_schema_extra=SIDECARS,
    )
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec, description="Durable checkpoints.")


class Epoch(SpecPart):
    """How epochs run, when they begin and how many rows they read."""

    mode: Literal["auto", "continuous", "micro-batch"] = Field(
        default="auto",
        description="'continuous': long-running Spark tasks get the records of one epoch after another, in "
        "milliseconds. A pipeline with .transform before an operator, or with Spark's own sources, cannot be "
        "continuous. 'micro-batch': each epoch is a Spark job. 'auto': continuous if the pipeline can be; the status "
        "shows the mode and the reason. The results are the same. With 'continuous' and 'auto' an executor has twice "
        "as many task slots as `cores`.",
        json_schema_extra=PACE,
    )
    interval: Annotated[Duration, between("0s", "1h")] = Field(
        default=Duration("0s"),
        description="Time between the beginnings of two epochs; '0s': an epoch begins when the last one has ended.",
        json_schema_extra=PACE,
    )
    max_rows: int = Field(
        default=1_000_000,
        ge=1,
        description="Largest number of rows that one epoch reads from all of Ferry's sources together. A file is "
        "always read whole, also with more rows. Spark's own sources have their own options, such as "
        "maxFilesPerTrigger.",
        json_schema_extra=PACE,
    )


class DriverSpec(SpecPart):
    """The process that runs the epochs."""

    standby: bool = Field(
        default=False,
        description="true: a second driver with its own Spark waits for the end of the first driver, and takes over "
        "within a second. The second driver loads the program, too. Only with `ferry run`.",
        json_schema_extra=restart("The driver is restarted.", "one machine"),
    )


class Rdma(SpecPart):
    """How the sidecars get an RDMA device, and how they use it."""

    mode: Literal["off", "shared", "sriov", "hostNetwork"] = Field(
        default="off",
        description="'off': no RDMA. 'shared' and 'sriov': the sidecars get a resource of a device plugin. "
        "'hostNetwork': the same, with the network of the node. With every value but 'off' RDMA is expected.",
    )
    resource: str | None = Field(
        default=None,
        max_length=253,
        pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Resource that a sidecar requests, such as 'rdma/shared_device_a'. The installation must allow it "
        "(`jobs.allow.devices`). Required unless the mode is 'off'.",
        json_schema_extra=GIVEN,
    )
    networks: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="With 'sriov': networks of the worker pods, in the form of the annotation "
        "`k8s.v1.cni.cncf.io/networks`. The installation must allow them (`jobs.allow.networks`).",
        json_schema_extra=GIVEN,
    )
    device: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        pattern="^[A-Za-z0-9][-A-Za-z0-9_.]*$",
        description="Name of the device, such as 'mlx5_0'; null: the first usable device.",
    )
    gid_index: int | None = Field(
        default=None,
        ge=0,
        le=255,
        description="Index of the address (GID) of the device; null: the address of the pod if the device has it, "
        "else the best address.",
    )
    slots: int = Field(
        default=rings.SLOTS, ge=1, le=rings.SLOTS_MAX, description="Slots of a ring. Each link pins two rings."
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
        description="Memory that one instance may pin: two rings for each other instance. See docs/rdma.md for more "
        f"than {rings.LOCKED_BYTES >> 20}Mi.",
    )
    lend: Quantity = Field(
        default=Quantity("0"),
        description="Bytes of the mapped delta log, in whole pages, from which deltas are sent without a copy. These "
        "bytes are pinned once for every other instance: raise 'pinned' by as much.",
    )

    @model_validator(mode="after")
    def _has_its_resource(self) -> Rdma:
        if self.mode != "off" and self.resource is None:
            raise ValueError(f"'resource' is needed for the mode {self.mode!r}")
        if self.networks is not None and self.mode != "sriov":
            raise ValueError(f"'networks' are for the mode 'sriov', not {self.mode!r}")
        needed = rings.link_bytes(self.slots, self.slot_bytes, self.lend.bytes)
        if self.pinned.bytes < needed:
            raise ValueError(f"'pinned' is less than the {needed} bytes that one link pins, including 'lend'")
        return self


class Transport(SpecPart):
    """How sidecars talk to each other."""

    mode: Literal["auto", "rdma", "tcp"] = Field(
        default="auto",
        description="'auto': RDMA if both ends have it, else TCP; the log and the status report TCP if RDMA is "
        "expected. 'rdma': RDMA only. 'tcp': TCP only.",
        json_schema_extra=SIDECARS,
    )
    rdma: Rdma = Field(default_factory=Rdma, description="RDMA device of the sidecars.", json_schema_extra=SIDECARS)

    @model_validator(mode="after")
    def _may_use_it(self) -> Transport:
        if self.rdma.mode != "off" and self.mode == "tcp":
            raise ValueError("'rdma.mode' asks for a device, and mode 'tcp' would not use it")
        return self


class Security(SpecPart):
    """Encryption against readers on the network."""

    tls: Literal["off", "run"] = Field(
        default="run",
        description="'run': the driver's endpoint, Flight and Spark's connections are encrypted, with certificates of "
        "the run. 'off': these connections are in clear. The field does not change channels between sidecars and "
        "connections to Redis.",
        json_schema_extra=refused("The setting applies to a job for its whole life: create a new job."),
    )


class FailureSpec(SpecPart):
    """When a member counts as gone, and how long the job waits for it."""

    heartbeat: Annotated[Duration, between("50ms", "30s")] = Field(
        default=Duration(f"{limits.HEARTBEAT_MS}ms"),
        description="Time between two heartbeats.",
        json_schema_extra=SIDECARS,
    )
    timeout: Annotated[Duration, between("200ms", "5m")] = Field(
        default=Duration(f"{limits.HEARTBEAT_TTL_MS}ms"),
        description="Time without a heartbeat after which a member counts as lost; more than two heartbeats. A "
        "process that hangs while its parent lives counts as lost after four times this time.",
        json_schema_extra=ALL_PROCESSES,
    )
    return_deadline: Annotated[Duration, between("0s", "24h")] = Field(
        default=Duration(f"{limits.RETURN_DEADLINE_MS // 1000}s"),
        description="Time for which the driver waits for the only holder of a virtual node. Then the driver ends; the "
        "next driver waits again.",
        json_schema_extra=PACE,
    )
    slow: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration(f"{limits.SLOW_MS // 1000}s"),
        description="Time after which running code of the user is reported as slow (`SlowCode`). The code is not "
        "interrupted.",
        json_schema_extra=PACE,
    )
    progress_deadline: Annotated[Duration, between("10s", "24h")] = Field(
        default=Duration("15m"),
        description="Time without progress, or without a node with free resources, after which a changed spec is "
        "refused and the last good spec is restored. Time of waiting for records, or for the resources of a previous "
        "pod, is not counted.",
        json_schema_extra=live("The new value applies from the change on.", "kubernetes"),
    )
    stall_deadline: Annotated[Duration, between("10s", "24h")] | None = Field(
        default=Duration("15m"),
        description="Time without progress of an epoch after which another driver begins the epoch again, although "
        "all instances live and no failure is reported; null: never.",
        json_schema_extra=live("The new value applies from the change on.", "kubernetes"),
    )

    @model_validator(mode="after")
    def _some_heartbeats(self) -> FailureSpec:
        if self.timeout.seconds <= 2 * self.heartbeat.seconds:
            raise ValueError(
                f"'timeout' must be more than two heartbeats of {self.heartbeat!s}: a heartbeat may get lost"
            )
        return self


class SinkSpec(SpecPart):
    """Handling of failing sinks."""

    patience: Annotated[Duration, between("1s", "168h")] | None = Field(
        default=None,
        description="Time after which a failing sink stops the job. A restarted job continues with the same epoch. "
        "null: the sink is tried for ever, and the job is Degraded. An error in the code of your own sink stops the "
        "job after a few tries.",
        json_schema_extra=PACE,
    )


class DeadLetter(SpecPart):
    """Handling of malformed records."""

    directory: str | None = Field(
        default=None,
        min_length=1,
        max_length=PATH_MAX,
        description="Directory for malformed records, with one folder per epoch; null: beside the output, or without "
        "an output in the directory of the run. Beyond "
        f"{limits.DEAD_LETTER_BYTES_MAX >> 30}Gi the oldest epochs are deleted.",
        json_schema_extra=restart("The driver is restarted; later epochs write there."),
    )
    on_crash: Literal["stop", "set-aside"] = Field(
        default="stop",
        description="Handling of a record that kills the task that reads it. 'stop': the job stops and reports the "
        "place of the record. 'set-aside': the record goes to the dead letters, and the job continues without it.",
        json_schema_extra=PACE,
    )
