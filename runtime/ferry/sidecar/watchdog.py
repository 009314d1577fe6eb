"""Whether an instance hangs: its parent judges by what it does, and never by the clock on the wall.

the loop comes round                       well
it does not, and the user's code runs      slow: it has the time it needs, be it asleep or at work
it does not, and the process uses the CPU  at work: a long computation of Ferry's
none of these for HANG_SECONDS             it hangs
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ferry.contract import limits
from ferry.sidecar.signs import look

BUSY_SHARE = 0.02
"""Of one CPU: a process whose loop hangs uses less for its heartbeats, one at work more, however many others there are."""

LOOK_SECONDS_MAX = 1.0
"""Between two looks no more time counts: this process itself may have stood still, together with the other."""

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process; 0 when there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(after_name[11]) + int(after_name[12])) / _TICKS


@dataclass
class _Standstill:
    turn: int
    looked_at: float
    seconds: float = 0.0
    cpu: float | None = None


class Watchdog:
    """Looks at one life of one instance."""

    def __init__(self, path: Path, cpu: Callable[[], float]) -> None:
        """`path`: the file of its signs; `cpu`: its processor time so far, in seconds."""
        self._path = path
        self._cpu = cpu
        self._standstill: _Standstill | None = None

    def hangs(self, now: float) -> bool:
        """`now`: monotonic seconds; to be asked again and again."""
        seen, before = look(self._path), self._standstill
        if seen is None:
            self._standstill = None
            return False
        if before is None or before.turn != seen.turn or (seen.computing is not None and seen.computing.users):
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
