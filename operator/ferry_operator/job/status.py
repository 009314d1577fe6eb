"""The `status` of a `StreamJob` on Kubernetes as pydantic models: the CRD's status schema is generated from them.

Pure values. Every pass writes the status whole. Reading is lenient, because another version of the operator may have
written the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ferry.contract.errors import SpecRefused
from ferry.contract.settings import LATEST
from ferry_operator.job.models_autoscale import AutoscaleReport
from ferry_operator.job.models_base import PATH_MAX
from ferry_operator.job.size import WORKERS_MAX

Phase = Literal[
    "Pending", "Starting", "Running", "Moving", "Degraded", "Suspending", "Suspended", "Finished", "Failed", "Deleting"
]

SPEC_IN_FORCE = "SpecInForce"
"""The type of the condition that names the generation of the spec in force."""

CONDITIONS = ("Ready", "Progressing", "Handover", "Degraded", "ReplicasInSync", SPEC_IN_FORCE)
"""Types of the conditions, in the order in which they are written."""

AUTOSCALER_ACTIVE = "AutoscalerActive"
"""The type of another condition, of jobs with autoscaling."""

DEPLOYING = "Deploying"
"""The type of the condition of a deploy. Jobs have it if their driver can deploy programs."""

DEFINITION_OLDER = "DefinitionOlder"
"""The type of the condition of all jobs while the definition in the cluster lacks fields of the operator."""

ROLLED_OUT = "RolledOut"
"""The type of the condition of a job while it has other defaults than the installation, or its pods are being replaced."""

MESSAGE_MAX = 4096
"""Characters of a text in status: the status stays small whatever a driver reports."""

REASON_MAX = 1024
"""Characters of a reason that comes from sidecars."""

NAME_MAX = 253
"""Characters of the name of a checkpoint."""


class _Report(BaseModel):
    """A part of the status: camelCase names; unknown fields are ignored on reading."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="ignore", frozen=True, strict=True, validate_by_name=True, validate_default=True
    )


