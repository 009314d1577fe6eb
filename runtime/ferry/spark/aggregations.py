"""The descriptor of an aggregate in a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, KeyType, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.declared import check_state, typed


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
    ttl_ms: int | None = None,
) -> OperatorDescriptor:
    """What tasks and instances need to know of it. Raises SpecRefused when something does not fit."""
    try:
        made = tuple(_aggregate(out, a, read, window) for out, a in aggregates.items())
        if not made:
            raise SpecRefused("name at least one, e.g. n=count()")
        descriptor = OperatorDescriptor(name, index, "aggregate", read.key, window, made, emit=emit, ttl_ms=ttl_ms)
        check_state(descriptor)
    except SpecRefused as refused:
        raise SpecRefused(f"aggregate {name!r}: {refused}") from refused
    return descriptor


def _aggregate(out: str, aggregate: Aggregate, read: AggregateInput, window: Window) -> Aggregate:
    if not isinstance(aggregate, Aggregate):
        given = f"the function {aggregate.__name__}" if inspect.isfunction(aggregate) else repr(aggregate)
        raise SpecRefused(f"{out}={given} is not an aggregate; use count(), sum(column), ...")
    bounds = () if window == GLOBAL else ("window_start", "window_end")
    if out in (*bounds, *(column for column, _ in read.key)):
        raise SpecRefused(f"{out!r} is already an output column; choose another name")
    return typed(out, aggregate, read.schema)
