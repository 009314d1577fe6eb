"""What the journal's writer tells the loop: nothing is answered twice, and nothing is given up while it is away."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract.errors import StateUnavailable, Superseded, Unreachable
from ferry.contract.names import InstanceId, Term
from ferry.contract.routing import Group, Table, Version
from ferry.coordinator import journal
from ferry.coordinator.journal import JournalWriter
from ferry.protocol import coordinator as core

AWAY = Unreachable("Redis does not answer")


def table(number: int) -> Table:
    return Table(Version(1, number), (Group(Term(1, number), (InstanceId("0.0"),)),))


class FakeJournal:
    """Answers what it is told to, one thing after another; then everything goes well."""

    look_seconds = 0.001

    def __init__(self, *answers: Any) -> None:
        self.answers, self.pings, self.written = list(answers), list[bool](), list[tuple[Table, Version | None]]()

    def _answer(self) -> Any:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read(self) -> Any:
        return self._answer()

    def swap(self, table: Table, expected: Version | None) -> None:
        self.written.append((table, expected))
        self._answer()

    def is_reachable(self) -> bool:
        return self.pings.pop(0) if self.pings else True


class Writer:
    """A writer at work, and what it told the loop."""

    def __init__(self, kept: FakeJournal) -> None:
        self.told: queue.SimpleQueue[core.Event] = queue.SimpleQueue()
        self.writer = JournalWriter(kept)  # type: ignore[arg-type]
        self.writer.start(self.told.put)

    def write(self, number: int, expected: Version | None = None) -> None:
        self.writer.write(core.Journal(table(number), expected))

    def next(self, count: int) -> list[core.Event]:
        return [self.told.get(timeout=30) for _ in range(count)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RETRY_SECONDS", 0.0)


UP, DOWN = core.JournalReachable(True), core.JournalReachable(False)


def test_a_write_is_tried_until_it_has_an_outcome_and_then_group_changes_are_possible_again() -> None:
    # The pings all come through: without the last word of the write, group changes would wait for ever.
    kept = FakeJournal(AWAY, AWAY)
    writer = Writer(kept)
    writer.write(1, Version(1, 0))
    assert writer.next(4) == [DOWN, DOWN, core.Journaled(Version(1, 1)), UP]
    assert kept.written == [(table(1), Version(1, 0))] * 3


def test_writes_keep_their_order() -> None:
    kept = FakeJournal(None, AWAY)
    writer = Writer(kept)
    for number in (1, 2, 3):
        writer.write(number)
    journaled = [e.version.number for e in writer.next(7) if isinstance(e, core.Journaled)]
    assert journaled == [1, 2, 3]
    assert [t.version.number for t, _ in kept.written] == [1, 2, 2, 3]


def test_a_refusal_is_not_tried_again_and_halts_the_driver_with_its_reason() -> None:
    kept = FakeJournal(Superseded("generation 2 has taken over the journal"))
    writer = Writer(kept)
    driver = core.Coordinator(core.CoordinatorSettings(), replace(table(0), version=Version(0, 0)), None)
    (claim,) = driver.start()
    assert isinstance(claim, core.Journal)
    writer.writer.write(claim)
    refused, up = writer.next(2)
    assert up == UP
    assert driver.step(refused) == [
        core.Halt("superseded", "generation 2 has taken over the journal (this driver is generation 1)")
    ]
    assert driver.phase is core.Phase.STOPPED and len(kept.written) == 1


@pytest.mark.parametrize("gone", [Superseded("it is gone"), StateUnavailable("it is nowhere")])
def test_a_journal_that_is_gone_halts_the_driver(gone: Exception) -> None:
    writer = Writer(FakeJournal(Superseded("the journal is gone"), gone))
    writer.write(1, Version(1, 0))
    assert writer.next(2) == [core.JournalRefused("the journal is gone", None), UP]


def test_a_claim_that_the_predecessor_has_written_before_is_made_again() -> None:
    driver = core.Coordinator(core.CoordinatorSettings(), table(0), table(3))
    (claim,) = driver.start()
    assert isinstance(claim, core.Journal) and claim.expected == table(3).version
    kept = FakeJournal(Superseded("the journal has version 4"), table(4))
    writer = Writer(kept)
    writer.writer.write(claim)
    refused, _ = writer.next(2)
    (again,) = driver.step(refused)
    assert isinstance(again, core.Journal)
    assert (again.expected, again.table.version) == (table(4).version, claim.table.version)
    assert again.table.groups == table(4).groups


def test_the_watch_tells_when_the_journal_goes_and_when_it_comes_back() -> None:
    kept = FakeJournal()
    kept.pings = [True, False, False, True, True, False, True]
    assert Writer(kept).next(4) == [DOWN, UP, DOWN, UP]


def test_a_new_driver_waits_for_the_journal() -> None:
    kept = FakeJournal(AWAY, AWAY, table(3))
    assert JournalWriter(kept).read() == table(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [None, replace(table(4), version=Version(2, 0)), AWAY])
def test_a_claim_counts_until_another_driver_has_the_journal(found: Any) -> None:
    writer = JournalWriter(FakeJournal(table(7), found))  # type: ignore[arg-type]
    writer.check(1)
    with pytest.raises(Unreachable if found is AWAY else Superseded):
        writer.check(1)
