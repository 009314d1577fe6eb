"""The probation of a deployed program: a verdict on its first epochs, and how often a driver has begun them.

    deployed --> probation: its rows meet the expectations, its epochs are not much slower, no driver dies of it, its code
                     |      does not fail in the first step of an epoch (`taking_over`) --> passed
                     '-- else the job goes back to the program before, automatically

The journal has the probation and the tries, so a new driver goes on with them. A first program has no probation.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ferry.contract.catalogue import TRIES_MAX, Catalogue, ProgramRecord
from ferry.contract.programs import ProgramVersion
from ferry.contract.routing import Table
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.driver import exits
from ferry.driver.announcer import Announcer
from ferry.driver.expectations import Violation, tell

log = logging.getLogger("ferry.driver")

EPOCHS_MIN = 5
"""Epochs with rows, before and after the switch, from which a median says something."""

SLOW_SECONDS = 1.0
"""A median below it is never too slow."""

AGAIN_SECONDS = 10.0
"""Between two tries to end a program beside another one."""

TRIES_SECONDS = 600.0
"""After a deploy: the time in which a driver that ends is counted."""

WENT_BACK = "ProgramWentBack"
"""The name of the warning in the driver's status."""


class Passed(NamedTuple):
    """The probation of a program is over."""

    number: int


class Probation:
    """The verdict on one program; pure."""

    def __init__(self, seconds: float, slower: float, before: Sequence[float]) -> None:
        """`slower`: how many times longer than before its epochs may last, 0: as long as they want; `before`: seconds of
        epochs of the program before."""
        self._seconds = seconds
        self._slower = slower
        self._before = statistics.median(before) if len(before) >= EPOCHS_MIN else None
        self._lasted: list[float] = []
        self._until: float | None = None

    def judged(self, now: float, seconds: float, violations: Sequence[object]) -> str:
        """Why the job has to go back after an epoch with rows; empty: it has not to. `now`: monotonic, at its end."""
        self._until = self._until if self._until is not None else now + self._seconds
        self._lasted.append(seconds)
        if violations:
            return str(violations[0])
        median = statistics.median(self._lasted)
        if not self._slower or self._before is None or len(self._lasted) < EPOCHS_MIN or median < SLOW_SECONDS:
            return ""
        if median <= self._slower * self._before:
            return ""
        return (
            f"its epochs last {median:.1f} s, more than {self._slower:g} times as long as before the switch "
            f"({self._before:.2f} s; medians)"
        )

    def is_over(self, now: float) -> bool:
        """Whether its time is over, and enough epochs with rows have ended to compare them."""
        enough = len(self._lasted) >= (EPOCHS_MIN if self._slower and self._before is not None else 1)
        return enough and self._until is not None and now >= self._until


class OnProbation:
    """The probation of the program in force, in one life of the driver."""

    def __init__(self, metrics: DriverMetrics) -> None:
        self._metrics = metrics
        self._of: tuple[int, bool] | None = None
        self._probation: Probation | None = None
        self._why = ""
        self._passed = 0

    def ended(
        self, record: ProgramRecord, now: ProgramVersion, epoch: EpochRecord, violations: Sequence[Violation]
    ) -> str:
        """Why the job has to go back after this epoch of the program in force, `record`; empty: it has not to."""
        tell(violations, self._metrics)
        if not record.probation:
            return ""
        if self._of != (of := (record.settles or record.number, record.is_shadow)):
            before = [one.end - one.begin for one in self._metrics.recent if one.epoch < now.since and one.rows]
            both = record.beside is not None  # An epoch runs two programs.
            self._of, self._why = of, ""
            self._probation = Probation(record.probation, 0.0 if both else record.slower, before)
        assert self._probation is not None
        mine = [one for one in violations if one.silent or not record.is_shadow]
        if not self._why and (epoch.rows or mine):
            self._why = self._probation.judged(time.monotonic(), epoch.end - epoch.begin, mine)
        return self._why

    def has_passed(self, record: ProgramRecord) -> bool:
        """Whether the program in force, of which an epoch is over, passes its probation now. True once."""
        if record.is_shadow or self._passed == record.number or not (record.tries or record.probation):
            return False
        if record.probation and (self._probation is None or not self._probation.is_over(time.monotonic())):
            return False
        self._passed = record.number
        return True

    def tell_back(self, record: ProgramRecord, why: str) -> None:
        """The job goes back from a program."""
        log.warning("the job goes back from program %d: %s", record.number, why)
        self._metrics.problems.caught_up(WENT_BACK)
        self._metrics.problems.warn(WENT_BACK, f"the job goes back from program {record.number}: {why}")


def deployed(record: ProgramRecord, since: int) -> ProgramRecord:
    """The program, in force from this epoch on. Drivers that die later are not the fault of a program that was in force
    before, and has passed: to leave it would lead to a program that the job has left. Its times begin with the switch."""
    was = record.back_from > 0 or (record.settles is not None and not record.probation)
    deployed_at = time.time() if record.since is None else record.deployed_at
    return replace(record, since=since, tries=0 if was else record.tries, deployed_at=deployed_at)


def passed(record: ProgramRecord) -> ProgramRecord:
    """The program after its probation."""
    return replace(record, tries=0, probation=0.0)


def was_refused(record: ProgramRecord, catalogue: Catalogue) -> bool:
    """Whether the way back from this program was refused, and is not tried again. The end of one of two programs that run
    side by side is tried again after a pause: until then neither goes on alone."""
    left = record.settles or record.number
    tries = [one for one in catalogue.programs if one.back_from == left and one.refused and one.base == record.number]
    return any(record.beside is None or time.time() < one.deployed_at + AGAIN_SECONDS for one in tries)


def exhausted(tries: int) -> str:
    """Why no driver tries a program again with which this number of drivers have begun; empty: a driver may."""
    if tries < TRIES_MAX:
        return ""
    return (
        f"{TRIES_MAX} drivers have ended before its probation was over (`ferry logs` has their last words): no other driver "
        "tries it"
    )


def tried(
    record: ProgramRecord, catalogue: Catalogue | None, table: Table | None, announcer: Announcer
) -> ProgramRecord:
    """Journal that this driver begins with a program that is on probation, before any of it runs here.

    Not long after its deploy: without a record its probation does not end, and a driver may end for another reason.
    """
    is_late = time.time() > record.deployed_at + max(record.probation, TRIES_SECONDS)
    if catalogue is None or not record.tries or is_late:
        return record
    record = replace(record, tries=record.tries + 1)
    exits.try_again_if(lambda: True)
    announcer.record(catalogue.with_program(record), table.version.generation if table is not None else 0)
    return record
