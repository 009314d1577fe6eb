"""The programs of a job: the list, the status of the driver, the orders for the coordinator."""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ferry.contract.catalogue import Beside, Catalogue, DeployRequest, ProgramRecord
from ferry.contract.errors import FerryError, Refusal, SpecRefused, Unreachable
from ferry.contract.last_words import words_of as error_words
from ferry.contract.program_text import sealed
from ferry.contract.programs import ProgramVersion
from ferry.contract.run_directory import PROGRAMS
from ferry.contract.settings import RunSettings
from ferry.contract.status import ProgramStatus
from ferry.driver.beside import comparison_in
from ferry.driver.comparison import Comparison, words_of
from ferry.driver.life import Life
from ferry.driver.program import Program
from ferry.protocol import coordinator as core
from ferry.system import program_texts

log = logging.getLogger("ferry.driver")

REFUSAL_MAX = 4000
"""Characters of a refusal in the status."""

EXAMPLES_MAX = 4
"""Rows that differ, in the reason why a shadow was dropped."""


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

    def catalogue(self) -> dict[str, Any]:
        """All operators of the job, and the ids in force whose rows are written."""
        now = self._in_force
        written = [number for number in now.operators if number not in now.silent]
        return {"catalogue": self._life.announcer.catalogue.dump(), "inForce": written}

    def brief(self) -> tuple[ProgramStatus, ...]:
        """The program whose rows are written, the program beside it, and the newest one.

        After these a shadow that was dropped, or a program from which the job went back automatically, as refused, until
        there is a newer program. A refused program that no user deployed is no answer to a deploy.
        """
        now, known, catalogue = self._in_force, self._known(), self._life.announcer.catalogue
        record = known.get(now.number)
        if record is None:
            return ()
        both = record.beside
        newest = max(number for number, one in known.items() if number == now.number or not one.is_refused_follower)
        written = both.program if both is not None and record.is_shadow else now.number
        numbers = {now.number, newest, *([both.program] if both is not None else [])}
        ordered = sorted(numbers, key=lambda number: (number != written, number))
        shown = [self._brief(known[number], now, catalogue) for number in ordered if number in known]
        shadow = catalogue.shadow_before(record)
        if len(shown) == 1 and shadow is not None and record.settles != shadow.number:
            refused = dropped(shadow, catalogue)[:REFUSAL_MAX]
            shown.append(replace(self._brief(shadow, now, catalogue), state="refused", refused=refused))
        if newest == now.number and (left := known.get(record.back_from)) is not None:
            shown.append(brief(replace(left, refused=record.because), now, "refused", catalogue))
        return tuple(shown)

    def require_open(self, number: int | None) -> None:
        """Raises Refusal unless this program is being deployed, may be taken back, or runs beside another one; None: any."""
        (under_way, _), now = self._under_way(), self._in_force.number
        if number is None or (under_way is not None and under_way.number == number):
            return
        record = self._known().get(now)
        beside = record is not None and record.beside is not None
        if number != now or not (beside or self._life.loop.machine.deploying.may_take_back(now)):
            raise Refusal(f"program {number} is not being deployed any more")

    def _brief(self, record: ProgramRecord, now: ProgramVersion, catalogue: Catalogue) -> ProgramStatus:
        shadow, running = catalogue.shadow_before(record), self._comparison(record, now)
        compared = ""
        if running is not None:
            compared = running.progress()
        elif shadow is not None and record.settles == shadow.number:
            compared = words_of(shadow.compared)
        state = "over" if record.is_withdrawn else self._state(record, now)
        return replace(brief(record, now, state, catalogue), compared=compared)

    @property
    def _in_force(self) -> ProgramVersion:
        return self._life.loop.machine.table.programs[-1]

    def _known(self) -> dict[int, ProgramRecord]:
        """All programs that are remembered, by number, also one that is not journaled yet."""
        under_way, _ = self._under_way()
        known = {one.number: one for one in self._life.announcer.catalogue.programs}
        return known | ({under_way.number: under_way} if under_way is not None else {})

    def _shown(self, record: ProgramRecord, now: ProgramVersion) -> dict[str, Any]:
        shown, comparison = record.listed(now, self._state(record, now)), self._comparison(record, now)
        shown["wentBack"] = self._life.announcer.catalogue.back_from(record.number)
        return shown if comparison is None else shown | {"compared": comparison.listed()}

    def _comparison(self, record: ProgramRecord, now: ProgramVersion) -> Comparison | None:
        """Of a shadow that runs."""
        program = self._programs.get(record.number) if record.number == now.number and not record.compared else None
        return comparison_in(program.plan) if program is not None else None

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
        return phase if mine else "wanted" if record.number > now.number and not record.rewound else "over"


def dropped(shadow: ProgramRecord, catalogue: Catalogue) -> str:
    """Why a shadow does not go on."""
    compared = shadow.compared
    alone = next((one.refused for one in catalogue.programs if one.refused and one.settles == shadow.number), "")
    parts = [f"as a shadow, {words_of(compared)}", alone, *compared["examples"][:EXAMPLES_MAX]]
    return "; ".join(part for part in parts if part)


