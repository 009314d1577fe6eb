"""A process that does not outlive the one that has started it. Linux has a signal for that; elsewhere it lives on."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have this process killed when the one that has started it ends; called by the process itself, after its start.

    `parent`: the number of that process. Raises SystemExit when it is gone already.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which has started this one, is gone")
