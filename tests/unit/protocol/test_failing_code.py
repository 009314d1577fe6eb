"""The user's code fails in the middle of an attempt: nobody is lost, it is tried a few times, then the job stops with the line."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from tests.unit.protocol.table_top import A, B, Top

LINE = "user code: ZeroDivisionError: division by zero (job.py:12), operator 'w'"


class Failing(Top):
    """Members whose code fails so many times."""

    fails = 0
    final = False

    def follow(self, me: InstanceId, effects: list[i.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, i.Compute) and self.fails:
                self.fails -= 1
                self.give(me, i.ComputeFailed(effect.prepare.step, effect.prepare.attempt, LINE, self.final))
            else:
                super().follow(me, [effect])

    def prepares(self) -> int:
        return sum(isinstance(x[1], m.Prepare) for x in self.done if isinstance(x, tuple) and x[0] == A)


def test_code_that_fails_twice_costs_two_attempts_and_no_member() -> None:
    top = Failing([(A, B), (B, A)], (A, B))
    top.epoch(0)
    groups, before, top.fails = top.driver.table.groups, top.prepares(), 2
    top.ingest(1)
    assert top.driver.attempts.code.reason == LINE
    assert top.prepares() == before + 1
    top.wait(3_000)
    assert not top.driver.attempts.code.reason and top.prepares() == before + 2
    assert top.last(c.Emit).step == Step(1, 0), "A and B have failed in one attempt: that is one"
    assert top.driver.table.groups == groups and set(top.driver.alive) == {A, B}
    notes = [(note.kind, note.text) for note in top.done if isinstance(note, c.Note)]
    assert notes[-2:] == [("degraded", LINE), ("mended", "UserCode, after 1.0 s")]


def test_the_job_stops_after_the_last_try_and_no_earlier() -> None:
    top = Failing([(A,)], (A,))
    top.epoch(0)
    top.fails = 100
    top.ingest(1)
    top.wait(14_000)
    assert top.driver.phase is c.Phase.PREPARE
    top.wait(2_000)
    assert top.last(c.Halt) == c.Halt("user-code", LINE)
    assert 100 - top.fails == 4


def test_code_that_says_that_it_is_of_no_use_is_not_tried_again() -> None:
    top = Failing([(A,)], (A,))
    top.fails, top.final = 1, True
    top.ingest(0)
    assert top.last(c.Halt) == c.Halt("refused", LINE)


def test_a_failure_of_another_step_counts_nothing() -> None:
    top = Failing([(A,)], (A,))
    top.epoch(0)
    top.stop = (m.Prepare,)
    top.ingest(1)
    top.tell(m.CodeFailed(A, Step(0, 0), Attempt(1, 1), LINE))
    assert not top.driver.attempts.code.reason


@pytest.mark.parametrize("lost", [False, True])
def test_a_new_table_begins_the_next_attempt_at_once(lost: bool) -> None:
    """The group closes over a lost member while the code waits for its next try."""
    top = Failing([(A, B)], (A, B))
    top.epoch(0)
    top.fails = 1
    top.ingest(1)
    if lost:
        top.crash(B)
    else:
        top.wait(1_000)
    assert top.last(c.Emit).step == Step(1, 0)
