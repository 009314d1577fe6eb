"""What is asked of a run: what cannot be is refused before anything is done."""

from __future__ import annotations

import pytest

from ferry.contract.errors import Refusal
from ferry_operator.control.commands import parse_command
from ferry_operator.control.observed import Wanted
from ferry_operator.job.models_balance import BalanceSpec
from ferry_operator.job.size import Size
from ferry_operator.local.asked import Asked
from tests.unit.control.test_decide import ALIVE, GROUPS
from tests.unit.statuses import status_of, with_fields


def test_a_move_at_a_window_needs_windows_that_end() -> None:
    asked, move = Asked(Wanted(Size(2, 1), 1), 8), parse_command("move=3:1.0@window")
    with pytest.raises(Refusal, match="the driver does not answer"):
        asked.check(move)
    there = status_of(GROUPS, ALIVE)
    with pytest.raises(Refusal, match=r"move=3:1\.0@window: operator n has no window"):
        asked.check(move, with_fields(there, unbounded="operator n has no window"))
    asked.check(move, there)
    asked.take(move)
    assert asked.pins == {3: "1.0"} and asked.at_window == {3: True}
    asked.check(parse_command("move=3:0.0"))
    asked.take(parse_command("move=3:0.0"))
    assert asked.at_window == {3: False}, "the last word counts"


def test_a_job_that_is_about_to_rest_is_asked_for_what_it_was_should_it_not() -> None:
    """A store that is away keeps it from its last checkpoint, and it goes on."""
    asked = Asked(Wanted(Size(2, 1), 1), 8)
    asked.balance(BalanceSpec(mode="auto"))
    assert asked.about_to_rest().balance.mode == "off" and asked.wanted.balance.mode == "auto"
