"""An instance's part in the attempt under way before its commit: as a helper, a leader, the tail of chains.

Prepare --> contribute (helper) --> partials of all helpers --> compute (leader) ... Prepared (tail)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, Fragment, InstanceId, Step
from ferry.protocol.instance.io import Compute, ComputeFailed, Contribute
from ferry.protocol.instance.logged_deltas import LoggedDeltas
from ferry.protocol.instance.state import InstanceState

SLOW_MS = 1_000
"""An attempt that is not committed here by then takes long: its progress is reported to the driver, repeatedly."""


@dataclass(slots=True)
class AttemptInProgress:
    """The attempt under way at this instance."""

    prepare: m.Prepare
    computing: bool = False
    heard: dict[InstanceId, bool] = field(default_factory=dict)

    @property
    def commit_id(self) -> CommitId:
        """Its step and number."""
        return CommitId(self.prepare.step, self.prepare.attempt)


@dataclass(slots=True)
class Acks:
    """Chains of one attempt that end here and have logged their delta."""

    commit_id: CommitId
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the number of the chain: late records, and fired rows."""
    reported: bool = False


class Participation:
    """Staged fragments, the attempt under way, and the reports to the driver."""

    def __init__(self, state: InstanceState, log: LoggedDeltas, slow_ms: int) -> None:
        self._state = state
        self._log = log
        self._slow_ms = slow_ms
        self.forget_all()

    def forget_all(self) -> None:
        """No attempt is under way."""
        self._staged: dict[Fragment, bool] = {}
        self._in_progress: AttemptInProgress | None = None
        self._early: dict[CommitId, dict[InstanceId, bool]] = {}
        """Helpers whose partials came before the Prepare."""
        self._acks: Acks | None = None
        self._reported: tuple[CommitId, int] | None = None
        """The uncommitted attempt, and when it was first seen or last reported."""

    # ---- the attempt under way
    def is_now(self, step: Step, attempt: Attempt) -> bool:
        """Whether this is the attempt under way."""
        return self._in_progress is not None and self._in_progress.commit_id == (step, attempt)

    @property
    def prepare(self) -> m.Prepare | None:
        """The Prepare of the attempt under way."""
        return self._in_progress.prepare if self._in_progress is not None else None

    def is_outdone(self, step: Step, attempt: Attempt) -> bool:
        """Whether a higher attempt of this step was seen."""
        if not self._state.rules.low_attempt:
            return False
        if self._in_progress is not None and self._in_progress.commit_id > (step, attempt):
            return True
        return self._log.has_later(step, attempt)

    def give_up(self) -> None:
        """Another table is installed: the driver begins another attempt."""
        self._in_progress = None

    def give_up_before(self, generation: int) -> None:
        """A result computed for an older driver must not be logged after the answer to this one."""
        if self._in_progress is not None and self._in_progress.prepare.attempt.generation < generation:
            self._in_progress = None

    def end(self, step: Step) -> None:
        """The step is committed."""
        if self._in_progress is not None and self._in_progress.prepare.step <= step:
            self._in_progress = None

    # ---- helper
    def stage(self, fragment: Fragment) -> None:
        """A task has streamed this fragment."""
        self._staged[fragment] = True

    def release(self, epoch: int) -> None:
        """Fragments of epochs up to this one are not needed any more."""
        self._staged = {f: True for f in self._staged if f.step.epoch > epoch}

    def begin(self, p: m.Prepare) -> None:
        """Take part in this attempt."""
        view, commit_id = self._state.view, CommitId(p.step, p.attempt)
        assert view is not None
        heard = self._early.pop(commit_id, {})
        self._early = {other: helpers for other, helpers in self._early.items() if other > commit_id}
        self._in_progress = AttemptInProgress(p, heard=heard)
        for helper, fragments in p.winners:
            if helper == self._state.me:
                found = [self._find(f) for f in fragments]
                if None in found:
                    self._state.tell(m.FragmentsGone(p.step, p.attempt, self._state.me))
                    return
                mine = tuple(f for f in found if f is not None)
                self._state.do(Contribute(p, mine, tuple(view.led.items())))
        self._compute_when_heard()

    def _find(self, fragment: Fragment) -> Fragment | None:
        if self._state.rules.keys_full:
            return fragment if fragment in self._staged else None
        return next((f for f in self._staged if (f.step, f.task) == (fragment.step, fragment.task)), None)

    # ---- leader
    def hear(self, part: m.Partials) -> None:
        """A helper's partials have come."""
        commit_id, at = CommitId(part.step, part.attempt), self._in_progress
        if at is not None and at.commit_id == commit_id:
            at.heard[part.helper] = True
            self._compute_when_heard()
        elif at is None or at.commit_id < commit_id:
            self._early.setdefault(commit_id, {})[part.helper] = True

    def _compute_when_heard(self) -> None:
        at, view = self._in_progress, self._state.view
        if at is None or at.computing or view is None or not self._state.leads:
            return
        # Finding missing helpers takes time by the number of helpers, and each message of a helper passes here.
        if len(at.heard) < len(at.prepare.winners) or self._unheard():
            return
        at.computing = True
        chains = tuple((c, v) for c, v in view.chains.items() if c[0] == self._state.me)
        self._state.do(Compute(at.prepare, tuple(h for h, _ in at.prepare.winners), chains))

    def code_failed(self, failed: ComputeFailed) -> None:
        """The driver decides about another attempt; all of this one is dropped."""
        if self.is_now(failed.step, failed.attempt):
            me = self._state.me
            self._state.tell(m.CodeFailed(me, failed.step, failed.attempt, failed.reason, failed.final))

    def _unheard(self) -> tuple[InstanceId, ...]:
        at = self._in_progress
        return tuple(h for h, _ in at.prepare.winners if h not in at.heard) if at is not None else ()

    # ---- tail
    def acknowledge(self, delta: m.Delta) -> None:
        """Acknowledge to the driver, together with other chains that end here; incomplete sets are acknowledged at the
        next tick."""
        commit_id, view = CommitId(delta.step, delta.attempt), self._state.view
        if view is None or (self._acks is not None and self._acks.commit_id > commit_id):
            return
        if self._acks is None or self._acks.commit_id < commit_id:
            self._acks = Acks(commit_id)
        self._acks.done[view.number[delta.chain]] = delta.late, delta.fired
        self._acks.reported = False
        if len(self._acks.done) >= view.tails[self._state.me]:
            self._say_acks()

    def _say_acks(self) -> None:
        acks = self._acks
        if acks is not None and not acks.reported:
            acks.reported = True
            late, fired = zip(*acks.done.values(), strict=True)
            self._state.tell(m.Prepared(acks.commit_id.step, acks.commit_id.attempt, tuple(acks.done), late, fired))

    # ---- patience
    def tick(self) -> None:
        """Acknowledge logged chains; report the progress of an attempt that takes long."""
        self._say_acks()
        at, now = self._in_progress, self._state.now
        commit_id = max([*self._log.by_commit_id, *([at.commit_id] if at is not None else [])], default=None)
        if commit_id is None or self._reported is None or self._reported[0] != commit_id:
            self._reported = (commit_id, now) if commit_id is not None else None
        elif now - self._reported[1] >= self._slow_ms:
            self._reported = (commit_id, now)
            unheard = self._unheard() if at is not None and commit_id == at.commit_id and self._state.leads else ()
            logged = tuple(delta.chain for delta in self._log.of(commit_id) if delta.chain)
            self._state.tell(m.Waiting(self._state.me, commit_id.step, commit_id.attempt, unheard, logged))
