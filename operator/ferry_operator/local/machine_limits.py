"""Limits of this machine on open files, processes and threads. A run with too low limits is refused before it starts.

Without this check, Java and native libraries end with a misleading error, or with no error.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import psutil

from ferry.contract.errors import SpecRefused

FILES_WANTED, FILES_MIN = 65_536, 1024
"""Open files of one process: the wanted limit, and the least limit with which a run starts."""

THREADS_MIN, THREADS_OF_INSTANCE = 250, 50
"""Threads of a run without instances, and of each instance; an idle run has about half of these."""

CGROUP = Path("/sys/fs/cgroup")


def require(instances: int) -> None:
    """Raise the limits of this process and its children as far as allowed. Raises SpecRefused if they are too low."""
    files = _raised(resource.RLIMIT_NOFILE, FILES_WANTED)
    if files is not None and files < FILES_MIN:
        raise SpecRefused(
            f"a process may have {files:,} open files here, but Ferry needs at least {FILES_MIN:,}: run `ulimit -n 4096` "
            "in this shell first (as root, or in /etc/security/limits.conf, if the shell refuses it)"
        )
    wanted = THREADS_MIN + THREADS_OF_INSTANCE * instances
    if (limit := _raised(resource.RLIMIT_NPROC, None)) is not None and os.geteuid() != 0:
        _require_threads(limit, _threads_of_user(), wanted, "ulimit -u")
    with suppress(OSError, ValueError):  # there is no limit, or it is "max"
        limit, running = (int((CGROUP / name).read_text()) for name in ("pids.max", "pids.current"))
        _require_threads(limit, running, wanted, "the pids limit of this container")


def _require_threads(limit: int, running: int, wanted: int, where: str) -> None:
    if limit - running < wanted:
        raise SpecRefused(
            f"{limit:,} processes and threads are allowed here ({where}), {running:,} are running, and this job needs "
            f"about {wanted:,} more: raise that limit to {running + 2 * wanted:,}, or use fewer workers"
        )


def _raised(which: int, wanted: int | None) -> int | None:
    """Raise a limit to `wanted`, or as far as allowed. Returns the limit; None: there is none."""
    soft, hard = resource.getrlimit(which)
    if soft != resource.RLIM_INFINITY and (wanted is None or soft < wanted):
        most = hard if wanted is None else wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(which, (most, hard))
            soft = most
    return None if soft == resource.RLIM_INFINITY else soft


def _threads_of_user() -> int:
    threads, user = 0, os.getuid()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real == user:
                threads += process.num_threads()
    return threads
