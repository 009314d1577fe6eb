"""What the end of a driver means: the job's end, a rest, a refusal, a halt, or another start after a wait.

Pure: it is told what happened and when, and answers; it starts nothing and reads no clock.
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
"""What the exit codes of a driver mean; every other one is a crash, after which another one goes on.

A driver halts only for what another start would not mend. What may pass by itself is tried again, and ends as a crash.
"""

CRASHES_MAX = 5
"""Crashes in a row without a finished epoch in between, after which the job is given up."""

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.2, 5.0

SILENT = "and its log says nothing of it"

SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL: somebody killed it, or the kernel because memory was short",
    11: "SIGSEGV: a native library failed",
    15: "SIGTERM",
}
"""Those that end processes, and what they tell."""


def meaning(code: int | None) -> Kind:
    """The meaning of a driver's exit code; None: the driver was ended from outside."""
    return "crashed" if code is None else CODES.get(code, "crashed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    kind: Kind
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True when nothing went wrong."""
        return self.kind in ("finished", "stopped", "suspended")


class RestartPolicy:
    """Counts crashes of one run's driver."""

    def __init__(self) -> None:
        self.crashes = 0
        self._not_before = 0.0

    def epoch_finished(self) -> None:
        """The driver works: earlier crashes no longer count."""
        self.crashes = 0

    def may_start(self, now: float) -> bool:
        """Whether the back-off is over."""
        return now >= self._not_before

    def ended(self, code: int, expected: bool, now: float, why: str = "") -> Outcome | None:
        """The job's end, or None: start again as soon as `may_start`.

        `expected`: it was killed on purpose. `why`: its last words (`why_ended`); empty: not known.
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
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    name = SIGNALS.get(-code, "")
    return f"killed by signal {-code}" + (f" ({name})" if name else "")


def why_ended(code: int, log: Iterable[str]) -> str:
    """Why a process ended: what it said at last, or, of one that could say nothing, how it ended.

    `log`: the last lines that it printed itself, none of a process before it.
    """
    lines = list(log)
    words = last_words(lines)
    if code >= 0:
        return words if words is not None else f"{how(code)}, {SILENT}"
    known = words is not None and words.startswith((USER_CODE, FATAL))
    return f"{how(code)}: {words}" if known else how(code)
