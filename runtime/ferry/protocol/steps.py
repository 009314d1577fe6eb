"""The order of steps: operators of an epoch one after the other, then the next epoch."""

from __future__ import annotations

from ferry.contract.names import CommitId, Step
from ferry.contract.programs import Programs, program_at


def last_step(epoch: int, programs: Programs) -> Step:
    """The step of an epoch's last operator."""
    return Step(epoch, len(program_at(programs, epoch).operators) - 1)


def successor(step: Step, programs: Programs) -> Step:
    """The step after this one."""
    if step.operator < last_step(step.epoch, programs).operator:
        return Step(step.epoch, step.operator + 1)
    return Step(step.epoch + 1, 0)


def step_of(commit_id: CommitId | None, programs: Programs) -> Step:
    """The step of a commit id; for None the one before the first."""
    return commit_id.step if commit_id is not None else last_step(-1, programs)
