"""Exits that the user's code requests. Exit code 0 means that the job has finished: only the driver may exit with it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from ferry.contract.exit_codes import ExitCode
from ferry.contract.user_code import line_of_exit

_tries_again: list[Callable[[], bool]] = []


def try_again_if(on_probation: Callable[[], bool]) -> None:
    """While `on_probation()`, a driver that the user's code ends has crashed: the next one may go back."""
    _tries_again[:] = [on_probation]


def guard() -> None:
    """Make `os._exit` in the user's code halt the driver, with the statement as the last line of the log."""
    process, leave = os.getpid(), os._exit

    def guarded(status: int) -> NoReturn:
        then = "the driver's process would end with the job unfinished"
        line = line_of_exit(status, traceback.extract_stack(), then) if os.getpid() == process else None
        if line is not None:
            print(line, file=sys.stderr, flush=True)
            leave(ExitCode.CRASHED if _tries_again and _tries_again[0]() else ExitCode.HALTED)
        leave(status)

    os._exit = guarded
