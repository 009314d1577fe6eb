"""The requested state of a run: impossible commands are refused before they change it."""

from __future__ import annotations

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.control.commands import parse_command
from ferry_operator.control.observed import Wanted
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.size import Size
from ferry_operator.local.requested import RequestedState
from tests.unit.control.test_decide import ALIVE, GROUPS
from tests.unit.statuses import status_of, with_fields


def test_a_move_at_a_window_needs_windows_that_end() -> None:
    requested, move = RequestedState(Wanted(Size(2, 1), 1), 8), parse_command("move=3:1.0@window")
    with pytest.raises(Refusal, match="the driver does not answer"):
        requested.check(move)
    there = status_of(GROUPS, ALIVE)
    with pytest.raises(Refusal, match=r"move=3:1\.0@window: operator n has no window"):
        requested.check(move, with_fields(there, unbounded="operator n has no window"))
    requested.check(move, there)
    requested.apply(move)
    assert requested.pins == {3: "1.0"} and requested.at_window == {3: True}
    requested.check(parse_command("move=3:0.0"))
    requested.apply(parse_command("move=3:0.0"))
    assert requested.at_window == {3: False}, "the last word counts"


def test_a_suspend_that_fails_leaves_the_wanted_balance() -> None:
    """An unreachable store prevents the last checkpoint, and the job continues."""
    requested = RequestedState(Wanted(Size(2, 1), 1), 8)
    requested.balance(BalanceSpec(mode="auto"))
    assert requested.while_suspending().balance.mode == "off" and requested.wanted.balance.mode == "auto"
