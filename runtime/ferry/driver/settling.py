"""Programs that only lead to another one, which the driver deploys when the time has come.

retired operators    their open windows have fired           the same text without the operators
a shadow             it was compared for K epochs             alone, if no row differs; else the program before, alone
a kept program       its time is over                         the new program alone
either one           its code has failed                      the half that is written alone
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from ferry.contract.catalogue import ProgramRecord
from ferry.contract.errors import Refusal
from ferry.contract.notes import EpochNotes
from ferry.contract.results import result_of
from ferry.driver.beside import ALONE, comparison_in, new_alone, old_alone
from ferry.driver.event_time import crossed
from ferry.driver.life import Life
from ferry.driver.program import Program
from ferry.driver.retiring import ends

log = logging.getLogger("ferry.driver")

SETTLE_SECONDS = 10.0
"""Between two tries to deploy the next program."""


class Settling:
    """Of one life of the driver."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._ends: dict[int, dict[int, int]] = {}
        """By number of the program in force: when the windows of its retired operators have fired, by id."""
        self._again_at = 0.0

    def following(
        self, record: ProgramRecord, program: Program, notes: EpochNotes, number: int
    ) -> ProgramRecord | None:
        """The program with this number, if one has to follow the one in force. `notes`: of an epoch that is over."""
        if (comparison := comparison_in(program.plan)) is not None:
            comparison.ended()
        if (not record.retires and record.beside is None) or time.monotonic() < self._again_at:
            return None
        following = (
            self._half(record, program, notes, number)
            if record.beside is not None
            else self._rest(record, program, notes)
        )
        if following is None:
            return None
        self._again_at = time.monotonic() + SETTLE_SECONDS
        return replace(following, number=number)

    def back(self, record: ProgramRecord, number: int) -> ProgramRecord:
        """The program before alone, with this number: a rollback of `record`, which runs beside it. Raises Refusal."""
        assert record.beside is not None
        before = self._life.announcer.catalogue.program(record.beside.program)
        if before is None:
            raise Refusal(f"the journal has no text of program {record.beside.program}")
        return old_alone(record, number, before)

    def _rest(self, record: ProgramRecord, program: Program, notes: EpochNotes) -> ProgramRecord | None:
        """Without the retired operators, once their windows have fired."""
        if record.number not in self._ends:
            self._ends = {record.number: ends(record, program.plan, notes)}
        results = self._life.loop.machine.commits.results
        if any(result_of(results, n).high < end for n, end in self._ends[record.number].items()):
            return None
        count = len(record.operators) - len(record.retires)
        return replace(
            record,
            operators=record.operators[:count],
            descriptors=record.descriptors[:count],
            retires=(),
            settles=record.settles or record.number,
            **ALONE,
            base=record.number,
            deployed_at=time.time(),
        )

    def failure(self, record: ProgramRecord, program: Program | None, notes: EpochNotes) -> str:
        """Why the half of a program that is not written has failed; empty: it has not, or there is no such half."""
        comparison = comparison_in(program.plan) if program is not None else None
        return notes.failure(record.number) or (comparison.failed if comparison is not None else "")

    def lacks(self, following: ProgramRecord, program: Program | None = None, new: Program | None = None) -> str:
        """Why a program cannot follow `program`; empty: it can. `new`: the program itself, once it is built.

        It goes on with the half that has failed, or comes too late for the `until` of a window.
        """
        now, machine = self._life.loop.machine.table.programs[-1], self._life.loop.machine
        record, notes = self._life.announcer.catalogue.program(now.number), EpochNotes.load(machine.commits.meta)
        if new is not None and program is not None and following.number > now.number:
            old = dict(zip(now.operators, program.plan.operators, strict=True))
            if late := crossed(new.plan.operators, following.operators, dict(following.altered), old, notes):
                return late
        if record is None or not {*now.silent} & {*following.operators}:
            return ""
        failed = self.failure(record, program, notes)
        return failed and f"its state lacks epochs, because its code failed beside the program in force: {failed}"

    def _half(self, record: ProgramRecord, program: Program, notes: EpochNotes, number: int) -> ProgramRecord | None:
        """The new program or the one before, once it is known which one."""
        assert record.beside is not None
        comparison = comparison_in(program.plan)
        catalogue = self._life.announcer.catalogue
        before = catalogue.program(record.beside.program)
        if failed := self.failure(record, program, notes):
            if not record.failed:
                what = (
                    "the shadow ends" if record.is_shadow else f"program {record.beside.program} is not kept any more"
                )
                self._life.metrics.note("degraded", f"program {record.number}: {what}: {failed}")
                log.warning("program %d: %s: %s", record.number, what, failed)
            if not record.is_shadow:
                return new_alone(record, number, program.plan.operators)
            return old_alone(record, number, before) if before is not None else None
        if not record.is_shadow:
            is_over = time.time() > record.deployed_at + record.beside.keep
            return new_alone(record, number, program.plan.operators) if is_over else None
        if comparison is None or before is None or not comparison.is_over:
            return None
        refused = any(one.refused and one.settles == record.number for one in catalogue.programs)
        equal = not comparison.missing and not comparison.more and not refused
        if not record.compared:
            goes_on = f"program {number if equal else before.number} goes on alone"
            self._life.metrics.note("shadow", f"program {record.number}: {comparison.words()}; {goes_on}")
            log.info("program %d: %s; %s", record.number, comparison.words(), goes_on)
        return new_alone(record, number, program.plan.operators) if equal else old_alone(record, number, before)
