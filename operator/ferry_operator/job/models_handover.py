"""`spec.handover`: how virtual nodes move."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ferry.contract import limits
from ferry.contract.plans import TIME_MAX, TIME_MIN
from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, Quantity, at_least, between

PLANS = live("The next plan follows it.")


class Handover(SpecPart):
    """How virtual nodes move between instances."""

    strategy: Literal["all-at-once", "batched", "fluid", "optimized"] = Field(
        default="all-at-once",
        description="How a plan is cut into steps: one step, `batch` per step, one vnode per step, or in each step as "
        "many as can move while no instance sends or receives two.",
        json_schema_extra=PLANS,
    )
    batch: int = Field(
        default=16,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Vnodes per step of 'batched'.",
        json_schema_extra=PLANS,
    )
    switchovers: int | None = Field(
        default=None,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Vnodes of a step that get their new leader at one time; null: all of it.",
        json_schema_extra=PLANS,
    )
    gap: int = Field(default=0, ge=0, le=1_000_000, description="Epochs between two steps.", json_schema_extra=PLANS)
    warm: bool = Field(
        default=True,
        description="False: epochs wait for the copies of virtual nodes that get another leader, as in Megaphone.",
        json_schema_extra=PLANS,
    )
    at_window: Literal["auto", "never"] = Field(
        default="auto",
        description="Auto: windows end where they are, and no state moves, where that is sooner than to copy it.",
        json_schema_extra=PLANS,
    )
    at_epoch: int | None = Field(
        default=None,
        ge=0,
        description="No plan begins before this epoch, but for repairs and drains; its workers are started, and it waits.",
        json_schema_extra=PLANS,
    )
    at_event_time: Annotated[int, Field(ge=TIME_MIN, le=TIME_MAX)] | None = Field(
        default=None,
        description="Nor before the watermark is here: milliseconds of event time.",
        json_schema_extra=PLANS,
    )
    bandwidth: Annotated[Quantity, at_least("64Ki", or_zero=True)] | None = Field(
        default=None,
        description="Bytes per second that warming may use per instance, such as '100M'; '0' or null: as much as leaves "
        "epochs about as short as they were. Durable checkpoints have the same bound, 32Mi where there is none.",
        json_schema_extra=live("It holds from the next epoch on, also for copies that are under way."),
    )
    deadline: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration(f"{limits.WARM_DEADLINE_MS // 1000}s"),
        description="A copy to which nothing comes for so long is begun again later; a plan that does not come forward for "
        "three times as long is rolled back.",
        json_schema_extra=PLANS,
    )
