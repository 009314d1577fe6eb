"""The epoch function: runs a planned epoch from its begin to its end.

    EpochBegun -> [StartIngest -> Spark job -> Ingested]* -> Emit -> sink -> EpochEnded

Executes the coordinator's orders with Spark and Flight (docs/design.md, section 2), and computes watermarks
(docs/design.md, section 3). It never decides which attempt counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from ferry.api.pipeline import Operator
from ferry.api.user_batches import code_of
from ferry.contract import limits
from ferry.contract.errors import Bug, Fault, Refusal, UserCodeFailed, fault_in
from ferry.contract.ingest_runs import IngestRun
from ferry.contract.names import Fragment, InstanceId, Step
from ferry.contract.notes import EpochNotes, Receipt, dead_letters_name
from ferry.contract.programs import Programs, program_at
from ferry.contract.settings import SET_ASIDE, RunSettings
from ferry.contract.tickets import Right, stage_right
from ferry.contract.user_code import USER_CODE, line_in, words_of
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.coordinator.loop import Hook, Loop
from ferry.coordinator.status import is_at_rest
from ferry.driver import event_time
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.coordinator_orders import next_order
from ferry.driver.dead_letters import DeadLetters
from ferry.driver.failures import is_passing, refuse_final, sql_error, user_error
from ferry.driver.instance_watch import InstanceWatch
from ferry.driver.patience import QUIET_SECONDS, ReportedPatience, UserCodeTries
from ferry.driver.poison import Poison
from ferry.driver.program import Program, Versions
from ferry.driver.publisher import Publisher, has_fired
from ferry.driver.reading import Reading
from ferry.driver.signals import Crashes
from ferry.process.users import users_classes
from ferry.protocol import coordinator as core
from ferry.spark.feeds import in_spark, planned_once
from ferry.spark.shares import Batch

log = logging.getLogger("ferry.driver")


MALFORMED = "Malformed"
"""The name of the problem in the driver's status."""

EPOCH = "epoch"
"""Tag of the Spark jobs that belong to an epoch; jobs of loops have no tag and outlive epochs."""

REASON_MAX = 600
"""Maximum characters of the reason that a failed ingest run reports."""

TIMER_SECONDS = 1.5
"""Minimum time between an epoch's end and an epoch for a timer: instances report their timers once a second."""


