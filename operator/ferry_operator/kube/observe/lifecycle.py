"""The lifecycle of the driver, from its pod: it runs, it may start, or the job has ended. Pure.

The history of crashes is on the pod that ended (`FAILURES`, `EPOCH`), so another operator decides the same. `ferry run`
gives up after crashes; here a crashed driver always starts again, at longer and longer intervals.
"""

from __future__ import annotations

from dataclasses import dataclass

from ferry.contract.backoff import back_off
from ferry.contract.errors import UNDECIDED
from ferry.contract.last_words import last_words
from ferry.contract.user_code import USER_CODE
from ferry_operator.control.restarts import BACK_OFF_SECONDS, how, meaning
from ferry_operator.job.status import Phase
from ferry_operator.kube.api import names
from ferry_operator.kube.observe.facts import Ended, Pod, Problem, why_ended

SIGNALLED = 128
"""The exit code of a container is the signal that ended its process, plus this number."""

BACK_OFF_SECONDS_MAX = 60.0
"""Maximum between a crash and the next start, after many crashes in a row."""

NOT_READY_SECONDS, START_SECONDS = 30.0, 300.0
"""Time after which the operator replaces a driver that its kubelet reports as not ready: after it was ready once, and at
its start."""


AGAIN = "another spec.restartNonce starts the driver again"


@dataclass(frozen=True, slots=True)
class DriverLifecycle:
    """The state of the driver, from its pod."""

    running: bool
    may_start: bool = False
    failures: int = 0
    """crashes in a row, for the annotation of the next pod"""
    retry_at: float = 0.0
    """time of the next start"""
    end: Phase | None = None
    """Finished or Failed: no pod is started"""
    problem: Problem | None = None


def lifecycle_of(
    pod: Pod | None, revision: str, epoch: int | None, finished: bool, now: float, program: str = ""
) -> DriverLifecycle:
    """`revision`: of a new driver; `epoch`: the last known epoch; `finished`: the status has phase Finished.

    `program`: identity of the wanted program; empty: it is not known.
    """
    if finished:
        return DriverLifecycle(False, end="Finished")
    if pod is None:
        return DriverLifecycle(False, may_start=True)
    if pod.ended is None:
        return DriverLifecycle(pod.deleting is None)
    if pod.deleting is not None:
        return DriverLifecycle(False)
    if names.REPLACE in pod.annotations:
        return DriverLifecycle(False, may_start=True)
    kind = meaning(pod.ended.code)
    if kind == "finished":
        return DriverLifecycle(False, end="Finished")
    if kind == "suspended":
        return DriverLifecycle(
            False, may_start=True
        )  # only for a job that was resumed meanwhile: the workers have the state
    changed = pod.annotations.get(names.REVISION) != revision or is_edited(pod, program)
    message = end_message(pod)
    if kind in ("refused", "halted") and not changed:
        if UNDECIDED in message:
            return DriverLifecycle(False, end="Failed", problem=Problem("RestoreFromNeeded", message))
        reason = _of_users(pod.ended) or ("DriverRefused" if kind == "refused" else "DriverHalted")
        return DriverLifecycle(False, end="Failed", problem=Problem(reason, f"{message}; {AGAIN}"))
    began = pod.number(names.EPOCH, -1)
    worked = epoch is not None and epoch > began
    if changed:
        return DriverLifecycle(False, may_start=True)
    failures = 1 if worked else pod.number(names.FAILURES) + 1
    retry_at = pod.ended.at + back_off(failures, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
    times = f" (the driver ended {failures} times in a row without finishing an epoch)" if failures > 1 else ""
    problem = None
    if failures > 1 or _words(pod.ended):
        problem = Problem(_of_users(pod.ended) or "DriverCrashes", f"{message}{times}")
    return DriverLifecycle(False, may_start=now >= retry_at, failures=failures, retry_at=retry_at, problem=problem)


def is_edited(pod: Pod | None, program: str) -> bool:
    """Whether a driver has failed, and its user has edited the program since: the next driver begins with the spec's one."""
    if pod is None or pod.ended is None or names.REPLACE in pod.annotations or not program:
        return False
    known = pod.annotations.get(names.PROGRAM)
    return meaning(pod.ended.code) in ("refused", "halted") and known is not None and known != program


def hangs(pod: Pod, fine: bool, now: float) -> str | None:
    """The reason to replace a running driver, or None. `fine`: the driver answers the operator, or the operator knows why
    a starting driver waits.

    The readiness probe of the kubelet decides: a broken network between operator and driver replaces no driver.
    """
    if pod.not_ready_since is None or (fine and not pod.was_ready):
        return None
    seconds = now - pod.not_ready_since
    if seconds < (NOT_READY_SECONDS if pod.was_ready else START_SECONDS):
        return None
    return f"it hangs: its kubelet has reported it as not ready for {seconds:.0f} s"


def end_message(pod: Pod) -> str:
    """The reason of a driver for its end, else the meaning of its exit code."""
    ended = pod.ended
    assert ended is not None
    parts = [why_ended("driver", ended.reason), _words(ended) if ended.code is not None else ended.message]
    if not any(parts) and ended.code is not None:
        parts.append(how(ended.code if ended.code <= SIGNALLED else SIGNALLED - ended.code))
    return "; ".join(part for part in parts if part) or "?"


def _of_users(ended: Ended) -> str:
    """The reason of the condition for an error in the user's own code; '' for other errors."""
    return "UserCode" if _words(ended).startswith(USER_CODE) else ""


def _words(ended: Ended) -> str:
    """The error in the last lines of the log; '' when the driver was ended from outside."""
    return (last_words(ended.message.split("\n")) or "") if ended.code is not None else ""
