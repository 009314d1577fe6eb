"""Publishes fired rows of a committed step to the sinks, together with dead letters.

A read fails if an instance is lost: the coordinator then names other readers. A write fails if the sink fails: it is
retried within the patience of the job, and the job is degraded. Must never decide which attempt counts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import LateOutput, Output
from ferry.api.user_batches import code_of
from ferry.connectors.foreach.sink import ForeachEpoch
from ferry.connectors.sink import RowParts, Sink
from ferry.connectors.users import is_ferrys
from ferry.contract import limits
from ferry.contract.certificates import authority
from ferry.contract.errors import FerryError, Final, Unreachable, UserCodeFailed
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import ReadTicket, Right, read_right
from ferry.contract.user_code import USER_CODE, function_name, place_of, shown, text_of, where
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.coordinator.loop import Hook, Loop
from ferry.driver.comparison import Compared, harmless, has_failed
from ferry.driver.dead_letters import DeadLetters
from ferry.driver.expectations import Checks
from ferry.driver.failures import death, has_died, is_final, is_passing, refuse_final, sink_code, user_error
from ferry.driver.instance_watch import InstanceWatch
from ferry.driver.patience import QUIET_SECONDS, Answers, ReportedPatience, UserCodeTries
from ferry.driver.poison import Poison
from ferry.driver.probing import Probing
from ferry.driver.united import United
from ferry.kernels.schemas import fired_schema
from ferry.protocol import coordinator as core
from ferry.spark import emit
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import read_parts, records_frame, rows_frame
from ferry.spark.late import late_frame
from ferry.spark.shares import Batch
from ferry.spark.tasks import flight

log = logging.getLogger("ferry.driver")

DRIVERS_MAX = 2
"""After the first death, how many more drivers in a row may die while a user's sink writes the same epoch."""


def has_fired(rows: core.FiredRows) -> bool:
    """Whether rows may exist: the leaders' count before firing is 0 only if there are no rows."""
    return rows.fired > 0


