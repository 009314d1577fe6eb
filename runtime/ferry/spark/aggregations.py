"""The descriptor of an aggregate in a pipeline: whether its functions, columns and state fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, KeyType, OperatorDescriptor, ValueType, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import (
    COLUMNS_MAX,
    FUNCTIONS,
    ORDERED,
    STATE_BYTES_MAX,
    hashes_values,
    places,
    reads_values,
    state_columns,
    words_of,
)
from ferry.kernels.columns import hashable
from ferry.kernels.values import family, value_type


class AggregateInput(NamedTuple):
    """The input of an aggregate."""

    schema: pa.Schema
    key: tuple[tuple[str, KeyType], ...]


def aggregate_descriptor(
    name: str,
    index: int,
    read: AggregateInput,
    window: Window,
    aggregates: Mapping[str, Aggregate],
    emit: Emit = "final",
) -> OperatorDescriptor:
    """What tasks and instances need to know of it. Raises SpecRefused when something does not fit."""
    if not aggregates:
        raise SpecRefused(f"aggregate {name!r}: name at least one, e.g. n=count()")
    made = tuple(_aggregate(name, out, a, read, window) for out, a in aggregates.items())
    descriptor = OperatorDescriptor(name, index, "aggregate", read.key, window, made, emit=emit)
    _refuse_too_much_state(descriptor)
    return descriptor


def _aggregate(name: str, out: str, aggregate: Aggregate, read: AggregateInput, window: Window) -> Aggregate:
    if not isinstance(aggregate, Aggregate):
        raise SpecRefused(f"aggregate {name!r}: {out}={aggregate!r} is not an aggregate; use count(), sum(column), ...")
    bounds = () if window == GLOBAL else ("window_start", "window_end")
    if out in (*bounds, *(column for column, _ in read.key)):
        raise SpecRefused(f"aggregate {name!r}: {out!r} is already an output column; choose another name")
    takes = FUNCTIONS[aggregate.function].takes
    value = _value(name, out, aggregate.column, aggregate, takes, read.schema)
    by = _value(name, out, aggregate.by, aggregate, ORDERED, read.schema)
    return replace(aggregate, name=out, number=value, by_number=by)


def _value(
    name: str, out: str, column: str | None, aggregate: Aggregate, takes: Sequence[str], schema: pa.Schema
) -> ValueType:
    if column is None:
        return "int"
    if column not in schema.names:
        raise SpecRefused(f"aggregate {name!r}: {out} needs column {column!r}; there are {', '.join(schema.names)}")
    kind = schema.field(column).type
    if hashes_values(aggregate) and not hashable(kind):
        raise SpecRefused(
            f"aggregate {name!r}: column {column!r} is {kind}; integers, floats, booleans, strings, bytes, dates "
            "and timestamps (also decimals, times and durations) have distinct values that can be counted: make it one "
            "of these before the operator"
        )
    if not reads_values(aggregate):
        return "int"
    value = value_type(kind)
    if value is not None and family(value) in takes:
        return value
    raise SpecRefused(
        f"aggregate {name!r}: {out} needs another column: column {column!r} is {kind}, and {aggregate.function} takes "
        f"{', '.join(takes)}; make it one of these before the operator"
    )


def _refuse_too_much_state(descriptor: OperatorDescriptor) -> None:
    state, found = state_columns(descriptor), places(descriptor)
    of = f"aggregate {descriptor.name!r}: {len(found)} aggregates need"
    if len(state) > COLUMNS_MAX:
        each = ", ".join(f"{place.aggregate.name} {len(place.columns)}" for place in found)
        raise SpecRefused(f"{of} {len(state)} columns of state, {COLUMNS_MAX} are possible; declare less ({each})")
    if 8 * words_of(state) > STATE_BYTES_MAX:
        each = ", ".join(f"{place.aggregate.name} {8 * words_of(place.columns)}" for place in found)
        raise SpecRefused(
            f"{of} {8 * words_of(state)} bytes of state for each key, {STATE_BYTES_MAX} are possible; declare less ({each})"
        )
