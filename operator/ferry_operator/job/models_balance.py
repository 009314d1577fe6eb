"""`spec.balance` of a `StreamJob`: whether a job evens out its load automatically. Pure values with their checks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, between


class BalanceSpec(SpecPart):
    """Virtual nodes that move because some instances get more records than others."""

    mode: Literal["off", "advise", "auto"] = Field(
        default="advise",
        description="Whether virtual nodes move when instances get unequal numbers of records: 'auto' moves them, "
        "'advise' shows the possible move in the status.",
        json_schema_extra=live("The operator uses the new value when it next checks the job."),
    )
    gain: str = Field(
        default="10%",
        pattern="^[1-9][0-9]?%$",
        max_length=3,
        description="Least reduction of the load of the busiest instance that justifies a move.",
        json_schema_extra=live("The operator uses the new value when it next checks the job."),
    )
    horizon: Annotated[Duration, between("10s", "24h")] = Field(
        default=Duration("10m"),
        description="The gain over this time must exceed the cost of the move. Balance moves nothing before the "
        "placement has stayed unchanged for this time.",
        json_schema_extra=live("The operator uses the new value when it next checks the job."),
    )