def earlier_of(catalogue: Catalogue, now: int, number: int | None) -> ProgramRecord:
    """An earlier program that can be deployed again; `number`: None for the one before `now`. Raises Refusal."""
    before = catalogue.before(now)
    chosen = catalogue.program(number) if number is not None else (before[-1] if before else None)
    if chosen is None or chosen.number == now or chosen.since is None:
        which = "no program was in force before" if number is None else f"program {number} was never in force before"
        numbers = ", ".join(str(one.number) for one in before) or "none"
        raise Refusal(f"{which}; earlier programs: {numbers}")
    if chosen.hash and not (chosen.text or Path(chosen.folder or "").is_dir()):
        raise Refusal(f"the text of program {chosen.number} is not kept any more: deploy its file again")
    return chosen


def again(program: ProgramRecord, at: int) -> DeployRequest:
    """The request for an earlier program, without a probation."""
    request = DeployRequest(*program.pipeline, program.arguments, at, program.text, program.attempt)
    return replace(request, probation=0.0, slower=0.0)


def record_of(
    request: DeployRequest, number: int, now: ProgramRecord | None, base: int, settings: RunSettings
) -> ProgramRecord:
    """The record of a requested program. `now`: the program in force, `base`: its number.

    Raises Refusal for a folder that is no copy of this run.
    """
    arguments = request.arguments if request.arguments is not None else (now.arguments if now is not None else {})
    folder = program_texts.written(settings.path, request.file or "", request.text) if request.text else request.folder
    if folder is not None and Path(folder).parent != settings.path / PROGRAMS:
        raise Refusal(f"{folder} is no copy of a program of this run")
    return ProgramRecord(
        number,
        (),
        (),
        module=request.module,
        file=request.file,
        folder=folder,
        arguments=dict(arguments),
        deployed_at=time.time(),
        started_with=settings.started_with,
        base=base,
        at=request.at,
        at_time=request.at_time,
        text=request.text,
        seal=sealed(request.text, settings.secret) if request.text else "",
        attempt=request.attempt,
        beside=Beside(base, request.shadow, request.keep) if request.shadow or request.keep else None,
        probation=request.probation,
        slower=request.slower,
    )


REQUESTED = operator.attrgetter(
    "module", "file", "folder", "arguments", "at", "at_time", "text", "attempt", "beside", "probation", "slower"
)


def asks_the_same(record: ProgramRecord, other: ProgramRecord) -> bool:
    """Whether two requests are equal."""
    return bool(REQUESTED(record) == REQUESTED(other))


def answered(record: ProgramRecord, base: int, other: ProgramRecord | None, now: int, catalogue: Catalogue) -> int:
    """The program that was deployed for an equal request, whose answer was lost; 0: there is none.

    `base`: the program that the user looked at, 0: any; `other`: the deploy under way, which was looked up before `now`, the
    program in force. Raises Refusal if another program than `base` is in force, or may be at any moment.
    """
    if other is not None and asks_the_same(record, other):
        return other.number
    present, seen = catalogue.program(now), catalogue.program(base)
    if not base or present is None:
        return 0
    besides = [one.beside and one.beside[1:] for one in (record, present)]
    if (present.base, present.identity) == (base, record.identity) and besides[0] == besides[1]:
        return now
    if present.beside is not None:
        return 0
    if other is not None:
        raise in_the_way(other, record)
    if (base if seen is None else seen.settles or base) != (present.settles or now):
        raise Refusal(f"program {now} is in force since the look at program {base}: deploy again, to change that one")
    return 0


def require_alone(now: ProgramRecord | None) -> None:
    """Raises Refusal if the program in force runs beside another one."""
    if now is not None and now.beside is not None:
        raise Refusal(
            f"program {now.number} runs beside program {now.beside.program} (`ferry versions`): wait for its end, or "
            "end it by `ferry rollback`"
        )


def is_follower(record: ProgramRecord | None) -> bool:
    """Whether the driver deploys a program without a request: a part of the program in force, which goes on alone."""
    return record is not None and record.settles is not None and not record.back_from


def in_the_way(other: ProgramRecord, record: ProgramRecord | None = None) -> FerryError:
    """Why a program cannot be deployed while another deploy is under way: Unreachable if the driver began that one.

    `record`: the program; None: the job cannot be rolled back.
    """
    if other.settles is not None and (record is None or (record.settles is None and not record.back_from)):
        return Unreachable(f"program {other.number} is program {other.settles} alone, and is not in force yet")
    seconds = time.time() - other.deployed_at
    return Refusal(
        f"program {other.number} is being deployed since {seconds:.0f} s: wait for its end, or give it up by ferry rollback"
    )


def why_not(deploy: Callable[[], object], number: int) -> str | None:
    """Why a deploy has failed; None: it has not."""
    try:
        deploy()
    except (FerryError, OSError) as error:
        return str(error) if isinstance(error, SpecRefused) else error_words(error)
    except BaseException as error:
        log.exception("program %d could not be deployed", number)
        return f"{type(error).__name__}: {error}"
    return None


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
    base = catalogue.program(record.base)
    is_back = base is not None and base.beside is not None and record.settles == base.beside.program
    before = record.number if is_back else record.settles or record.number
    again = [
        earlier.number
        for earlier in catalogue.programs
        if earlier.number < before
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
