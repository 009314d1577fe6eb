"""What is left alone for a while because it has just failed: instances, pairs of them, moves. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Not tried before `until`."""

    since: int
    """The first time in a row."""
    until: int
    wait: int

    @staticmethod
    def after(before: Backoff | None, now: int, first: int, longest: int) -> Backoff:
        """It has failed (again): twice as long as the last time, unless it went well for as long as `longest`."""
        if before is None or now >= before.until + longest:
            return Backoff(now, now + first, first)
        wait = min(2 * before.wait, longest)
        return Backoff(before.since, now + wait, wait)
