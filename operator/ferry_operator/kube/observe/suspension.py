"""Whether a job is suspended, or on its way there, and which of its runs it is at. Pure.

A job is to be suspended when its spec says so, or wants no workers, whatever else may be wrong with that spec.

| stage | what there is | until |
|---|---|---|
| RUNS | a run, as the spec says | it is to be suspended |
| GOING | a driver that was asked for a last checkpoint, and its workers | the driver has ended with it, or is to go on |
| OVER | pods of a run that has ended: nothing in them is needed | none is left, and the next run is noted |
| SUSPENDED | no pods; the next run has not begun | it is not to be suspended any more |

A run is left for ever once its driver has ended with a last checkpoint: what begins later has another name, so that nothing
of the old one, in Redis or on a node, is taken for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ferry.contract.exit_codes import ExitCode
from ferry_operator.job.status import JobMemory
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.observe.facts import Pod


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


def stage(job: Doc, memory: JobMemory, pods: Sequence[Pod], begun: bool) -> Stage:
    """How far it is; `begun`: this run has been seen to have a driver."""
    if memory.over:
        return Stage.OVER
    if not asked(job):
        return Stage.RUNS
    return Stage.GOING if pods or begun else Stage.SUSPENDED


def at_rest(driver: Pod | None) -> bool:
    """The driver has ended with its last checkpoint."""
    return driver is not None and driver.ended is not None and driver.ended.code == ExitCode.SUSPENDED


def last_words(driver: Pod) -> str:
    """What a driver that has ended so said of its last checkpoint."""
    lines = driver.ended.message.splitlines() if driver.ended is not None else []
    found = [line.removeprefix("suspended:").strip() for line in lines if line.startswith("suspended:")]
    return found[-1] if found else "the last checkpoint is complete"
