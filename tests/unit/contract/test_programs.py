"""Programs of epochs: which operators an epoch has, and the results of operators by id."""

from __future__ import annotations

import pytest

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.programs import ProgramVersion, from_wire, operator_id, program_at, to_wire
from ferry.contract.results import NO_RESULT, StepResult, result_of, with_result
from ferry.protocol.instance import InstanceRecord
from ferry.protocol.steps import last_step, step_of, successor

PROGRAMS = (ProgramVersion(1, 0, (0, 1)), ProgramVersion(4, 7, (2, 0, 1)))


def test_an_epoch_has_the_operators_of_its_program() -> None:
    assert program_at(PROGRAMS, 6).number == 1 and program_at(PROGRAMS, 7).number == 4
    assert program_at(PROGRAMS[1:], 6).number == 4, "before the first program that is known"
    assert [operator_id(PROGRAMS, step) for step in (Step(6, 1), Step(7, 0), Step(7, 2))] == [1, 2, 1]


def test_steps_follow_each_other_over_a_switch() -> None:
    step, steps = step_of(None, PROGRAMS), list[Step]()
    assert step == Step(-1, 1)
    while step < Step(8, 0):
        step = successor(step, PROGRAMS)
        steps.append(step)
    assert steps == [*(Step(e, o) for e in range(7) for o in range(2)), *(Step(7, o) for o in range(3)), Step(8, 0)]
    assert last_step(7, PROGRAMS) == Step(7, 2)


def test_programs_go_over_the_wire() -> None:
    assert from_wire(to_wire(PROGRAMS)) == PROGRAMS


@pytest.mark.parametrize(
    "doc", [[[1, 0, []]], [[1, 0, [0, 0]]], [[1, 0, [-1]]], [[2, 0, [0]], [1, 5, [0]]], [[1, 5, [0]], [2, 5, [0]]]]
)
def test_programs_that_no_job_has_are_refused(doc: list[object]) -> None:
    with pytest.raises(ValueError):
        from_wire(doc)


def test_results_are_found_by_id() -> None:
    result = StepResult(Attempt(3, 4), 10, 20)
    results = with_result((), 2, result)
    assert results == (NO_RESULT, NO_RESULT, result)
    assert result_of(results, 2) == result and result_of(results, 5).high == WATERMARK_NONE
    assert with_result(results, 0, result) == (result, NO_RESULT, result)


def test_the_floors_of_an_operator_that_has_not_stepped_are_of_the_epoch_before() -> None:
    """Program 4 begins in epoch 7 with operator 2: operators 0 and 1 are as of epoch 6, whose rows were released."""
    results = tuple(StepResult(Attempt(1, n), 10 * n, 10 * n + 5) for n in range(3))
    record = InstanceRecord(1, CommitId(Step(7, 0), Attempt(1, 2)), results, released=6, programs=PROGRAMS)
    assert record.floors() == (5, 15, 20)
    assert record.has_rows_of(CommitId(Step(7, 0), Attempt(1, 2)))
    assert not record.has_rows_of(CommitId(Step(7, 1), Attempt(1, 0)))
