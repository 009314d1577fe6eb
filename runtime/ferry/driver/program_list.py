"""The programs of a job: the list, the status of the driver, the orders for the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from ferry.contract.catalogue import Catalogue, ProgramRecord
from ferry.contract.programs import ProgramVersion
from ferry.contract.status import ProgramStatus
from ferry.driver.beside import comparison_in
from ferry.driver.life import Life
from ferry.driver.program import Program
from ferry.protocol import coordinator as core

REFUSAL_MAX = 4000
"""Characters of a refusal in the status."""


class ProgramList:
    """Of one life of the driver. `programs`: the built programs, by number; `under_way()`: the deploy, and its phase."""

    def __init__(
        self, life: Life, programs: Mapping[int, Program], under_way: Callable[[], tuple[ProgramRecord | None, str]]
    ) -> None:
        self._life = life
        self._programs = programs
        self._under_way = under_way

    def programs(self) -> list[dict[str, Any]]:
        """All programs that are remembered, the newest first."""
        now = self._in_force
        return [self._shown(one, now) for _, one in sorted(self._known().items(), reverse=True)]

    def brief(self) -> tuple[ProgramStatus, ...]:
        """The program in force, the program that writes beside it, and the newest one."""
        now, known, catalogue = self._in_force, self._known(), self._life.announcer.catalogue
        both = known[now.number].beside if now.number in known else None
        numbers = {now.number, max(known), *([both.program] if both is not None else [])}
        return tuple(brief(known[n], now, self._state(known[n], now), catalogue) for n in sorted(numbers) if n in known)

    @property
    def _in_force(self) -> ProgramVersion:
        return self._life.loop.machine.table.programs[-1]

    def _known(self) -> dict[int, ProgramRecord]:
        """All programs that are remembered, by number, also one that is not journaled yet."""
        under_way, _ = self._under_way()
        known = {one.number: one for one in self._life.announcer.catalogue.programs}
        return known | ({under_way.number: under_way} if under_way is not None else {})

    def _shown(self, record: ProgramRecord, now: ProgramVersion) -> dict[str, Any]:
        shown = record.listed(now, self._state(record, now))
        program = self._programs.get(record.number) if record.number == now.number and not record.compared else None
        comparison = comparison_in(program.plan) if program is not None else None
        return shown if comparison is None else shown | {"compared": comparison.listed()}

    def _state(self, record: ProgramRecord, now: ProgramVersion) -> str:
        if record.number == now.number:
            if self._life.loop.machine.deploying.may_take_back(now.number):
                return "first epoch"
            return "shadow" if record.is_shadow else "in force"
        both = self._life.announcer.catalogue.program(now.number)
        if both is not None and both.beside is not None and both.beside.program == record.number:
            return "in force" if both.is_shadow else "kept"
        if record.refused:
            return "refused"
        under_way, phase = self._under_way()
        mine = under_way is not None and under_way.number == record.number
        return phase if mine else "wanted" if record.number > now.number else "over"


def awaits(record: ProgramRecord, epoch: int) -> str:
    """For what a loaded program waits, `epoch` being the next one; empty: for nothing."""
    if record.at > epoch:
        return f"waiting for epoch {record.at}"
    if record.at_time is None:
        return ""
    return f"waiting for event time {datetime.fromtimestamp(record.at_time / 1000, UTC).isoformat()}"


def order_of(record: ProgramRecord, catalogue: Catalogue) -> core.Deploy:
    """The order to deploy a program, for the coordinator."""
    return core.Deploy(
        record.number,
        record.operators,
        catalogue.dump().encode(),
        record.at,
        record.altered,
        record.base,
        record.silent,
        record.at_time,
    )


def brief(record: ProgramRecord, now: ProgramVersion, state: str, catalogue: Catalogue) -> ProgramStatus:
    """A program in the status of the driver."""
    again = [
        earlier.number
        for earlier in catalogue.programs
        if earlier.number < (record.settles or record.number)
        and earlier.since is not None
        and earlier.settles is None
        and earlier.identity == record.identity
    ]
    return ProgramStatus(
        number=record.number,
        state=state,
        since=record.since_in(now),
        identity=record.identity,
        hash=record.hash,
        refused=record.refused[:REFUSAL_MAX],
        attempt=record.attempt,
        again=max(again, default=None),
    )
