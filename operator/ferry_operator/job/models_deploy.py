"""`spec.deploy`: how a changed program is deployed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ferry.contract.plans import TIME_MAX, TIME_MIN
from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, between

DEPLOYS = live(
    "The next deploy uses the new value. A deploy under way, also a shadow, is given up and begins again; a refused program "
    "is tried again.",
    "kubernetes",
)


class DeployPolicy(SpecPart):
    """How a changed `spec.pipeline` is deployed."""

    shadow: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="The new program runs beside the present one until this number of epochs had rows. Only rows of the "
        "present one are written, and both are compared. If no row differs, the new program goes on alone; else the "
        "present one does, and the new one is refused. null: no comparison.",
        json_schema_extra=DEPLOYS,
    )
    keep: Annotated[Duration, between("1s", "720h")] | None = Field(
        default=None,
        description="The program before goes on without writing for this time, such as '10m'. If the spec names it again "
        "within this time, it goes on with state as if nothing had been deployed. Another program is deployed after this "
        "time. null: it ends at once.",
        json_schema_extra=DEPLOYS,
    )
    at_epoch: int | None = Field(
        default=None,
        ge=0,
        le=10**15,
        description="The new program is not in force before this epoch.",
        json_schema_extra=DEPLOYS,
    )
    at_event_time: Annotated[int, Field(ge=TIME_MIN, le=TIME_MAX)] | None = Field(
        default=None,
        description="The new program is not in force before all watermarks have reached this time: milliseconds of event "
        "time.",
        json_schema_extra=DEPLOYS,
    )

    probation: Annotated[Duration, between("1s", "720h", or_zero=True)] | None = Field(
        default=None,
        description="For this time the job goes back automatically to the program before if rows violate an expectation, if "
        "epochs are too slow, or if drivers die of the new program. '0s': only if drivers die before its first epoch is "
        "over. null: 30s.",
        json_schema_extra=DEPLOYS,
    )
    slower: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="How many times longer than before epochs may last on probation. null, or 0: any time.",
        json_schema_extra=DEPLOYS,
    )

    rewind: bool | None = Field(
        default=None,
        description="true: the job goes back to the newest durable checkpoint before the present program, with state, "
        "offsets and the rows of sinks. The spec has to name the program of this checkpoint; another program is refused. "
        "null: state goes forward.",
        json_schema_extra=DEPLOYS,
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> DeployPolicy:
        if self.shadow is not None and self.keep is not None:
            raise ValueError("choose one of 'shadow' and 'keep': a shadow leaves the present program in force")
        others = (self.shadow, self.keep, self.at_epoch, self.at_event_time)
        if self.rewind and any(other is not None for other in others):
            raise ValueError(
                "with 'rewind' the state goes back at once: leave out 'shadow', 'keep', 'atEpoch' and 'atEventTime'"
            )
        return self

    @property
    def words(self) -> str:
        """Its fields, as they count for a refusal; empty: a deploy from the next epoch on."""
        return " ".join(f"{name}={value}" for name, value in self.model_dump(by_alias=True, exclude_none=True).items())
