"""A process that does not outlive the one that has started it, and its name. Linux has calls for both."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from ferry.contract.user_code import RUNNING

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def die_with_parent(parent: int) -> None:
    """Have this process killed when the one that has started it ends; called by the process itself, after its start.

    `parent`: the number of that process. Raises SystemExit when it is gone already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which has started this one, is gone")


def dying_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn`: what this thread starts is killed when the thread ends, whatever program it is. None: not here."""
    if sys.platform != "linux":
        return None
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return begin


def children_end_with_it() -> None:
    """From now on a child that the user's code in this process makes with `os.fork` is killed when this process ends.

    It has the sockets and locks of this process: peers would wait for one that is gone, and the next one for its files.
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
    """Give this process a name, of 15 characters at most, for lists of processes; called by its main thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
