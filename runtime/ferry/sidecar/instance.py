"""One life of an instance as a process: a fork of the server that its parent has, which ends with an `ExitCode`."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ferry import environment
from ferry.contract.errors import NO_TRANSPORT, UserCodeFailed
from ferry.contract.exit_codes import ExitCode
from ferry.contract.last_words import line_of, words_of
from ferry.contract.settings import RunSettings
from ferry.contract.user_code import line_of_exit, line_of_thread
from ferry.sidecar import REASON
from ferry.system import logs
from ferry.system.parent import call_it, children_end_with_it, die_with_parent


def live(run_json: str, worker: int, index: int, life: bytes) -> NoReturn:
    """Be instance `index` of a worker until told to stop; `life` is given by the parent."""
    end_with(lambda: _live(run_json, worker, index, life))


def end_with(run: Callable[[], int]) -> NoReturn:
    """Do that, and end this process with the code that it returns."""
    code: int = ExitCode.CRASHED
    try:
        code = run()
    except Exception as error:
        logging.getLogger("ferry.sidecar").critical("ends", exc_info=True)
        tell(error)
    finally:
        # Not sys.exit: threads of Flight may keep a process alive whose loop has ended.
        sys.stderr.flush()
        os._exit(code)


_reason_files: list[Path] = []
"""Where this process says why it ends, beside its log."""


def tell(error: BaseException) -> None:
    """Say why this process ends: in the last line of its log and, of an instance, to its parent."""
    print(line_of(words_of(error)), file=sys.stderr)
    with suppress(OSError):
        for file in _reason_files:
            file.write_text(words_of(error), "utf-8")


def begin(settings: RunSettings, worker: int) -> None:
    """What every process of a sidecar does first."""
    logs.begin(f"%(asctime)s {settings.run} w{worker} %(levelname)s %(message)s")
    sys.setswitchinterval(0.0005)
    faulthandler.enable()  # what native code of the user's did last stands in the log
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` shows in the log what every thread is doing


def _live(run_json: str, worker: int, index: int, life: bytes) -> int:
    settings = RunSettings.read(run_json)
    begin(settings, worker)
    _reason_files.append(settings.worker_path(worker) / str(index) / REASON)
    from ferry.sidecar.preload import SERVER

    die_with_parent(SERVER)
    children_end_with_it()
    guard_exit()
    call_it(f"ferry {worker}.{index}")
    threading.excepthook = end_with_thread
    from ferry.channel.rdma.verbs import DeviceUnusable
    from ferry.sidecar.node import Node

    try:
        node = Node(settings, worker, index, life, environment.read())
    except DeviceUnusable as error:
        print(f"{NO_TRANSPORT}{error}", file=sys.stderr)
        return ExitCode.NO_TRANSPORT
    return node.run()


def guard_exit() -> None:
    """From now on `os._exit` in the user's code says where it is: nothing else of this process would."""
    process, leave = os.getpid(), os._exit

    def guarded(status: int) -> NoReturn:
        stack = traceback.extract_stack() if os.getpid() == process else None
        if stack is not None and (line := line_of_exit(status, stack, "it ends the process of the instance")):
            tell(UserCodeFailed(line))
            sys.stderr.flush()
        leave(status)

    os._exit = guarded


def end_with_thread(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails takes its instance along: the parent starts it again, and it comes back to its own files.

    But for a thread that the user's code has started: that ends alone, as in any other process.
    """
    name = failed.thread.name if failed.thread is not None else "?"
    if (line := line_of_thread(failed.exc_value, name)) is not None:
        return logging.getLogger("ferry.sidecar").error("%s", line, exc_info=failed.exc_value)
    logging.getLogger("ferry.sidecar").critical("thread %s failed", name, exc_info=failed.exc_value)
    tell(failed.exc_value or RuntimeError(f"thread {name}"))
    sys.stderr.flush()
    os._exit(ExitCode.THREAD_FAILED)