class Epochs:
    """Runs epochs, one at a time, on the thread of the query that plans them."""

    _malformed_noted = False
    _malformed_epoch = -1
    """The last epoch in which most records of an operator were malformed."""
    _unsettled = _failed_first = False
    """The program has no committed epoch yet; the first step of the epoch has failed in the user's code."""
    _is_open = True
    """The sinks of the program were opened."""

    def __init__(
        self,
        settings: RunSettings,
        loop: Loop,
        metrics: DriverMetrics,
        checkpoint: Checkpoint,
        hook: Hook,
        program: Program,
        versions: Versions,
        live: Callable[[Programs], Container[int]],
        is_first_epoch: bool = False,
    ) -> None:
        """The job begins with `program`. `is_first_epoch`: no epoch of it is committed yet, and its sinks are not open.

        `live(programs)`: ids of operators whose event times may be needed.
        """
        self.settings = settings
        self.spark = spark = program.spark
        self.plan = plan = program.plan
        self.loop = loop
        self.metrics = metrics
        self.hook = hook
        self._root = Right.root(settings.secret)
        self._checkpoint = checkpoint
        self.finished = False
        self.idle = threading.Event()
        self.idle.set()
        self._program = program
        self._versions = versions
        self._live = live
        self._is_open = not is_first_epoch
        self._loops = loops = program.loops
        self._planned = planned_once(spark, plan, program.works)
        self._watch = InstanceWatch(self._cancel, loop.members.connected)
        loop.members.on_lost = self._watch.lost
        dead_letters = DeadLetters(Path(settings.dead_letter or settings.path / "dead-letter"))
        self._patience = ReportedPatience(loop, metrics, "IngestFailing", QUIET_SECONDS)
        self._tries = UserCodeTries(loop, metrics)
        set_aside = settings.on_crash == SET_ASIDE
        operators = [operator.descriptor for operator in plan.operators]
        self._poison = poison = Poison(
            plan.sources, metrics, set_aside, lambda: self._watch.losses, operators, Crashes(spark).fresh
        )
        if loops is not None:
            loops.on_death = poison.died
        self.publisher = Publisher(settings, spark, plan, loop, metrics, hook, self._watch, dead_letters, poison)
        self._last_end: float | None = None
        """monotonic"""
        self._silent_at: int | None = 0 if any(i.idle_ms for o in plan.operators for i in o.inputs) else None
        """when the next flow becomes idle, in milliseconds; 0: not known yet"""
        self._halting = threading.Event()
        self._tagged = False

    def stop_after_epoch(self) -> None:
        """Wait for the running epoch, but not for its retries; no later epoch begins."""
        self._halting.set()
        self.loop.ending.set()
        self.idle.wait(30)

    def wants_tick(self) -> bool:
        """Whether a flow has become idle since the last epoch: without data, only a tick starts the next epoch."""
        return self.idle.is_set() and self._silent_at is not None and time.time() * 1000 >= self._silent_at

    def timer_is_due(self) -> bool:
        """Whether a processing-time timer waits for an epoch. Instances need some time to report that it fired."""
        due, last = self.loop.move_metrics.next_timer(), self._last_end
        if due is None or not self.idle.is_set() or (last is not None and time.monotonic() - last <= TIMER_SECONDS):
            return False
        return time.time() * 1000 >= due

    def _cancel(self) -> None:
        """Cancel the Spark work of the running epoch, and no other work."""
        if self._loops is None:
            self.spark.sparkContext.cancelAllJobs()
        else:
            self._loops.give_up()
            self.spark.sparkContext.cancelJobsWithTag(EPOCH)

    def run(self, batch: Batch, epoch: int) -> None:
        """Run one epoch to its end."""
        if self._loops is not None and not self._tagged:
            self.spark.sparkContext.addJobTag(EPOCH)
            self._tagged = True
        if self.finished or self._halting.is_set():
            threading.Event().wait()
        self.idle.clear()
        begin, mark = time.time(), time.monotonic()
        stages = {"spark": mark - self._last_end if self._last_end is not None else 0.0}
        self.hook(epoch, "begin")
        self.loop.stages.clear()
        record = EpochRecord(epoch, begin, begin, 0, 0, 0, 0, stages)
        self.loop.begins(epoch)
        self.loop.move_metrics.work.begins()
        self.loop.post(core.EpochBegun(epoch))
        flush, watermark, again, notes = False, limits.WATERMARK_NONE, True, EpochNotes()
        while True:
            order = next_order(self.loop)
            if isinstance(order, core.StartIngest | core.Emit):
                self._follow(order.step.epoch)
            if isinstance(order, core.StartIngest):
                again = False
                self._ingest(order, batch, record)
            elif isinstance(order, core.Emit):
                notes = EpochNotes.load(order.meta)
                self._checkpoint.require_same(epoch, notes.spark)
                flush, watermark = notes.flush, min(rows.high for rows in order.rows)
                record.rows, record.malformed, late = notes.epoch
                record.late = late + order.rows[-1].late
                record.planned, record.ages = self._checkpoint.planned(epoch) / 1000, notes.ages
                record.newest = notes.newest(program_at(self.loop.machine.table.programs, epoch).operators)
                left = batch.without(notes.aside, self.plan.sources)
                if self.publisher.publish(order, notes, record, left, again):
                    break
            else:
                raise Bug(f"{order} inside an epoch")
        self.loop.post(core.EpochEnded(epoch))
        if self._unsettled:
            self._unsettled = self._failed_first = False
            self._versions.settled(self._program.number)
        self._last_end = time.monotonic()
        record.lasted(self._last_end - mark, self._last_end)
        self._stage_times(record, mark)
        machine = self.loop.machine
        self.metrics.finish_epoch(record, machine.generation, watermark, self._program.number)
        self.loop.move_metrics.epoch(record.end - record.begin, lambda: is_at_rest(machine))
        self.loop.move_metrics.work.epoch(record.rows, record.tasks, record.busy, self.metrics.lag())
        self._versions.ended(record, notes, self.publisher.checks.violations)
        self.finished = flush
        self.idle.set()

    def _follow(self, epoch: int) -> None:
        """Run the program of this epoch."""
        at = program_at(self.loop.machine.table.programs, epoch)
        if at.number == self._program.number and self._is_open:
            return
        program = self._program = self._versions.version(at.number, epoch)
        self._is_open = True
        plan = self.plan = program.plan
        self._unsettled, self._failed_first = True, False
        self._planned = planned_once(self.spark, plan, program.works)
        self._poison.follow(plan.sources, [operator.descriptor for operator in plan.operators])
        self.publisher.follow(plan)
        self._silent_at = 0 if any(i.idle_ms for o in plan.operators for i in o.inputs) else None
        log.info("epoch %d is of program %d", epoch, program.number)

    def _stage_times(self, record: EpochRecord, begin: float) -> None:
        """Seconds from the begin of each stage to the begin of the next stage."""
        marks = {"ingest": begin, **self.loop.stages}
        order = [s for s in ("ingest", "prepare", "commit", "emit", "sink") if s in marks]
        ends = [*(marks[s] for s in order[1:]), time.monotonic()]
        for stage, end in zip(order, ends, strict=True):
            record.stages[stage] = max(end - marks[stage], 0.0)

    # ---- ingest
    def _ingest(self, order: core.StartIngest, batch: Batch, record: EpochRecord) -> None:
        self.hook(order.step.epoch, "ingest")
        if order.step.operator:
            self._checkpoint.require_same(order.step.epoch, EpochNotes.load(order.meta).spark)
        is_silent, number = order.step.operator in self.plan.silent, self._program.number
        failed = order.failed or EpochNotes.load(order.meta).failure(number) or self.plan.failed if is_silent else ""
        receipts = list[Receipt]()
        if not failed:
            readers = {i: True for rows in order.rows for i, _ in rows.readers}
            with self._watch.on([*order.helpers, *readers]), self._not_slow(order):
                receipts = self._receipts_beside(order, batch) if is_silent else self._receipts(order, batch)
        errors = [r.error for r in receipts if r.error]
        failed = failed or (next(filter(None, map(line_in, errors)), "") if is_silent else "")
        if failed:
            notes = replace(self._begun(order.step, EpochNotes.load(order.meta)), failed=(number, failed))
            self.loop.post(core.Ingested(order.step, order.run, (), limits.WATERMARK_NONE, notes.dump(), True))
        elif errors:
            inputs = self.plan.operators[order.step.operator].inputs
            self._poison.failed(self._where(order), code_of(inputs, self.plan.sources))
            self._ingest_failed(order, errors[0])
            try:
                batch.failed(errors[0])
            except Fault as wrong:  # The next run hits the same error and reports it.
                log.warning("epoch %d cannot be planned again: %s", order.step.epoch, wrong)
        else:
            self._patience.succeeded()
            self._tries.succeeded()
            self._failed_first = False
            self._poison.over()
            record.tasks += len(receipts)
            record.busy += sum(r.busy for r in receipts)
            self._ingested(order, receipts)

    def _receipts_beside(self, order: core.StartIngest, batch: Batch) -> list[Receipt]:
        """The receipts of an operator whose rows are not written: an error that would stop the job is one of its code."""
        try:
            return self._receipts(order, batch)
        except (Refusal, UserCodeFailed) as error:
            words = line_in(str(error)) or f"{USER_CODE}{words_of(error)}, {self._where(order)}"
            return [Receipt(error=words)]

    def _not_slow(self, order: core.StartIngest) -> AbstractContextManager[None]:
        """Report when the user's code takes long; the rest of an ingest is fast."""
        operator = self.plan.operators[order.step.operator]
        if not (code := self._code_in_tasks(operator)):
            return nullcontext()
        text = f"tasks of operator {operator.descriptor.name!r} have read epoch {order.step.epoch} through {code} for"
        return self.metrics.problems.running(text)

    def _code_in_tasks(self, operator: Operator) -> str:
        """The user's code in an ingest: functions before the operator, and an aggregator that pre-aggregates its input."""
        condensing = operator.descriptor.kind == "process" and operator.descriptor.shape.parts is not None
        before = code_of(operator.inputs, self.plan.sources)
        return ", ".join([*[before] * bool(before), *(users_classes(operator.descriptor) if condensing else ())])

    def _where(self, order: core.StartIngest) -> str:
        return f"a task of operator {self.plan.operators[order.step.operator].descriptor.name!r}"

    def _receipts(self, order: core.StartIngest, batch: Batch) -> list[Receipt]:
        """Run the ingest; one receipt per task, or per rest of a share whose record kills its task."""
        operator = self.plan.operators[order.step.operator]
        helpers = tuple(helper for i in order.helpers if (helper := self.loop.members.registration(i)))
        read = {side.origin for side in operator.inputs}
        rows = {i: self.publisher.splits(fired) for i, fired in enumerate(order.rows) if i in read and has_fired(fired)}
        generation = self.loop.machine.generation
        right = stage_right(self._root, order.step, generation, order.run, time.time())
        high = self.loop.machine.commits.result_before(order.step).high
        work, planned = self._program.works[order.step.operator], self._checkpoint.planned(order.step.epoch)
        run = IngestRun(order.step, generation, order.run, helpers, right, high, planned, self._program.number)
        self._poison.begin(order.step.epoch, EpochNotes.load(order.meta).aside if order.step.operator else ())
        reading = Reading(self.spark, self.plan, operator, work, run, rows, self._loops, self._planned)
        try:
            receipts, died = reading.all(batch.without(self._poison.aside, self.plan.sources))
            if died and order.step.operator in self.plan.silent:  # A record set aside would be missing in all programs.
                return [Receipt(error=f"{USER_CODE}tasks die, {self._where(order)}: {self._code_in_tasks(operator)}")]
            if died and self._poison.excuses():
                return [Receipt(error="tasks died while a worker was lost")]
            if died:
                code = self._code_in_tasks(operator)
                receipts += self._poison.search(died, reading.one, self._where(order), code)
            return receipts + reading.left_out(self._poison.aside)
        except Exception as error:
            before = f"a step before operator {operator.descriptor.name!r}: {self._code_in_tasks(operator)}"
            if (users := user_error(error, before)) is not None:
                return [Receipt(error=str(users))]
            refuse_final(error)
            if is_passing(error):
                return [Receipt(error=fault_in(str(error)))]
            if any(map(in_spark, operator.inputs)) and (users := sql_error(error, before)) is not None:
                return [Receipt(error=str(users))]
            raise

    def _ingest_failed(self, order: core.StartIngest, reason: str) -> None:
        """Wait before the retry: meanwhile the coordinator may detect a lost instance, or the user may fix the input."""
        line = line_in(reason)
        is_first = line is not None and not order.step.operator
        is_new = is_first and self.loop.machine.deploying.may_take_back(self._program.number)
        if line is not None and is_new and self._failed_first:
            self.loop.post(core.Withdraw(self._program.number, line))
        elif line is not None and is_first and not is_new and self._versions.leaves(line, self._failed_first):
            self._tries.left(UserCodeFailed(line))
        elif line is not None:
            self._failed_first = is_first
            self._tries.failed(UserCodeFailed(line))
        else:
            refuse_final(reason)
            text = f"ingest of epoch {order.step.epoch}, attempt {order.run}: {reason[:REASON_MAX]}"
            self._patience.failed(text, at_once=reason.startswith(Fault.__name__))  # A bad file stays bad.
        self.loop.post(core.IngestFailed(order.step, order.run))

    def _ingested(self, order: core.StartIngest, receipts: list[Receipt]) -> None:
        """Report the winning fragments to the coordinator, with the notes to commit."""
        step = order.step
        fragments = [Fragment(step, self.loop.machine.generation, order.run, r.task) for r in receipts]
        winners: dict[InstanceId, list[Fragment]] = {}
        letters: dict[str, tuple[str, ...]] = {}
        for fragment, r in zip(fragments, receipts, strict=True):
            if r.helper is not None:
                winners.setdefault(InstanceId(r.helper), []).append(fragment)
            if r.malformed:
                letters[dead_letters_name(fragment)] = r.letters
        self.publisher.dead_letters.keep(step.epoch, letters)
        before = EpochNotes.load(order.meta)
        begun = self._begun(step, before)
        programs, operators = self.loop.machine.table.programs, self.plan.operators
        ids, now = program_at(programs, step.epoch).operators, self._checkpoint.planned(step.epoch)
        notes = event_time.noted(begun, operators[step.operator], ids, programs, receipts, letters, now)
        notes, fired = notes.without(self._poison.aside), [rows.high for rows in order.rows]
        high = event_time.watermark(notes, operators[: step.operator + 1], ids, fired, now)
        high = limits.WATERMARK_END if notes.flush else high
        self._silent_at = event_time.next_silence(notes, operators, ids, now)
        self._judge_input(step, before, notes, receipts)
        chosen = tuple((i, tuple(winners[i])) for i in sorted(winners))
        self.loop.post(core.Ingested(step, order.run, chosen, high, notes.dump()))

    def _begun(self, step: Step, before: EpochNotes) -> EpochNotes:
        """The notes of a step before its ingest."""
        late = self.loop.machine.commits.late
        if step.operator:
            return before.next_operator(late)
        live = self._live(self.loop.machine.table.programs)
        notes = before.next_epoch(late, self._checkpoint.notes(step.epoch), live)
        if notes.failed is None or (self.plan.silent and notes.failure(self._program.number)):
            return notes
        return replace(notes, failed=None)

    def _judge_input(self, step: Step, before: EpochNotes, notes: EpochNotes, receipts: Sequence[Receipt]) -> None:
        """Report the place of the job's first malformed record, and an epoch whose records are mostly malformed.

        An operator counts alone. The problem ends with an epoch in which it holds for no operator.
        """
        malformed, records = sum(r.bad for r in receipts), sum(r.given for r in receipts)
        reason = next((r.first_malformed for r in receipts if r.first_malformed), "")
        if any(r.malformed for r in receipts) and not before.malformed and not self._malformed_noted:
            self._malformed_noted = True
            self.metrics.note("malformed", f"the first malformed record: {reason}; see {self.publisher.dead_letters}")
        if malformed * 2 > records:
            self._malformed_epoch = step.epoch
            text = f"{malformed} of {records} records of an epoch are malformed and set aside: {reason}"
            self.metrics.problems.report(MALFORMED, f"{text}; see {self.publisher.dead_letters}")
        elif notes.epoch.rows and step.operator == len(self.plan.operators) - 1 and step.epoch != self._malformed_epoch:
            self.metrics.problems.mended(MALFORMED)
