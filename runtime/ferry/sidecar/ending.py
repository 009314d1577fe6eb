"""The end of a process of a sidecar: it says why, in the last line of its log and, of an instance, to its parent."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ferry.contract.errors import UserCodeFailed
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import line_of, words_of
from ferry.contract.user_code import line_of_exit, line_of_thread

reason_files: list[Path] = []
"""Files for the reason of this process's end, besides its log."""


def end_with(run: Callable[[], int]) -> NoReturn:
    """Run this, and end this process with the returned code."""
    code: int = ExitCode.CRASHED
    try:
        code = run()
    except Exception as error:
        logging.getLogger("ferry.sidecar").critical("ends", exc_info=True)
        tell(error)
    finally:
        # Not sys.exit: threads of Flight may keep a process alive after its loop has ended.
        sys.stderr.flush()
        os._exit(code)


def tell(error: BaseException) -> None:
    """Report why this process ends: in the last line of its log and, for an instance, to its parent."""
    print(line_of(words_of(error)), file=sys.stderr)
    with suppress(OSError):
        for file in reason_files:
            file.write_text(words_of(error), "utf-8")


def guard_exit() -> None:
    """From now on a call of `os._exit` in the user's code leaves its place in the log: nothing else would show it."""
    process, leave = os.getpid(), os._exit

    def guarded(status: int) -> NoReturn:
        stack = traceback.extract_stack() if os.getpid() == process else None
        if stack is not None and (line := line_of_exit(status, stack, "it ends the process of the instance")):
            tell(UserCodeFailed(line))
            sys.stderr.flush()
        leave(status)

    os._exit = guarded


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """A failed thread ends its instance: the parent starts it again, with its own files.

    A thread of the user's code is an exception: it ends alone, as in any other process.
    """
    name = failed.thread.name if failed.thread is not None else "?"
    if (line := line_of_thread(failed.exc_value, name)) is not None:
        return logging.getLogger("ferry.sidecar").error("%s", line, exc_info=failed.exc_value)
    logging.getLogger("ferry.sidecar").critical("thread %s failed", name, exc_info=failed.exc_value)
    tell(failed.exc_value or RuntimeError(f"thread {name}"))
    sys.stderr.flush()
    os._exit(ExitCode.THREAD_FAILED)
