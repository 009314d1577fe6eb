"""Exits that the user's code asks for: exit code 0 says that the job has ended, and only the driver itself may say so."""

from __future__ import annotations

import os
import sys
import traceback
from typing import NoReturn

from ferry.contract.exit_codes import ExitCode
from ferry.contract.user_code import line_of_exit


def guard() -> None:
    """From now on `os._exit` in the user's code halts the driver, with the statement as its last words."""
    process, leave = os.getpid(), os._exit

    def guarded(status: int) -> NoReturn:
        then = "the driver's process would end with the job unfinished"
        line = line_of_exit(status, traceback.extract_stack(), then) if os.getpid() == process else None
        if line is not None:
            print(line, file=sys.stderr, flush=True)
            leave(ExitCode.HALTED)
        leave(status)

    os._exit = guarded
