"""The functions, or the aggregator, of an aggregate in a pipeline, and its descriptor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ferry.api.declare import Keyed
from ferry.contract.descriptors import GLOBAL, Aggregate, Emit, KeyType, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused
from ferry.kernels.declared import check_state, typed
from ferry.process.aggregator import Aggregator, Functions
from ferry.process.distinct_values import functions_of


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


def outputs_of(
    name: str, aggregator: Aggregator | Mapping[str, Aggregate] | None, aggregates: Mapping[str, Aggregate]
) -> tuple[Aggregator | None, dict[str, Aggregate]]:
    """A user's own aggregator, and functions by output column, which may be in a dict in its place. Raises SpecRefused."""
    if not isinstance(aggregator, Mapping):
        return aggregator, dict(aggregates)
    if odd := [out for out in aggregator if not isinstance(out, str) or not out or out in aggregates]:
        raise SpecRefused(f"aggregate {name!r}: {odd[0]!r} is no name of an output column, or the name of two")
    return None, {**aggregator, **aggregates}


def chosen_aggregator(name: str, aggregator: Aggregator | None, aggregates: Mapping[str, Aggregate]) -> Aggregator:
    """A user's own, or the one of these functions. Raises SpecRefused."""
    if aggregator is not None and not isinstance(aggregator, Aggregator):
        if isinstance(aggregator, Aggregate):
            raise SpecRefused(
                f"aggregate {name!r}: {aggregator.function} has no name; write n=ferry.{aggregator.function}(...)"
            )
        raise SpecRefused(f"aggregate {name!r}: {aggregator!r} is not a ferry.Aggregator")
    if (aggregator is None) == (not aggregates):
        raise SpecRefused(
            f"aggregate {name!r}: name at least one, e.g. n=count(), or give a ferry.Aggregator, not both"
        )
    for out, one in aggregates.items():
        if not isinstance(one, Aggregate):
            given = f"the function {one.__name__}" if inspect.isfunction(one) else repr(one)
            raise SpecRefused(f"aggregate {name!r}: {out}={given} is not an aggregate; use count(), sum(column), ...")
    return aggregator if aggregator is not None else functions_of(aggregates)


def read_by(keyed: Keyed[Any], aggregator: Aggregator, more: Sequence[str] = ()) -> list[str] | None:
    """The columns that an aggregator needs, and others; None: it may need all."""
    if not isinstance(aggregator, Functions):
        return None
    read = [c for a in aggregator.aggregates.values() for c in (a.column, a.by) if c is not None]
    return list(dict.fromkeys([*read, *more])) or [keyed.stream.input.key[0]]  # rows without columns have no number
