"""What every journal does, wherever it is kept: checks that are given views of different drivers on one empty journal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ferry.contract.errors import Superseded
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.registry import JournalStore

A, B = InstanceId("0.0"), InstanceId("1.0")

Another = Callable[[], JournalStore]


def table(generation: int, number: int, *in_sync: InstanceId) -> Table:
    return Table(Version(generation, number), (Group(Term(generation, number), in_sync or (A, B)),))


def the_first_write_needs_that_there_is_none(journal_of_another: Another) -> None:
    journal = journal_of_another()
    assert journal.read() is None
    journal.swap(table(1, 0), None)
    assert journal_of_another().read() == table(1, 0)
    with pytest.raises(Superseded, match="generation 1 has taken over"):
        journal_of_another().swap(table(1, 0, B), None)
    assert journal.read() == table(1, 0)


def a_write_follows_the_version_that_it_names(journal_of_another: Another) -> None:
    journal = journal_of_another()
    journal.swap(table(1, 0), None)
    journal.swap(table(1, 1, A), Version(1, 0))
    journal.swap(table(1, 2, A, B), Version(1, 1))
    assert journal.read() == table(1, 2, A, B)
    for stale in (Version(1, 1), Version(1, 3), Version(2, 2)):
        with pytest.raises(Superseded, match="generation 1 "):
            journal.swap(table(1, 4), stale)
    assert journal.read() == table(1, 2, A, B)


def of_two_drivers_that_read_the_same_journal_one_has_the_next_generation(journal_of_another: Another) -> None:
    first, second, old = journal_of_another(), journal_of_another(), journal_of_another()
    old.swap(table(1, 0), None)
    first.swap(table(2, 0, A), Version(1, 0))
    with pytest.raises(Superseded, match="generation 2 "):
        second.swap(table(2, 0, B), Version(1, 0))
    with pytest.raises(Superseded, match="generation 2 "):
        old.swap(table(1, 1, B), Version(1, 0))
    assert old.read() == table(2, 0, A)


def the_same_write_again_is_done_already_until_another_one_follows(journal_of_another: Another) -> None:
    journal = journal_of_another()
    for _ in range(2):
        journal.swap(table(1, 0), None)
    for _ in range(2):
        journal.swap(table(1, 1, B), Version(1, 0))
    journal_of_another().swap(table(2, 0, A), Version(1, 1))
    with pytest.raises(Superseded, match="generation 2 "):
        journal.swap(table(1, 1, B), Version(1, 0))
    assert journal.read() == table(2, 0, A)


CHECKS: tuple[Callable[[Another], None], ...] = (
    the_first_write_needs_that_there_is_none,
    a_write_follows_the_version_that_it_names,
    of_two_drivers_that_read_the_same_journal_one_has_the_next_generation,
    the_same_write_again_is_done_already_until_another_one_follows,
)
