"""What a part of a machine never does, whatever it is told: each invariant is checked where it is made."""

from __future__ import annotations

import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.results import StepResult
from ferry.contract.routing import Version
from ferry.protocol import coordinator as c
from ferry.protocol import instance as i
from tests.unit.protocol.table_top import A, B, Top


def test_a_table_is_not_written_while_another_one_is_on_its_way_to_the_journal() -> None:
    top = Top([(A, B)], (A, B))
    journaling, groups = top.driver.journaling, top.driver.table.groups
    journaling.write(groups, ())
    with pytest.raises(Bug, match="on its way to the journal"):
        journaling.write(groups, ())


def test_the_numbers_of_attempts_never_go_back() -> None:
    top = Top([(A, B)], (A, B))
    top.stop = (m.Prepare,)
    top.ingest(0)
    assert top.driver.attempts.commit_id == CommitId(Step(0, 0), Attempt(1, 1))
    top.driver.attempts.number = 0
    with pytest.raises(Bug, match="is begun after"):
        top.tell(c.Lost(B, "it ended"))


def test_a_step_that_was_committed_is_not_committed_again() -> None:
    top = Top([(A, B)], (A, B))
    top.epoch(0)
    with pytest.raises(Bug, match="is committed after"):
        top.driver.commits.finish()


@pytest.mark.parametrize(
    ("epoch", "holds", "refused"),
    [(2, (0,), True), (2, (), False), (0, (), True), (1, (0,), False)],
    ids=["a step is missing", "a learner may miss steps", "an older step", "the next step"],
)
def test_an_instance_commits_a_step_only_on_top_of_the_one_before(
    epoch: int, holds: tuple[int, ...], refused: bool
) -> None:
    committed, commit = (
        CommitId(Step(0, 0), Attempt(1, 1)),
        m.Commit(CommitId(Step(epoch, 0), Attempt(1, 3)), 1, (StepResult(Attempt(1, 3), 0, 0),)),
    )
    delta = m.Delta(Step(epoch, 0), Attempt(1, 3), Version(1, 1), A, (A, B), (0,), 0, 0)
    one = i.Instance(B, i.InstanceRecord(1, committed, holds=holds, committing=commit), (delta,))
    if refused:
        with pytest.raises(Bug, match="on top of"):
            one.start()
    else:
        one.start()
        assert one.saved.committed == commit.commit_id
