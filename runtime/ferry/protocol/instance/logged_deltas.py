"""The log of deltas: deltas of uncommitted steps, by attempt."""

from __future__ import annotations

from ferry.contract import messages as m
from ferry.contract.names import Attempt, CommitId, Step
from ferry.protocol.instance.io import ForgetAttempt, ForgetLog, LogDelta
from ferry.protocol.instance.state import InstanceState


class LoggedDeltas:
    """Deltas by commit id; their bodies are on disk."""

    def __init__(self, state: InstanceState, logged: tuple[m.Delta, ...]) -> None:
        self._state = state
        self.by_commit_id: dict[CommitId, list[m.Delta]] = {}
        for delta in logged:
            self.by_commit_id.setdefault(CommitId(delta.step, delta.attempt), []).append(delta)

    def add(self, delta: m.Delta) -> None:
        """Log a delta, once."""
        commit_id = CommitId(delta.step, delta.attempt)
        if not self._state.rules.logs_kept:
            for other in [lb for lb in self.by_commit_id if lb.step == delta.step and lb != commit_id]:
                del self.by_commit_id[other]
                self._state.do(ForgetAttempt(other))
        entries = self.by_commit_id.setdefault(commit_id, [])
        if delta not in entries:
            entries.append(delta)
            self._state.do(LogDelta(delta))

    def forget(self, step: Step) -> None:
        """Steps up to this one are over."""
        self.by_commit_id = {
            commit_id: deltas for commit_id, deltas in self.by_commit_id.items() if commit_id.step > step
        }
        self._state.do(ForgetLog(step))

    def forget_all(self) -> None:
        """All deltas are of an earlier life of the job."""
        self.by_commit_id = {}

    def of(self, commit_id: CommitId) -> list[m.Delta]:
        """The deltas of an attempt."""
        return self.by_commit_id.get(commit_id, [])

    def has_later(self, step: Step, attempt: Attempt) -> bool:
        """Whether a delta of a higher attempt of this step is logged."""
        return any(commit_id.step == step and commit_id.attempt > attempt for commit_id in self.by_commit_id)

    def vnodes(self) -> dict[CommitId, dict[int, bool]]:
        """Virtual nodes with a delta, by commit id."""
        return {
            commit_id: {v: True for d in deltas for v in d.vnodes} for commit_id, deltas in self.by_commit_id.items()
        }

    def prepared(self) -> tuple[CommitId, ...]:
        """Commit ids with a delta for every held virtual node: older files may have the deltas of some chains only."""
        holds = self._state.saved.holds
        return tuple(sorted(commit_id for commit_id, has in self.vnodes().items() if all(v in has for v in holds)))
