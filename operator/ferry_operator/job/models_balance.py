"""`spec.balance` of a `StreamJob`: whether a job evens out its load by itself. Pure values with their checks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ferry_operator.job.models_base import SpecPart, live
from ferry_operator.job.quantities import Duration, between


class BalanceSpec(SpecPart):
    """Virtual nodes that move because some instances get more records than others."""

    mode: Literal["off", "advise", "auto"] = Field(
        default="advise",
        description="Whether virtual nodes move when records come unevenly: 'auto' moves them, 'advise' says in the status "
        "what it would do.",
        json_schema_extra=live("The next look at the job follows it."),
    )
    gain: str = Field(
        default="10%",
        pattern="^[1-9][0-9]?%$",
        max_length=3,
        description="How much less the busiest instance must have to do afterwards, at least.",
        json_schema_extra=live("The next look at the job follows it."),
    )
    horizon: Annotated[Duration, between("10s", "24h")] = Field(
        default=Duration("10m"),
        description="What is gained over so long must exceed what moving costs; and nothing is moved for balance before the "
        "placement has stood for so long.",
        json_schema_extra=live("The next look at the job follows it."),
    )
