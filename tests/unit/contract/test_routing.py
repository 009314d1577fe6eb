"""A group or table that cannot be is a Bug of whoever makes it, and refused when it comes from the journal or a peer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from ferry.contract import messages as m
from ferry.contract.errors import Bug, Refusal
from ferry.contract.limits import VIRTUAL_NODES_MAX
from ferry.contract.names import InstanceId, Term
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.coordinator import Coordinator, CoordinatorSettings

A, B, C = InstanceId("0.0"), InstanceId("1.0"), InstanceId("2.0")
TABLE = Table(Version(2, 1), (Group(Term(2, 1), (A, B)), Group(Term(1, 3), (B,), (C,))))

GROUPS: dict[str, tuple[tuple[Term, tuple[InstanceId, ...], tuple[InstanceId, ...]], str]] = {
    "nobody leads": ((Term(1, 0), (), (A,)), "in sync, so it has no leader"),
    "twice in sync": ((Term(1, 0), (A, B, A), ()), "a member twice"),
    "twice a learner": ((Term(1, 0), (A,), (B, B)), "a member twice"),
    "in sync and a learner": ((Term(1, 0), (A, B), (B,)), "a member twice"),
    "a term below 0": ((Term(1, -1), (A,), ()), "a term below 0"),
}

group = pytest.mark.parametrize(("fields", "why"), GROUPS.values(), ids=GROUPS)


@group
def test_an_impossible_group_is_a_bug(fields: tuple[Any, ...], why: str) -> None:
    with pytest.raises(Bug, match=why):
        Group(*fields)


def test_an_impossible_table_is_a_bug() -> None:
    one = TABLE.groups[:1]
    with pytest.raises(Bug, match="0 virtual nodes"):
        Table(Version(1, 0), ())
    with pytest.raises(Bug, match=f"1 to {VIRTUAL_NODES_MAX} are possible"):
        Table(Version(1, 0), one * (VIRTUAL_NODES_MAX + 1))
    with pytest.raises(Bug, match="below 0"):
        Table(Version(1, -1), one)


def test_a_table_follows_one_of_a_lower_version_with_as_many_groups() -> None:
    assert TABLE.with_groups(Version(2, 2), TABLE.groups).version == Version(2, 2)
    for version, groups in (
        (Version(2, 1), TABLE.groups),
        (Version(1, 9), TABLE.groups),
        (Version(3, 0), TABLE.groups[:1]),
    ):
        with pytest.raises(Bug, match="come after 2 groups as"):
            TABLE.with_groups(version, groups)


@group
def test_an_impossible_group_from_outside_is_refused(fields: tuple[Any, ...], why: str) -> None:
    document = TABLE.to_wire()
    document["groups"][1] = [list(field) for field in fields]
    with pytest.raises(Refusal, match=why):
        Table.from_wire(document)
    with pytest.raises(Refusal, match=why):
        m.decode(m.CODES[m.Install], msgpack.packb([document]))
    with pytest.raises(Refusal, match=why):
        TABLE.amended(Version(2, 2), False, [(1, *fields)])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"version": [1, -2]}, "below 0"),
        ({"version": [1]}, "TypeError"),
        ({"groups": []}, "0 virtual nodes"),
        ({"groups": [[[1, 0], ["0.0"]]]}, "ValueError: not enough values"),
        ({"groups": 7}, "TypeError"),
    ],
)
def test_what_is_no_table_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(Refusal, match=why):
        Table.from_wire({**TABLE.to_wire(), **wrong})
    with pytest.raises(Refusal, match="KeyError"):
        Table.from_wire({key: value for key, value in TABLE.to_wire().items() if key not in wrong})


def test_a_journal_of_a_later_release_is_refused() -> None:
    """A driver that read it would write it again without what it does not know."""
    document = TABLE.to_journal()
    assert document["format"] == 1 and Table.from_wire(document) == TABLE
    deployed = replace(TABLE, programs=(*TABLE.programs, ProgramVersion(2, 8, (1, 0))))
    assert deployed.to_journal()["format"] == 2 and Table.from_wire(deployed.to_journal()) == deployed
    with pytest.raises(Refusal, match="its format is 3, this release reads up to 2"):
        Table.from_wire({**document, "format": 3})


def test_a_journal_of_the_release_before_programs_is_of_the_first_program() -> None:
    document = TABLE.to_journal()
    del document["programs"]
    initial = replace(TABLE, version=Version(0, 0), programs=first_program(3))
    driver = Coordinator(CoordinatorSettings(), initial, Table.from_wire(document))
    assert driver.table.programs == first_program(3)


@pytest.mark.parametrize(
    ("version", "vnode", "why"),
    [((2, 0), 0, "comes after"), ((2, 2), 2, "virtual node 2 of 2"), ((2, 2), -1, "virtual node -1 of 2")],
)
def test_a_change_that_cannot_follow_is_refused(version: tuple[int, int], vnode: int, why: str) -> None:
    with pytest.raises(Refusal, match=why):
        TABLE.amended(Version(*version), False, [(vnode, Term(2, 2), (A,), ())])
