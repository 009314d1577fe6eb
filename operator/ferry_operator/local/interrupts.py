"""Counts requests of the terminal to end: Ctrl-C, TERM, and the terminal being closed. Decides nothing.

The end of a process wakes the supervisor, too: nobody is to wait for its next look.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """A context in which interrupts are counted instead of raised; only in the main thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called from the signal handler."""
        self.count = 0
        self._wake = wake
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)  # a job that was started with nohup outlives its terminal
        self._before = {number: signal.signal(number, self._interrupted) for number in numbers}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: self._wake())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._wake()
