"""Another program takes over an epoch whose first step fails in the user's code: nothing of the epoch is decided.

It is a program that is being deployed, or the one before the program in force, if this one is on probation. Epochs of the
program may be committed already: a source may have nothing to read for long, and empty epochs prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import Refusal
from ferry.driver.life import Life
from ferry.driver.program_list import awaits


class TakingOver:
    """The programs of one life of the driver that may be left. Thread-safe: of two deploys that begin, one is refused."""

    def __init__(
        self,
        life: Life,
        go_back: Callable[[ProgramRecord, str], None],
        now: Callable[[], ProgramRecord | None],
        under_way: Callable[[], tuple[ProgramRecord | None, str]],
    ) -> None:
        """`go_back(record, why)` deploys the program before; `now()` is the program in force; `under_way()`: the present
        deploy and its phase."""
        self._life = life
        self._go_back = go_back
        self._now = now
        self._under_way = under_way

    def leaves(self, why: str, again: bool) -> bool:
        """See `Versions`."""
        if self._under_way()[0] is None and again and (record := self._now()) is not None and _may_go_back(record):
            with suppress(Refusal):
                self._go_back(record, why)
        follower, phase = self._under_way()
        if follower is None or follower.beside is not None or phase == "rewinding":
            return False
        return not awaits(follower, self._life.metrics.epoch + 1)


def _may_go_back(record: ProgramRecord) -> bool:
    """Whether the program is on probation, alone. A program to which the job has gone back has none."""
    return bool(record.probation) and record.beside is None
