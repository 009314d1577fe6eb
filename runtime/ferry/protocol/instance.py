"""What one instance does about every message: the sidecar side of the protocol, without its data.

    Prepare --> contribute (helper) --> partials of all helpers --> compute (leader) --> log, down the chain
            --> tail: Prepared --> Commit --> committing record, put, committed record --> Committed

    learner:  Install --> Fetch --> Chunk ... Chunk(last) + every delta --> Warm --> Install (in sync)

Effects are executed in order by the process; what an effect finds out comes back as an event (`Computed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ferry.contract import messages as m
from ferry.contract.errors import Bug
from ferry.contract.names import Attempt, CommitId, InstanceId, Step
from ferry.protocol.instance_io import (
    DRIVER,
    BeginSnapshot,
    Compute,
    Computed,
    Contribute,
    Drop,
    Effect,
    Event,
    Forget,
    ForgetAttempt,
    ForgetLog,
    LoadChunk,
    LogDelta,
    PeerLost,
    Put,
    Save,
    Saved,
    SendDelta,
    Staged,
    StopScan,
    Tick,
    TooLarge,
)
from ferry.protocol.member import LEARN_STALL_MS, WAITING, Acks, AttemptInProgress, Member
from ferry.protocol.sending import Send
from ferry.protocol.steps import predecessor, successor


class Instance(Member):
    """One instance's decisions. `operators` is the number of stateful operators of the pipeline."""

    # ---- the one entrance
    def start(self) -> list[Effect]:
        """Effects of coming (back) to life: a put that was cut short is done again, or what is not whole is no copy."""
        commit = self.saved.committing
        if commit is not None and self.rules.redo_put:
            if not self.saved.holds or commit.label in self._prepared() or not self.rules.redo_whole:
                self._finish(commit)
            else:
                self._begin_anew(commit.label.step)
        out, self._out = self._out, []
        return out

    def step(self, event: Event) -> list[Effect]:
        """Take one event; return the effects, to be executed in order."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise Bug(f"{self.me} cannot take {event}")
        handler(self, event)
        out, self._out = self._out, []
        return out

    def _take(self, message: m.Prepare | m.Delta | m.Fetch) -> None:
        _HANDLERS[type(message)](self, message)

    # ---- helper and leader
    def _on_staged(self, event: Staged) -> None:
        self.staged[event.fragment] = True

    def _on_prepare(self, p: m.Prepare) -> None:
        if self._superseded(p.attempt.generation) or not self._current(p) or self.view is None:
            return
        self._raise_generation(p.attempt.generation)
        if self.me in self.view.led and not self._follows(p.step):
            return
        if self._outdone(p.step, p.attempt):
            return
        if self.in_progress is not None and (self.in_progress.prepare.step, self.in_progress.prepare.attempt) == (
            p.step,
            p.attempt,
        ):
            return
        self._release_before(p.step)
        heard = self.early.pop((p.step, p.attempt), {})
        self.early = {k: v for k, v in self.early.items() if k > (p.step, p.attempt)}
        self.in_progress = AttemptInProgress(p, heard=heard)
        for helper, fragments in p.winners:
            if helper == self.me:
                found = [self._find(f) for f in fragments]
                if None in found:
                    self._do(Send(DRIVER, m.FragmentsGone(p.step, p.attempt, self.me)))
                    return
                self._do(Contribute(p, tuple(f for f in found if f is not None), tuple(self.view.led.items())))
        self._compute_when_heard()

    def _find(self, fragment: m.Fragment) -> m.Fragment | None:
        if self.rules.keys_full:
            return fragment if fragment in self.staged else None
        return next((f for f in self.staged if (f.step, f.task) == (fragment.step, fragment.task)), None)

    def _follows(self, step: Step) -> bool:
        """A step is prepared and put only on top of the one before it."""
        committed = self.saved.committed
        return committed is None or successor(committed.step, self.operators) == step

    def _outdone(self, step: Step, attempt: Attempt) -> bool:
        """Whether a higher attempt of this step was seen."""
        if not self.rules.low_attempt:
            return False
        t = self.in_progress
        if t is not None and (t.prepare.step, t.prepare.attempt) > (step, attempt):
            return True
        return any(lb.step == step and lb.attempt > attempt for lb in self.log)

    def _release_before(self, step: Step) -> None:
        """The first Prepare of an epoch proves that the one before is final."""
        if step.operator == 0 and step.epoch - 1 > self.saved.released:
            self._release(step.epoch - 1)

    def _release(self, epoch: int) -> None:
        self._save(released=epoch)
        self.staged = {f: True for f in self.staged if f.step.epoch > epoch}
        self._do(Forget(epoch, self.saved.high))

    def _on_partials(self, part: m.Partials) -> None:
        t = self.in_progress
        at = (part.step, part.attempt)
        if t is not None and (t.prepare.step, t.prepare.attempt) == at:
            t.heard[part.helper] = True
            self._compute_when_heard()
        elif t is None or (t.prepare.step, t.prepare.attempt) < at:
            self.early.setdefault(at, {})[part.helper] = True

    def _leads(self) -> bool:
        return self.view is not None and self.me in self.view.led

    def _compute_when_heard(self) -> None:
        t = self.in_progress
        if t is None or t.computing or self.view is None or not self._leads():
            return
        for helper, _ in t.prepare.winners:
            if helper not in t.heard:
                return
        t.computing = True
        chains = tuple((c, v) for c, v in self.view.chains.items() if c[0] == self.me)
        self._do(Compute(t.prepare, tuple(h for h, _ in t.prepare.winners), chains))

    def _on_computed(self, done: Computed) -> None:
        t = self.in_progress
        if t is None or self.view is None or (t.prepare.step, t.prepare.attempt) != (done.step, done.attempt):
            return
        version = t.prepare.version
        for chain, vnodes, late, fired in done.chains:
            delta = m.Delta(done.step, done.attempt, version, self.me, chain, vnodes, late, fired)
            self._log(delta)
            self._forward(delta)
        for learner, learned in sorted(self.view.taught.get(self.me, {}).items()):
            self._do(SendDelta(learner, m.Delta(done.step, done.attempt, version, self.me, (), tuple(learned), 0, 0)))

    def _log(self, delta: m.Delta) -> None:
        label = CommitId(delta.step, delta.attempt)
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
            self._acknowledge(delta)

    def _acknowledge(self, delta: m.Delta) -> None:
        """Tell the driver, at once with what else ends here; what is not all there by the next tick goes alone."""
        label = CommitId(delta.step, delta.attempt)
        if self.view is None or (self.acks is not None and self.acks.label > label):
            return
        if self.acks is None or self.acks.label < label:
            self.acks = Acks(label)
        self.acks.done[self.view.number[delta.chain]] = delta.late, delta.fired
        self.acks.said = False
        if len(self.acks.done) >= self.view.tails[self.me]:
            self._say_acks()

    def _say_acks(self) -> None:
        acks = self.acks
        if acks is not None and not acks.said:
            acks.said = True
            late, fired = zip(*acks.done.values(), strict=True)
            self._do(Send(DRIVER, m.Prepared(acks.label.step, acks.label.attempt, tuple(acks.done), late, fired)))

    # ---- replica and learner
    def _on_delta(self, delta: m.Delta) -> None:
        if self._superseded(delta.attempt.generation) or self._put_late(delta) or not self._current(delta):
            return
        self._raise_generation(delta.attempt.generation)
        if self._outdone(delta.step, delta.attempt):
            return
        committed = self.saved.committed
        if not delta.chain:
            if committed is None or delta.step > committed.step:
                self._log(delta)
        elif self.me in delta.chain and self._follows(delta.step):
            self._release_before(delta.step)
            self._log(delta)
            self._forward(delta)

    def _put_late(self, delta: m.Delta) -> bool:
        """Whether a learner's delta came after its Commit, for which nobody has waited; it is put now."""
        label = CommitId(delta.step, delta.attempt)
        if delta.chain or label != self.saved.committed:
            return False
        if self.learning.wants(delta):
            self._log(delta)
            self._do(Put(label))
            self.learning.put(label.step, [delta])
            del self.log[label]
            self._do(ForgetLog(label.step))
            self.learning.report(label)
        return True

    def _on_commit(self, commit: m.Commit) -> None:
        if self._superseded(commit.generation):
            return
        self._raise_generation(commit.generation)
        label, committed = commit.label, self.saved.committed
        if committed != label:
            if committed is not None and committed.step >= label.step:
                return
            if self.saved.holds and (label not in self.log or not self._follows(label.step)):
                return
            self._save(committing=commit)
            self._finish(commit)
        self._do(Send(DRIVER, m.Committed(self.me, label)))
        self.learning.report(self.saved.committed)

    def _finish(self, commit: m.Commit) -> None:
        """Put the label's deltas and make it the committed one."""
        label = commit.label
        self._do(Put(label))
        self.learning.put(label.step, self.log.get(label, []))
        self._save(
            committed=label,
            low=commit.low,
            high=commit.high,
            meta=commit.meta,
            late=commit.late,
            fired=commit.fired,
            committing=None,
            learned=(),
        )
        self.log = {lb: d for lb, d in self.log.items() if lb.step > label.step}
        # Their bodies are forgotten with the log: a learner's copy that still waits for its table comes as a gap.
        self.waiting = [w for w in self.waiting if not isinstance(w, m.Delta) or w.step > label.step]
        self._do(ForgetLog(label.step))
        if self.in_progress is not None and self.in_progress.prepare.step <= label.step:
            self.in_progress = None
        if not self.rules.rows_kept and label.step.operator + 1 == self.operators:
            self._release(label.step.epoch)

    def _begin_anew(self, upto: Step) -> None:
        """Hold nothing: this step was put in parts, and what is missing is not in the log (files of different days)."""
        held = self.saved.holds
        self.saved = Saved(self.saved.generation)
        self._do(Save(self.saved))
        self._do(Drop(held))
        self.log = {lb: d for lb, d in self.log.items() if lb.step > upto}
        self._do(ForgetLog(upto))

    # ---- learning and teaching
    def _on_fetch(self, fetch: m.Fetch) -> None:
        if self.view is None or fetch.version > self.view.version:
            self.waiting = [*self.waiting, fetch][-WAITING:]
            return
        taught = self.view.taught.get(self.me, {}).get(fetch.learner, [])
        if set(fetch.vnodes) <= set(taught):
            self.teaching.begin(fetch, self.saved.committed)

    def _on_chunk(self, chunk: m.Chunk) -> None:
        self.learning.on_chunk(chunk, self.saved.committed)

    def _on_peer_lost(self, event: PeerLost) -> None:
        self.waiting = [w for w in self.waiting if not isinstance(w, m.Fetch) or w.learner != event.peer]
        self.teaching.peer_lost(event.peer)
        self.learning.peer_lost(event.peer)

    def _on_tick(self, tick: Tick) -> None:
        self.learning.tick(tick.now)
        self._say_acks()
        self._tell_if_slow(tick.now)

    def _tell_if_slow(self, now: int) -> None:
        """Say how far an attempt is that takes long."""
        t = self.in_progress
        known = [*self.log, *([CommitId(t.prepare.step, t.prepare.attempt)] if t is not None else [])]
        label = max(known, default=None)
        if label is None or self.reported is None or self.reported[0] != label:
            self.reported = (label, now) if label is not None else None
        elif now - self.reported[1] >= self.slow_ms:
            self.reported = (label, now)
            unheard: list[InstanceId] = []
            if t is not None and label == CommitId(t.prepare.step, t.prepare.attempt) and self._leads():
                unheard = [helper for helper, _ in t.prepare.winners if helper not in t.heard]
            logged = tuple(delta.chain for delta in self.log.get(label, []) if delta.chain)
            self._do(Send(DRIVER, m.Waiting(self.me, label.step, label.attempt, tuple(unheard), logged)))

    def _on_too_large(self, event: TooLarge) -> None:
        self._do(Send(DRIVER, m.Unsendable(self.me, event.peer, event.reason)))


_HANDLERS: dict[type, Callable[[Instance, Any], None]] = {
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
    TooLarge: Instance._on_too_large,
    Tick: Instance._on_tick,
}

__all__ = [
    "DRIVER", "LEARN_STALL_MS", "Compute", "Computed", "Contribute", "Drop", "Effect", "Event", "ForgetAttempt",
    "ForgetLog", "Instance", "LoadChunk", "LogDelta", "PeerLost", "Put", "Forget", "Save", "Saved", "BeginSnapshot", "Send",
    "SendDelta", "Staged", "StopScan", "Tick", "TooLarge", "predecessor", "successor",
]  # fmt: skip
