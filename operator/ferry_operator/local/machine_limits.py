"""The open files, processes and threads that this machine allows a run. Too few are said before a process is started.

Java and native libraries end with other words when they meet such a limit, or with none.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import psutil

from ferry.contract.errors import SpecRefused

FILES_WANTED, FILES_MIN = 65_536, 1024
"""Open files of one process: what is asked for, and with fewer than what nothing is started."""

THREADS_MIN, THREADS_OF_INSTANCE = 250, 50
"""Of a run without instances, and of each of them; about half of that when nothing goes on."""

CGROUP = Path("/sys/fs/cgroup")


def require(instances: int) -> None:
    """Take what the limits allow, for this process and all that it starts. Raises SpecRefused when that is too little."""
    files = _raised(resource.RLIMIT_NOFILE, FILES_WANTED)
    if files is not None and files < FILES_MIN:
        raise SpecRefused(
            f"a process may have {files:,} open files here, and Ferry needs {FILES_MIN:,} at least: run `ulimit -n 4096` "
            "in this shell first (as root, or in /etc/security/limits.conf, where that is refused)"
        )
    wanted = THREADS_MIN + THREADS_OF_INSTANCE * instances
    if (limit := _raised(resource.RLIMIT_NPROC, None)) is not None and os.geteuid() != 0:
        _require_threads(limit, _threads_of_user(), wanted, "ulimit -u")
    with suppress(OSError, ValueError):  # there is none, or it is "max"
        limit, running = (int((CGROUP / name).read_text()) for name in ("pids.max", "pids.current"))
        _require_threads(limit, running, wanted, "the pids limit of this container")


def _require_threads(limit: int, running: int, wanted: int, where: str) -> None:
    if limit - running < wanted:
        raise SpecRefused(
            f"{limit:,} processes and threads are allowed here ({where}), {running:,} are there, and this job needs about "
            f"{wanted:,} more: raise that limit to {running + 2 * wanted:,}, or take fewer workers"
        )


def _raised(which: int, wanted: int | None) -> int | None:
    """The limit, which becomes `wanted`, or as much as it may; None: there is none."""
    soft, hard = resource.getrlimit(which)
    if soft != resource.RLIM_INFINITY and (wanted is None or soft < wanted):
        most = hard if wanted is None else wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(which, (most, hard))
            soft = most
    return None if soft == resource.RLIM_INFINITY else soft


def _threads_of_user() -> int:
    found, mine = 0, os.getuid()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == mine:
                found += process.num_threads()
    return found
