"""Whether a job is suspended, or on its way there, and which of its runs it is at. Pure.

A job is to be suspended when its spec says so, or wants no workers, whatever else may be wrong with that spec.

| stage | what there is | until |
|---|---|---|
| RUNS | a run, as the spec says | it is to be suspended |
| GOING | a driver that was asked for a last checkpoint, and its workers | the driver has ended with it, or is to go on |
| | or pods of a run whose first driver never began: there is nothing to keep | no pod is left |
| OVER | pods of a run that has ended: nothing in them is needed | none is left, and the next run is noted |
| SUSPENDED | no pods; the next run has not begun | it is not to be suspended any more |

A run ends for ever when its driver ends with a last checkpoint. The next run has another name, so that it takes no entry of
the old one in Redis, and no directory on a node, for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ferry.contract.exit_codes import ExitCode
from ferry_operator.control.restarts import meaning
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api import names
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.facts import Pod

NONE_YET = (None, -1)
"""Values of the last epoch of a run that has finished none."""


class Stage(StrEnum):
    """See above."""

    RUNS = "runs"
    GOING = "going"
    OVER = "over"
    SUSPENDED = "suspended"


def asked(job: Doc) -> bool:
    """Whether a StreamJob is to be suspended."""
    spec = job.get("spec") or {}
    return spec.get("suspend") is True or spec.get("workers") == 0


def stage(job: Doc, memory: JobMemory, pods: Sequence[Pod], epoch: int | None) -> Stage:
    """How far it is; `epoch`: the last one of this run that is known, as in `Seen.last_epoch`."""
    if memory.over:
        return Stage.OVER
    if not asked(job):
        return Stage.RUNS
    return Stage.GOING if pods or epoch not in NONE_YET else Stage.SUSPENDED


def never_began(driver: Pod | None, epoch: int | None) -> bool:
    """Whether the first driver of the run has refused to begin, or was not started yet: there is no state to keep."""
    if driver is None or (
        driver.phase != "Pending" if driver.ended is None else meaning(driver.ended.code) != "refused"
    ):
        return False
    return epoch in NONE_YET and driver.number(names.EPOCH, -1) < 0 and driver.number(names.FAILURES) == 0


def at_rest(driver: Pod | None) -> bool:
    """The driver has ended with its last checkpoint."""
    return driver is not None and driver.ended is not None and driver.ended.code == ExitCode.SUSPENDED


def last_words(driver: Pod) -> str:
    """The words about its last checkpoint of a driver that has ended with it."""
    lines = driver.ended.message.splitlines() if driver.ended is not None else []
    found = [line.removeprefix("suspended:").strip() for line in lines if line.startswith("suspended:")]
    return found[-1] if found else "the last checkpoint is complete"
