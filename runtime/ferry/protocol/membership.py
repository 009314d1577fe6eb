"""Who is there, and what the groups are: the half of the coordinator that epochs do not concern.

    journal -> ask -> finish -> idle ...        Connected -> Ask -> Answer -> admitted (Install)
                                                Lost -> the groups close over it -> journal -> Install

One writer of the journal at a time: while a changed table is on its way there (`writing`), nothing is prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ferry.contract import messages as m
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import groups as g
from ferry.protocol import recovery
from ferry.protocol.bars import Bar
from ferry.protocol.coordinator_io import (
    Close,
    Connected,
    CoordinatorSettings,
    Desired,
    Effect,
    Halt,
    Journal,
    Journaled,
    JournalReachable,
    JournalRefused,
    Lost,
    Note,
    Phase,
)
from ferry.protocol.rules import Rules
from ferry.protocol.sending import Send
from ferry.protocol.view import Chain, TableView, seen


@dataclass(frozen=True, slots=True)
class FailedMember:
    """What an instance said when it could not go on."""

    reason: str
    bar: Bar
    """Not admitted again before its end, unless it has what nobody else has."""
    since: int | None
    """The first time in a row; None when it has put a Commit since."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A copy that was given up, and why."""

    bar: Bar
    reason: str


class Membership(ABC):
    """State of one driver generation, its journal, its members."""

    def __init__(
        self, settings: CoordinatorSettings, initial: Table, journal: Table | None, rules: Rules | None = None
    ) -> None:
        """`initial` is the table of a new job; `journal` what the journal holds, None for a new job."""
        self.settings = settings
        self.rules = rules or Rules()
        self.first = tuple(group.in_sync for group in initial.groups)
        """Where the virtual nodes of a new job are."""
        self.generation = (journal.version.generation if journal else 0) + 1
        self._take_over(journal, initial)
        self.phase: str = Phase.JOURNAL
        self.phase_since = self.now = 0
        self.writing: Table | None = None
        self.after_write: tuple[g.GroupChange, ...] = ()
        self.journal_up = True
        self.asked: dict[InstanceId, int] = {}
        """Connected instances, and when they were asked last."""
        self.answers: dict[InstanceId, m.Answer] = {}
        """Answers of instances that are not admitted yet."""
        self.newest: m.Answer | None = None
        """The answer of the highest committed step, of an in-sync member, which may be gone since: so much is final."""
        self.alive: dict[InstanceId, bool] = {}
        """Admitted instances: they obey this driver."""
        self.leaving: dict[InstanceId, bool] = {}
        """Those of them that were told to end: they help no more."""
        self.gone: dict[InstanceId, int] = {}
        """Instances that were lost, and since when."""
        self.heard: dict[InstanceId, int] = {}
        """When connected instances gave a sign of life last."""
        self.busy: dict[InstanceId, int] = {}
        """When an instance said last that it was at work all the time."""
        self.failed: dict[InstanceId, FailedMember] = {}
        """Instances that could not go on, be they back or not."""
        self.committed: CommitId | None = None
        self.low = self.high = WATERMARK_NONE
        self.meta = b""
        self.late = self.fired = 0
        self.final = False
        """A member of the groups that were found has given up the rows of the committed epoch."""
        self.commit: m.Commit | None = None
        """What has to be finished everywhere: nothing else can happen to that step any more."""
        self.put: dict[InstanceId, bool] = {}
        self.acks: dict[Chain, tuple[int, int]] = {}
        """Chains that have logged the attempt under way: late records, and fired rows."""
        self.step_now: Step | None = None
        self.desired: Desired | None = None
        self.switched_at: int | None = None
        """The last committed epoch when a virtual node was switched to another leader last."""
        self.warm: dict[tuple[InstanceId, int], CommitId | None] = {}
        self.learning: dict[tuple[InstanceId, int], Version] = {}
        """The table since which a learner has learned a virtual node from its present leader."""
        self.joined: dict[tuple[InstanceId, int], int] = {}
        """When a copy was begun, or came along last."""
        self.refused: dict[tuple[InstanceId, int], GivenUp] = {}
        self._out: list[Effect] = []

    def _take_over(self, journal: Table | None, initial: Table) -> None:
        self.expected = journal.version if journal else None
        found = journal or initial
        # Learners of the last driver begin again: this one does not know what they missed.
        groups = tuple(replace(x, learners=()) for x in found.groups)
        self.table = Table(Version(self.generation, 0), groups, initial=found.initial)
        self.view = seen(self.table)

    def start(self) -> list[Effect]:
        """Claim the next generation in the journal."""
        self._journal(self.table, ())
        out, self._out = self._out, []
        return out

    def _do(self, effect: Effect) -> None:
        self._out.append(effect)

    def _enter(self, phase: str) -> None:
        self.phase, self.phase_since = phase, self.now

    def _halt(self, kind: str, reason: str) -> None:
        self._do(Halt(kind, reason))
        self.phase = Phase.STOPPED

    # ---- the journal: first there, then acted on
    def _next(self, groups: list[Group]) -> Table:
        table = self.table.with_groups(g.next_version(self.table, self.generation), groups)
        return replace(table, initial=self.table.initial)

    def _journal(self, table: Table, changes: tuple[g.GroupChange, ...]) -> None:
        self.writing, self.after_write = table, changes
        self._do(Journal(table, self.expected))
        if not self.rules.journal_first:
            self._journaled(table)

    def _on_journaled(self, event: Journaled) -> None:
        if self.writing is not None and event.version == self.writing.version:
            self._journaled(self.writing)

    def _journaled(self, table: Table) -> None:
        self.writing, self.expected = None, table.version
        before, self.table, self.view = self.view, table, seen(table)
        self._relearned(before)
        changes, self.after_write = self.after_write, ()
        if changes:
            self._do(Note("groups", self.step_now, changes))
        for c in changes:
            if c.kind in ("joined", "demoted"):
                self.joined[(c.instance, c.vnode)] = self.now
        for i in sorted(self.alive):
            self._do(Send(i, m.Install(table)))
        if self.phase is Phase.JOURNAL:
            self._enter(Phase.ASK)
            for i in sorted(self.asked):
                self._ask(i)
        self._table_changed()

    def _relearned(self, before: TableView) -> None:
        """What learners have told counts only for the leader that they still learn from."""
        old, self.learning = self.learning, {}
        for i, learned in self.view.learned.items():
            for v, leader in learned.items():
                same = before.learned.get(i, {}).get(v) == leader and (i, v) in old
                self.learning[(i, v)] = old[(i, v)] if same else self.table.version
                if not same and self.rules.warm_version:
                    self.warm.pop((i, v), None)
        for key in [k for k in self.warm if k not in self.learning]:
            del self.warm[key]

    @abstractmethod
    def _table_changed(self) -> None:
        """What an attempt under way has to do about a new table."""

    def _on_journal_refused(self, event: JournalRefused) -> None:
        journal, first = event.journal, self.phase is Phase.JOURNAL and self.expected is not None
        if first and journal is not None and journal.version.generation < self.generation and self.rules.claim_again:
            # The predecessor has written once more since this driver looked; after the claim it cannot.
            self._take_over(journal, journal)
            self._journal(self.table, ())
            return
        self._halt("superseded", f"{event.reason} (this driver is generation {self.generation})")

    def _on_journal_reachable(self, event: JournalReachable) -> None:
        self.journal_up = event.up

    # ---- members come and go
    def _ask(self, instance: InstanceId) -> None:
        self.asked[instance] = self.now
        self._do(Send(instance, m.Ask(self.generation)))

    def _forget(self, instance: InstanceId) -> None:
        for known in (self.asked, self.answers, self.alive, self.leaving, self.put, self.heard, self.busy):
            known.pop(instance, None)
        for key in [k for k in self.warm if k[0] == instance]:
            del self.warm[key]

    def _on_connected(self, event: Connected) -> None:
        self._forget(event.instance)
        # One that stands still from now on never answers.
        self.asked[event.instance] = self.heard[event.instance] = self.now
        if self.phase is not Phase.JOURNAL:
            self._ask(event.instance)

    def _on_lost(self, event: Lost) -> None:
        if event.instance in self.alive:
            self._do(Note("lost", self.step_now, text=f"{event.instance}: {event.reason}"))
        self._forget(event.instance)
        self.gone.setdefault(event.instance, self.now)

    def _at_work(self, instance: InstanceId) -> bool:
        """Whether an instance is connected, and has no time to answer: slow is not gone."""
        return self.rules.slow_lives and self.now - self.busy.get(instance, -1 << 60) <= self.settings.silence_ms

    def _lose_silent(self, before: int) -> None:
        """Instances whose process stands still: the connection to one, and its parent's heartbeats, go on."""
        if self.now - before > self.settings.silence_ms // 2:
            self.heard = dict.fromkeys(self.heard, self.now)  # It is this driver that stood still.
        silent = [i for i, at in self.heard.items() if self.now - at > self.settings.silence_ms]
        for i in sorted(silent):
            if self.rules.silent_lost:
                reason = f"it stands still: nothing heard for {self.settings.silence_ms / 1000:g} s"
                self._on_lost(Lost(i, reason))
                self.gone[i] = min(self.gone[i], self.now - self.settings.grace_ms)
                self._do(Close(i, reason))

    def _on_leaving(self, event: m.Leaving) -> None:
        if event.instance in self.alive:
            self.leaving[event.instance] = True

    def _helpers(self) -> tuple[InstanceId, ...]:
        return tuple(sorted(self.alive.keys() - self.leaving.keys()) or sorted(self.alive))

    def _on_refused(self, event: m.Refused) -> None:
        if event.generation > self.generation:
            self._halt("superseded", f"{event.instance} obeys generation {event.generation}, this is {self.generation}")

    def _on_failed(self, event: m.Failed) -> None:
        """An instance that cannot go on is a lost one; it stays away for a while, the longer the oftener it fails."""
        i, before = event.instance, self.failed.get(event.instance)
        bar = Bar.after(before.bar if before else None, self.now, self.settings.bar_ms, self.settings.bar_max_ms)
        since = before.since if before is not None and before.since is not None else self.now
        self.failed[i] = FailedMember(event.reason, bar, since)
        self._do(Note("failed", self.step_now, text=f"{i}: {event.reason}; it is left out for {bar.wait / 1000:g} s"))
        connected = i in self.asked
        self._forget(i)
        if connected:
            self.asked[i] = self.now  # One that does not end after all is asked again.
        # It said so itself: nobody waits for its connection.
        self.gone[i] = min(since, self.now - self.settings.grace_ms)

    def _barred(self, instance: InstanceId) -> bool:
        """Whether an instance that answered is left out, because it failed: it is no member of any group any more."""
        failure = self.failed.get(instance)
        return failure is not None and self.now < failure.bar.until and instance not in self.view.held

    def _on_answer(self, answer: m.Answer) -> None:
        if answer.generation == self.generation and answer.instance in self.asked:
            if answer.instance not in self.alive:
                self.answers[answer.instance] = answer
                if self.phase is Phase.ASK and answer.instance in self.view.held:
                    self.newest = recovery.newer(self.newest, answer)

    def _ask_again(self) -> None:
        """Questions and answers may be lost."""
        for i in sorted(self.asked):
            silent = i not in self.alive and i not in self.answers
            if silent and self.phase is not Phase.JOURNAL and self.now - self.asked[i] > self.settings.commit_ms:
                self._ask(i)

    # ---- level-triggered: called after every event, while no change is on its way to the journal
    def _settle_members(self) -> bool:
        """Admit who answered, close groups over who is gone. False when nothing else may be done now."""
        if self.answers:
            strangers = {i: lost for i, a in self.answers.items() if (lost := self._lost(a)) != {}}
            if strangers:
                self._remove_strangers(strangers)
                return False
            held = [i for i in sorted(self.answers) if not self._barred(i) and self._admit(self.answers.pop(i))]
            if held:
                self._member_returned()
        return not self.gone or not self._close_groups()

    def _lost(self, answer: m.Answer) -> dict[int, object] | None:
        """What of its groups' state an instance that answered does not have: some virtual nodes, or all (None)."""
        held = self.view.held.get(answer.instance, ())
        if not held:
            return {}
        busy = self.commit is not None and self.phase in (Phase.COMMIT, Phase.FINISH)
        target = self.commit.label if self.commit and busy else self.committed
        if not recovery.agrees(answer, target, self.settings.operators, self.rules):
            return None
        if self.table.initial or not self.rules.whole_flag:
            return {}
        has = dict.fromkeys(answer.holds)
        return {v: True for v in held if v not in has}

    def _remove_strangers(self, strangers: g.Losses) -> None:
        """Instances that came back with other state than their groups have: no copies any more."""
        groups, changes, orphans = g.without(self.table, strangers, self.generation)
        if orphans:
            who = ", ".join(f"{i} (has {self.answers[i].committed})" for i in sorted(strangers))
            self._halt(
                "unavailable",
                f"virtual nodes {orphans[:8]} (of {len(orphans)}) were held only by {who}, which came back without the "
                f"state as of {self.commit.label if self.commit else self.committed}: "
                "bring back workers with those files, or make a new job",
            )
            return
        self._journal(self._next(groups), tuple(changes))

    def _obeys(self, instance: InstanceId) -> None:
        self.alive[instance] = True
        self.gone.pop(instance, None)
        self.heard[instance] = self.now

    def _admit(self, answer: m.Answer) -> bool:
        """Let an instance take part; whether it is an in-sync member."""
        i = answer.instance
        self._obeys(i)
        self._do(Send(i, m.Install(self.table)))
        if self.commit is not None and self.phase in (Phase.COMMIT, Phase.FINISH):
            if answer.committed == self.commit.label:
                self.put[i] = True
            elif i in self.view.held:
                self._do(Send(i, self.commit))
        elif self.committed is not None and answer.committed != self.committed and i in self.view.held:
            # Nobody finishes that step any more: its files are of an older day, and its log has what they lack.
            c = m.Commit(self.committed, self.generation, self.low, self.high, self.meta, self.late, self.fired)
            self._do(Send(i, c))
        return i in self.view.held

    @abstractmethod
    def _member_returned(self) -> None:
        """An in-sync member was admitted while an epoch runs."""

    def _away(self) -> list[InstanceId]:
        """Members that were lost, be it a moment ago, and are not back."""
        # Looked at after every event: it must not cost more with every member.
        away = sorted(i for i in self.gone if i not in self.alive)
        return [i for i in away if i in self.view.held or i in self.view.learned]

    def _close_groups(self) -> bool:
        """Close groups over lost members. True while the change is on its way to the journal."""
        away = self._away()
        lost: g.Losses = {i: None for i in away if self.now - self.gone[i] >= self.settings.grace_ms}
        if not lost:
            return False
        groups, changes, orphans = g.without(self.table, lost, self.generation, self.alive)
        if changes:
            self._journal(self._next(groups), tuple(changes))
            return True
        hopeless = [v for v in orphans if all(map(self._is_overdue, self.table.groups[v].in_sync))]
        if hopeless:
            holders = sorted({i: True for v in hopeless for i in self.table.groups[v].in_sync})
            seconds = f"{self.settings.return_ms / 1000:.0f} s"
            what = f"virtual nodes {hopeless[:8]} (of {len(hopeless)})"
            if failing := [f"{i} ({f.reason})" for i in holders if (f := self.failed.get(i)) and f.since is not None]:
                self._halt("failed", f"{what} are held only by {', '.join(failing[:4])}, which failed for {seconds}")
            else:
                where = f"{what} were held only by {holders[:4]}, gone for {seconds}"
                self._halt("away", f"{where}: start the worker again with its state directory")
        return False

    def _is_overdue(self, instance: InstanceId) -> bool:
        """Whether a holder of state is gone for longer than anybody waits for one."""
        away = instance not in self.alive and not self._at_work(instance)
        return away and self.now - self.gone.get(instance, self.now) >= self.settings.return_ms


MEMBER_HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    Connected: Membership._on_connected,
    Lost: Membership._on_lost,
    Journaled: Membership._on_journaled,
    JournalRefused: Membership._on_journal_refused,
    JournalReachable: Membership._on_journal_reachable,
    m.Answer: Membership._on_answer,
    m.Leaving: Membership._on_leaving,
    m.Refused: Membership._on_refused,
    m.Failed: Membership._on_failed,
}
