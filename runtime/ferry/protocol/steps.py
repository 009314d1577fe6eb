"""The order of steps: operators of an epoch one after the other, then the next epoch."""

from __future__ import annotations

from ferry.contract.names import CommitId, Step


def successor(step: Step, operators: int) -> Step:
    """The step after this one."""
    return Step(step.epoch, step.operator + 1) if step.operator + 1 < operators else Step(step.epoch + 1, 0)


def step_of(commit_id: CommitId | None, operators: int) -> Step:
    """The step of a commit id; for None the one before the first."""
    return commit_id.step if commit_id is not None else Step(-1, operators - 1)
