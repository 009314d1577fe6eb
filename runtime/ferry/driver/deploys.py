"""Deploys: another program for the running job, from its request to its first epoch.

    request -> checked in a child process -> wanted (journaled) -> loaded here and in tasks -> core.Deploy: instances load it
            -> in force from an epoch on (core.Deployed), or refused, and nothing has changed

A refusal is an answer: the job goes on with the program in force. A new driver goes on with a wanted program. Must never
import a program that the child process has not built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ferry.connectors.splits import Splits
from ferry.contract.catalogue import DeployRequest, ProgramRecord
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.errors import Refusal, SpecRefused, Unreachable
from ferry.contract.notes import EpochNotes
from ferry.contract.program_diff import ProgramDiff
from ferry.contract.programs import WITHDRAWN, ProgramVersion, program_at
from ferry.coordinator.driver_metrics import EpochRecord
from ferry.driver import exits
from ferry.driver import program_list as listing
from ferry.driver.beside import both, comparison_in
from ferry.driver.building import built, in_time, journaled
from ferry.driver.coordinator_orders import sleep
from ferry.driver.errors import Stopped
from ferry.driver.expectations import Violation
from ferry.driver.life import Life, tell_windows
from ferry.driver.opening import OpenSinks, opens
from ferry.driver.outcomes import Outcomes
from ferry.driver.probation import OnProbation, Passed, exhausted, was_refused
from ferry.driver.program import Program
from ferry.driver.program_check import compared
from ferry.driver.program_list import ProgramList
from ferry.driver.retiring import retiring
from ferry.driver.rewinding import require_in_force, rewind
from ferry.driver.settling import Settling
from ferry.driver.taking_back import TakingBack
from ferry.driver.taking_over import TakingOver
from ferry.protocol import coordinator as core

LOAD_SECONDS = 60.0
"""Time until a task has loaded the program."""


class Deploys:
    """All deploys of one life of the driver, one at a time."""

    _under_way: ProgramRecord | None = None
    _phase = ""
    _withdrawn = 0
    """Number of a program that is not to be deployed any more."""
    _is_started = False
    """Before, no request is taken: it would be in the way of the program that this driver goes on with."""

    def __init__(self, life: Life, open_sinks: OpenSinks) -> None:
        """`open_sinks(program, committed, is_over)` opens the sinks that are new in a program; False: it was given up."""
        self._life = life
        self._open_sinks = open_sinks
        self._programs = {life.program.number: life.program}
        self._lock = threading.Lock()
        self._writing = threading.RLock()  # from a look at the journal to its write
        self._outcomes = Outcomes(life, self._programs, self._writing, lambda: self._under_way, self._over)
        self._settling = Settling(life)
        self._taking_back = TakingBack(life.loop)
        self.leaves = TakingOver(life, self._go_back, lambda: self._now, lambda: (self._under_way, self._phase)).leaves
        self._probation = OnProbation(life.metrics)
        self._list = ProgramList(life, self._programs, lambda: (self._under_way, self._phase))
        self.catalogue = self._list.catalogue
        self.programs = self._list.programs
        self.brief = self._list.brief
        life.loop.on_deployed = self._outcomes.tell
        life.loop.on_code_fails = lambda effect: self.leaves(effect.reason, True)

    def start(self) -> None:
        """The recovery is over: go on with a program that the previous driver had not deployed yet."""
        self._outcomes.start()
        require_in_force(self._life)
        wanted, now = self._life.announcer.catalogue.wanted, self._now
        exits.try_again_if(lambda: bool((newest := self._life.announcer.catalogue.wanted) and newest.tries))
        later = wanted if wanted is not None and wanted.number > self._in_force.number else None
        if later is not None and now is not None and now.beside is not None:
            later = self._half_of(now, later)
        why = exhausted(now.tries - (self._life.program.number == now.number)) if now is not None else ""
        stays = now is None or not why or not self._leave(now, why)
        if later is not None:
            self._begin(later, lambda: self._try(later))
        self._is_started = True
        if now is None or not stays:
            return
        if later is None and why:
            with suppress(Refusal):
                self._go_back(now, why)
        if exhausted(now.tries) and not (later and listing.awaits(later, self._life.metrics.epoch + 1)):
            self._await_switch()  # Also if an earlier driver has died before it had gone back.

    def _half_of(self, now: ProgramRecord, later: ProgramRecord) -> ProgramRecord:
        """The program to go on with: a restore has led back to two programs side by side. If the job had gone on with one of
        them, it does so again, and a later program is refused."""
        programs = self._life.announcer.catalogue.programs
        halves = (p for p in programs if p.base == now.number and p.settles is not None and not p.refused)
        if (half := next((p for p in halves if p.number > now.number), later)) is not later:
            why = f"the job has lost its state, and is back at program {now.number}, which runs beside another one"
            self._outcomes.tell(core.Deployed(later.number, f"{why}: deploy it again"))
            self._forget_begun_after(ProgramVersion(half.number, 0, half.operators))
        return half

    def _forget_begun_after(self, program: ProgramVersion) -> None:
        """A restore has led back to this program: operators of programs after it have no state to return with."""
        announcer = self._life.announcer
        with self._writing:
            announcer.record(announcer.catalogue.as_of(program), self._life.loop.machine.generation)

    def _leave(self, now: ProgramRecord, why: str) -> bool:
        """Leave the program in force, of which earlier drivers have died; True: it is taken back.

        Else the job is to go back from it. The tasks of the program before, with which the driver has begun, end: they hold
        slots.
        """
        if self._taking_back.may(now.number):
            self._life.loop.post(core.Withdraw(now.number, why))
            self._probation.tell_back(now, why)
            return True
        if now.number not in self._programs:
            program = self._programs[now.number] = self._built(now)
            self.settled(now.number)
            self._follow(program)
        return False

    def _try(self, wanted: ProgramRecord) -> None:
        """Go on with a program that an earlier driver was to deploy."""
        if why := exhausted(wanted.tries):
            raise SpecRefused(why)
        wanted = replace(wanted, tries=wanted.tries + 1)
        (self._journal if wanted.base in (0, self._in_force.number) else self._again)(wanted)

    def _await_switch(self) -> None:
        """No epoch begins before the deploy is over, or due, or takes too long."""
        until, deploying = time.monotonic() + LOAD_SECONDS, self._life.loop.machine.deploying
        while self._under_way and time.monotonic() < until and not deploying.is_due(self._life.metrics.epoch + 1):
            sleep(self._life.loop, 0.05)

    def _go_back(self, record: ProgramRecord, why: str) -> None:
        """Deploy the program before the one in force, `record`. Raises Refusal, also while another deploy is under way."""
        left = record.settles or record.number
        if was_refused(record, self._life.announcer.catalogue):
            return
        beside, over = record.beside is not None, record
        if beside and (comparison := comparison_in(self._programs[record.number].plan)) is not None:
            over = replace(record, compared=comparison.listed() | {"violation": why})
        back = self._settling.back(record, self._next_number()) if beside else self._earlier(None)
        back = replace(back, back_from=left, because=why)
        self._begin(back, lambda: self._journal(back, over=over) if beside else self._deploy(back))
        self._probation.tell_back(record, why)

    @property
    def _in_force(self) -> ProgramVersion:
        return self._life.loop.machine.table.programs[-1]

    @property
    def _now(self) -> ProgramRecord | None:
        return self._life.announcer.catalogue.program(self._in_force.number)

    # ---- requests
    def request(self, request: DeployRequest) -> int:
        """Begin a deploy; returns the number of the program, also if the request is repeated because its answer was lost.

        Raises Refusal while another one is under way.
        """
        self._require_started()
        record, other = self._record(request), self._under_way
        number = listing.answered(record, request.base, other, self._in_force.number, self._life.announcer.catalogue)
        return number or self._requested(record, request.rewind)

    def _requested(self, record: ProgramRecord, rewinds: bool = False) -> int:
        listing.require_alone(self._now)
        self._begin(record, lambda: self.rewind(record.identity) if rewinds else self._deploy(record))
        return record.number

    def rollback(self, number: int | None, at: int = 0, withdraw: int | None = None) -> int:
        """Deploy an earlier program again, under a new number; None: the one before the program in force.

        Without a number it also gives up a deploy under way; `withdraw`: only the deploy of this program. Returns the number
        of the program that will be in force.
        """
        self._require_started()
        self._list.require_open(withdraw)
        now, record = self._in_force.number, self._now
        if (under_way := self._under_way) is not None and record is not None and record.beside is not None:
            raise Refusal(f"program {record.number} ends: program {under_way.number} is being deployed")
        if under_way is not None and under_way.back_from:
            raise Refusal(f"the job goes back from program {under_way.back_from} already: {under_way.because}")
        if number is None and self._taking_back.is_repeated(now):
            return int(now)
        follower = under_way if under_way is not None else record if self._taking_back.may(now) else None
        if follower is not None and listing.is_follower(follower) and withdraw is None:
            raise listing.in_the_way(follower)
        if number is None and under_way is not None:
            self._withdrawn = under_way.number
            if self._phase == "checking" and self._life.announcer.catalogue.program(under_way.number) is not None:
                self._outcomes.record_as(replace(under_way, refused=WITHDRAWN))  # or the next driver goes on with it
            self._life.loop.post(core.Withdraw(under_way.number))
            return int(now)
        if number is None and self._taking_back.may(now) and (before := self._taking_back.ask(now)) is not None:
            return before
        if record is not None and record.beside is not None and number in (None, record.beside.program):
            alone = self._settling.back(record, self._next_number())
            self._begin(alone, lambda: self._journal(alone))
            return alone.number
        return self._requested(self._earlier(number, at))

    def _earlier(self, number: int | None, at: int = 0) -> ProgramRecord:
        """An earlier program under a new number, without a probation; None: the one before. Raises Refusal."""
        chosen = listing.earlier_of(self._life.announcer.catalogue, self._in_force.number, number)
        return self._record(listing.again(chosen, at))

    def rewind(self, identity: str = "", leaves: int | None = None) -> int:
        """Go back to the newest checkpoint before the program in force, for a deploy of the program with this `identity`,
        or for none; the number of the checkpoint's program. Raises Refusal.

        `leaves`: the program to leave, which an earlier driver may have left already, when a request is repeated.
        """
        self._require_started()
        with self._lock:
            other, now = self._under_way, self._in_force.number
            if leaves is not None and now < leaves:
                return int(now)
            if other is not None and not identity:
                rewinds = self._phase == "rewinding"
                raise Unreachable("the job goes back to a checkpoint") if rewinds else listing.in_the_way(other)
            self._under_way, self._phase = other or self._now, "rewinding"  # No other program follows in this life.
        try:
            with self._writing:
                return rewind(self._life, self._programs.get(now, self._life.program).plan, identity)
        except BaseException:
            self._under_way, self._phase = other, ""
            raise

    def _require_started(self) -> None:
        if not self._is_started:
            raise Unreachable("the driver is starting")

    # ---- one deploy
    def _record(self, request: DeployRequest) -> ProgramRecord:
        return listing.record_of(request, self._next_number(), self._now, self._in_force.number, self._life.settings)

    def _next_number(self) -> int:
        return int(max(self._life.announcer.catalogue.programs[-1].number, self._in_force.number)) + 1

    def _begin(self, record: ProgramRecord, run: Callable[[], object]) -> None:
        with self._lock:
            if (other := self._under_way) is not None:
                raise listing.in_the_way(other, record)
            self._under_way, self._phase = record, "checking"

        def guarded() -> None:
            why = listing.why_not(run, record.number)
            if why is not None and not self._life.loop.ending.is_set():  # Else the next driver goes on with it.
                self._outcomes.tell(core.Deployed(record.number, why))

        self._life.metrics.note("deploy", f"program {record.number}")
        threading.Thread(target=guarded, name="deploy", daemon=True).start()

    def _deploy(self, record: ProgramRecord) -> None:
        (record, descriptors, diff), announcer = self._checked(record), self._life.announcer
        before = self._programs.get(self._in_force.number, self._life.program)
        now = announcer.catalogue.program(self._in_force.number)
        if record.beside is not None and now is not None:
            record = replace(record, operators=diff.ids, descriptors=tuple(descriptors))
            self._journal(*both(record, now, before.plan.operators, diff, len(announcer.catalogue.operators)))
            return
        ids = self._in_force.operators
        self._journal(retiring(record, descriptors, diff, now, ids, before.plan.operators), diff.operators)

    def _again(self, wanted: ProgramRecord) -> None:
        """Compare a wanted program anew: after a restore another program is in force."""
        now = self._in_force.number
        if self._now is not None and self._now.beside is not None:
            raise SpecRefused(f"program {now} is in force again, which runs beside another one: deploy it later")
        self._forget_begun_after(self._in_force)
        beside = None if wanted.beside is None else wanted.beside._replace(program=now)
        self._deploy(replace(wanted, base=now, settles=None, since=None, altered=(), drops=(), beside=beside))

    def _journal(
        self, record: ProgramRecord, operators: Sequence[OperatorDescriptor] = (), over: ProgramRecord | None = None
    ) -> None:
        """Journal a program as wanted, and load it. `over`: the program that it follows, with its comparison."""
        announcer, record = self._life.announcer, replace(record, tries=max(record.tries, 1))
        with self._writing:
            catalogue = announcer.catalogue if over is None else announcer.catalogue.with_program(over)
            announcer.record(catalogue.with_program(record, operators), self._life.loop.machine.generation)
        self._under_way = record
        self._load(record)

    def _load(self, record: ProgramRecord) -> None:
        """Load a program here and in tasks, then have the coordinator deploy it."""
        program = self._programs[record.number] = in_time(lambda: self._built(record))
        if program.loops is not None:
            self._phase = "waiting for the first epoch of the program before"
            while program.loops.others(self._in_force.number) and self._withdrawn != record.number:
                sleep(self._life.loop, 0.05)  # Tasks of three programs would leave no slot for the rows of that epoch.
            self._phase = "loading"
            until = time.monotonic() + LOAD_SECONDS
            if not program.loops.load(record.number, program.works, lambda: time.monotonic() > until):
                raise SpecRefused(f"no task of Spark has loaded the program within {LOAD_SECONDS:g} s")
        if self._withdrawn == record.number:
            raise SpecRefused(WITHDRAWN)
        if lacks := self._settling.lacks(record, self._programs.get(self._in_force.number), program):
            raise SpecRefused(lacks)
        if waits := listing.awaits(record, self._life.metrics.epoch + 1):
            self._phase = waits
            if record.tries > 1:  # Drivers that end while it only waits do not count.
                self._under_way = record = replace(record, tries=1)
                self._outcomes.record_as(record)
        self._life.loop.post(listing.order_of(record, self._life.announcer.catalogue))
        if self._withdrawn == record.number:
            self._life.loop.post(core.Withdraw(record.number))  # It was given up before the coordinator knew it.
        if lacks := self._settling.lacks(record, self._programs.get(self._in_force.number), program):
            self._life.loop.post(core.Withdraw(record.number, lacks))  # The code has failed meanwhile.

    def _checked(self, record: ProgramRecord) -> tuple[ProgramRecord, list[OperatorDescriptor], ProgramDiff]:
        life = self._life
        return compared(record, life.settings, life.program, life.announcer.catalogue, self._in_force.operators)

    def _built(self, record: ProgramRecord) -> Program:
        """The program, built in this process: the child has built it before. Raises SpecRefused."""
        return built(self._life, record, self._programs.get(self._in_force.number, self._life.program))

    # ---- outcomes
    def version(self, number: int, epoch: int) -> Program:
        """The program of an epoch that begins now, or is repeated. Its sinks are open."""
        if number not in self._programs:
            self._programs[number] = self._built(journaled(self._life, number))
        program = self._programs[number]
        if program.loops is not None and not program.loops.has(number):
            program.loops.load(number, program.works, lambda: False)
        self._follow(program)
        tell_windows(self._life.metrics, [operator.descriptor for operator in program.plan.operators])

        def present() -> int:
            return program_at(self._life.loop.machine.table.programs, epoch).number

        opened = opens(self._life, self._open_sinks, program, epoch, self._taking_back.may, lambda: present() != number)
        if present() == number:
            if not opened:
                raise Stopped("the job was stopped")
            return program
        self._outcomes.forget(number)  # It was taken back meanwhile, maybe before it was loaded here.
        return self.version(present(), epoch)

    def _follow(self, program: Program) -> None:
        for reader in self._life.readers:
            reader.follow({name: s for name, s in program.plan.sources.items() if isinstance(s, Splits)})

    def settled(self, number: int) -> None:
        """An epoch of this program is committed: the program cannot be taken back, and no earlier epoch is repeated."""
        for before in [one for one in tuple(self._programs) if one < number]:
            self._programs.pop(before, None)
        if (loops := self._life.program.loops) is not None:
            loops.settle(number)

    def ended(self, epoch: EpochRecord, notes: EpochNotes, violations: Sequence[Violation]) -> None:
        """An epoch is over: another program may have to follow."""
        now = self._in_force
        record, program = self._now, self._programs.get(now.number)
        if record is None or program is None or epoch.epoch < now.since:
            return
        under_way = self._under_way
        if under_way is not None and (
            lacks := self._settling.lacks(under_way, program, self._programs.get(under_way.number))
        ):
            self._life.loop.post(core.Withdraw(under_way.number, lacks))
        failed, is_kept = self._settling.failure(record, program, notes), record.beside is not None
        why = self._probation.ended(record, now, epoch, violations)
        if why and not notes.flush and (record.is_shadow or not (is_kept and failed)):
            with suppress(Refusal):  # Another deploy is under way.
                self._go_back(record, why)
            if is_kept:
                return
        elif not why and self._probation.has_passed(record):
            self._outcomes.tell(Passed(record.number))
        following = None if notes.flush else self._settling.following(record, program, notes, self._next_number())
        if following is None:
            return
        if (comparison := comparison_in(program.plan)) is not None:
            record = replace(record, compared=comparison.listed())
        record = replace(record, failed=failed)
        with suppress(Refusal):  # Another deploy is under way.
            self._begin(following, lambda: self._journal(following, over=record))

    def _over(self, number: int) -> None:
        """A deploy is over, and journaled."""
        with self._lock:
            if self._under_way is not None and self._under_way.number == number:
                self._under_way, self._phase = None, ""
