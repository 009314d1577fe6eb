"""`spec.autoscale` and `status.autoscale`: bounds of the size that follows the load, and the last decision.

Pure values with their checks, as in `models_parts`; the decisions are in `control.autoscaling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, between

PERCENT_PATTERN = "^([1-9][0-9]?|100)%$"

MESSAGE_MAX = 4096

DECISIONS = live("The next decisions of the autoscaler use the new value.")

ScalingReason = Literal[
    "Waiting",
    "NotMeasured",
    "Fits",
    "Bounds",
    "ScaleOut",
    "ScaleIn",
    "Cooldown",
    "LoadIsLow",
    "AtMaximum",
    "NotLimitedByWorkers",
]
"""No decision possible; the size fits; a change; the reason why a change waits."""


class Autoscale(SpecPart):
    """Bounds of the number of workers that follows the load; without `max` there is no autoscaling."""

    min: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Least number of workers; null: one more than `state.replicas`, because every copy needs a worker "
        "of its own. With 1 the job gives up its copies when the load needs one worker only.",
        json_schema_extra=DECISIONS,
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Largest number of workers; null: no autoscaling, `workers` decides.",
        json_schema_extra=DECISIONS,
    )
    utilisation: Annotated[str, Field(max_length=4, pattern=PERCENT_PATTERN)] = Field(
        default="70%",
        description="Share of the time that work on records may take. The rest is for bursts and for reading a "
        "backlog.",
        json_schema_extra=DECISIONS,
    )
    cooldown: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration("3m"),
        description="Least time between two changes of the size. The load must also be low for this time before "
        "workers are removed. A backlog should be read within this time.",
        json_schema_extra=DECISIONS,
    )
    mode: Literal["advise", "auto"] = Field(
        default="advise",
        description="'advise': the status, events and metrics show the decision. 'auto': the operator writes "
        "`workers` (and `instancesPerWorker` where cores are free), as a HorizontalPodAutoscaler would.",
        json_schema_extra=DECISIONS,
    )

    @model_validator(mode="after")
    def _some_room(self) -> Autoscale:
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(f"'min' is {self.min}, which is more than 'max', {self.max}")
        return self

    @property
    def share(self) -> float:
        """`utilisation` as a number, in (0, 1]."""
        return int(self.utilisation.removesuffix("%")) / 100


def why_not_scaled(autoscale: Autoscale, replicas: int, instances: int, virtual_nodes: int) -> str | None:
    """The reason why other fields forbid a size that `autoscale` allows; None: no field forbids a size."""
    if autoscale.max is None:
        return None
    name, least = ("max", autoscale.max) if autoscale.min is None else ("min", autoscale.min)
    if replicas >= least and not (least == 1 and replicas <= 1):
        return (
            f"'autoscale.{name}' must be more than 'state.replicas', {replicas}: every copy needs a worker of its own"
        )
    if autoscale.max * instances > virtual_nodes:
        return f"'autoscale.max' workers of {instances} instances are more than the {virtual_nodes} virtual nodes"
    return None


class AutoscaleReport(BaseModel):
    """The last decision, with its inputs."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="ignore", frozen=True, strict=True, validate_by_name=True, validate_default=True
    )

    mode: Literal["advise", "auto"] = Field(
        description="Whether the operator carries decisions out ('auto') or only reports them ('advise')."
    )
    reason: ScalingReason = Field(description="The decision, in one word.")
    message: str = Field(default="", max_length=MESSAGE_MAX, description="The decision in words, with all inputs.")
    workers: int = Field(ge=0, description="Wanted number of workers.")
    min: int = Field(default=0, ge=0, description="Least number of workers.")
    max: int = Field(default=0, ge=0, description="Largest number of workers.")
    instances_per_worker: int = Field(ge=0, description="Wanted number of instances of each worker.")
    measured_seconds: float | None = Field(default=None, ge=0, description="Duration of the measurement.")
    records_per_second: float | None = Field(default=None, ge=0, description="Records read per second.")
    arriving_per_second: float | None = Field(default=None, ge=0, description="Records that arrive per second.")
    backlog: int | None = Field(default=None, description="Records that wait, if a source knows this number.")
    busy_tasks: float | None = Field(
        default=None, ge=0, description="Average number of tasks that were busy with records."
    )
    busy_instances: float | None = Field(
        default=None, ge=0, description="Average number of instances that were busy with records."
    )
    busy_epochs: float | None = Field(
        default=None,
        ge=0,
        description="Average number of busy tasks and instances, including the fixed cost of an "
        "epoch. The fixed cost is no load.",
    )
    true_rate: float | None = Field(
        default=None, ge=0, description="Records per second that one worker can work on at most (DS2's true rate)."
    )
    used: float | None = Field(default=None, ge=0, description="Share of the workers' time that the load needs.")
    target: float = Field(default=0.0, ge=0, description="Share of the workers' time that the load may need.")
    size_seconds: float = Field(default=0.0, ge=0, description="Seconds since the last change of the size.")
    low_seconds: float = Field(default=0.0, ge=0, description="Seconds for which fewer workers would have been enough.")
    cooldown_seconds: float = Field(
        default=0.0, ge=0, description="Seconds that sizeSeconds and lowSeconds must reach before workers are removed."
    )

    def to_wire(self) -> dict[str, Any]:
        """Plain values with the names of the CRD; unknown values are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
