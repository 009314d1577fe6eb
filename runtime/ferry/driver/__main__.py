"""`python -m ferry.driver RUN_JSON [--follows]`: run the job until it ends.

It ends with an `ExitCode`. After a crash the supervisor or Kubernetes starts another driver, after a back-off. When a job
restarts from a checkpoint, the next driver is the same process with the same Spark: it starts in a third of the time.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from ferry import environment
from ferry.contract.errors import DataRefused, FerryError, Refusal, SpecRefused, StateUnavailable, UserCodeFailed
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import line_of, words_of
from ferry.contract.settings import JOURNAL, RunSettings
from ferry.contract.user_code import line_of_thread
from ferry.driver import exits, session
from ferry.driver.errors import BeginsAgain, Halted
from ferry.system import api_server, logs
from ferry.system.parent import children_end_with_it

OURS = ("coordinator", "members", "journal", "journal-watch", "tick", "control", api_server.THREAD)
"""The driver cannot run without these threads. Spark's bridge has other threads."""


FINAL_HALTS = ("superseded", "unavailable", "unrestorable", "refused", "lost-epoch")
"""Kinds of halts that a restart cannot fix."""

STEADY_SECONDS = 10.0
"""A driver that reuses Spark hands Spark on to the next driver only if it lived this long."""

FOLLOWS = "--follows"
"""Argument of a driver that was begun by the driver before, in the same process."""


def main() -> int:
    """Read the settings and run."""
    settings, env = settings_from(sys.argv), environment.read()
    steady_at = time.monotonic() + (STEADY_SECONDS if env.spark_kept else 0)
    session.begin(settings, env)
    logs.begin(f"%(asctime)s {settings.run} driver %(levelname)s %(message)s")
    for library in ("py4j", "httpx"):  # they log a line per request: one every other second
        logging.getLogger(library).setLevel(logging.WARNING)
    sys.setswitchinterval(0.0005)
    faulthandler.enable()  # the log shows where a native library crashed
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` shows in the log what every thread is doing
    threading.excepthook = end_with_thread
    exits.guard()
    children_end_with_it()
    from ferry.driver import job  # Takes a second, in which Spark starts.

    try:
        return job.run(settings)
    except FerryError as error:
        if isinstance(error, BeginsAgain) and time.monotonic() >= steady_at:
            follow(error)
        code, why = code_of(error), words_of(error)
        if code is ExitCode.REFUSED:
            why = f"refused: {error}"
        elif isinstance(error, DataRefused):
            why = f"stopped: {error}"
    session.kill()  # before the print: readers take the reason from the last line of the log
    print(line_of(why), file=sys.stderr)
    return code


def settings_from(words: Sequence[str]) -> RunSettings:
    """Of these arguments. A driver that follows goes by the journal: a checkpoint may have brought back another program."""
    settings = RunSettings.read(words[1])
    return replace(settings, begins_with=JOURNAL) if FOLLOWS in words else settings


def follow(why: FerryError) -> None:
    """Replace this process by the next driver, which keeps nothing but Spark."""
    print(f"{why}: at once", file=sys.stderr)
    session.keep()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [*(word for word in sys.orig_argv if word != FOLLOWS), FOLLOWS])


def code_of(error: FerryError) -> ExitCode:
    """The exit code of a driver that ends with this error. An error that would repeat halts the job."""
    if isinstance(error, SpecRefused) and not isinstance(error, DataRefused):
        return ExitCode.REFUSED
    final = isinstance(error, Refusal | StateUnavailable | UserCodeFailed)
    if isinstance(error, Halted):
        final = error.kind in FINAL_HALTS
    return ExitCode.HALTED if final else ExitCode.CRASHED


def end(error: BaseException) -> None:
    """Print the reason as the last line. PySpark gets the text of its errors from Java, so Spark ends after that."""
    why = line_of(words_of(error))
    logging.getLogger("ferry.driver").critical("ends", exc_info=error)
    session.kill()
    print(why, file=sys.stderr)


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """End the driver when a thread of the coordinator fails: a new driver recovers."""
    name = failed.thread.name if failed.thread is not None else "?"
    if (line := line_of_thread(failed.exc_value, name)) is not None:
        return logging.getLogger("ferry.driver").error("%s", line, exc_info=failed.exc_value)
    logging.getLogger("ferry.driver").critical("thread %s failed", name, exc_info=failed.exc_value)
    if name in OURS:
        print(line_of(words_of(failed.exc_value or RuntimeError(f"thread {name}"))), file=sys.stderr, flush=True)
        os._exit(ExitCode.THREAD_FAILED)


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except BaseException as error:  # sys.exit in a user's function, too
        end(error)
    finally:
        # Not sys.exit: Spark's callback thread may block in an epoch for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
