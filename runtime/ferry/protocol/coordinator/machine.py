"""The driver's side of the protocol: epochs, attempts, groups, recovery.

journal -> ask -> finish -> idle -> ingest -> prepare -> commit -> read -> idle ...
                              ^        |          |         '- final: only this attempt can be finished
                              |        '----------+- lost fragments: ingest again; a changed table: a new attempt
                              '- between epochs: warm, switch over, clean (groups.regroup), which an epoch may wait for

A coordinator has parts, each with fields of its own. A part knows the fields of the rows below it, never its
neighbours, and answers. The coordinator alone takes events, has tables journaled, and decides the consequences for the
other parts.

    EpochSteps                      the steps of an epoch, one after the other
    Takeover | Attempts | Moves     state from the previous driver | the step under way | the desired placement
    Checkpointing | Deploying       durable checkpoints | another program from an epoch on
    Commits | Reachability          the committed step and its members | pairs that cannot reach each other
    Membership                      instances: connected, alive, lost
    Journaling | FailingCode        the table in force, and the next one | failing user code
    DriverState                     settings, generation, time, phase, effects
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId, Step
from ferry.contract.plans import Plan
from ferry.contract.routing import Table
from ferry.protocol.coordinator import io
from ferry.protocol.coordinator.attempts import Attempts
from ferry.protocol.coordinator.checkpoints import Checkpointing
from ferry.protocol.coordinator.commits import Commits
from ferry.protocol.coordinator.deploying import Deploying
from ferry.protocol.coordinator.epoch_steps import EpochSteps
from ferry.protocol.coordinator.groups import Regrouped
from ferry.protocol.coordinator.journaling import Journaling
from ferry.protocol.coordinator.membership import Membership
from ferry.protocol.coordinator.moves import Moves
from ferry.protocol.coordinator.reachability import Reachability
from ferry.protocol.coordinator.state import DriverState
from ferry.protocol.coordinator.takeover import Takeover
from ferry.protocol.io import Tick
from ferry.protocol.rules import Rules
from ferry.protocol.story import Story


class Coordinator:
    """One driver's decisions, from its first look at the journal to the end of its generation."""

    def __init__(
        self,
        settings: io.CoordinatorSettings,
        initial: Table,
        journal: Table | None,
        rules: Rules | None = None,
        restore: m.Commit | None = None,
    ) -> None:
        """`initial` is the table of a new job; `journal` is the journaled table, None for a new job.

        `restore`: the first commit of a table with an origin; this driver fills in `origin` and `generation`.
        """
        generation = (journal.version.generation if journal else initial.version.generation) + 1
        first = tuple(group.in_sync for group in initial.groups)
        driver = self.driver = DriverState(settings, rules or Rules(), generation)
        journaling = self.journaling = Journaling(driver, initial, journal)
        members = self.members = Membership(driver, journaling)
        reachability = self.reachability = Reachability(driver, journaling, members)
        commits = self.commits = Commits(driver, journaling, members)
        self.takeover = Takeover(driver, journaling, members, commits, restore)
        self.attempts = Attempts(driver, journaling, members, reachability, commits)
        self.moves = Moves(driver, journaling, members, reachability, commits, first)
        self.checkpoints = Checkpointing(driver, journaling, members, commits)
        self.deploying = Deploying(driver, journaling, members, commits)
        self.steps = EpochSteps(driver, commits, self.attempts, self.moves, self.checkpoints)
        self.story = Story()
        self.rewinds = ""
        """Why the driver is to halt, once no table is on its way to the journal."""

    # ---- read access for other parts
    @property
    def generation(self) -> int:
        """Generation of this driver."""
        return self.driver.generation

    @property
    def phase(self) -> str:
        """The present phase."""
        return self.driver.phase

    @property
    def now(self) -> int:
        """The last time of the clock, in milliseconds."""
        return self.driver.now

    @property
    def table(self) -> Table:
        """The routing table in force."""
        return self.journaling.table

    @property
    def alive(self) -> Mapping[InstanceId, bool]:
        """Instances that obey this driver."""
        return self.members.alive

    # ---- the only entrance
    def start(self) -> list[io.Effect]:
        """Claim the next generation in the journal."""
        self.journaling.claim()
        self._journal_last()
        return self.driver.take_effects()

    def step(self, event: io.Event) -> list[io.Effect]:
        """Take one event; return the effects, to be executed in order."""
        if self.driver.phase is io.Phase.STOPPED:
            return []
        self.story.add_event(self.driver.now, event)
        try:
            if (handler := _HANDLERS.get(type(event))) is None:
                raise Bug(f"the coordinator cannot take {event}")
            handler(self, event)
            self._advance()
        except Exception as error:
            self.story.attach(error)
            raise
        return self.driver.take_effects()

    def _advance(self) -> None:
        """Level-triggered progress, after every event."""
        driver, attempts, commits = self.driver, self.attempts, self.commits
        if driver.phase in (io.Phase.STOPPED, io.Phase.JOURNAL) or self.journaling.writing is not None:
            return
        if driver.phase is io.Phase.ASK:
            if (survey := self.takeover.survey()) is not None:
                driver.enter(io.Phase.FINISH)
                self._journal(self.takeover.adopt(survey))
            return
        if not self._settle_members():
            return
        match driver.phase:
            case io.Phase.FINISH if commits.all_applied() and self._is_restored():
                self.journaling.write_begun()
                self._journal_last()
            case io.Phase.FINISH if commits.all_applied():
                commits.end()
                driver.enter(io.Phase.IDLE)
                driver.do(io.Ready(commits.committed, commits.meta, not commits.readable))
            case io.Phase.INGEST | io.Phase.PREPARE if self.deploying.takes_back() or self._is_replaced():
                self.steps.hold()
                self._switch()
            case io.Phase.PREPARE if attempts.is_logged():
                if self.journaling.table.initial:
                    self.journaling.write_begun()
                    self._journal_last()
                else:
                    commits.begin(attempts.commit())
            case io.Phase.PREPARE if why := attempts.unusable():
                # A lost helper may be no member of any group (a worker that was released): no other check sees it.
                self.steps.again(why)
            case io.Phase.PREPARE if not attempts.trying:
                self.steps.prepare()
            case io.Phase.COMMIT if commits.all_applied():
                self.reachability.step_committed()
                self.steps.step_committed()
            case io.Phase.IDLE | io.Phase.HOLD if self.checkpoints.holds:
                self.checkpoints.begin()
            case io.Phase.HOLD if not self._switch():
                if self.attempts.have_begun(commits.following.epoch):
                    self.steps.begin_again()
                elif not self._journal(self.moves.regrouped(epoch_begins=False)):
                    self.steps.begin()

    def _is_restored(self) -> bool:
        """Whether the restore is over and the journal does not say so yet."""
        return self.journaling.table.restoring and self.driver.rules.restore_begun

    def _switch(self) -> bool:
        """Before an epoch that waits: journal the programs that it has, if they change with it; returns whether they do."""
        epoch = self.commits.following.epoch
        if not self.deploying.takes_back() and not self.deploying.is_due(epoch):
            return False
        self.journaling.write_programs(self.deploying.programs(epoch))
        self._journal_last()
        return True

    # ---- the table: first in the journal, then in force
    def _journal(self, regrouped: Regrouped | None) -> bool:
        """Journal the next table, if there is one; returns whether there is."""
        if regrouped is not None:
            self.journaling.write(*regrouped)
            self._journal_last()
        return regrouped is not None

    def _journal_last(self) -> None:
        if not self.driver.rules.journal_first:
            self._table_changed()

    def _on_journaled(self, event: io.Journaled) -> None:
        if self.journaling.is_writing(event.version):
            self._table_changed()

    def _table_changed(self) -> None:
        """A new table is in force: all instances get it, and the attempt under way begins again under it."""
        driver = self.driver
        changes = self.journaling.written()
        self.moves.table_changed(changes)
        self.deploying.in_force()
        if changes:
            driver.note("groups", changes=changes)
        self.members.install()
        if driver.phase is io.Phase.JOURNAL:
            driver.enter(io.Phase.ASK)
            self.members.ask_all()
        if self.attempts.is_running or (driver.phase is io.Phase.COMMIT and not driver.rules.commit_final):
            self.steps.prepare()
        elif driver.phase in (io.Phase.FINISH, io.Phase.HOLD):
            self.commits.send()

    def _on_journal_refused(self, event: io.JournalRefused) -> None:
        found = event.journal
        if self.phase is io.Phase.JOURNAL and found is not None and found.origin != self.table.origin:
            restored = f"the job was restored ({found.origin}) after this driver read the journal: read it again"
            self.driver.halt("failed", restored)
        elif self.journaling.claim_again(found):
            self._journal_last()
        else:
            self.driver.halt("superseded", f"{event.reason} (this driver is generation {self.generation})")

    # ---- members come and go
    def _forget(self, instance: InstanceId) -> None:
        self.commits.forget(instance)
        self.moves.forget(instance)
        self.checkpoints.forget(instance)
        self.deploying.forget(instance)

    def _on_connected(self, event: io.Connected) -> None:
        self._forget(event.instance)
        self.members.connected(event.instance)

    def _on_lost(self, event: io.Lost) -> None:
        self._forget(event.instance)
        self.members.lost(event.instance, event.reason)

    def _on_failed(self, event: m.Failed) -> None:
        self._forget(event.instance)
        self.members.could_not_go_on(event)

    def _on_answer(self, answer: m.Answer) -> None:
        answer = self.takeover.of_this_life(answer)
        if self.members.answered(answer) and self.driver.phase is io.Phase.ASK:
            self.takeover.heard(answer)

    def _settle_members(self) -> bool:
        """Admit instances that answered, remove lost ones from groups. False: no other step may follow now."""
        members = self.members
        if members.answers:
            if diverged := self.takeover.diverged():
                self._journal(self.takeover.without(diverged))
                return False
            if self.takeover.admit() and self.attempts.is_running:
                self.steps.prepare()
        return not members.gone or not self._journal(members.closed_groups())

    # ---- one epoch
    def _on_epoch_begun(self, event: io.EpochBegun) -> None:
        if self.steps.is_first_step(event.epoch):
            self.checkpoints.epoch_begun()
            is_due = self.deploying.is_due(event.epoch)
            if is_due and self.driver.rules.programs_first:
                self.steps.hold()  # Another table may be on its way to the journal: `_advance` writes this one.
                return
            if not is_due or not self._switch():
                self._journal(self.moves.regrouped())
            self.steps.begin()

    def _is_replaced(self) -> bool:
        """Whether a deployed program takes over the step under way, whose code fails."""
        return bool(self.attempts.code.reason) and self._may_replace()

    def _may_replace(self) -> bool:
        """Whether a deployed program may take over the step under way: it is the first one of its epoch, and not decided."""
        step, rules = self.driver.step, self.driver.rules
        is_first = step is not None and (step.operator == 0 or not rules.takes_over_first)
        return step is not None and is_first and self.deploying.is_due(step.epoch)

    def _on_ingest_failed(self, event: io.IngestFailed) -> None:
        if self.attempts.is_ingesting(event.step, event.run) and self._may_replace():
            self.steps.hold()
        else:
            self.steps.ingest_failed(event)

    def _on_code_failed(self, event: m.CodeFailed) -> None:
        """A program whose first step fails twice is taken back: the job goes on with the program before it. A step whose
        rows are not written becomes void at its first failure: it must not hold up the rows that are written."""
        if self.attempts.fails_silently(event):
            if not self.attempts.failed:  # Other instances report the same attempt: the step is void by then.
                self.steps.again(event.reason, event.reason)
            return
        newest = self.table.programs[-1]
        first = event.step == self.driver.step == Step(newest.since, 0)
        if first and self.attempts.code.fails_again(event) and self.deploying.may_take_back(newest.number):
            self.deploying.withdraw(io.Withdraw(newest.number, event.reason))
        else:
            if event.step.operator == 0 and not event.final and self.attempts.code.fails_again(event):
                self.driver.do(io.CodeFails(event.reason))
            self.attempts.code_failed(event)

    def _on_warm(self, event: m.Warm) -> None:
        self.moves.is_warm(event)
        if not self.driver.rules.between_epochs and self.driver.phase not in (io.Phase.JOURNAL, io.Phase.ASK):
            self._journal(self.moves.regrouped())

    # ---- patience
    def _on_tick(self, tick: Tick) -> None:
        driver = self.driver
        before, driver.now = driver.now, max(driver.now, tick.now)
        for i in self.members.lose_silent(before):
            self._forget(i)
        self.members.ask_again()
        self.deploying.tick()
        if self.journaling.writing is not None:
            return
        if self.rewinds:
            return driver.halt("rewind", self.rewinds)
        self.attempts.code_may_try_again()
        if self.attempts.is_overdue():
            self._attempt_failed()
        elif self.commits.under_way is not None and driver.phase in io.Phase.COMMITS:
            if driver.waited > driver.settings.commit_ms:
                driver.wait_anew()
                self.commits.send_again()

    def _on_pulse(self, event: m.Pulse) -> None:
        self.members.pulsed(event)
        if event.busy_ms and self.driver.rules.slow_lives and self.attempts.waits_for(event.instance):
            self.driver.wait_anew()

    def _attempt_failed(self) -> None:
        """Try again; from the second time on without the instances that keep the attempt waiting."""
        if self.attempts.give_up() < 2 or not self.driver.rules.work_around or not self._work_around():
            self.members.install()
            self.steps.prepare()

    def _work_around(self) -> bool:
        """Whether a change was begun instead of the same attempt once more."""
        blamed = self.attempts.blamed()
        if blamed.apart and self.reachability.fails_for_long(blamed.apart):
            return True
        self.reachability.keep_apart(blamed.apart)
        groups, changes = self.reachability.worked_around(blamed.slow)
        if changes and self.journaling.up:
            self.moves.refuse_removed(changes, "it cannot be reached by its leader")
            self.driver.enter(io.Phase.PREPARE)
            return self._journal((groups, changes))
        if why := self.attempts.unusable():
            self.steps.again(why)
        return bool(why)


