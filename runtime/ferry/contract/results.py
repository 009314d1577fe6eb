"""The last committed step of each operator: attempt, watermarks, late and fired rows. Values only."""

from __future__ import annotations

from typing import NamedTuple

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt
from ferry.contract.programs import Programs, predecessor


class StepResult(NamedTuple):
    """A committed step of one operator."""

    attempt: Attempt
    low: int
    high: int
    """Watermarks of the operator before and after the step: windows with low < end <= high have fired."""
    late: int = 0
    fired: int = 0
    """Late records, and the approximate number of fired rows, over all chains."""


NO_RESULT = StepResult(Attempt(0, 0), WATERMARK_NONE, WATERMARK_NONE)
"""Of an operator that has committed no step."""

Results = tuple[StepResult, ...]
"""By id of the operator. Of the program in force, operators up to the last committed position have the result of its epoch,
later ones the result of the epoch before. An operator that is not in the program keeps its last result, from which it goes
on when it is introduced again. Ids beyond the end have no result."""


def result_of(results: Results, operator: int, programs: Programs = ()) -> StepResult:
    """The result of an operator by its id; an altered one begins with the result from before. `programs`: in force."""
    result = results[operator] if operator < len(results) else NO_RESULT
    if result == NO_RESULT and (before := predecessor(programs, operator)) is not None:
        return result_of(results, before)
    return result


def with_result(results: Results, operator: int, result: StepResult) -> Results:
    """The results after a commit of the operator with this id."""
    before = results[:operator] + (NO_RESULT,) * (operator - len(results))
    return (*before, result, *results[operator + 1 :])
