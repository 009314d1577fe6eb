"""A condition before the times of its transitions are known. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class UntimedCondition:
    """A condition without its times."""

    type: str
    status: Truth
    reason: str
    message: str = ""
