"""The driver's side of the protocol: epochs, attempts, groups, recovery.

journal -> ask -> finish -> idle -> ingest -> prepare -> commit -> read -> idle ...
                              ^        |          |         '- final: only this attempt can be finished
                              |        '----------+- lost fragments: ingest again; a changed table: a new attempt
                              '- between epochs: warm, switch over, clean (groups.regroup)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.contract.routing import Table
from ferry.protocol import groups as g
from ferry.protocol.coordinator_io import (
    Close,
    Connected,
    CoordinatorSettings,
    Desired,
    Effect,
    Emit,
    EpochBegun,
    EpochEnded,
    Event,
    FiredRows,
    Halt,
    Ingested,
    IngestFailed,
    Journal,
    Journaled,
    JournalReachable,
    JournalRefused,
    Lost,
    Note,
    Phase,
    ReadFailed,
    Ready,
    StartIngest,
)
from ferry.protocol.instance_io import Tick
from ferry.protocol.membership import MEMBER_HANDLERS
from ferry.protocol.patience import Patience
from ferry.protocol.rules import Rules
from ferry.protocol.sending import Send
from ferry.protocol.steps import predecessor, step_of, successor


class Coordinator(Patience):
    """One driver's decisions, from its first look at the journal to the end of its generation."""

    def __init__(
        self, settings: CoordinatorSettings, initial: Table, journal: Table | None, rules: Rules | None = None
    ) -> None:
        super().__init__(settings, initial, journal, rules)
        self.epoch_low = WATERMARK_NONE
        self.run = 0
        self.number = 0
        """Number of the last attempt; never used twice in a generation."""
        self.attempt_high = WATERMARK_NONE

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return the effects, to be executed in order."""
        if self.phase is Phase.STOPPED:
            return []
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise Bug(f"the coordinator cannot take {event}")
        handler(self, event)
        self._advance()
        out, self._out = self._out, []
        return out

    def _advance(self) -> None:
        """Level-triggered progress, after every event."""
        if self.phase in (Phase.STOPPED, Phase.JOURNAL) or self.writing is not None:
            return
        if self.phase is Phase.ASK:
            self._adopt_when_answered()
            return
        if not self._settle_members():
            return
        match self.phase:
            case Phase.FINISH if self._all_put():
                self.commit = None
                self._enter(Phase.IDLE)
                self._do(Ready(self.committed, self.meta, self.final))
            case Phase.PREPARE if self.trying and len(self.acks) == len(self.view.chains):
                if self.table.initial:
                    self._begin_history()
                else:
                    self._send_commit()
            case Phase.PREPARE if why := self._unusable():
                # A lost helper may be no member of any group (a worker that was released): nothing else would tell.
                self._again(why)
            case Phase.PREPARE if not self.trying:
                self._prepare()
            case Phase.COMMIT if self._all_put():
                self._step_committed()

    def _begin_history(self) -> None:
        """Before the very first Commit: journal that from now on a member without state is no copy.

        Without it a driver that finds only empty members could not tell a new job from a lost one.
        """
        table = self.table.with_groups(g.next_version(self.table, self.generation), self.table.groups)
        assert not table.initial
        self._journal(table, ())

    # ---- hooks of membership
    def _table_changed(self) -> None:
        if (self.phase is Phase.PREPARE and self.trying) or (
            self.phase is Phase.COMMIT and not self.rules.commit_final
        ):
            self._prepare()
        elif self.phase is Phase.FINISH:
            self._send_commit_again()
            if self.committed is not None and self.committed.step.operator + 1 < self.settings.operators:
                self.epoch_low = self.low

    def _member_returned(self) -> None:
        if self.phase is Phase.PREPARE and self.trying:
            self._prepare()

    # ---- one epoch
    def _on_epoch_begun(self, event: EpochBegun) -> None:
        at = step_of(self.committed, self.settings.operators)
        following = successor(at, self.settings.operators)
        if event.epoch == at.epoch and following.epoch != at.epoch and self.committed is not None:
            self._read()
            return
        if event.epoch != following.epoch:
            self._halt(
                "lost-epoch",
                f"Spark begins epoch {event.epoch}, the state is committed up to {at}: the checkpoint directory and the "
                "state directory do not belong together",
            )
            return
        if following.operator == 0:
            self._regroup()
        self._ingest(following)

    def _ingest(self, step: Step) -> None:
        self._enter(Phase.INGEST)
        self.step_now, self.ingested, self.commit, self.trying = step, None, None, False
        if step.operator == 0:
            self.epoch_low = self.high
        self.run += 1
        rows = self._rows() if step.operator else None
        self._do(StartIngest(step, self.run, self._helpers(), rows, self.high, self.meta))

    def _on_ingested(self, event: Ingested) -> None:
        if self.phase is not Phase.INGEST or (event.step, event.run) != (self.step_now, self.run):
            return
        self.ingested, self.trying, self.deadlines = event, False, 0
        self.helping = dict(event.winners)
        self._enter(Phase.PREPARE)

    def _on_ingest_failed(self, event: IngestFailed) -> None:
        if self.phase is Phase.INGEST and (event.step, event.run) == (self.step_now, self.run):
            self._again("the ingest job failed")

    def _again(self, why: str) -> None:
        assert self.step_now is not None
        self._do(Note("ingest-again", self.step_now, text=why))
        self._ingest(self.step_now)

    def _prepare(self) -> None:
        """Begin an attempt under the present table."""
        assert self.ingested is not None and self.step_now is not None
        if why := self._unusable():
            return self._again(why)
        self.number += 1
        self.trying, self.acks, self.waiting = True, {}, {}
        self._enter(Phase.PREPARE)
        self.attempt_high = max(self.high, self.epoch_low, self.ingested.high)
        if not self.rules.watermark_commit:
            self.high = self.attempt_high
        prepare = m.Prepare(
            self.step_now, self._attempt(), self.table.version, self.ingested.winners, self.epoch_low, self.attempt_high
        )
        for i in sorted({**self.view.led, **self.helping}):
            self._do(Send(i, prepare))

    def _attempt(self) -> Attempt:
        return Attempt(self.generation, self.number)

    def _is_now(self, step: Step, attempt: Attempt) -> bool:
        return self.phase is Phase.PREPARE and self.trying and (step, attempt) == (self.step_now, self._attempt())

    def _on_prepared(self, event: m.Prepared) -> None:
        if self._is_now(event.step, event.attempt):
            for number, late, fired in zip(event.chains, event.late, event.fired, strict=True):
                self.acks[self.view.order[number]] = late, fired

    def _on_fragments_gone(self, event: m.FragmentsGone) -> None:
        if self._is_now(event.step, event.attempt):
            self._again(f"{event.helper} does not have its fragments any more")

    def _send_commit(self) -> None:
        assert self.ingested is not None and self.step_now is not None
        late, fired = sum(late for late, _ in self.acks.values()), sum(fired for _, fired in self.acks.values())
        self.commit = m.Commit(
            CommitId(self.step_now, self._attempt()),
            self.generation,
            self.epoch_low,
            self.attempt_high,
            self.ingested.meta,
            late,
            fired,
        )
        self.put = {}
        self._enter(Phase.COMMIT)
        self._send_commit_again()

    def _send_commit_again(self) -> None:
        for i in self.view.members:
            if self.commit is not None and i in self.alive and i not in self.put:
                self._do(Send(i, self.commit))

    def _on_committed(self, event: m.Committed) -> None:
        if self.commit is not None and event.label == self.commit.label and event.instance in self.alive:
            self.put[event.instance] = True
            if (failure := self.failed.get(event.instance)) is not None:
                self.failed[event.instance] = replace(failure, since=None)

    def _all_put(self) -> bool:
        if self.commit is None:
            return True
        return (self.view.held if self.rules.all_committed else self.view.led).keys() <= self.put.keys()

    def _step_committed(self) -> None:
        c = self.commit
        assert c is not None
        self.helpless = None
        self.found_apart.clear()
        self.committed, self.low, self.high, self.meta, self.late, self.fired = (
            c.label,
            c.low,
            c.high,
            c.meta,
            c.late,
            c.fired,
        )
        if c.label.step.operator + 1 == self.settings.operators:
            self._read()
        else:
            self._ingest(successor(c.label.step, self.settings.operators))

    # ---- reading what fired
    def _rows(self) -> FiredRows:
        assert self.committed is not None
        readers = tuple(self.view.led.items())
        return FiredRows(
            self.committed, self.generation, self.low, self.high, self.meta, readers, self.fired, self.late
        )

    def _read(self) -> None:
        assert self.committed is not None
        self.step_now = self.committed.step
        self._enter(Phase.READ)
        self._do(Emit(self._rows()))

    def _on_read_failed(self, event: ReadFailed) -> None:
        if self.phase is Phase.READ and event.step == self.step_now:
            self._do(Emit(self._rows()))

    def _on_epoch_ended(self, event: EpochEnded) -> None:
        if self.phase is Phase.READ and self.step_now is not None and event.epoch == self.step_now.epoch:
            self._enter(Phase.IDLE)

    # ---- patience
    def _on_tick(self, tick: Tick) -> None:
        before, self.now = self.now, max(self.now, tick.now)
        self._lose_silent(before)
        self._ask_again()
        waited = self.now - self.phase_since
        if self.writing is not None:
            return
        if self._attempt_is_late():
            self._attempt_failed()
        elif self.phase in (Phase.COMMIT, Phase.FINISH) and waited > self.settings.commit_ms and self.commit:
            self.phase_since = self.now
            for i in self.view.members:
                if i in self.alive and i not in self.put:
                    self._do(Send(i, m.Install(self.table)))
            self._send_commit_again()


_HANDLERS: dict[type, Callable[[Coordinator, Any], None]] = {
    **MEMBER_HANDLERS,
    Tick: Coordinator._on_tick,
    EpochBegun: Coordinator._on_epoch_begun,
    Ingested: Coordinator._on_ingested,
    IngestFailed: Coordinator._on_ingest_failed,
    ReadFailed: Coordinator._on_read_failed,
    EpochEnded: Coordinator._on_epoch_ended,
    Desired: Coordinator._on_desired,
    m.Prepared: Coordinator._on_prepared,
    m.FragmentsGone: Coordinator._on_fragments_gone,
    m.Committed: Coordinator._on_committed,
    m.Waiting: Coordinator._on_waiting,
    m.Unsendable: Coordinator._on_unsendable,
    m.Pulse: Coordinator._on_pulse,
    m.Warm: Coordinator._on_warm,
    m.Learned: Coordinator._on_learned,
}

__all__ = [
    "Close", "Connected", "Coordinator", "Desired", "Effect", "Emit", "EpochBegun", "EpochEnded", "Event", "Halt",
    "IngestFailed", "Ingested", "InstanceId", "Journal", "JournalReachable", "JournalRefused", "Journaled", "Lost", "Note",
    "Phase", "ReadFailed", "Ready", "FiredRows", "Send", "CoordinatorSettings", "StartIngest", "Tick", "predecessor",
]  # fmt: skip
