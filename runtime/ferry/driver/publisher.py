"""Fired rows of a committed step on their way to the sinks, and dead letters with them.

Reading may fail because an instance is gone: the coordinator then names other readers. Writing may fail because the sink
does: it is tried again, degraded, for as long as the job may wait. Must never decide which attempt counts.
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
from ferry.driver.dead_letters import DeadLetters
from ferry.driver.failures import death, has_died, is_final, is_passing, refuse_final, sink_code, user_error
from ferry.driver.patience import QUIET_SECONDS, Answers, ReportedPatience, UserCodeTries
from ferry.driver.poison import Poison
from ferry.driver.probing import Probing
from ferry.driver.watch import EpochWatch
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
"""Deaths of drivers in a row, beside the first one, while a sink of the user's writes the same epoch."""


def has_fired(rows: core.FiredRows) -> bool:
    """Whether there may be any: what leaders count before they fire is never less than nothing of something."""
    return rows.fired > 0


class Publisher:
    """Gives the rows of one epoch after another to the sinks."""

    _again = -1
    """Epoch that a driver before this one may have died of."""

    def __init__(
        self,
        settings: RunSettings,
        spark: SparkSession,
        plan: CompiledPipeline,
        loop: Loop,
        metrics: DriverMetrics,
        hook: Hook,
        watch: EpochWatch,
        dead_letters: DeadLetters,
        poison: Poison,
    ) -> None:
        self.settings = settings
        self.spark = spark
        self.plan = plan
        self.loop = loop
        self.metrics = metrics
        self.hook = hook
        self._root = Right.root(settings.secret)
        self.authority = authority(settings.secret).decode() if settings.encrypted else None
        """what tasks check instances against; None: TLS is off"""
        self._watch = watch
        self.dead_letters = dead_letters
        schemas = {o.descriptor.index: fired_schema(o.descriptor) for o in plan.operators}
        self._probing = Probing(spark, poison, schemas)
        self._readers = ThreadPoolExecutor(64, thread_name_prefix="read")
        self._connections = flight.Connections(self.authority)
        self._reading = ReportedPatience(loop, metrics, "ReadFailing", QUIET_SECONDS)
        limit = settings.sink_patience_ms
        self._sinking = ReportedPatience(loop, metrics, "SinkFailing", limit=None if limit is None else limit / 1000)
        self._answers = Answers(self._sinking, metrics.problems.slow_ms / 1000)
        self._tries = UserCodeTries(loop, metrics)
        direct = all(emit.is_direct(output) for output in plan.outputs)
        self._local_rows = limits.EMIT_DIRECT_ROWS if direct else limits.EMIT_LOCAL_ROWS
        self._local_bytes = limits.EMIT_DIRECT_BYTES if direct else limits.EMIT_LOCAL_BYTES
        self._row_bytes: dict[int, float] = {}
        """By operator, of the rows that were fetched last; of those that were too many, what they have at least."""
        self._outputs: dict[int | str, list[Output]] = {}
        """By the operator or the source that they are behind."""
        for output in plan.outputs:
            self._outputs.setdefault(output.input.origin, []).append(output)

    def splits(self, rows: core.FiredRows) -> list[dict[str, Any]]:
        """Where the fired rows are: one split an instance."""
        step, attempt = rows.commit_id
        made = []
        for i, vnodes in rows.readers:
            one = self.loop.members.registration(i)
            ask = ReadTicket(
                rows.generation,
                step.epoch,
                step.operator,
                (attempt.generation, attempt.number),
                rows.low,
                rows.high,
                tuple(vnodes),
            )
            right = read_right(self._root, ask, i, one.incarnation if one else "", time.time())
            # Of one that is lost: whoever reads finds nobody there, and says so.
            made.append(
                {"flight": one.flight if one else "", "ticket": right.dump().decode(), "authority": self.authority}
            )
        return made

    def publish(
        self, order: core.Emit, notes: EpochNotes, record: EpochRecord, batch: Batch, again: bool = False
    ) -> bool:
        """Give the sinks the rows. False when they could not be read: the coordinator names other readers.

        `again`: a driver before this one may have died of it.
        """
        epoch = order.step.epoch
        self._again = epoch if again else -1
        self.hook(epoch, "emit")
        self.loop.stages["emit"] = time.monotonic()
        record.fired = 0
        for operator, rows in enumerate(order.rows):
            if operator in self._outputs and has_fired(rows):
                fired = self._publish_rows(rows, epoch)
                if fired is None:
                    self.loop.post(core.ReadFailed(order.step))
                    return False
                record.fired += fired
        if not record.fired:
            self.hook(epoch, "sink")  # A stage of every epoch, also where there is nothing to write.
        for late in self.plan.late:
            if order.rows[late.operator].late and not self._publish_late(late, order.rows, batch):
                self.loop.post(core.ReadFailed(order.step))
                return False
        self._publish_records(batch, epoch)
        self.dead_letters.publish(epoch, notes.letters)
        return True

    def _publish_records(self, batch: Batch, epoch: int) -> None:
        """Give the sinks that are straight behind a source its records, again and again."""
        for output in (output for source in self.plan.sources for output in self._outputs.get(source, ())):
            while True:
                try:
                    if (made := self._records(batch, output)) is not None:
                        self._give(output.sink, epoch, self.loop.machine.generation, made)
                    self._succeeded()
                    break
                except Exception as error:
                    self._sink_failed(f"sink of epoch {epoch}", error)

    def _records(self, batch: Batch, output: Output) -> pa.Table | DataFrame | RowParts | None:
        """What a sink gets of an epoch's records; None: there are none."""
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
        """Give a sink the late records of an operator, again and again. False: fired rows among them could not be read."""
        of = rows[output.operator]
        epoch = of.commit_id.step.epoch
        read = {i: rows[i] for one in output.inputs if isinstance(i := one.origin, int) and has_fired(rows[i])}
        while True:
            try:
                with self._watch.on(i for one in read.values() for i, _ in one.readers):
                    splits = {i: self.splits(one) for i, one in read.items()}
                    made = late_frame(self.spark, batch.frame, self.plan, output, splits, of.low)
                    self._give(output.sink, epoch, of.generation, made)
                self._succeeded()
                return True
            except Exception as error:
                if read and is_passing(error):
                    self._read_failed(of, error)
                    return False
                self._sink_failed(f"late records of epoch {epoch}", error)

    def _publish_rows(self, rows: core.FiredRows, epoch: int) -> int | None:
        """Give the sinks of an operator the rows, again and again; how many there were. None: they could not be read."""
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
        """Have tasks pass rows through the functions before sinks, again and again; False: they could not be read."""
        operator = rows.commit_id.step.operator
        for output in self._outputs[operator]:
            while True:
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
        """Have a sink write rows. Raises UserCodeFailed for what a user's own raises."""
        if is_ferrys(sink) and not isinstance(sink, ForeachEpoch):
            try:
                with self._answers.awaited(lambda: f"sink {sink!r} of epoch {epoch}"):
                    return sink.write(epoch, generation, rows)
            except OSError as error:  # a full disk does not say which
                if error.errno is not None and error.filename is None:
                    error.filename = str(getattr(sink, "directory", sink))
                raise
        deadly = self._counted(sink, epoch) if epoch == self._again else nullcontext()
        slow = self.metrics.problems.running(f"sink {shown(sink)} has written epoch {epoch} for")
        with deadly, slow, sink_code(sink):
            sink.write(epoch, generation, rows)

    @contextmanager
    def _counted(self, sink: Sink, epoch: int) -> Iterator[None]:
        """Around what the driver before may have died of. Raises Final, if several have."""
        registry = self.loop.registry
        code: Any = sink.function if isinstance(sink, ForeachEpoch) else type(sink)
        what = f"sink {function_name(code)}"
        with suppress(Unreachable):
            if (before := registry.enter(f"{what}, epoch {epoch}")) >= DRIVERS_MAX:
                registry.leave()
                of = f" ({at})" if (at := place_of(code)) else ""
                raise Final(f"{USER_CODE}{before + 1} drivers have died in {what}{of}, with the rows of epoch {epoch}")
        try:
            yield
        finally:
            with suppress(Unreachable):
                registry.leave()

    def _succeeded(self) -> None:
        self._sinking.succeeded()
        self._tries.succeeded()

    def _sink_failed(self, what: str, error: Exception) -> None:
        """Wait before the next try. Raises what no other try would mend."""
        if not isinstance(error, UserCodeFailed) and is_final(error):
            if not isinstance(error, FerryError):
                refuse_final(error)  # of a task: PySpark's own error ends a driver as a crash does
            raise error
        code = code_of([output.input for output in self.plan.outputs], {})
        if (users := user_error(error, what) or death(error, f"{what}: {code}" if code else what)) is not None:
            return self._tries.failed(users)
        if place := where(error):
            log.warning("%s fails at %s", what, place)
        self._sinking.failed(f"{what}: {type(error).__name__}: {text_of(error)}")

    def _fetch(self, rows: core.FiredRows) -> pa.Table | None:
        """The rows, where the driver may hold them; None where tasks have to read them."""
        with self._watch.on(i for i, _ in rows.readers):
            # Looked up while they are watched: who is lost earlier has no address any more.
            splits = self.splits(rows)
            schema, most = self._fired_schema(rows), self._local_bytes
            gone, connections = self._watch.gone, self._connections
            table = emit.fetch(self._readers, splits, schema, gone, self._local_rows, most, connections)
        operator = rows.commit_id.step.operator
        if table is None:
            # So that epochs like this one do not begin in vain; smaller ones are fetched still.
            self._row_bytes[operator] = max(self._row_bytes.get(operator, 0.0), most / rows.fired * 1.01)
        elif table.num_rows:
            self._row_bytes[operator] = table.nbytes / table.num_rows
        return table

    def _fired_schema(self, rows: core.FiredRows) -> pa.Schema:
        return fired_schema(self.plan.operators[rows.commit_id.step.operator].descriptor)

    def _read_failed(self, rows: core.FiredRows, error: Exception) -> None:
        """Wait a little, before other readers are asked for."""
        refuse_final(error)
        self._reading.failed(f"rows of epoch {rows.commit_id.step.epoch} could not be read: {str(error)[:300]}")

    def _write(self, rows: core.FiredRows, table: pa.Table | None, epoch: int) -> None:
        if table is not None and table.num_rows == 0:
            return
        schema = self._fired_schema(rows)
        for output in self._outputs[rows.commit_id.step.operator]:
            code = code_of([output.input], {})
            text = f"rows of epoch {epoch} have passed through {code} for"
            with (
                self.metrics.problems.running(text) if code else nullcontext(),
                self._watch.on(i for i, _ in rows.readers if table is None),
            ):
                made: pa.Table | DataFrame | RowParts
                if table is None and emit.is_parted(output):
                    made = emit.parts(self.spark, output, self.splits(rows))
                else:
                    frame = partial(self._rows_frame, rows, schema, output)
                    made = emit.result(self.spark, output, table, frame)
                self._give(output.sink, epoch, rows.generation, made)

    def _rows_frame(self, rows: core.FiredRows, schema: pa.Schema, output: Output) -> DataFrame:
        return rows_frame(self.spark, self.splits(rows), schema, emit.before_sql(output.input.steps)[0])
