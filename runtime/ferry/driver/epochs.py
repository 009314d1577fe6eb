"""The epoch function: what happens between Spark's call of foreachBatch and its return.

    EpochBegun -> [StartIngest -> Spark job -> Ingested]* -> Emit -> sink -> EpochEnded

Executes the coordinator's orders with Spark and Flight. It never decides which attempt counts.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.documents import RunSettings
from ferry.contract.errors import Bug
from ferry.contract.names import InstanceId, Step
from ferry.contract.tickets import Right, stage_right
from ferry.coordinator.loop import Hook, Loop
from ferry.coordinator.progress import EpochRecord, Progress, is_at_rest
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.letters import DeadLetters
from ferry.driver.orders import next_order
from ferry.driver.patience import QUIET_SECONDS, ReportedPatience
from ferry.driver.publisher import Publisher, is_passing, refuse_final
from ferry.driver.watch import EpochWatch
from ferry.protocol import coordinator as core
from ferry.spark.compile import Plan
from ferry.spark.feeds import feeds_of, run_ingest
from ferry.spark.ingest import Work

log = logging.getLogger("ferry.driver")


class Epochs:
    """Runs epochs, one at a time, on Spark's callback thread."""

    def __init__(
        self,
        settings: RunSettings,
        spark: SparkSession,
        plan: Plan,
        loop: Loop,
        progress: Progress,
        checkpoint: Checkpoint,
        hook: Hook,
        apart: bool,
    ) -> None:
        """`apart`: tasks run on other hosts, and share with the driver only what is mounted on both."""
        self.settings = settings
        self.spark = spark
        self.plan = plan
        self.loop = loop
        self.progress = progress
        self.hook = hook
        self._root = Right.root(settings.secret)
        self._checkpoint = checkpoint
        self.finished = False
        self.idle = threading.Event()
        self.idle.set()
        self._watch = EpochWatch(spark.sparkContext.cancelAllJobs, loop.members.connected)
        loop.members.on_lost = self._watch.lost
        dead_letter = Path(settings.dead_letter or settings.path / "dead-letter")
        self._dead_letter_of_tasks = None if apart and settings.dead_letter is None else str(dead_letter)
        letters = DeadLetters(dead_letter)
        self.publisher = Publisher(settings, spark, plan, loop, progress, hook, self._watch, letters)
        self._patience = ReportedPatience(loop, progress, "IngestFailing", QUIET_SECONDS)
        self._last_end: float | None = None
        self._halting = threading.Event()

    def stop_after_epoch(self) -> None:
        """Wait for the epoch under way, unless it fails and is tried again; a later one is not begun."""
        self._halting.set()
        self.loop.ending.set()
        self.idle.wait(30)

    def run(self, batch: DataFrame, epoch: int) -> None:
        """One epoch, to its end."""
        if self.finished or self._halting.is_set():
            threading.Event().wait()
        self.idle.clear()
        begin = time.time()
        mark = time.monotonic()
        stages = {"spark": max(begin - self._last_end, 0.0) if self._last_end else 0.0}
        self.hook(epoch, "begin")
        self.loop.stages.clear()
        record = EpochRecord(epoch, begin, begin, 0, 0, 0, 0, stages)
        self.loop.begins(epoch)
        self.loop.post(core.EpochBegun(epoch))
        flush, watermark = False, limits.WATERMARK_NONE
        while True:
            order = next_order(self.loop)
            if isinstance(order, core.StartIngest):
                self._ingest(order, batch, record)
            elif isinstance(order, core.Emit):
                notes = json.loads(order.rows.meta) if order.rows.meta else {}
                self._checkpoint.require_same(epoch, notes.get("spark"))
                flush, watermark = bool(notes.get("flush")), order.rows.high
                record.rows, record.malformed, late = notes.get("epoch", (0, 0, 0))
                record.late = late + order.rows.late
                if self.publisher.publish(order.rows, record):
                    break
            else:
                raise Bug(f"{order} inside an epoch")
        self.loop.post(core.EpochEnded(epoch))
        record.end = self._last_end = time.time()
        self._stage_times(record, mark)
        machine = self.loop.machine
        self.progress.finish_epoch(record, machine.generation, watermark)
        self.loop.meters.epoch(record.end - record.begin, lambda: is_at_rest(machine))
        self.finished = flush
        self.idle.set()

    def _stage_times(self, record: EpochRecord, begin: float) -> None:
        """Seconds from each stage's beginning to the next one's."""
        marks = {"ingest": begin, **self.loop.stages}
        order = [s for s in ("ingest", "prepare", "commit", "emit", "sink") if s in marks]
        ends = [*(marks[s] for s in order[1:]), time.monotonic()]
        for stage, end in zip(order, ends, strict=True):
            record.stages[stage] = max(end - marks[stage], 0.0)

    # ---- ingest
    def _ingest(self, order: core.StartIngest, batch: DataFrame, record: EpochRecord) -> None:
        self.hook(order.step.epoch, "ingest")
        readers = [i for i, _ in order.rows.readers] if order.rows else []
        with self._watch.on([*order.helpers, *readers]):
            receipts = self._receipts(order, batch)
        errors = [r["error"] for r in receipts if r["error"]]
        if errors:
            self._ingest_failed(order, errors[0])
        else:
            self._patience.succeeded()
            self._ingested(order, receipts, record)

    def _receipts(self, order: core.StartIngest, batch: DataFrame) -> list[dict[str, Any]]:
        """Run the ingest job; one receipt a task."""
        operator = self.plan.operators[order.step.operator]
        helpers = tuple(one for i in order.helpers if (one := self.loop.members.registration(i)))
        rows = self.publisher.splits(order.rows) if order.rows else None
        feeds = feeds_of(operator, self.plan, rows is not None)
        generation = self.loop.machine.generation
        right = stage_right(self._root, order.step, generation, order.run, time.time())
        work = Work(
            operator.descriptor,
            feeds,
            helpers,
            right,
            self.publisher.authority,
            order.step.epoch,
            generation,
            order.run,
            self._dead_letter_of_tasks,
        )
        try:
            return [json.loads(r) for r in run_ingest(self.spark, batch, operator, self.plan, work, rows)]
        except Exception as error:
            if not is_passing(error):
                raise
            return [{"error": str(error)}]

    def _ingest_failed(self, order: core.StartIngest, reason: str) -> None:
        """Try again a little later: the coordinator may know by then who is gone."""
        refuse_final(reason)
        self._patience.failed(f"ingest of epoch {order.step.epoch}, run {order.run}: {reason[:300]}")
        self.loop.post(core.IngestFailed(order.step, order.run))

    def _ingested(self, order: core.StartIngest, receipts: list[dict[str, Any]], record: EpochRecord) -> None:
        step, generation = order.step, self.loop.machine.generation
        winners: dict[InstanceId, list[m.Fragment]] = {}
        for r in receipts:
            if r["helper"] is not None:
                fragment = m.Fragment(step, generation, order.run, r["task"])
                winners.setdefault(InstanceId(r["helper"]), []).append(fragment)
        rows = sum(r["rows"] for r in receipts) if step.operator == 0 else 0
        malformed = sum(r["malformed"] for r in receipts)
        notes = json.loads(order.meta) if order.meta else {}
        # What the epoch brought is committed with it, for a driver that only emits it again. Late records are counted by
        # the step's own Commit: here are those of the steps before.
        late = self.loop.machine.late
        before = notes.get("epoch", (0, 0, 0)) if step.operator else (0, 0, -late)
        notes["epoch"] = (before[0] + rows, before[1] + malformed, before[2] + late)
        notes["late"] = notes.get("late", 0) + late
        if step.operator == 0:
            notes["spark"] = self._checkpoint.notes(step.epoch)
        maxima: dict[str, Any] = notes.setdefault("maxima", {})
        mine: dict[str, int] = maxima.setdefault(str(step.operator), {})
        for r in receipts:
            for side, value in r["maxima"].items():
                mine[side] = max(mine.get(side, value), value)
        flush = any(r["flush"] for r in receipts) or (bool(notes.get("flush")) and step.operator > 0)
        notes.update(rows=notes.get("rows", 0) + rows, malformed=notes.get("malformed", 0) + malformed, flush=flush)
        letters = {
            f"{step.epoch}-{step.operator}-{generation}-{order.run}-{r['task']}": r["letters"]
            for r in receipts
            if r["malformed"]
        }
        self.publisher.letters.keep(step.epoch, letters)
        notes["letters"] = [*(notes.get("letters", []) if step.operator else []), *letters]
        high = limits.WATERMARK_END if flush else self._watermark(step, mine, order)
        meta = json.dumps(notes, separators=(",", ":")).encode()
        chosen = tuple((i, tuple(winners[i])) for i in sorted(winners))
        self.loop.post(core.Ingested(step, order.run, chosen, high, meta))

    def _watermark(self, step: Step, maxima: dict[str, int], order: core.StartIngest) -> int:
        """Minimum over the operator's inputs of (greatest event time seen - delay); rows bring their operator's."""
        highs = []
        for side, source in enumerate(self.plan.operators[step.operator].inputs):
            if isinstance(source.origin, int):
                highs.append(order.rows.high if order.rows else limits.WATERMARK_NONE)
            elif str(side) in maxima:
                highs.append(maxima[str(side)] - source.delay_ms)
            else:
                highs.append(limits.WATERMARK_NONE)
        return min(highs)
