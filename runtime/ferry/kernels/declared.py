"""Checks of a pipeline's declared aggregates: functions, columns and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ferry.contract.descriptors import Aggregate, OperatorDescriptor, ValueType
from ferry.contract.errors import SpecRefused
from ferry.kernels.aggregates import (
    COLUMNS_MAX,
    FUNCTIONS,
    ORDERED,
    STATE_BYTES_MAX,
    gathers,
    hashes_values,
    places,
    reads_values,
    state_columns,
    words_of,
)
from ferry.kernels.columns import hashable
from ferry.kernels.values import TEXTS, family, value_type


def typed(out: str, aggregate: Aggregate, schema: pa.Schema) -> Aggregate:
    """The aggregate under its name, with the types of its columns. Raises SpecRefused."""
    value = _value(out, aggregate.column, aggregate, FUNCTIONS[aggregate.function].takes, schema)
    by = _value(out, aggregate.by, aggregate, ORDERED, schema)
    return replace(aggregate, name=out, number=value, by_number=by)


def needs_process(aggregates: Mapping[str, Aggregate], schema: pa.Schema) -> bool:
    """Whether an aggregate keeps strings, bytes or sets of values, which tables of words cannot hold: a process
    does."""
    own = [a for a in aggregates.values() if isinstance(a, Aggregate)]
    read = (c for a in own if reads_values(a) for c in (a.column, a.by))
    return any(map(gathers, own)) or any(value_type(schema.field(c).type) in TEXTS for c in read if c in schema.names)


def _value(out: str, column: str | None, aggregate: Aggregate, takes: Sequence[str], schema: pa.Schema) -> ValueType:
    if column is None:
        return "int"
    if column not in schema.names:
        all_records = "; count() without a column counts records" if column == "*" else ""
        raise SpecRefused(f"{out} needs column {column!r}; there are {', '.join(schema.names)}{all_records}")
    kind = schema.field(column).type
    if hashes_values(aggregate) and not hashable(kind):
        raise SpecRefused(
            f"column {column!r} is {kind}; integers, floats, booleans, strings, bytes, dates and timestamps (also "
            "decimals, times and durations) have distinct values that can be counted: make it one of these before the "
            "operator"
        )
    if not reads_values(aggregate):
        return "int"
    value = value_type(kind)
    if value is not None and family(value) in takes:
        return value
    raise SpecRefused(
        f"{out}: column {column!r} is {kind}, and {aggregate.function} takes {', '.join(takes)}; "
        "make it one of these before the operator"
    )


def check_state(descriptor: OperatorDescriptor) -> None:
    """Raises SpecRefused when the aggregates need more state than allowed."""
    state, placed = state_columns(descriptor), places(descriptor)
    of = f"{len(placed)} aggregates need"
    if len(state) > COLUMNS_MAX:
        each = ", ".join(f"{place.aggregate.name} {len(place.columns)}" for place in placed)
        raise SpecRefused(f"{of} {len(state)} columns of state, {COLUMNS_MAX} are possible; declare less ({each})")
    if 8 * words_of(state) > STATE_BYTES_MAX:
        each = ", ".join(f"{place.aggregate.name} {8 * words_of(place.columns)}" for place in placed)
        raise SpecRefused(
            f"{of} {8 * words_of(state)} bytes of state for each key, {STATE_BYTES_MAX} are possible; declare less ({each})"
        )
