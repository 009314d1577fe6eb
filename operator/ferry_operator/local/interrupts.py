"""Counts interrupts: Ctrl-C, SIGTERM, and a closed terminal. Decides nothing.

The end of a child process also wakes the supervisor, so that it does not wait for its next round.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """A context that counts interrupts instead of raising them; only in the main thread."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """The signal handler calls `wake`."""
        self.count = 0
        self._wake = wake
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)  # a job under nohup outlives its terminal
        self._before = {number: signal.signal(number, self._interrupted) for number in numbers}
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: self._wake())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._wake()
