"""Requests to a running job: the endpoint reads them from HTTP, and the supervisor answers them. Values only."""

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
    """Describe the job as plain values."""


@dataclass(frozen=True, slots=True)
class ChangeJob:
    """Set live fields of the spec, then execute commands. If a command is impossible, nothing changes."""

    commands: tuple[Command, ...] = ()
    handover: Handover | None = None
    """policy of later plans; unset fields keep their values"""
    balance: BalanceSpec | None = None
    """policy of balancing; unset fields keep their values"""


@dataclass(frozen=True, slots=True)
class SubmitPlan:
    """Request the size and the placements of this plan."""

    plan: PlanFile


@dataclass(frozen=True, slots=True)
class CancelPlan:
    """Withdraw the submitted plan."""


@dataclass(frozen=True, slots=True)
class ReachStage:
    """Execute the commands that are due at this stage of this epoch. The driver waits for the answer."""

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
"""Plain values; the endpoint sends them as JSON."""

Ask = Callable[[Request], Answer]
"""Passes a request to the supervisor's thread and returns its answer. Raises Refusal, Exhausted, Unreachable."""
