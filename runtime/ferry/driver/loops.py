"""The loops of a life of the driver: tasks of Spark that hold their place and are dealt the shares of each ingest run.

    a job of n tasks --> n loops attach --> deal, answer, deal, answer ... --> told to end, or gone --> Spark starts another

A loop that goes, or fails, loses what it was dealt; that is dealt again under another number, so nobody can take what the
first one has staged for what counts. A share whose loops have died too often is given back: whoever asked for it looks for
the record that kills them (`driver/poison.py`). Must never decide which run counts: the coordinator does.
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
from ferry.contract.ingest_runs import Deal, IngestRun, Shares
from ferry.contract.notes import Receipt
from ferry.contract.tickets import Right, loop_right, looping
from ferry.contract.user_code import line_in
from ferry.driver.failures import is_final_text, last_words
from ferry.spark.attempts import DEATHS_MAX
from ferry.spark.tasks.ingest import IngestWork
from ferry.spark.tasks.loops import DealAnswer, LoopsPlace, loops
from ferry.system.flight_places import FlightPlace

log = logging.getLogger("ferry.driver")

LOOK_SECONDS = 0.5
"""Between two looks at whether a loop that has nothing to do is still there, and whether there are enough of them."""

FAILURES_MAX = 8
"""A share that fails so often with what it holds fails the epoch's driver, as a task of Spark does."""

ATTACH_SECONDS, ATTACH_ALL_SECONDS = 10.0, 2.0
"""An ingest run waits so long for the first loop to come, once there is an executor; a driver that is not needed yet for
all of them, each time that it looks."""


@dataclass(eq=False, slots=True)
class _Job:
    """Of Spark; as many loops of it are on their way as it has tasks that do not hold a loop."""

    coming: int


@dataclass(eq=False, slots=True)
class _Share:
    deal: Deal
    deaths: int = 0
    """of loops that had it"""


@dataclass(eq=False, slots=True)
class _Loop:
    job: _Job
    worker: int | None
    deals: queue.SimpleQueue[Deal | None] = field(default_factory=queue.SimpleQueue)
    owes: dict[int, _Share] = field(default_factory=dict)
    """By number: what it has not answered."""
    over: bool = False
    """It is dealt nothing any more, and ends as soon as it hears of it."""


