"""The document of a plan: what is written is read again, and what is no plan is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.names import InstanceId, Term
from ferry.contract.plans import Plan, PlanStep
from ferry.contract.routing import Group, Table, Version

A, B, C = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
placements = st.lists(st.sampled_from([(A,), (B,), (A, B), (B, A)]), min_size=3, max_size=3).map(tuple)
vnodes = st.lists(st.integers(0, 2), max_size=3).map(tuple)
plans = st.builds(
    Plan, st.integers(1, 9), placements, st.lists(st.builds(PlanStep, vnodes, vnodes), max_size=3).map(tuple),
    st.integers(0, 3), st.booleans(), st.integers(0, 9), st.none() | st.integers(-9, 9), st.integers(0, 7),
    st.integers(0, 5), st.none() | st.just({"usable": ["0.0"]}), placements | st.just(()), st.integers(0, 3), st.text(), vnodes,
)  # fmt: skip
SOME: dict[str, Any] = {"number": 1, "placements": [["0.0"], ["1.0", "0.0"]]}


@given(plans)
def test_what_is_written_is_read_again(plan: Plan) -> None:
    assert Plan.from_wire(json.loads(json.dumps(plan.to_wire()))) == plan
    table = Table(Version(1, 2), (Group(Term(0, 0), (A,)),) * 3, plan=plan, prepared=replace(plan, number=10))
    again = Table.from_wire(json.loads(json.dumps(table.to_journal())))
    assert (again.plan, again.prepared) == (table.plan, table.prepared)
    assert Table.from_wire(table.to_wire()).plan is None, "members are not told"


def test_a_driver_of_the_first_version_reads_a_plan_without_steps() -> None:
    assert Plan(3, ((A,),)).to_wire() == {"number": 3, "placements": [["0.0"]], "token": 0, "basis": None}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"number": 0}, "number is a whole number from 1"),
        ({"placements": [[]]}, "every placement names a leader"),
        ({"placements": "all"}, "placements is a list of lists"),
        ({"steps": [[[0]]]}, "steps is a list of pairs of lists"),
        ({"steps": [[[0], [2]]]}, "whole numbers from 0, below 2"),
        ({"steps": [[[0], [True]]]}, "whole numbers from 0, below 2"),
        ({"gap": -1}, "gap is a whole number from 0"),
        ({"warm": 1}, "warm is true or false"),
        ({"at_epoch": "soon"}, "at_epoch is a whole number from 0"),
        ({"at_time": 1_760_000_000_000_000}, "at_time is a whole number from -10000000000000 to"),
        ({"basis": []}, "basis is an object"),
        ({"at_window": [2]}, "at_window is a list of virtual nodes: whole numbers from 0, below 2"),
        ({"at_window": 0}, "at_window is a list of virtual nodes"),
        ({"speed": 9}, "unknown: speed"),
    ],
)
def test_what_is_no_plan_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan.from_wire(SOME | wrong)


def test_a_plan_of_a_later_version_in_the_journal_keeps_nobody_from_starting() -> None:
    table = Table(Version(1, 2), (Group(Term(0, 0), (A,)),), plan=Plan(1, ((A,),)))
    document = table.to_journal()
    document["plan"]["novelty"] = 1
    assert Table.from_wire(document) == replace(table, plan=None)


def test_a_copy_at_a_window_that_is_made_is_not_made_so_again() -> None:
    plan = Plan(1, ((B, A), (A,), (B,)), at_window=(0, 2))
    assert plan.without_snapshots() == ((0, B), (2, B))
    groups = {0: (A, C), 2: (A,)}
    assert plan.with_needed_boundaries(lambda v: groups[v]) is plan
    assert plan.with_needed_boundaries(lambda v: {**groups, 0: (A, B)}[v]).at_window == (2,), "it is in sync"
    assert plan.with_needed_boundaries(lambda v: {**groups, 0: (A,)}[v]).at_window == (2,), "a copy is missing"
    assert replace(plan, before=((A, B), (A,), (A,))).rolled_back([A, B], "late").at_window == ()


def test_members_are_told_which_copies_take_no_snapshot() -> None:
    table = Table(Version(1, 2), (Group(Term(0, 0), (A,), (B,)),) * 3, at_window=((0, B),))
    assert Table.from_wire(json.loads(json.dumps(table.to_wire()))) == table
    assert "at_window" not in replace(table, at_window=()).to_wire(), "what an older member does not know"
    amended = table.amended(Version(1, 3), False, [(2, Term(1, 1), (B,), ())])
    assert amended.at_window == ((0, B),)
