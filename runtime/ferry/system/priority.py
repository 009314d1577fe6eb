"""The priority of work beside a running job, whose epochs would wait for processors.

A process with NICE gets a third of the time of a process of the job when both want the same processor, and all of it when
the job wants none.
"""

from __future__ import annotations

import os

NICE = 5
"""Niceness of work that may take longer."""


def give_way() -> None:
    """Give this process, and the processes that it starts, a lower priority than the job's."""
    os.nice(max(0, NICE - os.nice(0)))
