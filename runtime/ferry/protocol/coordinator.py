"""The driver's side of the protocol: epochs, attempts, groups, recovery.

    journal -> ask -> finish -> idle -> ingest -> prepare -> commit -> read -> idle ...
                                  ^        |          |         '- final: only this attempt can be finished
                                  |        '----------+- lost fragments: ingest again; a changed table: a new attempt
                                  '- between epochs: warm, cut, clean (groups.regroup)

One writer of the journal at a time: while a changed table is on its way there (`writing`), nothing is prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt, InstanceId, Label, Step
from ferry.contract.routing import Group, Table, Version
from ferry.protocol import groups as g
from ferry.protocol.instance import Tick, predecessor, successor
from ferry.protocol.rules import Rules


class Phase(StrEnum):
    JOURNAL = "journal"
    ASK = "ask"
    FINISH = "finish"
    IDLE = "idle"
    INGEST = "ingest"
    PREPARE = "prepare"
    COMMIT = "commit"
    READ = "read"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of the coordinator's patience, in milliseconds of its clock."""

    operators: int = 1
    attempt_ms: int = 60_000
    """An attempt that is not logged everywhere by then is begun again, then its slow replicas are demoted."""
    commit_ms: int = 2_000
    """Commit is sent again to members that have not answered."""
    return_ms: int = 60_000
    """How long a job waits for the only holder of a virtual node."""
    start_ms: int = 15_000
    """How long a new driver waits for members of the journaled groups before it removes them."""
    warm_ms: int = 600_000
    """A learner that is not in step by then is dropped, its move aborted."""
    pace: g.Pace = g.Pace()


# ---- events besides messages ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Connected:
    """An instance (a new life of it, too) can be talked to."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class Lost:
    """An instance is gone: its connection closed, or it was silent for too long."""

    instance: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class Journaled:
    version: Version


@dataclass(frozen=True, slots=True)
class JournalRefused:
    """The journal is of another generation: this driver is superseded."""

    generation: int


@dataclass(frozen=True, slots=True)
class JournalReachable:
    up: bool


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """Spark has begun this epoch: all earlier ones are in its commit log."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Ingested:
    """Spark's ingest job of this run ended: what won, and the watermark after it."""

    step: Step
    run: int
    winners: tuple[tuple[InstanceId, tuple[m.Fragment, ...]], ...]
    high: int
    meta: bytes


@dataclass(frozen=True, slots=True)
class IngestFailed:
    """The ingest job could not read its rows or reach helpers: run it again with what is alive now."""

    step: Step
    run: int


@dataclass(frozen=True, slots=True)
class ReadFailed:
    """Rows could not be read from the readers given: ask for the present ones."""

    step: Step


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """The sink has the epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Desired:
    """Where every virtual node should be; a higher number replaces a lower one."""

    number: int
    placements: tuple[g.Placement, ...]


Event = (
    m.Message | Tick | Connected | Lost | Journaled | JournalRefused | JournalReachable | EpochBegun | Ingested
    | IngestFailed | ReadFailed | EpochEnded | Desired
)  # fmt: skip


# ---- effects -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    to: InstanceId
    message: m.Message


@dataclass(frozen=True, slots=True)
class Journal:
    """Make this table the journaled one if the journal still has version `expected`; answer Journaled or JournalRefused."""

    table: Table
    expected: Version | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Fired rows of a committed step, and who serves them."""

    label: Label
    generation: int
    low: int
    high: int
    meta: bytes
    readers: tuple[tuple[InstanceId, tuple[int, ...]], ...]
    fired: int
    late: int


