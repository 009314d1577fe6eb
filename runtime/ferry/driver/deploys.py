"""Deploys: another program for the running job, from its request to its first epoch.

    request -> checked in a child process -> wanted (journaled) -> loaded here and in tasks -> core.Deploy: instances load it
            -> in force from an epoch on (core.Deployed), or refused, and nothing has changed

A refusal is an answer: the job goes on with the program in force. A new driver goes on with a wanted program. Must never
import a program that the child process has not built.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ferry.connectors.splits import Splits
from ferry.contract.catalogue import Beside, DeployRequest, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import FerryError, Final, Refusal, SpecRefused, Superseded, UserCodeFailed
from ferry.contract.last_words import words_of
from ferry.contract.notes import EpochNotes
from ferry.contract.program_diff import ProgramDiff, program_diff
from ferry.contract.program_text import sealed
from ferry.contract.programs import ProgramVersion, program_at
from ferry.contract.run_directory import PROGRAMS
from ferry.contract.settings import CONTINUOUS
from ferry.contract.status import ProgramStatus
from ferry.driver.beside import both, comparison_in, plan_of
from ferry.driver.coordinator_orders import sleep
from ferry.driver.errors import Stopped
from ferry.driver.life import Life, tell_windows
from ferry.driver.program import Program, works_for
from ferry.driver.program_check import built_apart
from ferry.driver.program_list import ProgramList, awaits, order_of
from ferry.driver.program_parts import same_parts
from ferry.driver.retiring import to_retire
from ferry.driver.settling import Settling
from ferry.protocol import coordinator as core
from ferry.spark.feeds import why_planned
from ferry.system import program_texts

log = logging.getLogger("ferry.driver")

LOAD_SECONDS = 60.0
"""Time until a task has loaded the program."""

OPEN_SECONDS = 30.0
"""Time for the new sinks of a program: its first epoch waits for them, and so does the job."""

OpenSinks = Callable[[Program, int, Callable[[], bool]], bool]


class Deploys:
    """All deploys of one life of the driver, one at a time."""

    def __init__(self, life: Life, open_sinks: OpenSinks) -> None:
        """`open_sinks(program, committed, is_over)` opens the sinks that are new in a program; False: it was given up."""
        self._life = life
        self._open_sinks = open_sinks
        self._programs = {life.program.number: life.program}
        self._lock = threading.Lock()
        self._under_way: ProgramRecord | None = None
        self._phase = ""
        self._withdrawn = 0
        """Number of a program that is not to be deployed any more."""
        self._outcomes: queue.SimpleQueue[core.Deployed] = queue.SimpleQueue()
        self._settling = Settling(life)
        self._list = ProgramList(life, self._programs, lambda: (self._under_way, self._phase))
        life.loop.on_deployed = self._outcomes.put

    def start(self) -> None:
        """The recovery is over: go on with a program that the previous driver had not deployed yet."""
        threading.Thread(target=self._take_outcomes, name="deployed", daemon=True).start()
        wanted = self._life.announcer.catalogue.wanted
        if wanted is not None and wanted.number > self._in_force.number:
            self._begin(
                wanted, lambda: self._load(wanted) if wanted.base in (0, self._in_force.number) else self._again(wanted)
            )

    @property
    def _in_force(self) -> ProgramVersion:
        return self._life.loop.machine.table.programs[-1]

    @property
    def _now(self) -> ProgramRecord | None:
        return self._life.announcer.catalogue.program(self._in_force.number)

    # ---- requests
    def catalogue(self) -> dict[str, Any]:
        """All operators of the job and the ids in force: a check compares a program with them."""
        now = self._in_force
        written = [number for number in now.operators if number not in now.silent]
        return {"catalogue": self._life.announcer.catalogue.dump(), "inForce": written}

    def request(self, request: DeployRequest) -> int:
        """Begin a deploy; returns the number of the program. Raises Refusal while another one is under way."""
        if (now := self._now) is not None and now.beside is not None:
            raise Refusal(
                f"program {now.number} runs beside program {now.beside.program} (`ferry versions`): wait for its end, or "
                "end it by `ferry rollback`"
            )
        record = self._record(request)
        self._begin(record, lambda: self._deploy(record))
        return record.number

    def rollback(self, number: int | None, at: int = 0) -> int:
        """Deploy an earlier program again, under a new number; None: the one before the program in force.

        Without a number it also gives up a deploy under way. Returns the number of the program that will be in force.
        """
        catalogue, now = self._life.announcer.catalogue, self._in_force.number
        record = self._now
        if (under_way := self._under_way) is not None and record is not None and record.beside is not None:
            raise Refusal(f"program {record.number} ends: program {under_way.number} is being deployed")
        if number is None and under_way is not None:
            self._withdrawn = under_way.number
            self._life.loop.post(core.Withdraw(under_way.number))
            return int(now)
        if number is None and self._may_take_back(now):
            there = self._life.loop.machine.table.programs[0].number
            self._life.loop.post(core.Withdraw(now, "it was rolled back before its first epoch was committed"))
            return int(there)
        if record is not None and record.beside is not None and number in (None, record.beside.program):
            alone = self._settling.back(record, self._next_number())
            self._begin(alone, lambda: self._journal(alone))
            return alone.number
        before = catalogue.before(now)
        chosen = catalogue.program(number) if number is not None else (before[-1] if before else None)
        if chosen is None or chosen.number == now or chosen.since is None:
            which = (
                "no program was in force before" if number is None else f"program {number} was never in force before"
            )
            numbers = ", ".join(str(one.number) for one in before) or "none"
            raise Refusal(f"{which}; earlier programs: {numbers}")
        if chosen.hash and not (chosen.text or Path(chosen.folder or "").is_dir()):
            raise Refusal(f"the text of program {chosen.number} is not kept any more: deploy its file again")
        return self.request(DeployRequest(*chosen.pipeline, chosen.arguments, at, chosen.text, chosen.attempt))

    def programs(self) -> list[dict[str, Any]]:
        """All programs that are remembered, the newest first."""
        return self._list.programs()

    def brief(self) -> tuple[ProgramStatus, ...]:
        """The program in force, and the newest one if it is another one."""
        return self._list.brief()

    # ---- one deploy
    def _record(self, request: DeployRequest) -> ProgramRecord:
        now, settings = self._now, self._life.settings
        arguments = request.arguments if request.arguments is not None else (now.arguments if now is not None else {})
        folder = (
            program_texts.written(settings.path, request.file or "", request.text) if request.text else request.folder
        )
        if folder is not None and Path(folder).parent != settings.path / PROGRAMS:
            raise Refusal(f"{folder} is no copy of a program of this run")
        beside = Beside(self._in_force.number, request.shadow, request.keep) if request.shadow or request.keep else None
        return ProgramRecord(
            self._next_number(),
            (),
            (),
            module=request.module,
            file=request.file,
            folder=folder,
            arguments=dict(arguments),
            deployed_at=time.time(),
            started_with=settings.started_with,
            base=self._in_force.number,
            at=request.at,
            at_time=request.at_time,
            text=request.text,
            seal=sealed(request.text, settings.secret) if request.text else "",
            attempt=request.attempt,
            beside=beside,
        )

    def _next_number(self) -> int:
        return int(max(self._life.announcer.catalogue.programs[-1].number, self._in_force.number)) + 1

    def _begin(self, record: ProgramRecord, run: Callable[[], None]) -> None:
        with self._lock:
            if (other := self._under_way) is not None:
                seconds = time.time() - other.deployed_at
                raise Refusal(
                    f"program {other.number} is being deployed since {seconds:.0f} s: wait for its end, or give it up by "
                    "ferry rollback"
                )
            self._under_way, self._phase = record, "checking"

        def guarded() -> None:
            try:
                run()
            except SpecRefused as error:
                self._outcomes.put(core.Deployed(record.number, str(error)))
            except (FerryError, OSError) as error:
                self._outcomes.put(core.Deployed(record.number, words_of(error)))
            except BaseException as error:
                log.exception("program %d could not be deployed", record.number)
                self._outcomes.put(core.Deployed(record.number, f"{type(error).__name__}: {error}"))

        self._life.metrics.note("deploy", f"program {record.number}")
        threading.Thread(target=guarded, name="deploy", daemon=True).start()

    def _deploy(self, record: ProgramRecord) -> None:
        descriptors, diff = self._checked(record)
        announcer = self._life.announcer
        before = self._programs.get(self._in_force.number, self._life.program)
        now = announcer.catalogue.program(self._in_force.number)
        if record.beside is not None and now is not None:
            record = replace(record, operators=diff.ids, descriptors=tuple(descriptors))
            self._journal(*both(record, now, before.plan.operators, diff, len(announcer.catalogue.operators)))
            return
        wanted = (*diff.ids, *(old for _, old in diff.altered))
        retires = to_retire(now, before.plan.operators, wanted) if now is not None else ()
        ids = (*diff.ids, *(one.operator for one in retires))
        known = dict(zip(self._in_force.operators, before.plan.operators, strict=True))
        descriptors += [replace(known[one.operator].descriptor, index=ids.index(one.operator)) for one in retires]
        record = replace(record, operators=ids, descriptors=tuple(descriptors), retires=retires, altered=diff.altered)
        self._journal(record, diff.operators)

    def _again(self, wanted: ProgramRecord) -> None:
        """Compare a wanted program anew: after a restore another program is in force."""
        now = self._in_force.number
        if self._now is not None and self._now.beside is not None:
            raise SpecRefused(f"program {now} is in force again, which runs beside another one: deploy it later")
        beside = None if wanted.beside is None else wanted.beside._replace(program=now)
        self._deploy(replace(wanted, base=now, settles=None, altered=(), drops=(), beside=beside))

    def _journal(
        self, record: ProgramRecord, operators: Sequence[OperatorDescriptor] = (), over: ProgramRecord | None = None
    ) -> None:
        """Journal a program as wanted, and load it. `over`: the program that it follows, with its comparison."""
        announcer = self._life.announcer
        catalogue = announcer.catalogue if over is None else announcer.catalogue.with_program(over)
        announcer.record(catalogue.with_program(record, operators), self._life.loop.machine.generation)
        self._under_way = record
        self._load(record)

    def _load(self, record: ProgramRecord) -> None:
        """Load a program here and in tasks, then have the coordinator deploy it."""
        program = self._programs[record.number] = self._built(record)
        if program.loops is not None:
            self._phase = "waiting for the first epoch of the program before"
            while not program.loops.settled and self._withdrawn != record.number:
                sleep(self._life.loop, 0.05)  # Tasks of three programs would leave no slot for the rows of that epoch.
            self._phase = "loading"
            until = time.monotonic() + LOAD_SECONDS
            if not program.loops.load(record.number, program.works, lambda: time.monotonic() > until):
                raise SpecRefused(f"no task of Spark has loaded the program within {LOAD_SECONDS:g} s")
        if self._withdrawn == record.number:
            raise SpecRefused("it was withdrawn")
        self._phase = awaits(record, self._life.metrics.epoch + 1) or self._phase
        self._life.loop.post(order_of(record, self._life.announcer.catalogue))

    def _checked(self, record: ProgramRecord) -> tuple[list[OperatorDescriptor], ProgramDiff]:
        """Build the program in a child process, and compare its operators. Raises SpecRefused."""
        settings = self._life.settings
        request = {
            "pipeline": record.pipeline,
            "arguments": [record.arguments, settings.output, settings.events],
            "spark": True,
            "operators": True,
            "sources": [*self._life.program.plan.sources],
        }
        checked = built_apart(request, record.folder is not None)
        if "refused" in checked:
            raise SpecRefused(checked["refused"])
        descriptors = [OperatorDescriptor.from_wire(one) for one in checked["operators"]]
        now = self._life.announcer.catalogue
        diff = program_diff(now, self._in_force.operators, descriptors)
        if (
            settings.epoch_mode != "micro-batch"
            and self._life.program.mode == CONTINUOUS
            and checked["plan"]["planned"]
        ):
            raise SpecRefused(
                f"{checked['plan']['planned']}: Spark would have to plan each epoch, and the job runs continuous epochs. "
                "Remove it, or stop the job and start it again with the new program"
            )
        return descriptors, diff

    def _built(self, record: ProgramRecord) -> Program:
        """The program, built in this process: the child has built it before. Raises SpecRefused."""
        life, settings = self._life, self._life.settings
        before = self._programs.get(self._in_force.number, self._life.program)
        text = life.texts.build(record)
        text = replace(text, plan=same_parts(before.plan, before.signatures, text.plan, text.signatures))
        life.texts.keep(text)
        catalogue = life.announcer.catalogue
        plan, signatures = plan_of(settings, record, text, lambda number: life.texts.of(number, catalogue))
        works = works_for(settings, life.env, plan)
        if before.mode == CONTINUOUS and (planned := why_planned(plan, works)):
            raise SpecRefused(planned)
        return replace(before, plan=plan, works=works, number=record.number, signatures=signatures)

    # ---- outcomes
    def version(self, number: int, epoch: int) -> Program:
        """The program of an epoch that begins now, or is repeated. Its sinks are open."""
        if number not in self._programs:  # Deployed by another driver, after this one had read the journal.
            catalogue, _ = self._life.announcer.journaled()
            record = catalogue.program(number) if catalogue is not None else None
            if record is None:
                raise Refusal(f"the journal has no text of program {number}")
            self._programs[number] = self._built(record)
        program = self._programs[number]
        if program.loops is not None and not program.loops.has(number):
            program.loops.load(number, program.works, lambda: False)
        splits = {name: source for name, source in program.plan.sources.items() if isinstance(source, Splits)}
        for reader in self._life.readers:
            reader.follow(splits)
        tell_windows(self._life.metrics, [operator.descriptor for operator in program.plan.operators])

        def present() -> int:
            return program_at(self._life.loop.machine.table.programs, epoch).number

        if self._opens(program, epoch, lambda: present() != number):
            return program
        if present() == number:
            raise Stopped("the job was stopped")
        return self.version(present(), epoch)  # It was taken back meanwhile.

    def _opens(self, program: Program, epoch: int, is_over: Callable[[], bool]) -> bool:
        """Open the sinks of a program. Sinks that refuse, or are away, take it back while no epoch of it is committed."""
        life, until = self._life, time.monotonic() + OPEN_SECONDS

        def is_late() -> bool:
            return time.monotonic() > until and self._may_take_back(program.number)

        try:
            if self._open_sinks(program, epoch - 1, lambda: is_over() or is_late()):
                return True
            if is_over() or life.stop.is_set() or not is_late():
                return False
            why = f"{life.sink_startup.last_failure or 'a sink does not open'}, for {OPEN_SECONDS:g} s"
        except (SpecRefused, Final, UserCodeFailed) as error:
            if not self._may_take_back(program.number):
                raise
            why = str(error)
        life.loop.post(core.Withdraw(program.number, why))
        while not is_over():
            sleep(life.loop, 0.02)
        return False

    def _may_take_back(self, number: int) -> bool:
        return bool(self._life.loop.machine.deploying.may_take_back(number))

    def settled(self, number: int) -> None:
        """An epoch of this program is committed: the program cannot be taken back, and no earlier epoch is repeated."""
        for before in [one for one in tuple(self._programs) if one < number]:
            self._programs.pop(before, None)
        if (loops := self._life.program.loops) is not None:
            loops.settle(number)

    def ended(self, epoch: int, notes: EpochNotes) -> None:
        """An epoch is published: another program may have to follow."""
        now = self._in_force
        record, program = self._now, self._programs.get(now.number)
        if record is None or program is None or epoch < now.since or notes.flush:
            return
        if (following := self._settling.following(record, program, notes, self._next_number())) is None:
            return
        if (comparison := comparison_in(program.plan)) is not None:
            record = replace(record, compared=comparison.listed())
        with suppress(Refusal):  # Another deploy is under way.
            self._begin(following, lambda: self._journal(following, over=record))

    def _take_outcomes(self) -> None:
        while True:
            self._take(self._outcomes.get())

    def _take(self, outcome: core.Deployed) -> None:
        """A deploy is over: journal the outcome."""
        announcer, metrics = self._life.announcer, self._life.metrics
        record = self._under_way
        if record is None or record.number != outcome.number:
            record = announcer.catalogue.program(outcome.number)
        if record is None:
            return
        if outcome.refused:
            loops = self._life.program.loops
            if loops is not None and loops.has(outcome.number):
                loops.forget(outcome.number)
            self._programs.pop(outcome.number, None)
            metrics.note("deploy-refused", f"program {outcome.number}: {outcome.refused}")
            log.warning("program %d is refused: %s", outcome.number, outcome.refused)
            record = replace(record, refused=outcome.refused, since=None)
        else:
            record = replace(record, since=self._in_force.since)
        with suppress(Superseded):
            announcer.record(announcer.catalogue.with_program(record), self._life.loop.machine.generation)
        with self._lock:
            if self._under_way is not None and self._under_way.number == outcome.number:
                self._under_way, self._phase = None, ""
