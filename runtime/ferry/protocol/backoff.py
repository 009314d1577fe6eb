"""Pauses after failures, of instances, pairs of instances and moves. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """No retry before `until`."""

    since: int
    """The first failure in a row."""
    until: int
    wait: int

    @staticmethod
    def after(before: Backoff | None, now: int, first: int, longest: int) -> Backoff:
        """After another failure: twice the last pause, unless things went well for `longest` before it."""
        if before is None or now >= before.until + longest:
            return Backoff(now, now + first, first)
        wait = min(2 * before.wait, longest)
        return Backoff(before.since, now + wait, wait)
