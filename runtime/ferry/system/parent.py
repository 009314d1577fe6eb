"""Ends a process with its parent, and sets its name. Linux has calls for both."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from ferry.contract.user_code import RUNNING

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends; called by the process itself, after its start.

    `parent`: process id of the parent. Raises SystemExit when it has already ended.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which has started this one, has ended")


def dying_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn`: the started program is killed when the starting thread ends. None: not supported here."""
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return begin


def children_end_with_it() -> None:
    """From now on a child that the user's code makes with `os.fork` is killed when this process ends.

    It inherits the sockets and locks of this process: peers would wait for a dead one, and its successor for its files.
    """
    if sys.platform != "linux":
        return
    prctl, parent = ctypes.CDLL(None).prctl, [0]

    def before() -> None:
        parent[0] = os.getpid()

    def begin() -> None:
        if RUNNING.get():
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent[0]:
                os._exit(1)

    os.register_at_fork(before=before, after_in_child=begin)


def call_it(name: str) -> None:
    """Set the process name, at most 15 characters, for process lists; called by the main thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