@dataclass(frozen=True, slots=True)
class StartIngest:
    """Run the ingest job of this step; `rows` is its input for every operator but the first."""

    step: Step
    run: int
    helpers: tuple[InstanceId, ...]
    rows: Rows | None
    low: int
    meta: bytes
    """The notes of the last committed step (per-input maxima and the like)."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Give the sink these rows, then tell EpochEnded."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class Ready:
    """Recovery is over: the query may start."""

    committed: Label | None
    meta: bytes


@dataclass(frozen=True, slots=True)
class Halt:
    """The job cannot go on."""

    kind: str
    """superseded | unavailable | lost-epoch | failed"""
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """A fact for the timeline, metrics and logs."""

    kind: str
    step: Step | None
    changes: tuple[g.Change, ...] = ()
    text: str = ""


Effect = Send | Journal | StartIngest | Emit | Ready | Halt | Note


class Coordinator:
    """One driver's decisions, from its first look at the journal to the end of its generation."""

    def __init__(self, settings: Settings, initial: Table, journal: Table | None, rules: Rules | None = None) -> None:
        """`initial` is the table of a new job; `journal` what the journal holds, None for a new job."""
        self.settings = settings
        self.rules = rules or Rules()
        self.expected = journal.version if journal else None
        self.generation = (journal.version.generation if journal else 0) + 1
        groups = list((journal or initial).groups)
        if self.rules.drop_learners:
            groups = [replace(x, learners=()) for x in groups]
        self.table = Table(Version(self.generation, 0), tuple(groups), initial=journal is None)
        self.phase = Phase.JOURNAL
        self.writing: Table | None = None
        self.after_write: tuple[g.Change, ...] = ()
        self.journal_up = True
        self.now = 0
        self.phase_since = 0
        self.alive: dict[InstanceId, bool] = {}
        self.asked: dict[InstanceId, bool] = {}
        self.gone: dict[InstanceId, int] = {}
        self.answers: dict[InstanceId, m.Answer] = {}
        self.committed: Label | None = None
        self.high, self.meta = WATERMARK_NONE, b""
        self.low = WATERMARK_NONE
        self.epoch_low = WATERMARK_NONE
        self.step_now: Step | None = None
        self.run = 0
        self.number = 0
        self.ingested: Ingested | None = None
        self.attempt_high = WATERMARK_NONE
        self.deadlines = 0
        self.acks: dict[tuple[InstanceId, ...], m.Prepared] = {}
        self.commit: m.Commit | None = None
        self.put: dict[InstanceId, bool] = {}
        self.fired = self.late = 0
        self.desired: Desired | None = None
        self.warm: dict[tuple[InstanceId, int], Label | None] = {}
        self.joined: dict[tuple[InstanceId, int], int] = {}
        self.refused: dict[tuple[InstanceId, int], bool] = {}
        self.fresh_cuts: dict[int, bool] = {}
        self._out: list[Effect] = []

    # ---- the one entrance
    def start(self) -> list[Effect]:
        """Claim the next generation in the journal."""
        self._journal(self.table, ())
        return self._drain()

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return the effects, to be executed in order."""
        if self.phase is Phase.STOPPED:
            return []
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise Bug(f"the coordinator cannot take {event}")
        handler(self, event)
        self._advance()
        return self._drain()

    def _drain(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _do(self, effect: Effect) -> None:
        self._out.append(effect)

    def _enter(self, phase: Phase) -> None:
        self.phase, self.phase_since, self.deadlines = phase, self.now, 0

    def _halt(self, kind: str, reason: str) -> None:
        self._do(Halt(kind, reason))
        self.phase = Phase.STOPPED

    # ---- the journal: first there, then acted on
    def _journal(self, table: Table, changes: tuple[g.Change, ...]) -> None:
        self.writing, self.after_write = table, changes
        self._do(Journal(table, self.expected))
        if not self.rules.journal_first:
            self._install(table)

    def _on_journaled(self, event: Journaled) -> None:
        table = self.writing
        if table is None or event.version != table.version:
            return
        self.writing, self.expected = None, table.version
        self._install(table)

    def _install(self, table: Table) -> None:
        self.table = table
        changes, self.after_write = self.after_write, ()
        if changes:
            self._do(Note("groups", self.step_now, changes))
        for c in changes:
            if c.kind == "cut":
                self.fresh_cuts[c.vnode] = True
            elif c.kind == "joined":
                self.joined[(c.instance, c.vnode)] = self.now
            self.warm.pop((c.instance, c.vnode), None)
        for i in sorted(self.alive):
            self._do(Send(i, m.Install(table)))
        if self.phase is Phase.JOURNAL:
            self._enter(Phase.ASK)
        elif self.phase is Phase.PREPARE and self.number:
            self._prepare()
        elif self.phase is Phase.COMMIT and not self.rules.commit_final:
            self._prepare()

    def _on_journal_refused(self, event: JournalRefused) -> None:
        self._halt("superseded", f"generation {event.generation} has taken over from {self.generation}")

    def _on_journal_reachable(self, event: JournalReachable) -> None:
        self.journal_up = event.up

    # ---- membership
    def _on_connected(self, event: Connected) -> None:
        self.alive.pop(event.instance, None)
        self.answers.pop(event.instance, None)
        self.asked[event.instance] = True
        if self.phase is not Phase.JOURNAL:
            self._do(Send(event.instance, m.Ask(self.generation)))

    def _on_lost(self, event: Lost) -> None:
        self.asked.pop(event.instance, None)
        self.answers.pop(event.instance, None)
        if self.alive.pop(event.instance, None):
            self._do(Note("lost", self.step_now, text=f"{event.instance}: {event.reason}"))
        self.put.pop(event.instance, None)
        self.gone.setdefault(event.instance, self.now)
        for key in [k for k in self.warm if k[0] == event.instance]:
            del self.warm[key]

    def _on_refused(self, event: m.Refused) -> None:
        if event.generation > self.generation:
            self._halt("superseded", f"{event.instance} obeys generation {event.generation}, this is {self.generation}")

    def _on_failed(self, event: m.Failed) -> None:
        self._halt("failed", f"instance {event.instance}: {event.reason}")

    def _on_answer(self, answer: m.Answer) -> None:
        if answer.generation != self.generation or answer.instance not in self.asked:
            return
        self.answers[answer.instance] = answer
        self.gone.pop(answer.instance, None)
        if self.phase in (Phase.JOURNAL, Phase.ASK):
            return
        self._admit(answer)

    def _admit(self, answer: m.Answer) -> None:
        """An instance that came (back) after recovery: it is a member, a newcomer, or no copy any more."""
        i = answer.instance
        target = self.commit.label if self.commit and self.phase in (Phase.COMMIT, Phase.FINISH) else self.committed
        held = self.table.held_by(i)
        same = self._agrees(answer, target)
        if held and not (same and set(held) <= set(answer.holds)):
            groups, changes, orphans = g.without(self.table, {i: True}, self.generation)
            if orphans and not self.table.initial:
                self._halt(
                    "unavailable",
                    f"instance {i} was the only holder of virtual nodes {orphans[:8]} and came back with "
                    f"{answer.committed} instead of {target}: restore the job from a checkpoint",
                )
                return
        self.alive[i] = True
        self._do(Send(i, m.Install(self.table)))
        if held and target is not None and answer.committed != target and self.commit and self.commit.label == target:
            self._do(Send(i, self.commit))
        elif held and answer.committed == target and self.phase in (Phase.COMMIT, Phase.FINISH):
            self.put[i] = True
        if self.phase is Phase.PREPARE and self.number and not self.writing:
            self._prepare()

    def _agrees(self, answer: m.Answer, target: Label | None) -> bool:
        """Whether a member's files are those of its group: the same label, or one logged delta behind."""
        if answer.committed == target or not self.rules.compare_label:
            return True
        if target is None:
            return False
        behind = answer.committed is None or successor(answer.committed.step, self.settings.operators) == target.step
        if self.phase in (Phase.COMMIT, Phase.FINISH) or (self.commit and self.commit.label == target):
            return behind and target in answer.prepared
        return False

    # ---- level-triggered progress: called after every event
    def _advance(self) -> None:
        if self.phase is Phase.STOPPED or self.writing is not None:
            return
        if self._repair():
            return
        match self.phase:
            case Phase.ASK:
                self._adopt_when_answered()
            case Phase.FINISH:
                if self._all_put():
                    self._recovered()
            case Phase.PREPARE:
                if self.number == 0:
                    self._prepare()
                elif len(self.acks) == len(self.table.chains()):
                    self._send_commit()
            case Phase.COMMIT:
                if self._all_put():
                    self._step_committed()

    def _repair(self) -> bool:
        """Close groups over lost members. True while a change is on its way to the journal."""
        if self.phase is Phase.JOURNAL:
            return False
        patience = self.settings.start_ms if self.phase is Phase.ASK else 0
        lost = {
            i: True
            for i in self.table.members()
            if i not in self.alive and i not in self.answers and self.now - self.gone.get(i, self.phase_since) >= patience
            and (i in self.gone or self.phase is Phase.ASK)
        }  # fmt: skip
        if not lost:
            return False
        groups, changes, orphans = g.without(self.table, lost, self.generation)
        if changes:
            self._journal(self._next(groups), tuple(changes))
            return True
        overdue = [i for i in sorted(lost) if self.now - self.gone.get(i, self.phase_since) >= self.settings.return_ms]
        if orphans and any(self.table.groups[v].leader in overdue for v in orphans):
            self._halt(
                "unavailable",
                f"virtual nodes {orphans[:8]} (of {len(orphans)}) were held only by {overdue[:4]}, gone for "
                f"{self.settings.return_ms / 1000:.0f} s: start the worker again with its state directory",
            )
        return False

    def _next(self, groups: list[Group]) -> Table:
        return self.table.with_groups(g.next_version(self.table, self.generation), groups)

    # ---- recovery
    def _adopt_when_answered(self) -> None:
        for i in sorted(self.asked):
            if i not in self.answers:
                self._do(Send(i, m.Ask(self.generation)))
        members = self.table.in_step_instances()
        need = members if self.rules.ask_all else sorted({x.leader for x in self.table.groups})
        if any(i not in self.answers for i in need):
            return
        answers = [self.answers[i] for i in members if i in self.answers]
        labels = [a.committed for a in answers if a.committed is not None]
        best = max(labels) if labels else None
        if not self.rules.adopt and labels:
            best = min(labels) if len(labels) == len(answers) else None
        self._adopt(best, answers)

    def _adopt(self, best: Label | None, answers: list[m.Answer]) -> None:
        self._enter(Phase.FINISH)
        source = next((a for a in answers if a.committed == best), None)
        if best is not None and source is not None:
            self.committed = best
            self.low, self.meta = source.low, source.meta
            if self.rules.watermark_adopt:
                self.high = source.high
            self.commit = m.Commit(best, self.generation, source.low, source.high, source.meta)
        strange = {a.instance: True for a in answers if not self._agrees(a, best)}
        groups, changes, orphans = g.without(self.table, strange, self.generation)
        for v, group in enumerate(groups):
            lacking = {i: True for i in group.in_step if i in self.answers and v not in self.answers[i].holds}
            if best is None or not lacking or not self.rules.whole_flag:
                continue
            rest = tuple(i for i in group.in_step if i not in lacking)
            changes += [g.Change(v, "removed", i) for i in lacking]
            if rest:
                groups[v] = Group(g.next_term(group, self.generation), rest, group.learners)
            else:
                orphans.append(v)
        if orphans:
            self._halt("unavailable", f"no copy of virtual nodes {orphans[:8]} as of {best} is left: restore a checkpoint")
            return
        for a in self.answers.values():
            self.alive[a.instance] = True
            if a.committed == best:
                self.put[a.instance] = True
        table = replace(self._next(groups), initial=best is None)
        self._journal(table, tuple(changes))

    def _all_put(self) -> bool:
        label = self.commit.label if self.commit else None
        if label is None:
            return True
        need = self.table.in_step_instances()
        if not self.rules.all_committed:
            need = sorted({x.leader for x in self.table.groups})
        waiting = [i for i in need if i not in self.put]
        if self.phase is Phase.FINISH and self.commit and waiting and self.deadlines == 0:
            self.deadlines = 1
            for i in waiting:
                self._do(Send(i, self.commit))
        return not waiting

    def _recovered(self) -> None:
        self.commit = None
        self._enter(Phase.IDLE)
        self._do(Ready(self.committed, self.meta))

    # ---- one epoch
    def _on_epoch_begun(self, event: EpochBegun) -> None:
        last = self.settings.operators - 1
        at = self.committed.step if self.committed else Step(-1, last)
        if event.epoch == at.epoch and at.operator == last and self.committed is not None:
            self._read()
            return
        expected = successor(at, self.settings.operators)
        if event.epoch != expected.epoch:
            self._halt(
                "lost-epoch",
                f"Spark begins epoch {event.epoch}, the state is committed up to {at}: the checkpoint directory and the "
                "state directory do not belong together",
            )
            return
        if expected.operator == 0 and self.journal_up:
            self._regroup()
        self._ingest(expected)

    def _regroup(self) -> None:
        if self.desired is None:
            return
        for key, since in self.joined.items():
            if self.now - since > self.settings.warm_ms and key[0] in self.table.groups[key[1]].learners:
                self.refused[key] = True
        groups, changes = g.regroup(
            self.table, self.desired.placements, self.alive, self.warm, self.committed, self.fresh_cuts, self.refused,
            self.settings.pace, self.generation, self.rules,
        )  # fmt: skip
        if changes:
            self._journal(self._next(groups), tuple(changes))

    def pending(self) -> bool:
        """Whether group changes wait for an epoch: without data, a tick has to make one."""
        if self.desired is None or self.phase is not Phase.IDLE or not self.journal_up:
            return False
        return not g.settled(self.table, self.desired.placements, self.alive)

    def _ingest(self, step: Step) -> None:
        self._enter(Phase.INGEST)
        self.step_now, self.ingested, self.commit = step, None, None
        if step.operator == 0:
            self.epoch_low = self.high
        self.run += 1
        rows = self._rows() if step.operator else None
        self._do(StartIngest(step, self.run, tuple(sorted(self.alive)), rows, self.high, self.meta))

    def _on_ingested(self, event: Ingested) -> None:
        if self.phase is not Phase.INGEST or (event.step, event.run) != (self.step_now, self.run):
            return
        if any(helper not in self.alive for helper, _ in event.winners):
            self._again("a helper with winning fragments is gone")
            return
        self.ingested = event
        self._enter(Phase.PREPARE)
        self.number = 0

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
        if any(helper not in self.alive for helper, _ in self.ingested.winners):
            self._again("a helper with winning fragments is gone")
            return
        leaders = sorted({x.leader for x in self.table.groups})
        self.number += 1
        self._enter_attempt()
        if any(i not in self.alive for i in leaders):
            return
        low = self.epoch_low
        self.attempt_high = max(self.high, low, self.ingested.high)
        if not self.rules.watermark_commit:
            self.high = self.attempt_high
        prepare = m.Prepare(
            self.step_now, Attempt(self.generation, self.number), self.table.version, self.ingested.winners, low,
            self.attempt_high,
        )  # fmt: skip
        for i in sorted({*leaders, *(h for h, _ in self.ingested.winners)}):
            self._do(Send(i, prepare))

    def _enter_attempt(self) -> None:
        deadlines = self.deadlines
        self._enter(Phase.PREPARE)
        self.deadlines = deadlines
        self.acks = {}

    def _on_prepared(self, event: m.Prepared) -> None:
        if self.phase is Phase.PREPARE and (event.step, event.attempt) == (self.step_now, self._attempt()):
            if event.chain in self.table.chains():
                self.acks[event.chain] = event

    def _attempt(self) -> Attempt:
        return Attempt(self.generation, self.number)

    def _on_fragments_gone(self, event: m.FragmentsGone) -> None:
        if self.phase is Phase.PREPARE and (event.step, event.attempt) == (self.step_now, self._attempt()):
            self._again(f"{event.helper} does not have its fragments any more")

    def _send_commit(self) -> None:
        assert self.ingested is not None and self.step_now is not None
        self.fired = sum(a.fired for a in self.acks.values())
        self.late = sum(a.late for a in self.acks.values())
        label = Label(self.step_now, self._attempt())
        self.commit = m.Commit(label, self.generation, self.epoch_low, self.attempt_high, self.ingested.meta)
        self.put = {}
        self._enter(Phase.COMMIT)
        for i in self.table.members():
            if i in self.alive:
                self._do(Send(i, self.commit))

    def _on_committed(self, event: m.Committed) -> None:
        if self.commit is not None and event.label == self.commit.label and event.instance in self.alive:
            self.put[event.instance] = True
        elif self.phase is Phase.FINISH and self.commit and event.label == self.commit.label:
            self.put[event.instance] = True

    def _step_committed(self) -> None:
        assert self.commit is not None
        self.committed, self.low, self.high, self.meta = (
            self.commit.label, self.commit.low, self.commit.high, self.commit.meta,
        )  # fmt: skip
        if self.commit.label.step.operator == self.settings.operators - 1:
            self.fresh_cuts = {}
            self._read()
        else:
            self._ingest(successor(self.commit.label.step, self.settings.operators))

    def _rows(self) -> Rows:
        assert self.committed is not None
        readers: dict[InstanceId, list[int]] = {}
        for v, group in enumerate(self.table.groups):
            readers.setdefault(group.leader, []).append(v)
        return Rows(
            self.committed, self.generation, self.low, self.high, self.meta,
            tuple((i, tuple(readers[i])) for i in sorted(readers)), self.fired, self.late,
        )  # fmt: skip

    def _read(self) -> None:
        assert self.committed is not None
        self.step_now = self.committed.step
        self._enter(Phase.READ)
        self._do(Emit(self._rows()))

    def _on_read_failed(self, event: ReadFailed) -> None:
        if self.phase is Phase.READ and event.step == self.step_now:
            self._do(Emit(self._rows()))

    def _on_epoch_ended(self, event: EpochEnded) -> None:
        if self.phase is Phase.READ:
            self._enter(Phase.IDLE)
            if not self.rules.between_epochs and self.journal_up:
                self._regroup()

    # ---- moves
    def _on_desired(self, event: Desired) -> None:
        if self.desired is None or event.number > self.desired.number:
            if len(event.placements) != self.table.virtual_nodes:
                raise Bug(f"{len(event.placements)} placements for {self.table.virtual_nodes} virtual nodes")
            self.desired, self.refused = event, {}

    def _on_warm(self, event: m.Warm) -> None:
        for v in event.vnodes:
            if event.instance in self.table.groups[v].learners and event.instance in self.alive:
                self.warm[(event.instance, v)] = event.label

    # ---- patience
    def _on_tick(self, tick: Tick) -> None:
        self.now = max(self.now, tick.now)
        waited = self.now - self.phase_since
        if self.writing is not None:
            return
        if self.phase is Phase.PREPARE and waited > self.settings.attempt_ms and self.number:
            self.deadlines += 1
            if self.deadlines < 2 or not self._demote():
                for i in sorted(self.alive):
                    self._do(Send(i, m.Install(self.table)))
                self._prepare()
        elif self.phase in (Phase.COMMIT, Phase.FINISH) and waited > self.settings.commit_ms and self.commit:
            self.phase_since = self.now
            for i in self.table.members():
                if i in self.alive and i not in self.put:
                    self._do(Send(i, m.Install(self.table)))
                    self._do(Send(i, self.commit))

    def _demote(self) -> bool:
        """Replicas of chains that did not acknowledge become learners: a slow replica never stalls the job."""
        groups, changes = list(self.table.groups), []
        for v, group in enumerate(groups):
            if group.in_step in self.acks or len(group.in_step) < 2 or not self.journal_up:
                continue
            changes += [g.Change(v, "demoted", i) for i in group.in_step[1:]]
            groups[v] = Group(g.next_term(group, self.generation), group.in_step[:1], group.learners + group.in_step[1:])
        if changes:
            self._journal(self._next(groups), tuple(changes))
        return bool(changes)


