"""Opens the sinks of a deployed program before its first epoch. Sinks that cannot be opened take the program back."""

from __future__ import annotations

import time
from collections.abc import Callable

from ferry.contract.errors import Final, SpecRefused, UserCodeFailed
from ferry.driver.coordinator_orders import sleep
from ferry.driver.life import Life
from ferry.driver.program import Program
from ferry.protocol import coordinator as core

OPEN_SECONDS = 30.0
"""Time for the new sinks of a program: its first epoch waits for them, and so does the job."""

OpenSinks = Callable[[Program, int, Callable[[], bool]], bool]


def opens(
    life: Life,
    open_sinks: OpenSinks,
    program: Program,
    epoch: int,
    may_take_back: Callable[[int], bool],
    is_over: Callable[[], bool],
) -> bool:
    """Open the sinks of a program. Sinks that refuse, or are away, take it back while no epoch of it is committed."""
    until = time.monotonic() + OPEN_SECONDS

    def is_late() -> bool:
        return time.monotonic() > until and may_take_back(program.number)

    try:
        if open_sinks(program, epoch - 1, lambda: is_over() or is_late()):
            return True
        if is_over() or life.stop.is_set() or not is_late():
            return False
        why = f"{life.sink_startup.last_failure or 'a sink does not open'}, for {OPEN_SECONDS:g} s"
    except (SpecRefused, Final, UserCodeFailed) as error:
        if not may_take_back(program.number):
            raise
        why = str(error)
    life.loop.post(core.Withdraw(program.number, why))
    while not is_over():
        sleep(life.loop, 0.02)
    return False
