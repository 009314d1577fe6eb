"""An instance's reaction to every message: the sidecar's side of the protocol, without its data.

    Prepare --> contribute (helper) --> partials of all helpers --> compute (leader) --> log, down the chain
            --> tail: Prepared --> Commit --> committing record, Apply, committed record --> Committed

    learner:  Install --> Fetch --> Chunk ... Chunk(last) + every delta --> Warm --> Install (in sync)

An instance has parts, each with fields of its own. A part knows the fields of the rows below it, never its neighbours,
and answers. The instance alone takes events, follows tables, and commits.

    Participation | Archiving                              the attempt under way, before it is committed | the store
    LoggedDeltas | Learning, Teaching | EarlyMessages      the log | snapshots at both ends | messages of newer tables
    InstanceState                                          commit record, fences, table, time, effects

Effects are executed in order by the process; their results come back as events (`Computed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import CommitId, InstanceId, Step
from ferry.protocol.instance.checkpoints import Archiving
from ferry.protocol.instance.early_messages import EarlyMessages
from ferry.protocol.instance.io import (
    Apply,
    Computed,
    ComputeFailed,
    Drop,
    Effect,
    Event,
    Forget,
    InstanceRecord,
    PeerLost,
    Restored,
    SendDelta,
    Staged,
    TooLarge,
)
from ferry.protocol.instance.learning import LEARN_STALL_MS, SESSION_VNODES, Learning, Teaching
from ferry.protocol.instance.logged_deltas import LoggedDeltas
from ferry.protocol.instance.participation import SLOW_MS, Participation
from ferry.protocol.instance.state import InstanceState
from ferry.protocol.io import Tick
from ferry.protocol.rules import Rules
from ferry.protocol.steps import last_step
from ferry.protocol.story import Story
from ferry.protocol.view import TableView, seen


class Instance:
    """One instance's decisions."""

    def __init__(
        self,
        me: InstanceId,
        saved: InstanceRecord,
        logged: tuple[m.Delta, ...] = (),
        rules: Rules | None = None,
        learn_stall_ms: int = LEARN_STALL_MS,
        slow_ms: int = SLOW_MS,
        session_vnodes: int = SESSION_VNODES,
    ) -> None:
        state = self.state = InstanceState(me, saved, rules or Rules())
        self.log = LoggedDeltas(state, logged)
        self.participation = Participation(state, self.log, slow_ms)
        self.learning = Learning(state, learn_stall_ms, session_vnodes)
        self.teaching = Teaching(state)
        self.early = EarlyMessages()
        self.checkpoints = Archiving(state, self.log)
        self.story = Story()

    # ---- read access for others
    @property
    def me(self) -> InstanceId:
        """Its name."""
        return self.state.me

    @property
    def saved(self) -> InstanceRecord:
        """Its commit record."""
        return self.state.saved

    def may_read(self, generation: int, commit_id: CommitId, vnodes: tuple[int, ...]) -> bool:
        """Whether fired rows of `commit_id` of these virtual nodes may be served to a reader of `generation`."""
        saved, rules = self.state.saved, self.state.rules
        if rules.fence_read and generation < saved.generation:
            return False
        if not rules.gone_is_error:
            return saved.committed is not None
        held = dict.fromkeys(saved.holds)
        return saved.has_rows_of(commit_id) and all(v in held for v in vnodes)

    # ---- the only entrance
    def start(self) -> list[Effect]:
        """Effects of a (re)start: an interrupted Apply is repeated, or incomplete state is dropped."""
        saved, rules = self.state.saved, self.state.rules
        commit = saved.committing
        if commit is not None and rules.redo_apply:
            if not saved.holds or commit.commit_id in self.log.prepared() or not rules.redo_whole:
                self._finish(commit)
            else:
                self._begin_anew(commit.commit_id.step)
        self.checkpoints.load_ahead()
        return self.state.take_effects()

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return the effects, to be executed in order."""
        self.story.add_event(self.state.now, event)
        try:
            if (handler := _HANDLERS.get(type(event))) is None:
                raise Bug(f"{self.me} cannot take {event}")
            handler(self, event)
        except Exception as error:
            self.story.attach(error)
            raise
        return self.state.take_effects()

    # ---- drivers
    def _obey(self, generation: int) -> None:
        if self.state.obeys_newer(generation):
            self.participation.give_up_before(generation)

    def _on_ask(self, ask: m.Ask) -> None:
        if self.state.superseded(ask.generation):
            return
        if self.state.rules.fence_ask:
            self._obey(ask.generation)
        s = self.state.saved
        prepared, deltas = self.log.prepared(), self.log.vnodes()
        # The journal may have made a learner in sync before it knows. It has the deltas prepared since, too, unless its
        # files are older.
        learned = self.learning.warm if self.state.rules.whole_flag else self.learning.vnodes()
        whole = [v for v in (*s.learned, *learned) if all(v in deltas[commit_id] for commit_id in prepared)]
        holds = tuple(sorted({**dict.fromkeys(s.holds), **dict.fromkeys(whole)}))
        self.state.tell(
            m.Answer(
                self.me,
                ask.generation,
                s.committed,
                s.results,
                s.meta,
                holds,
                prepared,
                s.released,
                s.origin,
            )
        )

    # ---- the routing table
    def _on_install(self, install: m.Install) -> None:
        state, table = self.state, install.table
        if state.superseded(table.version.generation):
            return
        if state.view is not None and table.version <= state.view.version:
            return
        self._obey(table.version.generation)
        anew = state.view is None or state.view.version.generation < table.version.generation
        view = state.view = seen(table)
        if table.programs and table.programs != self.saved.programs:
            state.save(programs=table.programs)
        self.participation.give_up()
        if self.checkpoints.begins_anew():
            self.participation.forget_all()
            self.learning.keep({}, view.version)
            self.teaching.keep({})
        self.teaching.keep(view.taught.get(self.me, {}))
        mine = view.held.get(self.me, ())
        whole = {**dict.fromkeys((*self.saved.holds, *self.saved.learned)), **self.learning.vnodes(complete=True)}
        lacking = [v for v in mine if v not in whole]
        if lacking and not table.initial and state.rules.warm_commit_id and state.rules.whole_flag:
            state.tell(m.Failed(self.me, f"in sync for virtual nodes {lacking[:8]} without holding them"))
            return
        self._leave_and_learn(mine, view, anew)
        self.checkpoints.follow()
        if table.restoring:
            self.checkpoints.load_ahead()
        for message in self.early.take():
            _HANDLERS[type(message)](self, message)

    def _leave_and_learn(self, mine: tuple[int, ...], view: TableView, anew: bool) -> None:
        """Drop virtual nodes that are not held any more, so that stale state is never found later; begin to learn new
        ones.

        `anew`: the table is the first one of its driver here. The previous driver may have died while it sent a Commit,
        and an attempt unknown to every in-sync member is abandoned. An instance outside all groups forgets what it has
        committed and learned by it.
        """
        state, wanted = self.state, view.learned.get(self.me, {})
        before = {**dict.fromkeys((*self.saved.holds, *self.saved.learned)), **self.learning.vnodes()}
        if anew and not mine:
            self.learning.keep({}, view.version)
            if self.saved.committed is not None:
                state.begin_anew(self.saved.released)
        fresh = self.learning.keep(wanted, view.version)
        keep = {**dict.fromkeys(mine), **self.learning.vnodes()}
        learned = tuple(sorted(self.learning.warm))
        if (mine, learned) != (self.saved.holds, self.saved.learned):
            state.save(holds=mine, learned=learned)
        stale = tuple(sorted({**dict.fromkeys(v for v in before if v not in keep), **dict.fromkeys(fresh)}))
        if stale and state.rules.drop_stale:
            state.do(Drop(stale))
        for leader in sorted({wanted[v]: True for v in fresh}):
            self.learning.begin(leader, tuple(v for v in fresh if wanted[v] == leader))

    def _is_current(self, message: m.Prepare | m.Delta) -> bool:
        """True when the message belongs to the installed table; one of a newer table waits, one of an older is dropped.

        Dropping only saves work: attempts are never numbered twice, so no answer to an older one counts.
        """
        view = self.state.view
        if view is not None and message.version == view.version:
            return True
        if view is None or message.version > view.version:
            self.early.keep(message)
        return False

    # ---- helper and leader
    def _on_prepare(self, p: m.Prepare) -> None:
        state = self.state
        if state.superseded(p.attempt.generation) or not self._is_current(p):
            return
        self._obey(p.attempt.generation)
        if state.leads and not state.follows(p.step):
            return
        if self.participation.is_outdone(p.step, p.attempt) or self.participation.is_now(p.step, p.attempt):
            return
        self._release_before(p.step)
        self.participation.begin(p)

    def _release_before(self, step: Step) -> None:
        """The first Prepare of an epoch proves that the previous one is final."""
        if step.operator == 0 and step.epoch - 1 > self.saved.released:
            self._release(step.epoch - 1)

    def _release(self, epoch: int) -> None:
        self.state.save(released=epoch)
        self.participation.release(epoch)
        self.state.do(Forget(epoch, tuple(result.high for result in self.saved.results)))

    def _on_computed(self, done: Computed) -> None:
        prepare, view = self.participation.prepare, self.state.view
        if prepare is None or view is None or not self.participation.is_now(done.step, done.attempt):
            return
        for chain, vnodes, late, fired in done.chains:
            delta = m.Delta(done.step, done.attempt, prepare.version, self.me, chain, vnodes, late, fired)
            self.log.add(delta)
            self._forward(delta)
        for learner, learned in sorted(view.taught.get(self.me, {}).items()):
            copy = m.Delta(done.step, done.attempt, prepare.version, self.me, (), tuple(learned), 0, 0)
            self.state.do(SendDelta(learner, copy))

    def _forward(self, delta: m.Delta) -> None:
        """Send it to the next member of the chain; the tail acknowledges."""
        at = delta.chain.index(self.me)
        last = at + 1 == len(delta.chain)
        if not last:
            self.state.do(SendDelta(delta.chain[at + 1], delta))
        if last if self.state.rules.tail_acknowledges else at == 0:
            self.participation.acknowledge(delta)

    # ---- replica and learner
    def _on_delta(self, delta: m.Delta) -> None:
        if self.state.superseded(delta.attempt.generation) or self._apply_late(delta) or not self._is_current(delta):
            return
        self._obey(delta.attempt.generation)
        if self.participation.is_outdone(delta.step, delta.attempt):
            return
        committed = self.saved.committed
        if not delta.chain:
            if committed is None or delta.step > committed.step:
                self.log.add(delta)
        elif self.me in delta.chain and self.state.follows(delta.step):
            self._release_before(delta.step)
            self.log.add(delta)
            self._forward(delta)

    def _apply_late(self, delta: m.Delta) -> bool:
        """Whether a learner's delta came after its Commit, which does not wait for learners; it is applied now."""
        commit_id = CommitId(delta.step, delta.attempt)
        if delta.chain or commit_id != self.saved.committed:
            return False
        if self.learning.wants(delta):
            self.log.add(delta)
            self.state.do(Apply(commit_id))
            self.learning.applied(commit_id.step, [delta])
            self.log.forget(commit_id.step)
            self.learning.report()
        return True

    # ---- commit
    def _on_commit(self, commit: m.Commit) -> None:
        if self.state.superseded(commit.generation):
            return
        self._obey(commit.generation)
        if commit.origin:
            return self.checkpoints.load(commit)
        commit_id, committed = commit.commit_id, self.saved.committed
        if committed != commit_id:
            if committed is not None and committed.step >= commit_id.step:
                return
            if self.saved.holds and (commit_id not in self.log.by_commit_id or not self.state.follows(commit_id.step)):
                return
            self.state.save(committing=commit)
            self._finish(commit)
        self.state.tell(m.Committed(self.me, commit_id))
        self.learning.report()

    def _finish(self, commit: m.Commit) -> None:
        """Apply the deltas of this commit id and make it the committed one."""
        commit_id, committed = commit.commit_id, self.saved.committed
        skips = bool(self.saved.holds) and not self.state.follows(commit_id.step)
        if committed is not None and (skips or commit_id.step <= committed.step):
            raise Bug(f"{self.me} commits {commit_id} on top of {committed}")
        self.state.do(Apply(commit_id))
        self.learning.applied(commit_id.step, self.log.of(commit_id))
        self.state.save(
            committed=commit_id,
            results=commit.results,
            meta=commit.meta,
            committing=None,
            learned=(),
        )
        self.early.step_committed(commit_id.step)
        self.log.forget(commit_id.step)
        self.participation.end(commit_id.step)
        if not self.state.rules.rows_kept and commit_id.step == last_step(commit_id.step.epoch, self.saved.programs):
            self._release(commit_id.step.epoch)

    def _begin_anew(self, upto: Step) -> None:
        """Hold nothing: this step was applied in parts, and the log lacks the rest (files of different ages)."""
        held = self.saved.holds
        self.state.begin_anew()
        self.state.do(Drop(held))
        self.log.forget(upto)

    # ---- learning and teaching
    def _on_fetch(self, fetch: m.Fetch) -> None:
        view = self.state.view
        if view is None or fetch.version > view.version:
            self.early.keep_fetch(fetch)
        elif set(fetch.vnodes) <= set(view.taught.get(self.me, {}).get(fetch.learner, [])):
            self.teaching.begin(fetch)

    def _on_peer_lost(self, event: PeerLost) -> None:
        self.early.peer_lost(event.peer)
        self.teaching.peer_lost(event.peer)
        self.learning.peer_lost(event.peer)

    def _on_tick(self, tick: Tick) -> None:
        self.state.now = tick.now
        self.learning.tick()
        self.participation.tick()

    def _on_too_large(self, event: TooLarge) -> None:
        self.state.tell(m.Unsendable(self.me, event.peer, event.reason))


_HANDLERS: dict[type, Callable[[Instance, Any], None]] = {
    m.Install: Instance._on_install,
    m.Ask: Instance._on_ask,
    m.Prepare: Instance._on_prepare,
    m.Partials: lambda self, event: self.participation.hear(event),
    m.Delta: Instance._on_delta,
    m.Commit: Instance._on_commit,
    m.Fetch: Instance._on_fetch,
    m.Freeze: lambda self, event: self.checkpoints.on_checkpoint(event),
    m.Chunk: lambda self, event: self.learning.on_chunk(event),
    Staged: lambda self, event: self.participation.stage(event.fragment),
    Computed: Instance._on_computed,
    ComputeFailed: lambda self, event: self.participation.code_failed(event),
    PeerLost: Instance._on_peer_lost,
    TooLarge: Instance._on_too_large,
    Restored: lambda self, event: self.checkpoints.on_restored(event),
    Tick: Instance._on_tick,
}
