"""The consequence of a driver's end: the job ends, is suspended, refused or halted, or the driver starts again after a wait.

Pure: the caller gives the event and its time; nothing here starts a process or reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ferry.contract.backoff import back_off
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import last_words
from ferry.contract.user_code import FATAL, USER_CODE

Kind = Literal["finished", "stopped", "suspended", "refused", "halted", "crashed", "failed"]

CODES: dict[int, Kind] = {
    ExitCode.FINISHED: "finished",
    ExitCode.REFUSED: "refused",
    ExitCode.HALTED: "halted",
    ExitCode.SUSPENDED: "suspended",
}
"""Meanings of a driver's exit codes. Every other code is a crash, after which a new driver continues.

A driver halts only for an error that another start cannot repair. A passing error is tried again, and ends as a crash.
"""

CRASHES_MAX = 5
"""Consecutive crashes without a finished epoch, after which the job fails."""

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.2, 5.0

SILENT = "and its log says nothing of it"

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL: killed by a user, or by the kernel because memory was short",
    11: "SIGSEGV: a native library failed",
    15: "SIGTERM",
}
"""Signals that end processes, with their usual causes."""


def meaning(code: int | None) -> Kind:
    """The meaning of a driver's exit code; None: the driver ended without an exit code."""
    return "crashed" if code is None else CODES.get(code, "crashed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run."""

    kind: Kind
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the run ended without an error."""
        return self.kind in ("finished", "stopped", "suspended")


class RestartPolicy:
    """Counts crashes of one run's driver."""

    def __init__(self) -> None:
        self.crashes = 0
        self._not_before = 0.0

    def epoch_finished(self) -> None:
        """Reset the count of crashes: the driver works."""
        self.crashes = 0

    def may_start(self, now: float) -> bool:
        """Whether the back-off is over."""
        return now >= self._not_before

    def ended(self, code: int, expected: bool, now: float, why: str = "") -> Outcome | None:
        """The job's end, or None: start a new driver as soon as `may_start` allows it.

        `expected`: the driver was killed on purpose. `why`: the result of `why_ended`; empty: not known.
        """
        if expected:
            self._not_before = now
            return None
        match meaning(code):
            case "finished":
                return Outcome("finished")
            case "suspended":
                return Outcome("suspended")
            case "refused":
                return Outcome(
                    "refused", why.removeprefix("refused: ") or "the driver refused the pipeline or the job file"
                )
            case "halted":
                return Outcome("halted", why or "the driver halted")
        self.crashes += 1
        if self.crashes > CRASHES_MAX:
            return Outcome(
                "crashed",
                f"{why or how(code)} (the driver ended {self.crashes} times in a row without finishing an epoch)",
            )
        self._not_before = now + back_off(self.crashes, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        return None


def how(code: int) -> str:
    """An exit code as text."""
    if code >= 0:
        return f"exit code {code}"
    name = SIGNALS.get(-code, "")
    return f"killed by signal {-code}" + (f" ({name})" if name else "")


def why_ended(code: int, log: Iterable[str]) -> str:
    """Why a process ended: the last error in its log, else its exit code or signal.

    `log`: the last lines that this process printed, without lines of an earlier process.
    """
    lines = list(log)
    words = last_words(lines)
    if code >= 0:
        return words if words is not None else f"{how(code)}, {SILENT}"
    known = words is not None and words.startswith((USER_CODE, FATAL))
    return f"{how(code)}: {words}" if known else how(code)
