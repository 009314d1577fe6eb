"""The requests to a running job: the endpoint reads them from HTTP, and the supervisor answers them. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ferry_operator.control.commands import Command
from ferry_operator.control.plan_file import PlanFile
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.models_handover import Handover


@dataclass(frozen=True, slots=True)
class DescribeJob:
    """Answer with the job as plain values."""


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Apply live fields of the spec, then perform commands. When a command names what is not there, nothing changes."""

    commands: tuple[Command, ...] = ()
    handover: Handover | None = None
    """how plans are cut from now on; fields that are not set stay"""
    balance: BalanceSpec | None = None
    """whether load moves by itself from now on; fields that are not set stay"""


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """Give the job the size and the placements of this plan."""

    plan: PlanFile


@dataclass(frozen=True, slots=True)
class CancelPlan:
    """Take the submitted plan back."""


@dataclass(frozen=True, slots=True)
class ReachStage:
    """Perform the commands that are due at this stage of this epoch. The driver waits for the answer."""

    epoch: int
    stage: str


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Begin a durable checkpoint; the answer has its number."""

    name: str | None


@dataclass(frozen=True, slots=True)
class SuspendRun:
    """Begin to end the run with a last durable checkpoint."""


@dataclass(frozen=True, slots=True)
class StopRun:
    """Begin to end the run gracefully."""


Request = DescribeJob | ChangeJob | SubmitPlan | CancelPlan | ReachStage | BeginCheckpoint | SuspendRun | StopRun

Answer = dict[str, Any]
"""Plain values, as the endpoint sends them."""

Ask = Callable[[Request], Answer]
"""Has a request answered in the supervisor's thread. Raises Refusal, Exhausted, Unreachable."""
