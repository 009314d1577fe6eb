"""What one instance does about every message: the sidecar side of the protocol, without its data.

    Prepare --> contribute (helper) --> partials of all helpers --> compute (leader) --> log, down the chain
            --> tail: Prepared --> Commit --> committing mark, put, committed mark --> Committed

    learner:  Install --> Fetch --> Chunk ... Chunk(last) + every delta --> Warm --> Install (in step)

Effects are executed in order by the process; what an effect finds out comes back as an event (`Computed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Attempt, InstanceId, Label, Step
from ferry.contract.routing import Table, Version
from ferry.protocol.rules import Rules

DRIVER = InstanceId("driver")
"""The peer name of the driver on every channel."""

LEARN_STALL_MS = 10_000
"""A snapshot that made no progress for this long is asked for again."""


# ---- events besides messages -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Staged:
    """A task finished streaming this fragment."""

    fragment: m.Fragment


@dataclass(frozen=True, slots=True)
class Computed:
    """The deltas of an attempt were computed: per chain (vnodes, late records, upper bound of fired rows)."""

    step: Step
    attempt: Attempt
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...], int, int], ...]


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection to another instance is gone."""

    peer: InstanceId


@dataclass(frozen=True, slots=True)
class Tick:
    """Now, in milliseconds of a clock that never goes back."""

    now: int


Event = m.Message | Staged | Computed | PeerLost | Tick


# ---- effects -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    to: InstanceId
    message: m.Message


