"""`spec.handover`: how virtual nodes move."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ferry.contract import limits
from ferry.contract.plans import TIME_MAX, TIME_MIN
from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, Quantity, at_least, between

PLANS = live("The next plan uses the new value.")


class Handover(SpecPart):
    """How virtual nodes move between instances."""

    strategy: Literal["all-at-once", "batched", "fluid", "optimized"] = Field(
        default="all-at-once",
        description="How a plan is cut into steps. 'all-at-once': one step. 'batched': `batch` virtual nodes per "
        "step. 'fluid': one virtual node per step. 'optimized': in each step every instance sends and receives at "
        "most one virtual node.",
        json_schema_extra=PLANS,
    )
    batch: int = Field(
        default=16,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Virtual nodes per step of the strategy 'batched'.",
        json_schema_extra=PLANS,
    )
    switchovers: int | None = Field(
        default=None,
        ge=1,
        le=limits.VIRTUAL_NODES_MAX,
        description="Virtual nodes of a step that switch to their new leader at the same time; null: all virtual "
        "nodes of the step.",
        json_schema_extra=PLANS,
    )
    gap: int = Field(default=0, ge=0, le=1_000_000, description="Epochs between two steps.", json_schema_extra=PLANS)
    warm: bool = Field(
        default=True,
        description="true: epochs go on while state is copied. false: epochs wait until virtual nodes that get a new "
        "leader are copied, as in Megaphone.",
        json_schema_extra=PLANS,
    )
    at_window: Literal["auto", "never"] = Field(
        default="auto",
        description="'auto': no state is copied if the open windows end sooner than a copy would take: the old leader "
        "ends these windows. 'never': state is always copied.",
        json_schema_extra=PLANS,
    )
    at_epoch: int | None = Field(
        default=None,
        ge=0,
        description="No plan begins before this epoch, except repairs and drains. New workers are started before; the "
        "plan waits.",
        json_schema_extra=PLANS,
    )
    at_event_time: Annotated[int, Field(ge=TIME_MIN, le=TIME_MAX)] | None = Field(
        default=None,
        description="No plan begins before the watermark has reached this time: milliseconds of event time.",
        json_schema_extra=PLANS,
    )
    bandwidth: Annotated[Quantity, at_least("64Ki", or_zero=True)] | None = Field(
        default=None,
        description="Bytes per second that an instance may send to new copies, such as '100M'. '0' or null: the rate "
        "follows the duration of epochs and keeps them about as short as before. Uploads of durable checkpoints have "
        "the same bound; without a bound 32Mi.",
        json_schema_extra=live("The new value applies from the next epoch on, also to running copies."),
    )
    deadline: Annotated[Duration, between("1s", "24h")] = Field(
        default=Duration(f"{limits.WARM_DEADLINE_MS // 1000}s"),
        description="A copy that receives nothing for this time is given up and begun again later. A plan without "
        "progress for three times this time is rolled back.",
        json_schema_extra=PLANS,
    )
