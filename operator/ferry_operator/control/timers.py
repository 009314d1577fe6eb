"""Durations for `decide`, which has no clock: how long instances are missing, and how long the load is uneven.

The timers are in memory only: an operator that takes over starts them again, and waits a little longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ferry.contract.names import InstanceId
from ferry_operator.control import decide as d
from ferry_operator.control.balancing import Advice
from ferry_operator.control.observed import Observed
from ferry_operator.control.placing import Placements

LOOK_SECONDS = 2.0
"""Greatest age of an advice: loads change slowly."""


@dataclass(slots=True)
class LookTimers:
    """Timers of one job."""

    since: dict[InstanceId, float] = field(default_factory=dict)
    """time since when an instance is missing"""
    uneven: float | None = None
    """time since when `kept` has been worth a move at every look; None: no placement is"""
    kept: Placements | None = None
    """the placement that was advised at that time"""
    balance: Advice | None = None
    """the last advice"""
    looked: tuple[object, float] = (None, 0.0)
    """the input of the last advice, and its time"""

    def timed(self, observed: Observed, now: float) -> Observed:
        """The look with its durations set. `now`: in seconds."""
        status = observed.status
        absent = [i for i in observed.expected() if i not in status.alive] if status is not None else []
        self.since = {i: self.since.get(i, now) for i in absent}
        observed = replace(observed, missing={i: now - since for i, since in self.since.items()})
        inputs = (observed.wanted, observed.submitted, status.version if status is not None else None)
        if self.looked[0] != inputs:
            self.kept = self.uneven = None
        if self.looked[0] != inputs or now - self.looked[1] >= LOOK_SECONDS:
            self._advise(observed, now)
            self.looked = (inputs, now)
        return replace(observed, advice=self.balance, uneven=now - self.uneven if self.uneven is not None else 0.0)

    def _advise(self, observed: Observed, now: float) -> None:
        self.balance = advice = d.advice(observed, self.kept)
        if advice is None or not advice.worth:
            self.kept = self.uneven = None
        elif not advice.steady:
            self.kept, self.uneven = advice.placements, now