_HANDLERS: dict[type, Callable[[Coordinator, Event], None]] = {
    Tick: Coordinator._on_tick,
    Connected: Coordinator._on_connected,
    Lost: Coordinator._on_lost,
    Journaled: Coordinator._on_journaled,
    JournalRefused: Coordinator._on_journal_refused,
    JournalReachable: Coordinator._on_journal_reachable,
    EpochBegun: Coordinator._on_epoch_begun,
    Ingested: Coordinator._on_ingested,
    IngestFailed: Coordinator._on_ingest_failed,
    ReadFailed: Coordinator._on_read_failed,
    EpochEnded: Coordinator._on_epoch_ended,
    Desired: Coordinator._on_desired,
    m.Answer: Coordinator._on_answer,
    m.Prepared: Coordinator._on_prepared,
    m.FragmentsGone: Coordinator._on_fragments_gone,
    m.Committed: Coordinator._on_committed,
    m.Warm: Coordinator._on_warm,
    m.Refused: Coordinator._on_refused,
    m.Failed: Coordinator._on_failed,
}  # type: ignore[dict-item]

__all__ = [
    "Connected", "Coordinator", "Desired", "Effect", "Emit", "EpochBegun", "EpochEnded", "Event", "Halt", "IngestFailed",
    "Ingested", "Journal", "JournalReachable", "JournalRefused", "Journaled", "Lost", "Note", "Phase", "ReadFailed",
    "Ready", "Rows", "Send", "Settings", "StartIngest", "predecessor",
]  # fmt: skip
