"""The problems of a driver: failures that it tries again, warnings that last, and the user's code that runs for long.

Thread-safe. The timeline has each problem once, the status has its latest text.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ferry.contract.limits import SLOW_MS
from ferry.contract.status import CHECKPOINT_DELAYED, ReportedProblem
from ferry.protocol.coordinator import Coordinator

TEXT_MAX = 1000
"""Characters of the text of a problem: it travels with every status."""

SLOW_CODE = "SlowCode"
"""Reason of the problem that the user's code takes long."""

NUMBER = re.compile(r"\d+")


class Problems:
    """The problems of one driver."""

    def __init__(self, note: Callable[[str, str], None], slow_ms: int = SLOW_MS) -> None:
        """`note`: writes a record of this kind, with this text, to the timeline."""
        self._note = note
        self.slow_ms = slow_ms
        self.current: tuple[ReportedProblem, ...] = ()
        """Failures that are tried again."""
        self.lasting: tuple[ReportedProblem, ...] = ()
        """Warnings: a user should mend it, though the job goes on."""
        self._since: dict[str, float] = {}
        """When a current problem began (monotonic), by reason."""
        self._running: dict[object, tuple[str, float]] = {}
        """The user's code that runs for this driver: a text, and since when (monotonic)."""
        self._lock = threading.Lock()

    def warn(self, reason: str, text: str) -> None:
        """A user should mend this: it stays in the status for as long as this driver lives."""
        self._note("warning", text)
        self.lasting = (*self.lasting, ReportedProblem(reason, text[:TEXT_MAX], time.time()))

    def delayed(self, reason: str, text: str) -> None:
        """Work is late that the job does not wait for. The timeline has it once, the status has its latest text.

        A text that differs in its numbers alone, such as the milliseconds of an attempt, changes nothing: on a cluster each
        new text is an event.
        """
        known = next((one for one in self.lasting if one.reason == reason), None)
        if known is None:
            self.warn(reason, text)
        elif NUMBER.sub("", known.text) != NUMBER.sub("", text[:TEXT_MAX]):
            self.lasting = tuple(replace(t, text=text[:TEXT_MAX]) if t is known else t for t in self.lasting)

    def caught_up(self, reason: str) -> None:
        """The work is done: the warning goes."""
        if any(one.reason == reason for one in self.lasting):
            self.lasting = tuple(one for one in self.lasting if one.reason != reason)
            self._note("mended", reason)

    def is_late(self) -> bool:
        """Whether a durable checkpoint is late."""
        return any(one.reason == CHECKPOINT_DELAYED for one in self.lasting)

    def report(self, reason: str, text: str) -> None:
        """A failure that is tried again. The timeline has it once, the status has its latest text."""
        text = text[:TEXT_MAX]
        with self._lock:
            known = next((t for t in self.current if t.reason == reason), None)
            if known is None:
                self.current = (*self.current, ReportedProblem(reason, text, time.time()))
                self._since[reason] = time.monotonic()
            else:
                self.current = tuple(replace(t, text=text) if t is known else t for t in self.current)
        if known is None:
            self._note("degraded", text)

    def mended(self, reason: str) -> None:
        """The problem is over, if there was one."""
        with self._lock:
            over = any(one.reason == reason for one in self.current)
            self.current = tuple(one for one in self.current if one.reason != reason)
        if over:
            self._note("mended", f"{reason}, after {time.monotonic() - self._since[reason]:.1f} s")

    @contextmanager
    def running(self, text: str) -> Iterator[None]:
        """Around the user's code in this process, or in tasks that are waited for. `text`: what the code does."""
        mine = object()
        self._running[mine] = text, time.monotonic()
        try:
            yield
        finally:
            del self._running[mine]

    def tell_slow_code(self, machine: Coordinator) -> None:
        """Report the user's code that takes long, here and in instances; to be called again and again."""
        now = time.monotonic()
        running = [(text, int((now - since) * 1000)) for text, since in [*self._running.values()]]
        instances = sorted(dict(machine.members.in_code).items())
        running += [(f"{i}: {what}, for", machine.now - since) for i, (what, since) in instances]
        if slow := [f"{text} {ms // 1000} s" for text, ms in running if ms >= self.slow_ms]:
            self.report(SLOW_CODE, "; ".join(slow))
        else:
            self.mended(SLOW_CODE)