@dataclass(frozen=True, slots=True)
class Contribute:
    """Combine these fragments and send each leader its Partials."""

    prepare: m.Prepare
    fragments: tuple[m.Fragment, ...]
    leaders: tuple[tuple[InstanceId, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Compute:
    """Merge the partials of all helpers with the state, without touching it; answer with `Computed`."""

    prepare: m.Prepare
    helpers: tuple[InstanceId, ...]
    chains: tuple[tuple[tuple[InstanceId, ...], tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SendDelta:
    """Send the body that belongs to `delta` (computed here, or just received) with it."""

    to: InstanceId
    delta: m.Delta


@dataclass(frozen=True, slots=True)
class LogDelta:
    delta: m.Delta


@dataclass(frozen=True, slots=True)
class Put:
    """Put every logged delta of the label: the only way state changes."""

    label: Label


@dataclass(frozen=True, slots=True)
class Save:
    """Replace the mark: what this instance is, should it crash now."""

    saved: Saved


@dataclass(frozen=True, slots=True)
class ForgetLog:
    """Log entries of steps up to this one are no longer needed."""

    step: Step


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Log entries of this attempt are no longer needed (only without the rule `logs_kept`)."""

    label: Label


@dataclass(frozen=True, slots=True)
class Release:
    """Fragments of epochs up to this one may go, and slices that are final at the watermark."""

    epoch: int
    watermark: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove all state of these virtual nodes."""

    vnodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Put the rows of this chunk that are absent."""

    chunk: m.Chunk


@dataclass(frozen=True, slots=True)
class Scan:
    """Begin to send the learner a snapshot of these virtual nodes."""

    learner: InstanceId
    session: int
    vnodes: tuple[int, ...]
    base: Label | None


@dataclass(frozen=True, slots=True)
class StopScan:
    """The learner does not want this snapshot any more."""

    learner: InstanceId
    session: int


Effect = (
    Send | Contribute | Compute | SendDelta | LogDelta | Put | Save | ForgetLog | ForgetAttempt | Release | Drop | Load
    | Scan | StopScan
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Saved:
    """The mark of an instance: its identity after a crash. Written after what it describes, or before (committing)."""

    generation: int = 0
    committed: Label | None = None
    low: int = WATERMARK_NONE
    high: int = WATERMARK_NONE
    meta: bytes = b""
    holds: tuple[int, ...] = ()
    released: int = -1
    """Fired rows of epochs up to this one may be gone."""
    committing: m.Commit | None = None
    """A put was begun: it has to be done again."""


@dataclass(slots=True)
class Session:
    """One snapshot being received."""

    number: int
    leader: InstanceId
    vnodes: tuple[int, ...]
    next_chunk: int = 0
    base: Label | None = None
    complete: bool = False
    missed: Step | None = None
    """The last step whose delta did not come here."""
    put: Step | None = None
    """The last step whose delta was put here."""
    progress: int = 0


@dataclass(slots=True)
class Trial:
    """The attempt under way at this instance."""

    prepare: m.Prepare
    computing: bool = False
    heard: dict[InstanceId, bool] = field(default_factory=dict)


class Instance:
    """One instance's decisions. `operators` is the number of stateful operators of the pipeline."""

    def __init__(
        self, me: InstanceId, operators: int, saved: Saved, logged: tuple[m.Delta, ...] = (), rules: Rules | None = None
    ) -> None:
        self.me = me
        self.operators = operators
        self.rules = rules or Rules()
        self.saved = saved
        self.table: Table | None = None
        self.now = 0
        self.log: dict[Label, list[m.Delta]] = {}
        for delta in logged:
            self.log.setdefault(Label(delta.step, delta.attempt), []).append(delta)
        self.staged: dict[m.Fragment, bool] = {}
        self.trial: Trial | None = None
        self.early: dict[tuple[Step, Attempt], dict[InstanceId, bool]] = {}
        self.waiting: list[m.Prepare | m.Delta | m.Fetch] = []
        self.sessions: list[Session] = []
        self.session_count = 0
        self.scans: dict[tuple[InstanceId, int], tuple[int, ...]] = {}
        self._out: list[Effect] = []

    # ---- the one entrance
    def start(self) -> list[Effect]:
        """Effects of coming (back) to life: a put that was cut short is done again."""
        if self.saved.committing is not None and self.rules.redo_put:
            self._finish(self.saved.committing)
        return self._drain()

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return the effects, to be executed in order."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise Bug(f"{self.me} cannot take {event}")
        handler(self, event)
        return self._drain()

    def _drain(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _do(self, effect: Effect) -> None:
        self._out.append(effect)

    def _save(self, saved: Saved) -> None:
        self.saved = saved
        self._do(Save(saved))

    # ---- fences
    def _superseded(self, generation: int) -> bool:
        if generation >= self.saved.generation:
            return False
        self._do(Send(DRIVER, m.Refused(self.me, self.saved.generation)))
        return True

    def _raise_generation(self, generation: int) -> None:
        if generation > self.saved.generation:
            self._save(replace(self.saved, generation=generation))

    def may_read(self, generation: int, label: Label) -> bool:
        """Whether fired rows of `label` may be served to a reader of `generation`."""
        if self.rules.fence_read and generation < self.saved.generation:
            return False
        if self.saved.committed != label:
            return False
        return label.step.epoch > self.saved.released or not self.rules.gone_is_error

    def _on_ask(self, ask: m.Ask) -> None:
        if self._superseded(ask.generation):
            return
        if self.rules.fence_ask:
            self._raise_generation(ask.generation)
        s = self.saved
        prepared = tuple(sorted(self.log))
        holds = s.holds
        if not self.rules.whole_flag:
            holds = tuple(sorted({*holds, *(v for x in self.sessions for v in x.vnodes)}))
        self._do(Send(DRIVER, m.Answer(self.me, ask.generation, s.committed, s.low, s.high, s.meta, holds, prepared)))

    # ---- the routing table
    def _on_install(self, install: m.Install) -> None:
        table = install.table
        if self._superseded(table.version.generation):
            return
        if self.table is not None and table.version <= self.table.version:
            return
        self._raise_generation(table.version.generation)
        self.table = table
        self.trial = None
        for learner, session in [k for k, v in self.scans.items() if not self._teaches(k[0], v)]:
            self._stop_scan(learner, session)
        held = {v: True for v in self.saved.holds}
        ready = {v: True for s in self.sessions if s.complete for v in s.vnodes}
        mine = table.held_by(self.me)
        lacking = [v for v in mine if v not in held and v not in ready]
        if lacking and not table.initial:
            if self.rules.warm_label and self.rules.whole_flag:
                self._do(Send(DRIVER, m.Failed(self.me, f"in step for virtual nodes {lacking[:8]} without holding them")))
                return
        learned = table.learned_by(self.me)
        wanted = {v: leader for leader, vnodes in learned.items() for v in vnodes}
        before = [*self.saved.holds, *(v for s in self.sessions for v in s.vnodes)]
        self._keep_sessions(wanted)
        covered = {v: True for s in self.sessions for v in s.vnodes}
        fresh = [v for v in wanted if v not in covered]
        keep = {v: True for v in mine} | covered
        stale = tuple(sorted({*(v for v in before if v not in keep), *fresh}))
        if stale and self.rules.drop_stale:
            self._do(Drop(stale))
        if tuple(mine) != self.saved.holds:
            self._save(replace(self.saved, holds=tuple(mine)))
        for leader in sorted({wanted[v] for v in fresh}):
            self._begin_session(leader, tuple(v for v in fresh if wanted[v] == leader))
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            _HANDLERS[type(message)](self, message)

    def _current(self, version: Version, message: m.Prepare | m.Delta) -> bool:
        """True when the message belongs to the installed table; a newer one waits for its table, an older one is dropped."""
        if self.table is not None and version == self.table.version:
            return True
        if self.table is None or version > self.table.version:
            self.waiting = [w for w in self.waiting if w.version >= version][-64:] + [message]
            return False
        return not self.rules.fence_version

    # ---- helper and leader
    def _on_staged(self, event: Staged) -> None:
        self.staged[event.fragment] = True

    def _on_prepare(self, p: m.Prepare) -> None:
        if self._superseded(p.attempt.generation) or not self._current(p.version, p):
            return
        self._raise_generation(p.attempt.generation)
        assert self.table is not None
        leads = bool(self.table.led_by(self.me))
        if leads and not self._follows(p.step):
            return
        if self.rules.low_attempt and any(lb.step == p.step and lb.attempt > p.attempt for lb in self.log):
            return
        if self.rules.low_attempt and self.trial and (self.trial.prepare.step, self.trial.prepare.attempt) > (p.step, p.attempt):
            return
        self._release_before(p.step)
        heard = self.early.pop((p.step, p.attempt), {})
        self.early = {k: v for k, v in self.early.items() if k > (p.step, p.attempt)}
        self.trial = Trial(p, heard=heard)
        for helper, fragments in p.winners:
            if helper != self.me:
                continue
            if any(not self._has(f) for f in fragments):
                self._do(Send(DRIVER, m.FragmentsGone(p.step, p.attempt, self.me)))
                return
            leaders: dict[InstanceId, list[int]] = {}
            for vnode, group in enumerate(self.table.groups):
                leaders.setdefault(group.in_step[0], []).append(vnode)
            self._do(Contribute(p, fragments, tuple((i, tuple(leaders[i])) for i in sorted(leaders))))
        self._compute_when_heard()

    def _has(self, fragment: m.Fragment) -> bool:
        if self.rules.keys_full:
            return fragment in self.staged
        return any((f.step, f.task) == (fragment.step, fragment.task) for f in self.staged)

    def _follows(self, step: Step) -> bool:
        """A step is prepared and put only on top of the one before it."""
        committed = self.saved.committed
        return committed is None or successor(committed.step, self.operators) == step

    def _release_before(self, step: Step) -> None:
        """The first Prepare of an epoch proves that the one before is final."""
        if step.operator == 0 and step.epoch - 1 > self.saved.released:
            epoch = step.epoch - 1
            self.staged = {f: True for f in self.staged if f.step.epoch > epoch}
            self._do(Release(epoch, self.saved.high))
            self._save(replace(self.saved, released=epoch))

    def _on_partials(self, part: m.Partials) -> None:
        t = self.trial
        if t is not None and (t.prepare.step, t.prepare.attempt) == (part.step, part.attempt):
            t.heard[part.helper] = True
            self._compute_when_heard()
        elif t is None or (t.prepare.step, t.prepare.attempt) < (part.step, part.attempt):
            self.early.setdefault((part.step, part.attempt), {})[part.helper] = True

    def _compute_when_heard(self) -> None:
        t = self.trial
        if t is None or t.computing or self.table is None:
            return
        helpers = tuple(h for h, _ in t.prepare.winners)
        if any(h not in t.heard for h in helpers):
            return
        chains = tuple((c, tuple(v)) for c, v in self.table.chains().items() if c[0] == self.me)
        if chains:
            t.computing = True
            self._do(Compute(t.prepare, helpers, chains))

    def _on_computed(self, done: Computed) -> None:
        t = self.trial
        if t is None or self.table is None or (t.prepare.step, t.prepare.attempt) != (done.step, done.attempt):
            return
        version = t.prepare.version
        for chain, vnodes, late, fired in done.chains:
            delta = m.Delta(done.step, done.attempt, version, self.me, chain, vnodes, late, fired)
            self._log(delta)
            self._forward(delta)
            learners: dict[InstanceId, list[int]] = {}
            for v in vnodes:
                for learner in self.table.groups[v].learners:
                    learners.setdefault(learner, []).append(v)
            for learner in sorted(learners):
                copy = m.Delta(done.step, done.attempt, version, self.me, (), tuple(learners[learner]), 0, 0)
                self._do(SendDelta(learner, copy))

    def _log(self, delta: m.Delta) -> None:
        label = Label(delta.step, delta.attempt)
        if not self.rules.logs_kept:
            for other in [lb for lb in self.log if lb.step == delta.step and lb != label]:
                del self.log[other]
                self._do(ForgetAttempt(other))
        entries = self.log.setdefault(label, [])
        if delta not in entries:
            entries.append(delta)
            self._do(LogDelta(delta))

    def _forward(self, delta: m.Delta) -> None:
        at = delta.chain.index(self.me)
        last = at + 1 == len(delta.chain)
        if not last:
            self._do(SendDelta(delta.chain[at + 1], delta))
        if last if self.rules.tail_acknowledges else at == 0:
            self._do(Send(DRIVER, m.Prepared(delta.step, delta.attempt, delta.chain, delta.late, delta.fired)))

    # ---- replica and learner
    def _on_delta(self, delta: m.Delta) -> None:
        if self._superseded(delta.attempt.generation) or not self._current(delta.version, delta):
            return
        self._raise_generation(delta.attempt.generation)
        if self.rules.low_attempt and any(lb.step == delta.step and lb.attempt > delta.attempt for lb in self.log):
            return
        if delta.chain:
            if self.me not in delta.chain or not self._follows(delta.step):
                return
            self._release_before(delta.step)
            self._log(delta)
            self._forward(delta)
        else:
            committed = self.saved.committed
            if committed is None or delta.step > committed.step:
                self._log(delta)

    def _on_commit(self, commit: m.Commit) -> None:
        if self._superseded(commit.generation):
            return
        self._raise_generation(commit.generation)
        label, committed = commit.label, self.saved.committed
        if committed == label:
            self._do(Send(DRIVER, m.Committed(self.me, label)))
            return
        if committed is not None and committed.step >= label.step:
            if committed.step == label.step and self.saved.holds:
                raise Bug(f"{self.me} committed {committed} and is told to commit {label}")
            return
        if self.saved.holds and (label not in self.log or not self._follows(label.step)):
            return
        self._save(replace(self.saved, committing=commit))
        self._finish(commit)
        self._do(Send(DRIVER, m.Committed(self.me, label)))
        self._report_warm()

    def _finish(self, commit: m.Commit) -> None:
        """Put the label's deltas and make it the committed one."""
        label = commit.label
        entries = self.log.get(label, [])
        self._do(Put(label))
        for s in self.sessions:
            got = any(d.leader == s.leader and not d.chain and set(s.vnodes) <= set(d.vnodes) for d in entries)
            if not got:
                s.missed = label.step
            elif s.put is not None and successor(s.put, self.operators) != label.step:
                s.missed = predecessor(label.step, self.operators)
            s.put = label.step if got else s.put
        self._save(
            replace(
                self.saved, committed=label, low=commit.low, high=commit.high, meta=commit.meta, committing=None
            )
        )
        self.log = {lb: d for lb, d in self.log.items() if lb.step > label.step}
        self._do(ForgetLog(label.step))
        if self.trial is not None and self.trial.prepare.step <= label.step:
            self.trial = None
        if not self.rules.rows_kept:
            self._save(replace(self.saved, released=label.step.epoch - 1))

    # ---- learning
    def _begin_session(self, leader: InstanceId, vnodes: tuple[int, ...]) -> None:
        assert self.table is not None
        self.session_count += 1
        self.sessions.append(Session(self.session_count, leader, vnodes, progress=self.now))
        self._do(Send(leader, m.Fetch(self.me, self.table.version, self.session_count, vnodes)))

    def _keep_sessions(self, wanted: dict[int, InstanceId]) -> None:
        """Sessions go on for the virtual nodes that are still learned from the same leader."""
        kept = []
        for s in self.sessions:
            still = tuple(v for v in s.vnodes if wanted.get(v) == s.leader)
            # A snapshot under way still brings all its virtual nodes: with fewer wanted it has to begin again.
            if still == s.vnodes or (still and s.complete):
                s.vnodes = still
                kept.append(s)
        self.sessions = kept

    def _teaches(self, learner: InstanceId, vnodes: tuple[int, ...]) -> bool:
        """Whether this instance leads these virtual nodes and `learner` learns them."""
        groups = self.table.groups if self.table else ()
        return all(groups[v].leader == self.me and learner in groups[v].learners for v in vnodes)

    def _stop_scan(self, learner: InstanceId, session: int) -> None:
        del self.scans[(learner, session)]
        self._do(StopScan(learner, session))

    def _restart(self, s: Session) -> None:
        self.sessions.remove(s)
        self._do(Drop(s.vnodes))
        self._begin_session(s.leader, s.vnodes)

    def _on_fetch(self, fetch: m.Fetch) -> None:
        if self.table is None or fetch.version > self.table.version:
            self.waiting = [*self.waiting[-64:], fetch]
            return
        if not self._teaches(fetch.learner, fetch.vnodes):
            return
        for learner, session in [k for k, v in self.scans.items() if k[0] == fetch.learner and set(v) & set(fetch.vnodes)]:
            self._stop_scan(learner, session)
        self.scans[(fetch.learner, fetch.session)] = fetch.vnodes
        self._do(Scan(fetch.learner, fetch.session, fetch.vnodes, self.saved.committed))

    def _on_chunk(self, chunk: m.Chunk) -> None:
        s = next((x for x in self.sessions if x.number == chunk.session and x.leader == chunk.leader), None)
        if s is None or s.complete or chunk.number < s.next_chunk:
            return
        if chunk.number > s.next_chunk:
            self._restart(s)
            return
        s.next_chunk += 1
        s.base, s.progress = chunk.base, self.now
        self._do(Load(chunk))
        if chunk.last:
            s.complete = True
            self._report_warm()

    def _report_warm(self) -> None:
        for s in list(self.sessions):
            if not s.complete:
                continue
            base = s.base.step if s.base else None
            if s.missed is not None and (base is None or s.missed > base) and self.rules.missed_delta:
                self._restart(s)
                continue
            label = s.base
            if self.saved.committed is not None and (label is None or self.saved.committed.step > label.step):
                label = self.saved.committed
            self._do(Send(DRIVER, m.Warm(self.me, label, s.vnodes)))

    def _on_peer_lost(self, event: PeerLost) -> None:
        for learner, session in [k for k in self.scans if k[0] == event.peer]:
            self._stop_scan(learner, session)
        for s in [x for x in self.sessions if x.leader == event.peer and not x.complete]:
            self._restart(s)

    def _on_tick(self, tick: Tick) -> None:
        self.now = tick.now
        for s in [x for x in self.sessions if not x.complete and tick.now - x.progress > LEARN_STALL_MS]:
            self._restart(s)


def successor(step: Step, operators: int) -> Step:
    """The step after this one."""
    return Step(step.epoch, step.operator + 1) if step.operator + 1 < operators else Step(step.epoch + 1, 0)


def predecessor(step: Step, operators: int) -> Step:
    """The step before this one."""
    return Step(step.epoch, step.operator - 1) if step.operator else Step(step.epoch - 1, operators - 1)


_HANDLERS: dict[type, Callable[[Instance, Event], None]] = {
    m.Install: Instance._on_install,
    m.Ask: Instance._on_ask,
    m.Prepare: Instance._on_prepare,
    m.Partials: Instance._on_partials,
    m.Delta: Instance._on_delta,
    m.Commit: Instance._on_commit,
    m.Fetch: Instance._on_fetch,
    m.Chunk: Instance._on_chunk,
    Staged: Instance._on_staged,
    Computed: Instance._on_computed,
    PeerLost: Instance._on_peer_lost,
    Tick: Instance._on_tick,
}  # type: ignore[dict-item]
