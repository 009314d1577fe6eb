"""The epoch function: what happens between Spark's call of foreachBatch and its return.

    EpochBegun -> [StartIngest -> Spark job -> Ingested]* -> Emit -> sink -> EpochEnded

Executes the coordinator's orders with Spark and Flight. It never decides which attempt counts.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from pyspark.sql import DataFrame, SparkSession

from ferry.contract import limits
from ferry.contract import messages as m
from ferry.contract.documents import RunSettings
from ferry.contract.errors import Bug, Exhausted, Fault, FerryError
from ferry.contract.names import InstanceId, Step
from ferry.coordinator.loop import Hook, Loop, Order
from ferry.coordinator.progress import EpochRecord, Progress
from ferry.driver.watch import Watch
from ferry.kernels.schemas import fired_schema
from ferry.protocol import coordinator as core
from ferry.spark import emit
from ferry.spark.compile import Plan
from ferry.spark.feeds import feeds_of, ingest_frame, rows_frame
from ferry.spark.ingest import Work

log = logging.getLogger("ferry.driver")

RETRY_SECONDS = 0.05

INGEST_SECONDS = 60.0
"""An ingest that fails again and again for this long after the last holder of something should be back stops the job."""

READ_ERRORS = re.compile(r"pyarrow\._flight\.Flight\w+|FlightUnavailable|RowsGone|rows gone|[Jj]ob \d+ cancelled")
"""In the text of a failed Spark job: it could not reach an instance, that one had no rows (any more), or was lost."""


class Epochs:
    """Runs epochs, one at a time, on Spark's callback thread."""

    def __init__(
        self, settings: RunSettings, spark: SparkSession, plan: Plan, loop: Loop, progress: Progress, hook: Hook
    ) -> None:
        self.settings, self.spark, self.plan, self.loop, self.progress, self.hook = (
            settings, spark, plan, loop, progress, hook,
        )  # fmt: skip
        self.finished = False
        self.idle = threading.Event()
        self.idle.set()
        self._readers = ThreadPoolExecutor(64, thread_name_prefix="read")
        self._watch = Watch(spark.sparkContext.cancelAllJobs)
        loop.members.on_lost = self._watch.lost
        self._failing_since: float | None = None
        self._dead_letter = Path(settings.dead_letter or settings.path / "dead-letter")
        self._last_end: float | None = None
        self._halting = threading.Event()

    def stop_after_epoch(self) -> None:
        """Wait for the epoch under way; a later one is not begun."""
        self._halting.set()
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
        self.loop.post(core.EpochBegun(epoch))
        flush, watermark = False, limits.WATERMARK_NONE
        while True:
            order = self._order()
            if isinstance(order, core.StartIngest):
                self._ingest(order, batch, record)
            elif isinstance(order, core.Emit):
                notes = json.loads(order.rows.meta) if order.rows.meta else {}
                flush, watermark = bool(notes.get("flush")), order.rows.high
                record.rows, record.malformed, late = notes.get("epoch", (0, 0, 0))
                record.late = late + order.rows.late
                if self._emit(order.rows, record):
                    break
            else:
                raise Bug(f"{order} inside an epoch")
        self.loop.post(core.EpochEnded(epoch))
        record.end = self._last_end = time.time()
        self._stage_times(record, mark)
        self.progress.finish_epoch(record, self.loop.machine.generation, watermark)
        self.finished = flush
        self.idle.set()

    def _order(self) -> Order:
        order = self.loop.orders.get()
        if isinstance(order, core.Halt):
            from ferry.driver.job import Halted

            raise Halted(order)
        return order

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
            self._failing_since = None
            self._ingested(order, receipts, record)

    def _receipts(self, order: core.StartIngest, batch: DataFrame) -> list[dict[str, Any]]:
        """Run the ingest job; one receipt a task."""
        operator = self.plan.operators[order.step.operator]
        helpers = tuple((i, uri) for i in order.helpers if (uri := self.loop.members.flight(i)))
        rows = self._splits(order.rows) if order.rows else None
        feeds = feeds_of(operator, self.plan, rows is not None)
        work = Work(
            operator.shape, feeds, helpers, self.settings.secret, order.step.epoch, self.loop.machine.generation,
            order.run, str(self._dead_letter),
        )  # fmt: skip
        try:
            frame = ingest_frame(self.spark, batch, operator, self.plan, work, rows)
            return [json.loads(r[0]) for r in frame.collect()]
        except Exception as error:
            if not self._passing(error):
                raise
            return [{"error": str(error)}]

    def _ingest_failed(self, order: core.StartIngest, reason: str) -> None:
        """Try again a little later: the coordinator may know by then who is gone. After a long time, give up."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        failing = now - self._failing_since
        text = f"ingest of epoch {order.step.epoch}, run {order.run}: {reason[:300]}"
        log.warning("%s", text)
        if failing > self.settings.return_deadline_ms / 1000 + INGEST_SECONDS:
            raise Exhausted(f"{text} (for {failing:.0f} s); nothing is lost: start the job again when it is mended")
        time.sleep(min(RETRY_SECONDS + failing / 10, 1.0))
        self.loop.post(core.IngestFailed(order.step, order.run))

    def _passing(self, error: Exception) -> bool:
        """Whether a failed Spark job may be due to an instance that died under it."""
        return READ_ERRORS.search(str(error)) is not None

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
        maxima: dict[str, Any] = notes.setdefault("maxima", {})
        mine: dict[str, int] = maxima.setdefault(str(step.operator), {})
        for r in receipts:
            for side, value in r["maxima"].items():
                mine[side] = max(mine.get(side, value), value)
        flush = any(r["flush"] for r in receipts) or (bool(notes.get("flush")) and step.operator > 0)
        notes.update(rows=notes.get("rows", 0) + rows, malformed=notes.get("malformed", 0) + malformed, flush=flush)
        letters = [
            f"{step.epoch}-{step.operator}-{generation}-{order.run}-{r['task']}" for r in receipts if r["malformed"]
        ]
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

    # ---- emit
    def _splits(self, rows: core.Rows) -> list[dict[str, Any]]:
        """Where the fired rows are: one split an instance."""
        label = rows.label
        ticket = {
            "secret": "", "generation": rows.generation, "epoch": label.step.epoch, "operator": label.step.operator,
            "attempt": list(label.attempt), "low": rows.low, "high": rows.high,
        }  # fmt: skip
        return [
            {"flight": self.loop.members.flight(i) or "", "ticket": {**ticket, "vnodes": list(vnodes)}}
            for i, vnodes in rows.readers
        ]

    def _emit(self, rows: core.Rows, record: EpochRecord) -> bool:
        """Give the sinks the rows. False when they could not be read: the coordinator names other readers."""
        epoch = rows.label.step.epoch
        self.hook(epoch, "emit")
        self.loop.stages["emit"] = time.monotonic()
        if rows.high > rows.low:
            fired = self._publish_rows(rows, epoch)
            if fired is None:
                return False
            record.fired = fired
        self._publish_dead_letters(epoch, json.loads(rows.meta).get("letters", []) if rows.meta else [])
        self.progress.degraded = None
        return True

    def _sink_failed(self, epoch: int, attempts: int, error: Exception) -> None:
        """Back off and try again; after some attempts the job is degraded and stops."""
        text = f"sink of epoch {epoch} failed (attempt {attempts} of {self.settings.sink_attempts}): {error}"
        self.progress.degraded = text
        self.progress.note("degraded", text)
        log.warning("%s", text)
        if attempts >= self.settings.sink_attempts:
            raise Exhausted(f"{text}; nothing is lost: mend the sink and start the job again") from error
        time.sleep(min(0.1 * 2 ** (attempts - 1), 5.0))

    def _publish_rows(self, rows: core.Rows, epoch: int) -> int | None:
        """Give the sinks the rows, again and again; how many there were. None when they could not be read."""
        attempts = 0
        while True:
            splits = self._splits(rows)
            table = None
            try:
                if rows.fired <= limits.EMIT_LOCAL_ROWS:
                    table = self._fetch(rows, splits)
            except (fl.FlightError, pa.ArrowException) as error:
                self._read_failed(rows, error)
                return None
            self.hook(epoch, "sink")
            self.loop.stages["sink"] = time.monotonic()
            try:
                self._write(rows, splits, table, epoch)
                return table.num_rows if table is not None else rows.fired
            except FerryError:
                raise
            except Exception as error:
                if table is None and self._passing(error):
                    self._read_failed(rows, error)
                    return None
                attempts += 1
                self._sink_failed(epoch, attempts, error)

    def _fetch(self, rows: core.Rows, splits: list[dict[str, Any]]) -> pa.Table:
        with self._watch.on(i for i, _ in rows.readers):
            return emit.fetch(self._readers, splits, self.settings.secret, self._fired_schema(rows), self._watch.gone)

    def _fired_schema(self, rows: core.Rows) -> pa.Schema:
        return fired_schema(self.plan.operators[rows.label.step.operator].shape)

    def _read_failed(self, rows: core.Rows, error: Exception) -> None:
        log.warning("rows of epoch %d could not be read: %s", rows.label.step.epoch, str(error)[:300])
        time.sleep(RETRY_SECONDS)
        self.loop.post(core.ReadFailed(rows.label.step))

    def _write(self, rows: core.Rows, splits: list[dict[str, Any]], table: pa.Table | None, epoch: int) -> None:
        if table is not None and table.num_rows == 0:
            return
        secret, schema = self.settings.secret, self._fired_schema(rows)
        for output in self.plan.outputs:
            with self._watch.on(i for i, _ in rows.readers if table is None):
                made = emit.result(self.spark, output, table, lambda: rows_frame(self.spark, splits, secret, schema))
                output.sink.write(epoch, rows.generation, made)

    def _publish_dead_letters(self, epoch: int, accepted: list[str]) -> None:
        """Make the set-aside records of accepted tasks visible, forget those of others."""
        if not self._dead_letter.is_dir():
            return
        for hidden in self._dead_letter.glob(f".{epoch}-*.jsonl"):
            name = hidden.name[1:]
            if name.removesuffix(".jsonl") in accepted:
                hidden.rename(self._dead_letter / name)
            else:
                hidden.unlink()


__all__ = ["Epochs", "Fault"]
