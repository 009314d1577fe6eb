"""Loops: long-running Spark tasks. The driver assigns them the shares of each ingest run.

    a job of n tasks --> n loops attach --> assignment, answer, assignment, answer ... --> end, or loss --> Spark restarts it

If a loop is lost or fails, its shares are reassigned under new numbers, so fragments of the first assignment do not count.
A loop runs one program. A deployed program has loops of its own, in a Spark job of its own, before its first epoch: no
code travels but in Spark's jobs, and two programs meet in no task. Once an epoch of the program is committed, the loops of
the old program end.

A share that too many loops died of is returned to the caller, which searches for the record that kills them
(`driver/poison.py`). Must never decide which run counts: the coordinator does.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from pyspark.sql import SparkSession

from ferry.contract.certificates import Identity
from ferry.contract.errors import Exhausted, Refusal
from ferry.contract.ingest_runs import Assignment, IngestRun, Shares
from ferry.contract.notes import Receipt
from ferry.contract.tickets import Right, loop_right, looping
from ferry.contract.user_code import line_in
from ferry.driver.failures import is_final_text, last_words
from ferry.spark.attempts import DEATHS_MAX
from ferry.spark.tasks.ingest import IngestWork
from ferry.spark.tasks.loops import AssignmentResult, LoopsPlace, loops
from ferry.system.flight_places import FlightPlace

log = logging.getLogger("ferry.driver")

LOOK_SECONDS = 0.5
"""Interval between two checks whether an idle loop still lives, and whether enough loops exist."""

FAILURES_MAX = 8
"""After this number of failed shares in a run, the driver fails, as after failures of a Spark task."""

ATTACH_SECONDS, ATTACH_ALL_SECONDS = 10.0, 2.0
"""The time that an ingest run waits for the first loop once an executor exists; the time that each check of a standby driver
waits for all loops."""


@dataclass(eq=False, slots=True)
class _Job:
    """A Spark job of loops."""

    coming: int
    """tasks whose loop has not attached yet"""
    program: int = 1


@dataclass(eq=False, slots=True)
class _Share:
    assignment: Assignment
    deaths: int = 0
    """of loops that held this share"""


@dataclass(eq=False, slots=True)
class _Loop:
    job: _Job
    worker: int | None
    assignments: queue.SimpleQueue[Assignment | None] = field(default_factory=queue.SimpleQueue)
    owes: dict[int, _Share] = field(default_factory=dict)
    """Unanswered shares, by number."""
    over: bool = False
    """It gets no more assignments, and ends when it notices."""


class Loops:
    """Assigns shares to loops. `wanted()` is the number of loops."""

    def __init__(
        self,
        spark: SparkSession,
        program: int,
        works: Mapping[int, IngestWork],
        place: FlightPlace,
        identity: Identity | None,
        authority: str | None,
        root: Right,
        wanted: Callable[[], int],
    ) -> None:
        """`program`: its number; `works` by operator."""
        self._spark = spark
        self._works = {program: works}
        self._program = program
        """in force"""
        self._wanted = wanted
        self._life = secrets.token_hex(8)
        self._root = root
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._last_job = 0
        self._loops: list[_Loop] = []
        self._waiting: deque[_Share] = deque()
        """not assigned yet"""
        self._receipts: list[Receipt] = []
        self._failures: list[str] = []
        self._died: list[Shares] = []
        self._deaths_max = DEATHS_MAX
        self._last_words = ""
        """of the last failed Spark job"""
        self._open = 0
        """shares of the current run without a receipt"""
        self._given_up = False
        self._task = 0
        self.on_death: Callable[[], None] = lambda: None
        """Called when a loop with a share is lost."""
        door = _Door(place.location, identity, self)
        threading.Thread(target=door.serve, name="loops", daemon=True).start()
        self._place = LoopsPlace(place.uri(door.port), authority, loop_right(root, self._life))
        threading.Thread(target=self._keep, name="loops-keep", daemon=True).start()

    # ---- runs
    def ingest(
        self, run: IngestRun, shares: Sequence[Shares], deaths_max: int = DEATHS_MAX
    ) -> tuple[list[Receipt], list[Shares]]:
        """(The receipt of every share, the shares that `deaths_max` loops have died of).

        A single receipt with an error: the run must be retried. Raises RuntimeError for a share that fails repeatedly.
        """
        with self._changed:
            self._receipts, self._failures, self._open, self._given_up = [], [], len(shares), False
            self._died, self._deaths_max = [], deaths_max
            for turn, share in enumerate(shares):
                self._waiting.append(_Share(self._assignment(run, turn, share)))
            self._hand_out()
            since = time.monotonic()
            try:
                while self._open:
                    self._changed.wait(LOOK_SECONDS)
                    if self._given_up:
                        return [
                            Receipt(error="the run was cancelled: an instance was lost that its loops may wait for")
                        ], []
                    if len(self._failures) >= FAILURES_MAX or (self._failures and is_final_text(self._failures[-1])):
                        raise RuntimeError(self._failures[-1])
                    if failed := [receipt for receipt in self._receipts if receipt.error and line_in(receipt.error)]:
                        return failed, []  # A retry usually fails, too; do not wait for the other shares.
                    # Like a Spark job, a run waits without limit while no executors exist.
                    since = since if self._waiting and self._wanted() else time.monotonic()
                    if time.monotonic() - since > ATTACH_SECONDS:
                        return [Receipt(error=self._no_loop_attached())], []
                return self._receipts, self._died
            finally:
                self._leave_run()

    def _no_loop_attached(self) -> str:
        text = f"no Spark task has requested its share within {ATTACH_SECONDS:g} s"
        if self._last_words:
            return f"{text}: the last tasks ended with {self._last_words}"
        return f"{text}; Spark is still starting tasks, or this machine is very slow"

    def await_all(self) -> None:
        """Wait until all wanted loops have attached. Raises Exhausted after ATTACH_ALL_SECONDS."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._loops) >= self._wanted(), ATTACH_ALL_SECONDS):
                raise Exhausted(f"{len(self._loops)} loops have attached, {self._wanted()} are wanted")

    # ---- programs
    def load(self, program: int, works: Mapping[int, IngestWork], gives_up: Callable[[], bool]) -> bool:
        """Start loops of a program beside the loops of the program in force; wait until one has attached.

        False: `gives_up()`, or the program was forgotten meanwhile.

        They leave slots free: an epoch before the switch may need a Spark job for its rows.
        """
        slots = self._wanted()
        with self._changed:
            self._works[program] = works
            self._keep_program(program, slots)
            while not any(loop.job.program == program and not loop.over for loop in self._loops):
                if gives_up() or program not in self._works:
                    return False
                self._changed.wait(LOOK_SECONDS / 10)
        return True

    def settle(self, program: int) -> None:
        """This program is in force for good: the loops of all programs before it end. It gets as many, if it is loaded."""
        slots = self._wanted()
        with self._changed:
            self._program = program
            self.forget(*[number for number in self._works if number < program])
            if program in self._works:
                self._keep_program(program, slots)

    def others(self, program: int) -> bool:
        """Whether loops of any other program are kept."""
        return any(number != program for number in self._works)

    def has(self, program: int) -> bool:
        """Whether loops of this program are kept."""
        return program in self._works

    def forget(self, *programs: int) -> None:
        """End the loops of these programs."""
        with self._changed:
            for number in programs:
                del self._works[number]
            for loop in self._loops:
                if loop.job.program in programs and not loop.over:
                    loop.over = True
                    loop.assignments.put(None)

    def give_up(self) -> None:
        """Cancel the current run: an instance was lost that a loop may wait for. Callable from any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def silent(self, worker: int) -> None:
        """Reassign the shares of a silent worker: its loops would never answer. Callable from any thread."""
        with self._changed:
            owed: list[_Share] = []
            for loop in self._loops:
                if loop.worker == worker:
                    owed += loop.owes.values()
                    loop.owes, loop.over = {}, True
            for share in owed:
                self._again(share)

    def _leave_run(self) -> None:
        """Void unanswered shares. The loops that hold them get no more assignments."""
        self._waiting.clear()
        self._open = 0
        for loop in self._loops:
            if loop.owes:
                loop.over, loop.owes = True, {}

    def _assignment(self, run: IngestRun, turn: int, shares: Shares) -> Assignment:
        self._task += 1
        return Assignment(run, self._task, turn, shares)

    def _hand_out(self) -> None:
        """Assign each waiting share to the loop of its program with the fewest shares."""
        while self._waiting:
            program = self._waiting[0].assignment.run.program
            if not (able := [loop for loop in self._loops if not loop.over and loop.job.program == program]):
                return
            loop, share = min(able, key=lambda loop: len(loop.owes)), self._waiting.popleft()
            loop.owes[share.assignment.task] = share
            loop.assignments.put(share.assignment)

    # ---- loops
    def serve(self, ticket: bytes, context: Any, reader: Any, writer: Any) -> None:
        """Serve one loop from its first request to its end, on its own thread. Raises Refusal for an invalid ticket."""
        number, worker = looping(self._root, ticket, self._life)
        loop = self._attach(number, worker)
        if loop is None:
            return
        try:
            while (assignment := self._next(loop, context)) is not None:
                writer.write_metadata(assignment.dump())
                self._answered(loop, assignment, AssignmentResult.load(reader.read_chunk().app_metadata.to_pybytes()))
        except (StopIteration, fl.FlightError, pa.ArrowException, OSError) as error:
            log.info("a loop was lost: %s", str(error)[:200] or type(error).__name__)
        finally:
            had = self._left(loop)
        if had:
            self.on_death()

    def _attach(self, number: int, worker: int | None) -> _Loop | None:
        with self._changed:
            if (job := self._jobs.get(number)) is None or job.program not in self._works:
                return None
            job.coming -= 1
            loop = _Loop(job, worker)
            self._loops.append(loop)
            self._changed.notify_all()
            self._hand_out()
            return loop

    def _next(self, loop: _Loop, context: Any) -> Assignment | None:
        while not loop.over:
            try:
                return loop.assignments.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if context.is_cancelled():
                    break
        return None

    def _answered(self, loop: _Loop, assignment: Assignment, answer: AssignmentResult) -> None:
        with self._changed:
            if (share := loop.owes.pop(assignment.task, None)) is None:
                return  # The run is over.
            if answer.failed:
                log.warning("a share of epoch %d failed: %s", assignment.run.step.epoch, answer.failed)
                self._failures.append(answer.failed)
                if len(self._failures) < FAILURES_MAX and not is_final_text(answer.failed):
                    self._again(share)
            else:
                self._receipts.append(Receipt.load(answer.receipt))
                self._open -= 1
            self._changed.notify_all()

    def _again(self, share: _Share) -> None:
        assignment = share.assignment
        share.assignment = self._assignment(assignment.run, assignment.turn + 1, assignment.shares)
        self._waiting.append(share)
        self._hand_out()

    def _left(self, loop: _Loop) -> bool:
        """Reassign the shares of a loop that is gone. Returns whether it had any."""
        with self._changed:
            self._loops.remove(loop)
            if not loop.over:
                loop.job.coming += 1  # Spark starts its task again.
            for turn, share in enumerate(loop.owes.values()):
                share.deaths += turn == 0  # A loop reads its shares in turn: it died of the first.
                if share.deaths < self._deaths_max:
                    self._again(share)
                else:
                    self._died.append(share.assignment.shares)
                    self._open -= 1
            self._changed.notify_all()
            return bool(loop.owes)

    # ---- jobs
    def _keep(self) -> None:
        while True:
            wanted = self._wanted()
            with self._changed:
                for program in list(self._works):
                    self._keep_program(program, wanted)
            time.sleep(LOOK_SECONDS)

    def _keep_program(self, program: int, slots: int) -> None:
        """Have as many loops of a program as there are slots; half as many of one that is not in force."""
        wanted = slots if program == self._program else max(1, slots // 2)
        there = [loop for loop in self._loops if not loop.over and loop.job.program == program]
        jobs = [job for job in self._jobs.values() if job.program == program]
        missing = wanted - len(there) - sum(job.coming for job in jobs)
        for loop in self._spare(there, len(there) - wanted):
            loop.over = True
            loop.assignments.put(None)
        if missing > 0:
            number = self._last_job = self._last_job + 1
            self._jobs[number] = _Job(missing, program)
            run = self._run, (number, missing, self._works[program])
            threading.Thread(target=run[0], args=run[1], name=f"loops-{number}", daemon=True).start()

    def _spare(self, there: list[_Loop], many: int) -> list[_Loop]:
        """Surplus idle loops, first from the workers with the most loops."""
        idle = [loop for loop in there if not loop.owes]
        crowd = {loop.worker: sum(other.worker == loop.worker for other in there) for loop in there}
        return sorted(idle, key=lambda loop: crowd[loop.worker])[-many:] if many > 0 else []

    def _run(self, number: int, tasks: int, works: Mapping[int, IngestWork]) -> None:
        """Run a Spark job to its end: Spark restarts lost tasks, several times."""
        try:
            partitions = self._spark.sparkContext.parallelize(range(tasks), tasks)
            partitions.mapPartitions(loops(self._place, number, works)).collect()
        except Exception as error:
            log.warning("a job of loops ended: %s", str(error)[:300])
            self._last_words = last_words(str(error))
        with self._changed:
            del self._jobs[number]


class _Door(fl.FlightServerBase):
    """Flight server of the driver; loops connect to it."""

    def __init__(self, location: str, identity: Identity | None, loops: Loops) -> None:
        super().__init__(
            location, tls_certificates=[(identity.certificate, identity.key)] if identity is not None else None
        )
        self._loops = loops

    def do_exchange(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        """Send assignments, receive answers."""
        try:
            self._loops.serve(descriptor.command or b"", context, reader, writer)  # type: ignore[attr-defined]
        except Refusal as refused:
            raise fl.FlightUnauthorizedError(str(refused)) from refused
