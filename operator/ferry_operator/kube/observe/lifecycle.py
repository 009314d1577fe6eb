"""What the state of the driver's pod means: it runs, it may be started, or the job has ended.

Pure: the history it needs is on the pod that ended (`FAILURES`, `EPOCH`), so that another operator sees the same.
Unlike `ferry run`, which gives up, a driver that crashes is started again for ever, at longer and longer intervals.
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
"""Between a crash and the next start, after many in a row."""

UNWELL_SECONDS, START_SECONDS = 30.0, 300.0
"""For how long a kubelet may find that a driver is not well before it is replaced: one that was well, one that starts."""


AGAIN = "another spec.restartNonce starts the driver again"


@dataclass(frozen=True, slots=True)
class DriverLifecycle:
    """The driver, as far as its pod tells."""

    running: bool
    may_start: bool = False
    failures: int = 0
    """crashes in a row, for the next pod"""
    retry_at: float = 0.0
    """when it may start again"""
    end: Phase | None = None
    """Finished or Failed: no pod is started"""
    problem: Problem | None = None


def lifecycle_of(pod: Pod | None, revision: str, epoch: int | None, finished: bool, now: float) -> DriverLifecycle:
    """`revision`: of a driver made now; `epoch`: the last one known; `finished`: the job was seen to be."""
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
        return DriverLifecycle(False, may_start=True)  # in case the job is resumed: the workers have the state
    changed = pod.annotations.get(names.REVISION) != revision
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


def hangs(pod: Pod, fine: bool, now: float) -> str | None:
    """Why a driver that has not ended is replaced all the same, or None. `fine`: the operator hears it, or knows what one
    that starts waits for.

    Its kubelet asks it, so that a network that keeps the operator from it ends no driver. An image of an older release
    says nothing to a kubelet.
    """
    if pod.unwell_since is None or (fine and not pod.was_well):
        return None
    seconds = now - pod.unwell_since
    if seconds < (UNWELL_SECONDS if pod.was_well else START_SECONDS):
        return None
    return f"it hangs: its node has not found it well for {seconds:.0f} s"


def end_message(pod: Pod) -> str:
    """The reason that a driver gave for its end, or how it ended."""
    ended = pod.ended
    assert ended is not None
    parts = [why_ended("driver", ended.reason), _words(ended) if ended.code is not None else ended.message]
    if not any(parts) and ended.code is not None:
        parts.append(how(ended.code if ended.code <= SIGNALLED else SIGNALLED - ended.code))
    return "; ".join(part for part in parts if part) or "?"


def _of_users(ended: Ended) -> str:
    """The reason of a problem that the user's own code causes; '' for other problems."""
    return "UserCode" if _words(ended).startswith(USER_CODE) else ""


def _words(ended: Ended) -> str:
    """The last words in the log that its kubelet has kept; '' when the driver was ended from outside."""
    return (last_words(ended.message.split("\n")) or "") if ended.code is not None else ""
