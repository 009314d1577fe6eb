"""The user's code fails in the middle of an attempt: nobody is lost, it is tried a few times, then the job stops with the line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step
from ferry.contract.programs import ProgramVersion
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


def test_a_step_whose_rows_are_not_written_becomes_void_at_its_first_failure() -> None:
    """No time passes; another driver or table repeats the void step; the written operators go on."""
    top = Failing([(A, B), (B, A)], (A, B))
    top.driver.journaling.table = replace(top.driver.table, programs=(ProgramVersion(1, 0, (1, 0), (), (1,)),))
    top.epoch(0)
    top.ingested(A)
    top.tell(c.EpochEnded(0))
    top.fails = 2
    top.ingest(1)
    again = top.last(c.StartIngest)
    assert (again.step, again.failed) == (Step(1, 0), LINE)
    top.tell(m.CodeFailed(A, Step(1, 0), Attempt(1, 3), LINE, True))
    assert top.last(c.StartIngest) == again, "another instance has failed in the same attempt"
    assert top.driver.phase is c.Phase.INGEST and not top.driver.attempts.code.reason, "a final failure halts nothing"
    top.tell(c.Ingested(again.step, again.run, (), 77, b"failed", is_void=True))
    prepare = next(x[1] for x in reversed(top.done) if isinstance(x, tuple) and isinstance(x[1], m.Prepare))
    assert prepare.is_void and prepare.winners == ()
    later = top.last(c.StartIngest)
    assert (later.step, later.failed, later.meta) == (Step(1, 1), "", b"failed")
    assert later.rows[0].low == later.rows[0].high == 0, "its watermark stays"
    top.fails = 1
    top.ingested(A)
    assert top.driver.attempts.code.reason == LINE, "rows of this one are written: it is tried again"
    assert not any(isinstance(x, c.Halt) for x in top.done)
