"""Since when what is seen of a job is so, for `decide`, which has no clock: seconds that instances are missing, and for
which the load is uneven. Clocks only: another operator that takes over waits a little longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ferry.contract.names import InstanceId
from ferry_operator.control import decide as d
from ferry_operator.control.balancing import Advice
from ferry_operator.control.observed import Observed
from ferry_operator.control.placing import Placements

LOOK_SECONDS = 2.0
"""How old an advice may be: loads change slowly."""


@dataclass(slots=True)
class LookTimers:
    """Timers of one job."""

    since: dict[InstanceId, float] = field(default_factory=dict)
    """when an instance was first missed"""
    uneven: float | None = None
    """since when `kept` is worth a move at every look; None: nothing is"""
    kept: Placements | None = None
    """what was advised then"""
    balance: Advice | None = None
    """the last one"""
    looked: tuple[object, float] = (None, 0.0)
    """of which groups and policy it is, and when it was made"""

    def timed(self, observed: Observed, now: float) -> Observed:
        """What is observed, with what only a clock knows. `now`: in seconds."""
        status = observed.status
        absent = [i for i in observed.expected() if i not in status.alive] if status is not None else []
        self.since = {i: self.since.get(i, now) for i in absent}
        observed = replace(observed, missing={i: now - since for i, since in self.since.items()})
        what = (observed.wanted, observed.submitted, status.version if status is not None else None)
        if self.looked[0] != what:
            self.kept = self.uneven = None
        if self.looked[0] != what or now - self.looked[1] >= LOOK_SECONDS:
            self._advise(observed, now)
            self.looked = (what, now)
        return replace(observed, advice=self.balance, uneven=now - self.uneven if self.uneven is not None else 0.0)

    def _advise(self, observed: Observed, now: float) -> None:
        self.balance = found = d.advice(observed, self.kept)
        if found is None or not found.worth:
            self.kept = self.uneven = None
        elif not found.steady:
            self.kept, self.uneven = found.placements, now