class Condition(_Report):
    """One condition, as `kubectl wait --for=condition=TYPE` reads it."""

    type: str = Field(
        min_length=1,
        max_length=64,
        description="Type: Ready, Progressing, Handover, Degraded, ReplicasInSync, SpecInForce, Deploying and so on.",
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(
        min_length=1,
        max_length=128,
        pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="The reason, in one word for programs.",
    )
    message: str = Field(default="", max_length=MESSAGE_MAX, description="The reason, in words for people.")
    last_transition_time: str = Field(
        max_length=32,
        pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$",
        description="When `status` last changed, in UTC to the second.",
        json_schema_extra={"format": "date-time"},
    )
    observed_generation: int = Field(
        default=0, ge=0, description="Generation of the spec to which the condition applies."
    )


class TransportStatus(_Report):
    """Transport of the links between the sidecars."""

    kind: Literal["rdma", "tcp", "mixed", "none"] = Field(
        description="Transport of the links; 'none': there are no links."
    )
    reason: str | None = Field(
        default=None, max_length=REASON_MAX, description="Why some links are not RDMA although RDMA is expected."
    )
    memory: str | None = Field(
        default=None,
        max_length=REASON_MAX,
        description="What to do: the rings need more memory than is allowed, or found no huge pages.",
    )


class CheckpointReport(_Report):
    """The last complete durable checkpoint of the job."""

    number: int = Field(
        default=0, ge=0, description="Number of the checkpoint; a later checkpoint of the job has a higher number."
    )
    name: str | None = Field(default=None, max_length=NAME_MAX, description="Name of a requested checkpoint.")
    epoch: int = Field(default=-1, ge=-1, description="The checkpoint holds the state after this epoch.")
    at: str | None = Field(
        default=None,
        max_length=32,
        description="Time of completion, in UTC to the second.",
        json_schema_extra={"format": "date-time"},
    )
    bytes: int = Field(default=0, ge=0, description="Bytes that this checkpoint wrote.")
    total_bytes: int = Field(default=0, ge=0, description="Bytes that a restore reads.")


class ProgressReport(_Report):
    """What the driver has done so far. The numbers change all the time, and are written now and then."""

    lag: str | None = Field(default=None, max_length=32, description="How far the output is behind, such as '1.2s'.")
    state: str | None = Field(default=None, max_length=32, description="Size of the state, such as '12Mi'.")
    lag_seconds: float | None = Field(default=None, ge=0, description="`lag` as a number of seconds.")
    state_bytes: int | None = Field(default=None, ge=0, description="`state` as a number of bytes.")
    rows: int | None = Field(default=None, ge=0, description="Rows read so far.")
    replica_lag: str | None = Field(
        default=None, max_length=32, description="Age of the oldest copy that is not in sync, such as '3 epochs'."
    )
    replica_lag_epochs: int | None = Field(default=None, ge=0, description="`replicaLag` as a number of epochs.")
    epoch_mode: str | None = Field(
        default=None, max_length=REASON_MAX, description="How epochs are run: continuous, or micro-batch and why."
    )


class ProgramReport(_Report):
    """The program in force, and the deploy of the program that the spec wants."""

    number: int = Field(ge=1, description="Number of the program in force; each deploy has a higher one.")
    hash: str = Field(max_length=64, description="Equal for equal programs: a digest of text or name, and of args.")
    since: int | None = Field(default=None, ge=0, description="The first epoch of the program in force.")
    phase: Literal["InForce", "Deploying", "Refused", "Waiting"] = Field(
        description="Whether the wanted program is in force, is being deployed, was refused, or cannot be deployed yet."
    )
    message: str = Field(
        default="",
        max_length=MESSAGE_MAX,
        description="The phase of a deploy, how a shadow compares, or why the program was refused.",
    )
    again: int | None = Field(default=None, ge=1, description="Number of an equal program that was in force before.")


class BalanceReport(_Report):
    """How uneven the load is, and a better placement."""

    imbalance: str = Field(
        max_length=16, description="Records per second of the busiest instance, as a multiple of the average: '1.84'."
    )
    imbalance_ratio: float | None = Field(default=None, ge=0, description="`imbalance` as a number.")
    possible: str | None = Field(
        default=None,
        max_length=16,
        description="The same number after a move whose gain exceeds its cost; absent without such a move.",
    )
    possible_ratio: float | None = Field(default=None, ge=0, description="`possible` as a number.")
    advice: str | None = Field(
        default=None, max_length=MESSAGE_MAX, description="The move: virtual nodes, bytes, approximate duration."
    )


class GoodSpec(_Report):
    """The last spec under which an epoch was finished."""

    generation: int = Field(ge=0, description="Generation with which the API server has admitted the spec.")
    spec: str = Field(description="The spec, as JSON.")
    seal: str = Field(max_length=64, description="Seal by the operator's key for this spec of this job.")


class RefusedSpec(_Report):
    """A spec that could not run."""

    revision: str = Field(max_length=128, description="Revision of the pods of this spec.")
    why: str = Field(max_length=MESSAGE_MAX, description="Why the spec could not run.")


class CheckpointAnswer(_Report):
    """The answer to the last request for a checkpoint."""

    id: str = Field(max_length=NAME_MAX, description="Id of the request.")
    number: int | None = Field(
        default=None,
        ge=0,
        description="Number of the checkpoint. The checkpoint is complete once `checkpoint` has "
        "this number or a higher one.",
    )
    refused: str | None = Field(default=None, max_length=MESSAGE_MAX, description="Why the driver takes no checkpoint.")


class PodDefaults(_Report):
    """Defaults of the installation from which the pods of a job are created."""

    image: str = Field(default="", max_length=1024, description="Default image.")
    service_account: str | None = Field(default=None, max_length=253, description="Default service account.")
    redis: str | None = Field(default=None, max_length=64, description="Seal of the URL of Redis, with its password.")
    redis_at: str | None = Field(default=None, max_length=1024, description="Address of this Redis.")


class RollNote(_Report):
    """The turn of a job: its pods are replaced, because a default has changed."""

    since: str = Field(max_length=32, description="When the turn began, or a pod was last replaced.")
    pods: int = Field(default=0, ge=0, description="Number of replaced pods.")
    spec: str | None = Field(
        default=None, max_length=64, description="Digest of the spec, without its size, when the turn began."
    )


class ScalingMemory(_Report):
    """The last size that the autoscaler wrote, and how often another writer has put the size before it back."""

    settings: str = Field(
        max_length=64, description="Digest of `spec.autoscale`; the memory of other settings is over."
    )
    workers: int | None = Field(default=None, ge=0, description="The last written number of workers; null: put back.")
    before: int = Field(default=0, ge=0, description="The number of workers before the last write.")
    reversals: list[int] = Field(
        default=[],
        max_length=16,
        description="When a size was put back, in seconds since 1970; the first is the oldest.",
    )
    by: str = Field(default="", max_length=NAME_MAX, description="Field manager that put the last size back.")


class JobMemory(_Report):
    """The operator's notes about a job, for itself after a restart. Users have no right to write them."""

    uid: str = Field(
        default="", max_length=128, description="Uid of the StreamJob; the memory of another object does not count."
    )
    run: int = Field(default=1, ge=1, le=2**31 - 1, description="Number of the current run of the job.")
    key: int = Field(
        default=1, ge=1, le=9999, description="Number of the key from which the secret of this run is derived."
    )
    over: bool = Field(default=False, description="The driver of this run has ended with a last checkpoint.")
    before: str | None = Field(
        default=None,
        max_length=PATH_MAX,
        description="`spec.restoreFrom` of the previous run; the same value does not apply to this run.",
    )
    good: GoodSpec | None = Field(default=None, description="The last spec under which an epoch was finished.")
    refused: RefusedSpec | None = Field(default=None, description="A spec that could not run.")
    answered: CheckpointAnswer | None = Field(
        default=None, description="The last answer to a request for a checkpoint."
    )
    defaults: PodDefaults | None = Field(
        default=None, description="Defaults of the installation that are in force for this job, until it has a turn."
    )
    roll: RollNote | None = Field(
        default=None, description="The turn of this job to roll to other defaults, if it has one."
    )
    scaling: ScalingMemory | None = Field(
        default=None, description="The last size that the autoscaler wrote, and whether it was put back."
    )
    members: list[Annotated[int, Field(ge=0)]] | None = Field(
        default=None,
        max_length=WORKERS_MAX,
        description="The workers by number, since the first scale-in of the run; null: from 0 on, without gaps.",
    )

    @staticmethod
    def of(job: Mapping[str, Any]) -> JobMemory:
        """The memory in a StreamJob object; empty when it was written for an object with another uid. Raises SpecRefused."""
        uid, kept = str((job.get("metadata") or {}).get("uid", "")), (job.get("status") or {}).get("memory") or {}
        try:
            memory = JobMemory.model_validate(kept, by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in ("status.memory", *first["loc"]))
            raise SpecRefused(
                f"{where}: {first['msg']}; only the operator writes this field: remove status.memory"
            ) from None
        return memory if memory.uid == uid else JobMemory(uid=uid)

    def to_wire(self) -> dict[str, Any]:
        """Plain maps and lists with the names of the CRD, as the memory is written."""
        return self.model_dump(mode="json", by_alias=True)

    def restore_from(self, restore_from: str | None) -> str | None:
        """The checkpoint that this run begins from; `restore_from`: the field of the spec."""
        if self.run == 1 or (restore_from is not None and restore_from != self.before):
            return restore_from
        return LATEST


class JobStatus(_Report):
    """The operator's last observation of the job, and its next step."""

    observed_generation: int = Field(
        default=0, ge=0, description="Generation of the spec that the operator last acted on."
    )
    phase: Phase = Field(default="Pending", description="The job in one word.")
    desired: int = Field(default=0, ge=0, description="Wanted number of workers.")
    workers: int = Field(
        default=0, ge=0, description="Workers that own state; `kubectl scale` and autoscalers read this number."
    )
    selector: str = Field(default="", max_length=1024, description="Label selector of the worker pods, as text.")
    moving: int = Field(default=0, ge=0, description="Virtual nodes on their way to another instance.")
    epoch: int | None = Field(default=None, ge=-1, description="Last finished epoch; -1 before the first.")
    progress: ProgressReport = Field(default=ProgressReport(), description="What the driver has done so far.")
    last_handover: str | None = Field(
        default=None, max_length=32, description="How long the last handover took, such as '3.4s'."
    )
    last_handover_seconds: float | None = Field(
        default=None, ge=0, description="`lastHandover` as a number of seconds."
    )
    intended: str | None = Field(
        default=None,
        max_length=MESSAGE_MAX,
        description="The next step of the operator, written before the step begins.",
    )
    generation: int | None = Field(default=None, ge=0, description="Generation of the driver.")
    token: int | None = Field(
        default=None, ge=0, description="Fencing token of the operator that wrote the status: transitions of its lease."
    )
    run: str | None = Field(default=None, max_length=63, description="Name of the run.")
    version: str | None = Field(
        default=None,
        max_length=1024,
        description="`spec.pipeline.version` of the spec in force; without one, a digest of module or file, args and image.",
    )
    transport: TransportStatus | None = Field(default=None, description="What carries the links between the sidecars.")
    checkpoint: CheckpointReport | None = Field(
        default=None, description="The last complete durable checkpoint, also of a suspended job."
    )
    autoscale: AutoscaleReport | None = Field(default=None, description="The last decision of the autoscaler.")
    program: ProgramReport | None = Field(
        default=None, description="The program in force; absent before the first answer of a driver that can deploy."
    )
    balance: BalanceReport | None = Field(
        default=None,
        description="How uneven the load is; absent while the load is not known, or if `spec.balance.mode` is off.",
    )
    memory: JobMemory | None = Field(
        default=None, description="The operator's notes about the job; users have no right to write them."
    )
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        description="Ready, Progressing, Handover, Degraded, ReplicasInSync, SpecInForce; Deploying; AutoscalerActive; "
        "DefinitionOlder.",
    )

    @staticmethod
    def read(document: Mapping[str, Any] | None) -> JobStatus:
        """The status of an object; missing and invalid fields have their defaults."""
        known = dict(document or {})
        while True:
            try:
                return JobStatus.model_validate(known, by_alias=True, by_name=False, strict=False)
            except ValidationError as error:
                for problem in error.errors(include_url=False):
                    known.pop(str(problem["loc"][0]), None)

    def to_wire(self) -> dict[str, Any]:
        """Plain maps and lists with the names of the CRD; unknown fields and the memory are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"memory"})

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((condition for condition in self.conditions if condition.type == kind), None)