class Loops:
    """Deals shares to as many loops as `wanted` says."""

    def __init__(
        self,
        spark: SparkSession,
        works: Mapping[int, IngestWork],
        place: FlightPlace,
        identity: Identity | None,
        authority: str | None,
        root: Right,
        wanted: Callable[[], int],
    ) -> None:
        """`works` by operator."""
        self._spark = spark
        self._works = works
        self._wanted = wanted
        self._life = secrets.token_hex(8)
        self._root = root
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._loops: list[_Loop] = []
        self._waiting: deque[_Share] = deque()
        """dealt to nobody yet"""
        self._receipts: list[Receipt] = []
        self._failures: list[str] = []
        self._died: list[Shares] = []
        self._deaths_max = DEATHS_MAX
        self._last_words = ""
        """of the last job of Spark's that failed"""
        self._open = 0
        """shares of the run under way without a receipt"""
        self._given_up = False
        self._task = 0
        self.on_death: Callable[[], None] = lambda: None
        """Called when a loop is gone that had a share."""
        door = _Door(place.location, identity, self)
        threading.Thread(target=door.serve, name="loops", daemon=True).start()
        self._place = LoopsPlace(place.uri(door.port), authority, loop_right(root, self._life))
        threading.Thread(target=self._keep, name="loops-keep", daemon=True).start()

    # ---- runs
    def ingest(
        self, run: IngestRun, shares: Sequence[Shares], deaths_max: int = DEATHS_MAX
    ) -> tuple[list[Receipt], list[Shares]]:
        """(The receipt of every share, the shares that so many loops have died of).

        One receipt with an error: the run is to be tried again. Raises RuntimeError for a share that fails again and again.
        """
        with self._changed:
            self._receipts, self._failures, self._open, self._given_up = [], [], len(shares), False
            self._died, self._deaths_max = [], deaths_max
            for turn, share in enumerate(shares):
                self._waiting.append(_Share(self._deal(run, turn, share)))
            self._hand_out()
            since = time.monotonic()
            try:
                while self._open:
                    self._changed.wait(LOOK_SECONDS)
                    if self._given_up:
                        return [Receipt(error="loops were given up with what they were dealt")], []
                    if len(self._failures) >= FAILURES_MAX or (self._failures and is_final_text(self._failures[-1])):
                        raise RuntimeError(self._failures[-1])
                    if failed := [one for one in self._receipts if one.error and line_in(one.error)]:
                        return failed, []  # It fails again as a rule, and nobody is to wait for the others.
                    # As a job of Spark's, it waits for executors for as long as there are none.
                    since = since if self._waiting and self._wanted() else time.monotonic()
                    if time.monotonic() - since > ATTACH_SECONDS:
                        return [Receipt(error=self._nobody_asks())], []
                return self._receipts, self._died
            finally:
                self._leave_run()

    def _nobody_asks(self) -> str:
        text = f"no task of Spark has asked for its share within {ATTACH_SECONDS:g} s"
        if self._last_words:
            return f"{text}: the last tasks ended with {self._last_words}"
        return f"{text}; Spark is still starting them, or this machine is very slow"

    def await_all(self) -> None:
        """Wait until as many as are wanted hold their place. Raises Exhausted when that takes longer than a look."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._loops) >= self._wanted(), ATTACH_ALL_SECONDS):
                raise Exhausted(f"{len(self._loops)} tasks of Spark hold their place, {self._wanted()} are wanted")

    def give_up(self) -> None:
        """End the run under way: an instance is gone that a loop may wait for. Callable from any thread."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()

    def silent(self, worker: int) -> None:
        """A worker is silent: its loops would keep what they are dealt for ever. Callable from any thread."""
        with self._changed:
            owed: list[_Share] = []
            for loop in self._loops:
                if loop.worker == worker:
                    owed += loop.owes.values()
                    loop.owes, loop.over = {}, True
            for share in owed:
                self._again(share)

    def _leave_run(self) -> None:
        """What is not answered by now is nobody's any more, and who owes it gets nothing else."""
        self._waiting.clear()
        self._open = 0
        for loop in self._loops:
            if loop.owes:
                loop.over, loop.owes = True, {}

    def _deal(self, run: IngestRun, turn: int, shares: Shares) -> Deal:
        self._task += 1
        return Deal(run, self._task, turn, shares)

    def _hand_out(self) -> None:
        """To who has least to do."""
        while self._waiting and (able := [loop for loop in self._loops if not loop.over]):
            loop, share = min(able, key=lambda one: len(one.owes)), self._waiting.popleft()
            loop.owes[share.deal.task] = share
            loop.deals.put(share.deal)

    # ---- loops
    def serve(self, ticket: bytes, context: Any, reader: Any, writer: Any) -> None:
        """One loop, from when it asks to its end; on a thread of its own. Raises Refusal for whoever is none."""
        number, worker = looping(self._root, ticket, self._life)
        loop = self._attach(number, worker)
        if loop is None:
            return
        try:
            while (deal := self._next(loop, context)) is not None:
                writer.write_metadata(deal.dump())
                self._answered(loop, deal, DealAnswer.load(reader.read_chunk().app_metadata.to_pybytes()))
        except (StopIteration, fl.FlightError, pa.ArrowException, OSError) as error:
            log.info("a loop is gone: %s", str(error)[:200] or type(error).__name__)
        finally:
            had = self._left(loop)
        if had:
            self.on_death()

    def _attach(self, number: int, worker: int | None) -> _Loop | None:
        with self._changed:
            if (job := self._jobs.get(number)) is None:
                return None
            job.coming -= 1
            loop = _Loop(job, worker)
            self._loops.append(loop)
            self._changed.notify_all()
            self._hand_out()
            return loop

    def _next(self, loop: _Loop, context: Any) -> Deal | None:
        while not loop.over:
            try:
                return loop.deals.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if context.is_cancelled():
                    break
        return None

    def _answered(self, loop: _Loop, deal: Deal, answer: DealAnswer) -> None:
        with self._changed:
            if (share := loop.owes.pop(deal.task, None)) is None:
                return  # The run is over.
            if answer.failed:
                log.warning("a share of epoch %d failed: %s", deal.run.step.epoch, answer.failed)
                self._failures.append(answer.failed)
                if len(self._failures) < FAILURES_MAX and not is_final_text(answer.failed):
                    self._again(share)
            else:
                self._receipts.append(Receipt.load(answer.receipt))
                self._open -= 1
            self._changed.notify_all()

    def _again(self, share: _Share) -> None:
        deal = share.deal
        share.deal = self._deal(deal.run, deal.turn + 1, deal.shares)
        self._waiting.append(share)
        self._hand_out()

    def _left(self, loop: _Loop) -> bool:
        """Whether it had a share."""
        with self._changed:
            self._loops.remove(loop)
            if not loop.over:
                loop.job.coming += 1  # Spark starts its task again.
            for turn, share in enumerate(loop.owes.values()):
                share.deaths += turn == 0  # It reads what it was dealt in turn.
                if share.deaths < self._deaths_max:
                    self._again(share)
                else:
                    self._died.append(share.deal.shares)
                    self._open -= 1
            self._changed.notify_all()
            return bool(loop.owes)

    # ---- jobs
    def _keep(self) -> None:
        number = 0
        while True:
            wanted = self._wanted()
            with self._changed:
                there = [loop for loop in self._loops if not loop.over]
                missing = wanted - len(there) - sum(job.coming for job in self._jobs.values())
                for loop in self._spare(there, len(there) - wanted):
                    loop.over = True
                    loop.deals.put(None)
                if missing > 0:
                    number += 1
                    self._jobs[number] = _Job(missing)
            if missing > 0:
                threading.Thread(target=self._run, args=(number, missing), name=f"loops-{number}", daemon=True).start()
            time.sleep(LOOK_SECONDS)

    def _spare(self, there: list[_Loop], many: int) -> list[_Loop]:
        """Those with nothing to do, of workers that have most."""
        idle = [loop for loop in there if not loop.owes]
        crowd = {loop.worker: sum(other.worker == loop.worker for other in there) for loop in there}
        return sorted(idle, key=lambda loop: crowd[loop.worker])[-many:] if many > 0 else []

    def _run(self, number: int, tasks: int) -> None:
        """A job of Spark, to its end: tasks that are gone are begun again by Spark, several times."""
        try:
            made = self._spark.sparkContext.parallelize(range(tasks), tasks)
            made.mapPartitions(loops(self._place, number, self._works)).collect()
        except Exception as error:
            log.warning("a job of loops ended: %s", str(error)[:300])
            self._last_words = last_words(str(error))
        with self._changed:
            del self._jobs[number]


class _Door(fl.FlightServerBase):
    """Flight server of the driver."""

    def __init__(self, location: str, identity: Identity | None, loops: Loops) -> None:
        super().__init__(
            location, tls_certificates=[(identity.certificate, identity.key)] if identity is not None else None
        )
        self._loops = loops

    def do_exchange(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        """Deals one way, answers the other."""
        try:
            self._loops.serve(descriptor.command or b"", context, reader, writer)  # type: ignore[attr-defined]
        except Refusal as refused:
            raise fl.FlightUnauthorizedError(str(refused)) from refused
