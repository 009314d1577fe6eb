"""Warms up Spark's Python workers for the first ingest while the driver is still recovering.

Python workers stay alive between jobs. They need seconds to import Arrow and Numba, and to load compiled kernels. Must
never touch state or a helper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

import pyarrow as pa
from pyspark.sql import SparkSession

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels import values
from ferry.kernels.aggregates import reads_values
from ferry.kernels.kinds import type_of
from ferry.kernels.schemas import process_inputs
from ferry.process.users import calls_users
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.process_rows import Condense, condensing

TIME = "_event_time"

Loaded = tuple[OperatorDescriptor, Condense | None]
"""An operator, and the function that condenses its records in tasks."""


def warm_up(spark: SparkSession, descriptors: list[OperatorDescriptor], tasks: int) -> None:
    """Run a small job on every task slot. A failure only costs the time that the warm-up would save."""
    operators = [(descriptor, condensing(descriptor)) for descriptor in descriptors]
    spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(_task(operators)).collect()


def _task(operators: list[Loaded]) -> Callable[[Iterable[int]], Iterator[int]]:
    def task(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            load(operators)
            yield number

    return task


def load(operators: list[Loaded]) -> None:
    """Compile the kernels of these operators in this process, or read them from the cache.

    A user's aggregator is not called, because it may fail on artificial records.
    """
    for descriptor, condense in operators:
        for side in range(descriptor.inputs):
            fragmenter = Fragmenter(descriptor, side, condense=condense)
            fragmenter.add(example(descriptor, side), [name for name, _ in descriptor.key], TIME)
            if not calls_users(descriptor):
                fragmenter.drain()


def example(descriptor: OperatorDescriptor, side: int) -> pa.RecordBatch:
    """Two records with the columns of the operator; all values except the times are null, which fits every type."""
    kinds = {**_types(descriptor, side), **{name: type_of(kind) for name, kind in descriptor.key}}
    return pa.RecordBatch.from_pydict({**{name: pa.nulls(2, kind) for name, kind in kinds.items()}, TIME: [1, 2]})


def _types(descriptor: OperatorDescriptor, side: int) -> dict[str, pa.DataType]:
    match descriptor.kind:
        case "aggregate":
            # If one aggregate counts a column and another one reads it, the reading one knows the type.
            read_last = sorted(descriptor.aggregates, key=reads_values)
            columns = [c for a in read_last for c in ((a.column, a.number), (a.by, a.by_number))]
            return {name: values.arrow_type(value) for name, value in columns if name is not None}
        case "join":
            return {source: values.named_type(kind) for _, source, kind in descriptor.sides[side].columns}
        case "process":
            order = {} if descriptor.shape.order is None else {descriptor.shape.order: pa.int64()}
            return {**order, **{field.name: field.type for field in process_inputs(descriptor)[side]}}
        case _:
            assert_never(descriptor.kind)
