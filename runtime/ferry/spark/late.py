"""Emits records that came too late for an operator to a sink of their own.

They are read again when the epoch is emitted, and only if the operator's commit counts late records. The committed
watermark before the epoch determines them, so a repeated epoch emits the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from ferry.api.pipeline import Input, LateOutput, MapBatches, Output
from ferry.connectors.splits import Malformed, Splits
from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import columns, panes
from ferry.kernels.frame_types import for_frame
from ferry.spark import emit, feeds
from ferry.spark.compile import CompiledPipeline
from ferry.spark.frames import spark_schema
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.ingest import in_pieces, timed

Late = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def late_frame(
    spark: SparkSession, batch: DataFrame, plan: CompiledPipeline, output: LateOutput, rows: feeds.Rows, low: int
) -> DataFrame:
    """The late records of an epoch; `low`: the operator's watermark before it, `rows`: the fired rows among its inputs."""
    batch = feeds.with_fired(spark, batch, rows)
    descriptor = plan.operators[output.operator].descriptor
    frames = []
    for source in output.inputs:
        late = late_of(descriptor, source, output, low)
        origin = plan.sources.get(feeds.name_of(source))
        if feeds.in_spark(source) or isinstance(origin, DataFrame):
            frames.append(_behind_spark(spark, batch, plan, Output(source, output.sink), late))
        else:
            frames.append(_in_tasks(batch, plan, source, late))
    return reduce(DataFrame.union, frames)


def _behind_spark(
    spark: SparkSession, batch: DataFrame, plan: CompiledPipeline, output: Output, late: Late
) -> DataFrame:
    frame = emit.result(spark, output, None, lambda: feeds.records_frame(spark, batch, plan, output.input))
    assert isinstance(frame, DataFrame)
    return frame.mapInArrow(late, frame.schema)


def _in_tasks(batch: DataFrame, plan: CompiledPipeline, source: Input, late: Late) -> DataFrame:
    """The late records of an input. Timely records do not pass through Spark."""
    origin = plan.sources.get(name := feeds.name_of(source))
    splits = origin if isinstance(origin, Splits) else None
    maps = [step.function for step in source.steps if isinstance(step, MapBatches)]

    def read(shares: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in feeds.read_shares(name, splits, shares):
            if not isinstance(records, Malformed):  # they were set aside when the operator read them
                yield from emit.mapped(maps, [records])

    def task(shares: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(for_frame, late(read(shares)))

    return feeds.raw_of(batch, name, plan).mapInArrow(task, spark_schema(source.schema))


def late_of(descriptor: OperatorDescriptor, source: Input, output: LateOutput, low: int) -> Late:
    """The function that keeps an input's late records in a task: unchanged, without malformed ones."""

    def late(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fragmenter = Fragmenter(descriptor, source.side)
        for piece in (piece for batch in batches for piece in in_pieces(batch)):
            records, time = timed(piece, source.time, descriptor)
            keyed = fragmenter.read(records, list(source.key), time, source.span)
            fragmenter.malformed()
            if keyed is None:
                continue
            chosen = panes.last_ends(output.window, columns.integers(keyed.times)) <= low
            if descriptor.kind == "join" and keyed.nulls is not None:
                chosen &= ~keyed.nulls  # they never have a partner
            if chosen.any():
                yield keyed.batch.select(piece.schema.names).filter(pa.array(chosen))

    return late
