"""What the end of a driver means: the job's end, a rest, a refusal, a halt, or another start after a wait.

Pure: it is told what happened and when, and answers; it starts nothing and reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ferry.contract.backoff import back_off
from ferry.contract.exit_codes import ExitCode

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


def meaning(code: int | None) -> Kind:
    """Of the end of a driver; None: it was ended from outside."""
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
        """The driver works: earlier crashes do not count any more."""
        self.crashes = 0

    def may_start(self, now: float) -> bool:
        """Whether the back-off is over."""
        return now >= self._not_before

    def ended(self, code: int, expected: bool, now: float) -> Outcome | None:
        """The job's end, or None: start again as soon as `may_start`. `expected`: it was killed on purpose."""
        if expected:
            self._not_before = now
            return None
        match meaning(code):
            case "finished":
                return Outcome("finished")
            case "suspended":
                return Outcome("suspended")
            case "refused":
                return Outcome("refused", "the driver refused the pipeline or the job file")
            case "halted":
                return Outcome("halted", "the driver halted")
        self.crashes += 1
        if self.crashes > CRASHES_MAX:
            return Outcome(
                "crashed",
                f"the driver crashed {self.crashes} times in a row without finishing an epoch (last: {how(code)})",
            )
        self._not_before = now + back_off(self.crashes, BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)
        return None


def how(code: int) -> str:
    """An exit code in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
