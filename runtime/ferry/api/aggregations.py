"""Aggregates of a pipeline: their functions or their aggregator, and the descriptor of the operator."""

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
    """The input of an aggregate: its schema and its key columns."""

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
    """The descriptor that tasks and instances read. Raises SpecRefused if an aggregate does not fit the input."""
    try:
        typed_aggregates = tuple(_aggregate(out, a, read, window) for out, a in aggregates.items())
        if not typed_aggregates:
            raise SpecRefused("name at least one, e.g. n=count()")
        descriptor = OperatorDescriptor(
            name, index, "aggregate", read.key, window, typed_aggregates, emit=emit, ttl_ms=ttl_ms
        )
        check_state(descriptor)
    except SpecRefused as refused:
        raise SpecRefused(f"aggregate {name!r}: {refused}") from refused
    return descriptor


def _aggregate(out: str, aggregate: Aggregate, read: AggregateInput, window: Window) -> Aggregate:
    if not isinstance(aggregate, Aggregate):
        value = f"the function {aggregate.__name__}" if inspect.isfunction(aggregate) else repr(aggregate)
        raise SpecRefused(f"{out}={value} is not an aggregate; use count(), sum(column), ...")
    bounds = () if window == GLOBAL else ("window_start", "window_end")
    if out in (*bounds, *(column for column, _ in read.key)):
        raise SpecRefused(f"{out!r} is already an output column; choose another name")
    return typed(out, aggregate, read.schema)


def outputs_of(
    name: str, aggregator: Aggregator | Mapping[str, Aggregate] | None, aggregates: Mapping[str, Aggregate]
) -> tuple[Aggregator | None, dict[str, Aggregate]]:
    """(The user's aggregator, functions by output column). A dict `aggregator` holds functions. Raises SpecRefused."""
    if not isinstance(aggregator, Mapping):
        return aggregator, dict(aggregates)
    if wrong := [out for out in aggregator if not isinstance(out, str) or not out or out in aggregates]:
        raise SpecRefused(f"aggregate {name!r}: {wrong[0]!r} is not a name of an output column, or names two columns")
    return None, {**aggregator, **aggregates}


def chosen_aggregator(name: str, aggregator: Aggregator | None, aggregates: Mapping[str, Aggregate]) -> Aggregator:
    """The user's own aggregator, or an aggregator of these functions. Raises SpecRefused."""
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
    for out, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            value = f"the function {aggregate.__name__}" if inspect.isfunction(aggregate) else repr(aggregate)
            raise SpecRefused(f"aggregate {name!r}: {out}={value} is not an aggregate; use count(), sum(column), ...")
    return aggregator if aggregator is not None else functions_of(aggregates)


def read_by(keyed: Keyed[Any], aggregator: Aggregator, more: Sequence[str] = ()) -> list[str] | None:
    """The columns that an aggregator reads, and the columns `more`. None: the aggregator may read all columns."""
    if not isinstance(aggregator, Functions):
        return None
    read = [c for a in aggregator.aggregates.values() for c in (a.column, a.by) if c is not None]
    return list(dict.fromkeys([*read, *more])) or [keyed.stream.input.key[0]]  # a batch without columns has no length
