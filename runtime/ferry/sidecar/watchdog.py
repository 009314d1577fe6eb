"""Whether an instance hangs, or runs the user's code: its parent judges by its actions, never by the wall clock.

the loop makes passes                        healthy
no pass, and the user's code runs            slow: it gets all the time it needs, asleep or busy
no pass, and the process uses the CPU        busy: a long computation of Ferry's
nothing for HANG_SECONDS                     it hangs

The user's code may hold the interpreter's lock for minutes, as a regular expression does. Then no thread of the
instance can send a sign of life, and its parent does it instead, unless the process is stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ferry.contract import limits
from ferry.sidecar.signs import Computing, look

VOUCH_SECONDS = 1.0
"""After this long in the user's code the parent sends signs of life for the instance."""

BUSY_SHARE = 0.02
"""Share of one CPU: a process with a hanging loop uses less for its heartbeats, a busy one uses more, however loaded
the host is."""

LOOK_SECONDS_MAX = 1.0
"""Longest time that counts between two looks: this process may have been stopped, together with the other."""

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process; 0 when it does not exist."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


def is_stopped(pid: int) -> bool:
    """Whether a process exists and is stopped by a signal or a debugger."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


@dataclass
class _Standstill:
    turn: int
    looked_at: float
    seconds: float = 0.0
    cpu: float | None = None


class Watchdog:
    """Watches one life of one instance."""

    def __init__(self, path: Path, cpu: Callable[[], float], stopped: Callable[[], bool] = lambda: False) -> None:
        """`path`: the file of its signs; `cpu`: its processor time so far, in seconds; `stopped`: whether it is
        stopped."""
        self._path = path
        self._cpu = cpu
        self._stopped = stopped
        self._standstill: _Standstill | None = None
        self._code: tuple[Computing, float] | None = None
        """The user's code that runs, and when it was first seen."""

    def hangs(self, now: float) -> bool:
        """Whether it hangs. `now`: monotonic seconds; to be called repeatedly."""
        seen, before = look(self._path), self._standstill
        running = seen.computing if seen is not None and seen.computing is not None and seen.computing.users else None
        if running is None or self._code is None or running != self._code[0]:
            self._code = None if running is None else (running, now)
        if seen is None:
            self._standstill = None
            return False
        if before is None or before.turn != seen.turn or running is not None:
            self._standstill = _Standstill(seen.turn, now)
            return False
        before.seconds += min(now - before.looked_at, LOOK_SECONDS_MAX)
        before.looked_at = now
        if before.cpu is None:
            before.cpu = self._cpu()
        if before.seconds < limits.HANG_SECONDS:
            return False
        if self._cpu() - before.cpu >= BUSY_SHARE * before.seconds:
            self._standstill = _Standstill(seen.turn, now)
            return False
        return True

    def in_code(self, now: float) -> tuple[str, int] | None:
        """The user's code that has run for a while, and its milliseconds; None: none, or the process is stopped."""
        if self._code is None or now - self._code[1] < VOUCH_SECONDS or self._stopped():
            return None
        return self._code[0].what, int((now - self._code[1]) * 1000)
