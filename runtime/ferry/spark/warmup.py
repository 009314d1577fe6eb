"""Loads in Spark's Python workers what the first ingest will need, while the driver is still recovering.

Python workers stay alive between jobs; importing Arrow and Numba and loading compiled kernels takes them seconds. Must
never touch state or a helper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels.aggregates import NUMBER_TYPES
from ferry.spark.fragment import Fragmenter

TIME = "_event_time"


def warm_up(spark: SparkSession, descriptors: list[OperatorDescriptor], tasks: int) -> None:
    """Run one small job on every task slot. A failure is not worth more than the time it would have saved."""
    spark.sparkContext.parallelize(range(tasks), tasks).mapPartitions(_task(descriptors)).collect()


def _task(descriptors: list[OperatorDescriptor]) -> Callable[[Iterable[int]], Iterator[int]]:
    def task(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            load(descriptors)
            yield number

    return task


def load(descriptors: list[OperatorDescriptor]) -> None:
    """Have this process compile the kernels that these operators need, or read them."""
    for descriptor in descriptors:
        for side in (0, 1) if descriptor.kind == "join" else (0,):
            fragmenter = Fragmenter(descriptor, side)
            fragmenter.add(example(descriptor, side), [name for name, _ in descriptor.key], TIME)
            fragmenter.drain()


def example(descriptor: OperatorDescriptor, side: int) -> pa.RecordBatch:
    """Two records that fit the operator."""
    kinds: dict[str, pa.DataType] = {n: pa.int64() if t == "int" else pa.string() for n, t in descriptor.key}
    for a in descriptor.aggregates:
        for column, number in ((a.column, a.number), (a.by, a.by_number)):
            if column is not None:
                kinds.setdefault(column, NUMBER_TYPES[number])
    kept = descriptor.left if side == 0 else descriptor.right
    for _, column, kind in kept.columns if kept else ():
        kinds.setdefault(column, pa.type_for_alias(kind))
    kinds[TIME] = pa.int64()
    filled = {n: pa.array([str(i) if pa.types.is_string(k) else i for i in (1, 2)]).cast(k) for n, k in kinds.items()}
    return pa.RecordBatch.from_pydict(filled)
