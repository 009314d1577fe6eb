"""Journals the outcomes of deploys: a program is in force, is refused, or has passed its probation.

    the coordinator, or a check: Deployed, Passed --> the journal --> `over(number)`: the next deploy may begin

Must never journal for a driver that another one has superseded.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import Superseded
from ferry.driver.expectations import VIOLATED
from ferry.driver.life import Life
from ferry.driver.probation import WENT_BACK, Passed, deployed, passed
from ferry.driver.program import Program
from ferry.protocol import coordinator as core

log = logging.getLogger("ferry.driver")


class Outcomes:
    """Of one life of the driver; a thread of its own journals them."""

    def __init__(
        self,
        life: Life,
        programs: MutableMapping[int, Program],
        writing: threading.RLock,
        under_way: Callable[[], ProgramRecord | None],
        over: Callable[[int], None],
    ) -> None:
        """`programs`: that are built here; `writing`: from a look at the journal to its write."""
        self._life = life
        self._programs = programs
        self._writing = writing
        self._under_way = under_way
        self._over = over
        self._outcomes: queue.SimpleQueue[core.Deployed | Passed] = queue.SimpleQueue()
        self.tell = self._outcomes.put
        """Journal an outcome soon. On any thread."""

    def start(self) -> None:
        """Begin to journal."""
        threading.Thread(target=self._run, name="deployed", daemon=True).start()

    def forget(self, number: int) -> None:
        """Drop a program that is not deployed: its tasks hold slots."""
        if (loops := self._life.program.loops) is not None and loops.has(number):
            loops.forget(number)
        self._programs.pop(number, None)

    def record_as(self, record: ProgramRecord) -> None:
        """Journal a known program, unless another driver does by now."""
        announcer = self._life.announcer
        with suppress(Superseded), self._writing:
            announcer.record(announcer.catalogue.with_program(record), self._life.loop.machine.generation)

    def _run(self) -> None:
        while True:
            outcome = self._outcomes.get()
            with self._writing:
                self._take(outcome)

    def _take(self, outcome: core.Deployed | Passed) -> None:
        catalogue, metrics = self._life.announcer.catalogue, self._life.metrics
        if isinstance(outcome, Passed):
            for deployed_as in catalogue.deployed_as(outcome.number):
                self.record_as(passed(deployed_as))
            return
        record = self._under_way()
        if record is None or record.number != outcome.number:
            record = catalogue.program(outcome.number)
        if record is None:
            return
        if outcome.refused:
            self.forget(outcome.number)
            metrics.note("deploy-refused", f"program {outcome.number}: {outcome.refused}")
            log.warning("program %d is refused: %s", outcome.number, outcome.refused)
            record = replace(record, refused=outcome.refused, since=None)
        else:
            record = deployed(record, self._life.loop.machine.table.programs[-1].since)
            for problem in () if record.back_from else (WENT_BACK, VIOLATED):
                metrics.problems.caught_up(problem)
        self.record_as(record)
        self._over(outcome.number)
