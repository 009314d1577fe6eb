"""The priority of work beside a running job, whose epochs would wait for processors.

A process with NICE gets a tenth of the time of a process of the job when both want the same processor, and all of it when
the job wants none. Linux may compare processes of one session only (`sched_autogroup`): each worker is a session of its own.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICE = 10
"""Niceness of work that may take longer."""


def give_way() -> None:
    """Give this process, and the processes that it starts, a lower priority than the job's."""
    os.nice(max(0, NICE - os.nice(0)))


def compilers_give_way(jvm: int) -> None:
    """Give the compilers of a JVM a lower priority. They work when a deploy makes Spark do something for the first time."""
    with suppress(OSError):  # The JVM or a thread has ended, or the system is not Linux.
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            if (thread / "comm").read_bytes().startswith((b"C1 Compiler", b"C2 Compiler")):
                tid = int(thread.name)
                os.setpriority(os.PRIO_PROCESS, tid, max(NICE, os.getpriority(os.PRIO_PROCESS, tid)))
