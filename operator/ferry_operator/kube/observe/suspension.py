"""The stages of a suspend: whether a job runs, is about to be suspended, or is suspended. Pure.

A job is to be suspended when its spec says so, or has 0 workers, even if the spec is otherwise invalid.

| stage | what exists | next stage when |
|---|---|---|
| RUNS | a run, as in the spec | the job is to be suspended |
| GOING | a driver with the request for a last checkpoint, and its workers | the driver ends with it, or the job is resumed |
| | or pods of a run whose first driver never began: there is no state to keep | all pods are deleted |
| OVER | pods of an ended run, without needed state | all pods are deleted, and the next run is recorded |
| SUSPENDED | no pods; the next run has not begun | the job is resumed |

A run ends for ever when its driver ends with a last checkpoint. The next run has another name, so it uses neither the Redis
entries nor the directories of the old run.
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
"""Values of the last epoch of a run without a finished epoch."""


class Stage(StrEnum):
    """The stages of the table above."""

    RUNS = "runs"
    GOING = "going"
    OVER = "over"
    SUSPENDED = "suspended"


def asked(job: Doc) -> bool:
    """Whether a StreamJob is to be suspended."""
    spec = job.get("spec") or {}
    return spec.get("suspend") is True or spec.get("workers") == 0


def stage(job: Doc, memory: JobMemory, pods: Sequence[Pod], epoch: int | None) -> Stage:
    """The stage of a job; `epoch`: the last known epoch of this run, as in `Seen.last_epoch`."""
    if memory.over:
        return Stage.OVER
    if not asked(job):
        return Stage.RUNS
    return Stage.GOING if pods or epoch not in NONE_YET else Stage.SUSPENDED


def never_began(driver: Pod | None, epoch: int | None) -> bool:
    """Whether the first driver of the run has refused its start, or has not started: the run has no state to keep."""
    if driver is None or (
        driver.phase != "Pending" if driver.ended is None else meaning(driver.ended.code) != "refused"
    ):
        return False
    return epoch in NONE_YET and driver.number(names.EPOCH, -1) < 0 and driver.number(names.FAILURES) == 0


def has_suspended(driver: Pod | None) -> bool:
    """Whether the driver has ended with its last checkpoint."""
    return driver is not None and driver.ended is not None and driver.ended.code == ExitCode.SUSPENDED


def last_words(driver: Pod) -> str:
    """The log text of a driver about its last checkpoint, after its end."""
    lines = driver.ended.message.splitlines() if driver.ended is not None else []
    texts = [line.removeprefix("suspended:").strip() for line in lines if line.startswith("suspended:")]
    return texts[-1] if texts else "the last checkpoint is complete"