_HANDLERS: dict[type, Callable[[Coordinator, Any], None]] = {
    Tick: Coordinator._on_tick,
    io.Connected: Coordinator._on_connected,
    io.Lost: Coordinator._on_lost,
    io.ProcessEnded: lambda self, event: self.members.ended(event.instance),
    io.Journaled: Coordinator._on_journaled,
    io.JournalRefused: Coordinator._on_journal_refused,
    io.JournalReachable: lambda self, event: self.journaling.reached(event),
    io.EpochBegun: Coordinator._on_epoch_begun,
    io.Ingested: lambda self, event: self.steps.ingested(event),
    io.IngestFailed: Coordinator._on_ingest_failed,
    io.ReadFailed: lambda self, event: self.steps.read_failed(event),
    io.EpochEnded: lambda self, event: self.steps.ended(event),
    Plan: lambda self, event: self.moves.submitted(event),
    io.TakeCheckpoint: lambda self, event: self.checkpoints.want(event),
    io.Published: lambda self, event: self.checkpoints.published(event),
    m.Checkpointed: lambda self, event: self.checkpoints.written(event),
    m.Unrestorable: lambda self, event: self.takeover.could_not_load(event),
    io.Deploy: lambda self, event: self.deploying.deploy(event),
    io.Withdraw: lambda self, event: self.deploying.withdraw(event),
    io.Rewind: lambda self, event: setattr(self, "rewinds", event.reason),
    m.ProgramLoaded: lambda self, event: self.deploying.loaded(event),
    m.Answer: Coordinator._on_answer,
    m.Leaving: lambda self, event: self.members.left(event.instance),
    m.Refused: lambda self, event: self.takeover.refused(event),
    m.Failed: Coordinator._on_failed,
    m.Prepared: lambda self, event: self.attempts.was_prepared(event),
    m.FragmentsGone: lambda self, event: self.steps.fragments_gone(event),
    m.Committed: lambda self, event: self.commits.was_applied(event),
    m.Waiting: lambda self, event: self.attempts.says(event),
    m.Unsendable: lambda self, event: self.members.cannot_send(event),
    m.CodeFailed: Coordinator._on_code_failed,
    m.Pulse: Coordinator._on_pulse,
    m.Warm: Coordinator._on_warm,
    m.Learned: lambda self, event: self.moves.came_along(event),
}