class Publisher:
    """Gives the rows of each epoch to the sinks."""

    _again = -1
    """The epoch that may have killed an earlier driver."""
    checks: Checks
    """Of the present epoch."""

    def __init__(
        self,
        settings: RunSettings,
        spark: SparkSession,
        plan: CompiledPipeline,
        loop: Loop,
        metrics: DriverMetrics,
        hook: Hook,
        watch: InstanceWatch,
        dead_letters: DeadLetters,
        poison: Poison,
    ) -> None:
        self.settings = settings
        self.spark = spark
        self.loop = loop
        self.metrics = metrics
        self.hook = hook
        self._root = Right.root(settings.secret)
        self.authority = authority(settings.secret).decode() if settings.encrypted else None
        """with it tasks verify the certificates of instances; None: TLS is off"""
        self._watch = watch
        self.dead_letters = dead_letters
        self._poison = poison
        self._readers = ThreadPoolExecutor(64, thread_name_prefix="read")
        self._connections = flight.Connections(self.authority)
        self._reading = ReportedPatience(loop, metrics, "ReadFailing", QUIET_SECONDS)
        limit = settings.sink_patience_ms
        self._sinking = ReportedPatience(loop, metrics, "SinkFailing", limit=None if limit is None else limit / 1000)
        self._answers = Answers(self._sinking, metrics.problems.slow_ms / 1000)
        self._tries = UserCodeTries(loop, metrics)
        self._row_bytes: dict[int, float] = {}
        """Bytes per row by operator, from the last fetch; a lower bound if the rows were too large to fetch."""
        self.follow(plan)

    def follow(self, plan: CompiledPipeline) -> None:
        """Publish the rows of this program from now on."""
        self.plan = plan
        schemas = {o.descriptor.index: fired_schema(o.descriptor) for o in plan.operators}
        self._probing = Probing(self.spark, self._poison, schemas)
        self._row_bytes.clear()
        direct = all(emit.is_direct(output) for output in plan.outputs)
        self._local_rows = limits.EMIT_DIRECT_ROWS if direct else limits.EMIT_LOCAL_ROWS
        self._local_bytes = limits.EMIT_DIRECT_BYTES if direct else limits.EMIT_LOCAL_BYTES
        self._outputs: dict[int | str, list[Output]] = {}
        """By the operator or source before them."""
        for output in plan.outputs:
            self._outputs.setdefault(output.input.origin, []).append(output)
        self._united = United(plan.outputs)

    def splits(self, rows: core.FiredRows) -> list[dict[str, Any]]:
        """The splits that read the fired rows: one per instance."""
        step, attempt = rows.commit_id
        splits = []
        for i, vnodes in rows.readers:
            member = self.loop.members.registration(i)
            ask = ReadTicket(
                rows.generation,
                step.epoch,
                step.operator,
                (attempt.generation, attempt.number),
                rows.low,
                rows.high,
                tuple(vnodes),
            )
            right = read_right(self._root, ask, i, member.incarnation if member else "", time.time())
            # A lost instance has no address: the read fails and reports it.
            address = member.flight if member else ""
            splits.append({"flight": address, "ticket": right.dump().decode(), "authority": self.authority})
        return splits

    def publish(
        self, order: core.Emit, notes: EpochNotes, record: EpochRecord, batch: Batch, again: bool = False
    ) -> bool:
        """Give the sinks the rows. False when the rows could not be read: the coordinator names other readers.

        `again`: the epoch may have killed an earlier driver.
        """
        epoch = order.step.epoch
        self._again = epoch if again else -1
        self.hook(epoch, "emit")
        self.loop.stages["emit"] = time.monotonic()
        record.fired = 0
        self.checks = Checks()
        self._united.begin()
        for operator, rows in enumerate(order.rows):
            if operator in self._outputs and has_fired(rows):
                fired = self._publish_rows(rows, epoch)
                if fired is None:
                    self.loop.post(core.ReadFailed(order.step))
                    return False
                record.fired += fired if any(not isinstance(o.sink, Compared) for o in self._outputs[operator]) else 0
        if not self._publish_united(order):
            return False
        if not record.fired:
            self.hook(epoch, "sink")  # Every epoch has this stage, even without rows.
        for late in self.plan.late:
            if order.rows[late.operator].late and not self._publish_late(late, order.rows, batch):
                self.loop.post(core.ReadFailed(order.step))
                return False
        self._publish_records(batch, epoch)
        self.dead_letters.publish(epoch, notes.letters)
        return True

    def _publish_united(self, order: core.Emit) -> bool:
        """Give sinks the rows of several operators, with retries. False: the rows could not be read."""
        for sink, results in self._united:
            while True:
                try:
                    with self._watch.on(i for rows in order.rows for i, _ in rows.readers):
                        self._give(
                            sink, order.step.epoch, self.loop.machine.generation, emit.united(self.spark, results)
                        )
                    self._succeeded()
                    break
                except Exception as error:
                    if is_passing(error) and not all(isinstance(rows, pa.Table) for rows in results):
                        self._read_failed(order.rows[-1], error)
                        return False
                    self._sink_failed(f"sink of epoch {order.step.epoch}", error)
        return True

    def _publish_records(self, batch: Batch, epoch: int) -> None:
        """Give the records of a source to the sinks directly behind it, with retries."""
        for output in (output for source in self.plan.sources for output in self._outputs.get(source, ())):
            while True:
                try:
                    with harmless(output.sink, by_tasks=True):
                        if not has_failed(output.sink) and (records := self._records(batch, output)) is not None:
                            self.checks.check(output, records)
                            self._give(output.sink, epoch, self.loop.machine.generation, records)
                    self._succeeded()
                    break
                except Exception as error:
                    self._sink_failed(f"sink of epoch {epoch}", error)

    def _records(self, batch: Batch, output: Output) -> pa.Table | DataFrame | RowParts | None:
        """The records of an epoch for a sink; None: no records."""
        parts = read_parts(self.spark, batch, self.plan, output)
        if parts is not None and not parts.shares:
            return None
        if parts is not None and emit.is_direct(output):
            if output.sink.takes_parts:
                return parts
            if (table := parts.table(limits.EMIT_LOCAL_BYTES)) is not None:
                return table if table.num_rows else None
        frame = partial(records_frame, self.spark, batch.frame, self.plan, output.input)
        return emit.result(self.spark, output, None, frame)

    def _publish_late(self, output: LateOutput, rows: Sequence[core.FiredRows], batch: Batch) -> bool:
        """Give a sink the late records of an operator, with retries. False: fired rows among them could not be read."""
        of = rows[output.operator]
        epoch = of.commit_id.step.epoch
        read = {i: rows[i] for side in output.inputs if isinstance(i := side.origin, int) and has_fired(rows[i])}
        while True:
            try:
                with self._watch.on(i for fired in read.values() for i, _ in fired.readers):
                    splits = {i: self.splits(fired) for i, fired in read.items()}
                    frame = late_frame(self.spark, batch.frame, self.plan, output, splits, of.low)
                    self._give(output.sink, epoch, of.generation, frame)
                self._succeeded()
                return True
            except Exception as error:
                if read and is_passing(error):
                    self._read_failed(of, error)
                    return False
                self._sink_failed(f"late records of epoch {epoch}", error)

    def _publish_rows(self, rows: core.FiredRows, epoch: int) -> int | None:
        """Give the rows to the sinks of their operator, with retries. Returns their number; None: they could not be read."""
        probed = epoch == self._again
        while True:
            table = None
            if probed and not self._probe(rows, epoch):
                return None
            try:
                bytes_of_a_row = self._row_bytes.get(rows.commit_id.step.operator, 0.0)
                if rows.fired <= self._local_rows and rows.fired * bytes_of_a_row <= self._local_bytes:
                    table = self._fetch(rows)
            except (fl.FlightError, pa.ArrowException) as error:
                self._read_failed(rows, error)
                return None
            self.hook(epoch, "sink")
            self.loop.stages["sink"] = time.monotonic()
            try:
                self._write(rows, table, epoch)
                self._reading.succeeded()
                self._succeeded()
                return table.num_rows if table is not None else rows.fired
            except Exception as error:
                if table is None and is_passing(error):
                    self._read_failed(rows, error)
                    return None
                if not has_died(error) or probed:
                    self._sink_failed(f"sink of epoch {epoch}", error)
                probed = has_died(error)

    def _probe(self, rows: core.FiredRows, epoch: int) -> bool:
        """Have tasks pass rows through the functions before sinks, with retries. False: the rows could not be read."""
        operator = rows.commit_id.step.operator
        for output in self._outputs[operator]:
            while not isinstance(output.sink, Compared):
                try:
                    with self._watch.on(i for i, _ in rows.readers):
                        self._probing.of(operator, output, self.splits(rows))
                    break
                except Exception as error:
                    if is_passing(error):
                        self._read_failed(rows, error)
                        return False
                    self._sink_failed(f"sink of epoch {epoch}", error)
        return True

    def _give(self, sink: Sink, epoch: int, generation: int, rows: pa.Table | DataFrame | RowParts) -> None:
        """Have a sink write rows. Raises UserCodeFailed for an error of a user's sink."""
        if is_ferrys(sink) and not isinstance(sink, ForeachEpoch):
            try:
                with self._answers.awaited(lambda: f"sink {sink!r} of epoch {epoch}"):
                    return sink.write(epoch, generation, rows)
            except OSError as error:  # the error of a full disk has no path
                if error.errno is not None and error.filename is None:
                    error.filename = str(getattr(sink, "directory", sink))
                raise
        deadly = self._counted(sink, epoch) if epoch == self._again else nullcontext()
        slow = self.metrics.problems.running(f"sink {shown(sink)} has written epoch {epoch} for")
        with deadly, slow, sink_code(sink):
            sink.write(epoch, generation, rows)

    @contextmanager
    def _counted(self, sink: Sink, epoch: int) -> Iterator[None]:
        """Around a write that may have killed the previous driver. Raises Final if it killed several drivers."""
        registry = self.loop.registry
        code: Any = sink.function if isinstance(sink, ForeachEpoch) else type(sink)
        name = f"sink {function_name(code)}"
        with suppress(Unreachable):
            if (before := registry.enter(f"{name}, epoch {epoch}")) >= DRIVERS_MAX:
                registry.leave()
                of = f" ({at})" if (at := place_of(code)) else ""
                raise Final(f"{USER_CODE}{before + 1} drivers have died in {name}{of}, with the rows of epoch {epoch}")
        try:
            yield
        finally:
            with suppress(Unreachable):
                registry.leave()

    def _succeeded(self) -> None:
        self._sinking.succeeded()
        self._tries.succeeded()

    def _sink_failed(self, name: str, error: Exception) -> None:
        """Wait before the next try. Raises an error that a retry cannot fix."""
        if not isinstance(error, UserCodeFailed) and is_final(error):
            if not isinstance(error, FerryError):
                refuse_final(error)  # from a task: PySpark's own error would end the driver like a crash
            raise error
        code = code_of([output.input for output in self.plan.outputs], {})
        if (users := user_error(error, name) or death(error, f"{name}: {code}" if code else name)) is not None:
            return self._tries.failed(users)
        if place := where(error):
            log.warning("%s fails at %s", name, place)
        self._sinking.failed(f"{name}: {type(error).__name__}: {text_of(error)}")

    def _fetch(self, rows: core.FiredRows) -> pa.Table | None:
        """The rows, if the driver may hold them; None if tasks must read them."""
        with self._watch.on(i for i, _ in rows.readers):
            # Looked up under the watch: an instance that was lost earlier has no address.
            splits = self.splits(rows)
            schema, most = self._fired_schema(rows), self._local_bytes
            gone, connections = self._watch.gone, self._connections
            table = emit.fetch(self._readers, splits, schema, gone, self._local_rows, most, connections)
        operator = rows.commit_id.step.operator
        if table is None:
            # The next epochs of this size skip the fetch; smaller epochs are still fetched.
            self._row_bytes[operator] = max(self._row_bytes.get(operator, 0.0), most / rows.fired * 1.01)
        elif table.num_rows:
            self._row_bytes[operator] = table.nbytes / table.num_rows
        return table

    def _fired_schema(self, rows: core.FiredRows) -> pa.Schema:
        return fired_schema(self.plan.operators[rows.commit_id.step.operator].descriptor)

    def _read_failed(self, rows: core.FiredRows, error: Exception) -> None:
        """Wait a little before the coordinator names other readers."""
        refuse_final(error)
        self._reading.failed(f"rows of epoch {rows.commit_id.step.epoch} could not be read: {str(error)[:300]}")

    def _write(self, rows: core.FiredRows, table: pa.Table | None, epoch: int) -> None:
        if table is not None and table.num_rows == 0:
            return
        for output in self._outputs[rows.commit_id.step.operator]:
            if not has_failed(output.sink):
                with harmless(output.sink, by_tasks=table is None):
                    self._write_to(output, rows, table, epoch)

    def _write_to(self, output: Output, rows: core.FiredRows, table: pa.Table | None, epoch: int) -> None:
        code = code_of([output.input], {})
        text = f"rows of epoch {epoch} have passed through {code} for"
        with (
            self.metrics.problems.running(text) if code else nullcontext(),
            self._watch.on(i for i, _ in rows.readers if table is None),
        ):
            result: pa.Table | DataFrame | RowParts
            if table is None and emit.is_parted(output) and output not in self._united:
                result = emit.parts(self.spark, output, self.splits(rows))
            else:
                frame = partial(self._rows_frame, rows, self._fired_schema(rows), output)
                result = emit.result(self.spark, output, table, frame)
            self.checks.check(output, result)
            if output in self._united:
                return self._united.add(output, result)
            self._give(output.sink, epoch, rows.generation, result)

    def _rows_frame(self, rows: core.FiredRows, schema: pa.Schema, output: Output) -> DataFrame:
        return rows_frame(self.spark, self.splits(rows), schema, emit.before_sql(output.input.steps)[0])
