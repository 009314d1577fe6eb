"""The descriptor of a process in a pipeline: its columns, its order, and the checks of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from ferry.contract.descriptors import GLOBAL, KeyType, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.kinds import plain_type, type_of
from ferry.process.api import Process
from ferry.process.shapes import shape_of

EACH_TIME = Window(1, 1)
"""The window of a process, which has no windows of its own: one millisecond."""


class ProcessInput(NamedTuple):
    """An input of a process."""

    schema: pa.Schema
    key: tuple[tuple[str, KeyType], ...]
    initial: bool = False
    """Whether the state begins from this input, whose rows have no order."""


def process_descriptor(
    name: str,
    index: int,
    process: Process,
    inputs: Sequence[ProcessInput],
    order: str | None,
    columns: Sequence[Sequence[str] | None],
    timed: bool,
) -> OperatorDescriptor:
    """The descriptor that tasks and instances read. Raises SpecRefused if an input does not fit.

    Parameters:
        columns: for each input, the columns that the process sees. None: all.
        timed: whether the records have event times.
    """
    keys = [source.key for source in inputs]
    if [kind for _, kind in keys[0]] != [kind for _, kind in keys[-1]]:
        raise SpecRefused(
            f"operator {name!r}: keys differ in type: {dict(keys[0])} and {dict(keys[-1])}; cast the key of one stream in "
            ".map_batches(...)"
        )
    orders = [None if source.initial else order for source in inputs]
    chosen = [
        _chosen(name, source.schema, names, by) for source, names, by in zip(inputs, columns, orders, strict=True)
    ]
    key = pa.schema([(column, type_of(kind)) for column, kind in keys[0]])
    shape = shape_of(name, process, key, chosen, order, [number for number, by in enumerate(orders) if by is None])
    return OperatorDescriptor(name, index, "process", keys[0], EACH_TIME if timed else GLOBAL, process=shape)


def is_time(kind: pa.DataType) -> bool:
    """Whether a column of this type can be an event time, or an order."""
    return bool(pa.types.is_integer(kind) or pa.types.is_timestamp(kind))


def shared(name: str, schemas: Sequence[pa.Schema], columns: Sequence[str] | None) -> list[list[str] | None]:
    """For each input, its part of these columns. Raises SpecRefused for a column that no input has."""
    known = [column for schema in schemas for column in schema.names]
    if missing := [column for column in columns or () if column not in known]:
        raise SpecRefused(f"operator {name!r}: no column {missing[0]!r}; there are {', '.join(dict.fromkeys(known))}")
    wanted = None if columns is None else dict.fromkeys(columns)
    return [None if wanted is None else [column for column in wanted if column in schema.names] for schema in schemas]


def _chosen(name: str, schema: pa.Schema, columns: Sequence[str] | None, order: str | None) -> pa.Schema:
    """The columns of an input that a process sees, without dictionaries and views. Raises SpecRefused."""
    if order is not None and order not in schema.names:
        raise SpecRefused(f"operator {name!r}: no column {order!r} to order by; there are {', '.join(schema.names)}")
    if order is not None and not is_time(kind := schema.field(order).type):
        raise SpecRefused(f"operator {name!r}: order={order!r} is {kind}; an integer or a timestamp is needed")
    if missing := [column for column in columns or () if column not in schema.names]:
        raise SpecRefused(f"operator {name!r}: no column {missing[0]!r}; there are {', '.join(schema.names)}")
    chosen = list(schema) if columns is None else [schema.field(column) for column in columns]
    return pa.schema([field.with_type(plain_type(field.type)) for field in chosen])
