"""The routing table and the plan in force: first in the journal, then acted on.

    write --> Journal ... Journaled --> written: the table is in force
                     '-- JournalRefused: claimed again, or another driver has taken over

One write at a time: while a changed table is on its way to the journal, no other one is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ferry.contract.errors import Bug
from ferry.contract.plans import Plan
from ferry.contract.programs import Programs
from ferry.contract.routing import Group, Table, Version
from ferry.protocol.coordinator.groups import GroupChange, next_version
from ferry.protocol.coordinator.io import Journal, JournalReachable, Phase
from ferry.protocol.coordinator.state import DriverState
from ferry.protocol.view import TableView, seen


class Journaling:
    """The table in force, and the one on its way to the journal."""

    def __init__(self, driver: DriverState, initial: Table, journal: Table | None) -> None:
        self._driver = driver
        self.table: Table
        """In force: the journal has it."""
        self.plan: Plan | None
        """In force, with its progress: journaled with the next table, before any change that follows from it."""
        self.prepared: Plan | None
        """The submitted plan: it replaces the plan in force when it is due."""
        self.view: TableView
        self._begin(replace(journal, programs=journal.programs or initial.programs) if journal else initial)
        self.expected = journal.version if journal is not None else None
        """The version in the journal, as far as this driver knows."""
        self.writing: Table | None = None
        self._changes: tuple[GroupChange, ...] = ()
        """Changes of `writing`."""
        self.up = True
        """Whether the journal can be reached."""

    def _begin(self, journaled: Table) -> None:
        """Go on from the journaled table. Learners of the last driver begin again: this driver does not know which
        deltas they missed."""
        groups = tuple(replace(group, learners=()) for group in journaled.groups)
        self.table = replace(journaled, version=Version(self._driver.generation, 0), groups=groups)
        self.plan, self.prepared = journaled.plan, journaled.prepared
        self.view = seen(self.table)

    def has_plans(self) -> bool:
        """Whether the journal has the present plans: in force, with its outcome, and prepared."""

        def known(plan: Plan | None) -> tuple[int, str, bool, tuple[int, ...]] | None:
            return None if plan is None else (plan.number, plan.undone, bool(plan.before), plan.at_window)

        return (known(self.table.plan), known(self.table.prepared)) == (known(self.plan), known(self.prepared))

    def claim(self) -> None:
        """Write the first table of this generation: no older driver can write any more."""
        self._write(self.table, ())

    def claim_again(self, journaled: Table | None) -> bool:
        """A write was refused. Returns whether the claim is repeated: the predecessor has written once more since this
        driver read the journal. After the claim it cannot.
        """
        claims = self._driver.phase is Phase.JOURNAL and self.expected is not None and self._driver.rules.claim_again
        if not claims or journaled is None or journaled.version.generation >= self._driver.generation:
            return False
        submitted = self.prepared
        self._begin(replace(journaled, programs=journaled.programs or self.table.programs))
        if submitted is not None and all(p is None or p.number < submitted.number for p in (self.plan, self.prepared)):
            self.prepared = submitted
        self.expected = journaled.version
        self.writing = None
        self.claim()
        return True

    def write(self, groups: Sequence[Group], changes: Sequence[GroupChange]) -> None:
        """Journal the next table."""
        table = self.table.with_groups(next_version(self.table, self._driver.generation), groups)
        self._write(replace(table, initial=self.table.initial), tuple(changes))

    def write_programs(self, programs: Programs) -> None:
        """Journal the table with these programs."""
        table = self.table.with_groups(next_version(self.table, self._driver.generation), self.table.groups)
        self._write(replace(table, initial=self.table.initial, programs=programs), ())

    def write_begun(self) -> None:
        """Before the very first Commit, or after a restore: journal that a member without state is no copy from now on.

        Otherwise a driver that finds only empty members could not tell a new job from a lost one.
        """
        table = self.table.with_groups(next_version(self.table, self._driver.generation), self.table.groups)
        assert not table.initial
        self._write(table, ())

    def _write(self, table: Table, changes: tuple[GroupChange, ...]) -> None:
        if self.writing is not None:
            raise Bug(f"table {table.version} is written while {self.writing.version} is on its way to the journal")
        at_window = self.plan.without_snapshots() if self.plan is not None else ()
        self.writing = table = replace(table, plan=self.plan, prepared=self.prepared, at_window=at_window)
        self._changes = changes
        self._driver.do(Journal(table, self.expected))

    def reached(self, event: JournalReachable) -> None:
        """The journal became reachable or unreachable."""
        self.up = event.up

    def is_writing(self, version: Version) -> bool:
        """Whether this table is on its way to the journal."""
        return self.writing is not None and self.writing.version == version

    def written(self) -> tuple[GroupChange, ...]:
        """The journal has the written table: it is in force. Returns its changes."""
        assert self.writing is not None
        self.table, self.writing = self.writing, None
        self.expected = self.table.version
        self.view = seen(self.table)
        changes, self._changes = self._changes, ()
        return changes
