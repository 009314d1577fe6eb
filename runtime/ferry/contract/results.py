"""The last committed step of each operator: attempt, watermarks, late and fired rows. Values only."""

from __future__ import annotations

from typing import NamedTuple

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt


class StepResult(NamedTuple):
    """A committed step of one operator."""

    attempt: Attempt
    low: int
    high: int
    """Watermarks of the operator before and after the step: windows with low < end <= high have fired."""
    late: int = 0
    fired: int = 0
    """Late records, and the approximate number of fired rows, over all chains."""


Results = tuple[StepResult, ...]
"""By operator. Entries up to the last committed operator are of its epoch, later ones of the epoch before."""


def no_results(operators: int) -> Results:
    """Results before the first step."""
    return (StepResult(Attempt(0, 0), WATERMARK_NONE, WATERMARK_NONE),) * operators


def with_result(results: Results, operator: int, result: StepResult) -> Results:
    """The results after a commit of this operator."""
    return (*results[:operator], result, *results[operator + 1 :])
