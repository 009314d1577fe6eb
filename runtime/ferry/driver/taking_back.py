"""A program in force is taken back before its first epoch is committed, at the request of a user. The coordinator may be too
late for it: then the user gets another answer.
"""

from __future__ import annotations

import time

from ferry.contract.errors import Unreachable
from ferry.contract.programs import ROLLED_BACK
from ferry.coordinator.loop import Loop
from ferry.protocol import coordinator as core

SECONDS_MAX = 2.0
"""The journal may be away. A request takes less time than its client waits."""

LOOK_SECONDS = 0.01

REPEATED_SECONDS = 10.0
"""A client repeats a request without an answer sooner; a later request is another one."""


class TakingBack:
    """Requests to take a program back. Called on threads of requests."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._asked: tuple[int, float] | None = None
        """The program of the last request without an answer, and when the request was given up."""

    def may(self, number: int) -> bool:
        """Whether a program in force can be taken back."""
        return bool(self._loop.machine.deploying.may_take_back(number))

    def is_repeated(self, now: int) -> bool:
        """Whether the request before, which got no answer, has led to the program in force. True once."""
        asked, self._asked = self._asked, None
        return asked is not None and now < asked[0] and time.monotonic() - asked[1] < REPEATED_SECONDS

    def ask(self, now: int) -> int | None:
        """Take the program in force back. Returns the program before; None: it is committed by now. Raises Unreachable."""
        deadline = time.monotonic() + SECONDS_MAX
        self._loop.post(core.Withdraw(now, ROLLED_BACK))
        while time.monotonic() < deadline:
            newest = self._loop.machine.table.programs[-1].number
            if newest < now or not self.may(now):
                return int(newest) if newest < now else None
            time.sleep(LOOK_SECONDS)
        self._asked = now, time.monotonic()
        raise Unreachable(f"program {now} is not taken back yet: the journal does not answer")
