"""What was committed of each operator last: attempt, watermarks, and how many rows were late and fired. Values only."""

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
    """Late records, and about how many fired rows, over all chains."""


Results = tuple[StepResult, ...]
"""By operator. Those up to the one committed last are of its epoch, those after it of the epoch before."""


def no_results(operators: int) -> Results:
    """Before the first step."""
    return (StepResult(Attempt(0, 0), WATERMARK_NONE, WATERMARK_NONE),) * operators


def with_result(results: Results, operator: int, result: StepResult) -> Results:
    """The same, with what was committed of this operator now."""
    return (*results[:operator], result, *results[operator + 1 :])
