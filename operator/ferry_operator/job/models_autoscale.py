"""`spec.autoscale` and `status.autoscale`: what a job may be scaled to by its load, and what was decided last.

Pure values with their checks, as in `models_parts`; what follows from them is in `control.autoscaling`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, between

PERCENT_PATTERN = "^([1-9][0-9]?|100)%$"

MESSAGE_MAX = 4096

DECISIONS = live("Decisions follow it from then on.")

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
"""In a word: nothing can be said; all is as it should be; a change; why none is made yet."""


class Autoscale(SpecPart):
    """How many workers the load may ask for; there is no autoscaling without `max`."""

    min: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Workers that there are at least; null: one more than `state.replicas`, for every copy needs its own. "
        "1 is a promise that copies may go: then there are none at the fewest workers.",
        json_schema_extra=DECISIONS,
    )
    max: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Workers that there are at most; null: nobody decides but `workers`.",
        json_schema_extra=DECISIONS,
    )
    utilisation: Annotated[str, Field(max_length=4, pattern=PERCENT_PATTERN)] = Field(
        default="70%",
        description="Share of the time that work on records may take: the rest is for bursts, and for catching up.",
        json_schema_extra=DECISIONS,
    )
    cooldown: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration("3m"),
        description="Time from one change of the size to the next one, and for which the load has been low before there are "
        "fewer workers; a backlog should be read within it.",
        json_schema_extra=DECISIONS,
    )
    mode: Literal["advise", "auto"] = Field(
        default="advise",
        description="'advise': decisions are told, in status, events and metrics; 'auto': `workers` (and where cores are "
        "free `instancesPerWorker`) is written, as a HorizontalPodAutoscaler would.",
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
    """Why other fields forbid a size that `autoscale` allows; None: they forbid none."""
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
    """The last decision, with what it was made from."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="ignore", frozen=True, strict=True, validate_by_name=True, validate_default=True
    )

    mode: Literal["advise", "auto"] = Field(description="Whether it is done, or told only.")
    reason: ScalingReason = Field(description="What was decided, in one word.")
    message: str = Field(default="", max_length=MESSAGE_MAX, description="The same in words, with all inputs.")
    workers: int = Field(ge=0, description="Workers that there should be.")
    min: int = Field(default=0, ge=0, description="Workers that there are at least.")
    max: int = Field(default=0, ge=0, description="Workers that there are at most.")
    instances_per_worker: int = Field(ge=0, description="Instances of each that there should be.")
    measured_seconds: float | None = Field(default=None, ge=0, description="For how long the load was measured.")
    records_per_second: float | None = Field(default=None, ge=0, description="Records read.")
    arriving_per_second: float | None = Field(default=None, ge=0, description="Records offered.")
    backlog: int | None = Field(default=None, description="Records that wait, where a source knows it.")
    busy_tasks: float | None = Field(default=None, ge=0, description="Tasks that were busy with records, on average.")
    busy_instances: float | None = Field(default=None, ge=0, description="Instances that were, on average.")
    busy_epochs: float | None = Field(
        default=None, ge=0, description="Both, with what an epoch costs before its first record; it is no load."
    )
    true_rate: float | None = Field(
        default=None, ge=0, description="Records per second that one worker can work on at most (DS2's true rate)."
    )
    used: float | None = Field(default=None, ge=0, description="Share of the workers' time that the load needs.")
    target: float = Field(default=0.0, ge=0, description="Share that it may need.")
    size_seconds: float = Field(default=0.0, ge=0, description="Since when the size is what it is.")
    low_seconds: float = Field(default=0.0, ge=0, description="For how long fewer workers would have been enough.")
    cooldown_seconds: float = Field(default=0.0, ge=0, description="For how long both have to last.")

    def to_wire(self) -> dict[str, Any]:
        """Plain values with the names of the CRD; what is not known is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
