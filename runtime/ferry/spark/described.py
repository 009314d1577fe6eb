"""Describes a compiled pipeline for people: sources, operators and outputs, with their inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.api.bounds import WindowBounds
from ferry.api.pipeline import Input, MapBatches, Operator, Transform
from ferry.api.spans import TIME_MAX, WindowsWithin
from ferry.contract.descriptors import NEVER, OperatorDescriptor
from ferry.contract.user_code import function_name
from ferry.kernels.schemas import fired_schema
from ferry.process.users import is_users_class
from ferry.spark.compile import CompiledPipeline, source_schema
from ferry.spark.feeds import why_planned, works_of

BOUNDS = ("size_ms", "slide_ms")
"""The names that processes use for the size and the slide of their windows."""

SHOWN = (int, str, list)
"""Types of a process's arguments that are shown."""


def described(plan: CompiledPipeline) -> dict[str, Any]:
    """JSON of {"sources", "operators", "outputs", "planned"}.

    `planned`: why Spark plans each epoch, so that the epoch mode is micro-batch; empty: epochs are continuous.
    """
    names = {operator.descriptor.index: operator.descriptor.name for operator in plan.operators}
    named = [operator for operator in plan.operators if operator.inputs]
    return {
        "sources": [_source(name, source) for name, source in plan.sources.items()],
        "operators": [_operator(operator, names) for operator in named],
        "outputs": [
            *({"sink": _shown(output.sink), "reads": _reads([output.input], names)} for output in plan.outputs),
            *(
                {"sink": _shown(late.sink), "reads": _reads(late.inputs, names), "late": names[late.operator]}
                for late in plan.late
            ),
        ],
        "planned": why_planned(plan, works_of(plan, None, None)),
    }


def _source(name: str, source: Any) -> dict[str, Any]:
    kind = "spark.readStream" if isinstance(source, DataFrame) else _shown(source)
    return {"name": name, "kind": kind, "columns": _columns(source_schema(name, source))}


def _shown(thing: object) -> str:
    """The `repr` of a source or a sink, or else the name of its class."""
    return repr(thing) if type(thing).__repr__ is not object.__repr__ else type(thing).__name__


def _columns(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _operator(operator: Operator, names: dict[int, str]) -> dict[str, Any]:
    shape = operator.descriptor
    return {
        "name": shape.name,
        "kind": shape.kind,
        "key": [name for name, _ in shape.key],
        "window": _window(shape),
        **_span(operator.inputs),
        "ttl_ms": shape.ttl_ms,
        "emit": shape.emit,
        "reads": _reads(operator.inputs, names),
        "computes": _computes(shape),
        "columns": _columns(operator.gives or fired_schema(shape)),
    }


def _computes(shape: OperatorDescriptor) -> list[str]:
    """The aggregates of an operator, or the name of its class; for Ferry's own classes with arguments and aggregates."""
    if shape.process is None:
        return [_call(aggregate.name, asdict(aggregate)) for aggregate in shape.aggregates]
    name, arguments = shape.process.made_of.partition(":")[2], _arguments(shape)
    functions = arguments.get("aggregator", {}).get("arguments", {}).get("aggregates", {})
    plain = [
        f"{key}={value}"
        for key, value in arguments.items()
        if key not in BOUNDS and value != [] and isinstance(value, SHOWN)
    ]
    return [
        f"{name}({', '.join(plain)})" if plain else name,
        *(_call(out, function["arguments"]) for out, function in functions.items()),
    ]


def _call(out: str, aggregate: Mapping[str, Any]) -> str:
    columns = ", ".join(name for name in (aggregate["column"], aggregate["by"]) if name)
    return f"{out}={aggregate['function']}({columns})"


def _arguments(shape: OperatorDescriptor) -> dict[str, Any]:
    """The arguments of a class of Ferry's; empty for a user's class."""
    process = shape.shape
    return {} if is_users_class(process.made_of) else dict(json.loads(process.arguments))


def _window(shape: OperatorDescriptor) -> dict[str, int] | None:
    """The window in milliseconds; None: the operator has no window, or a user's process keeps its own."""
    if shape.kind == "process":
        arguments = _arguments(shape)
        return {key: arguments[key] for key in BOUNDS} if arguments.keys() >= {*BOUNDS} else None
    return {"size_ms": shape.window.size_ms, "slide_ms": shape.window.slide_ms} if shape.windowed else None


def _span(inputs: Iterable[Input]) -> dict[str, int]:
    """The event times, in milliseconds since 1970, that `since=` and `until=` of its window name."""
    span = next((side.span for side in inputs if side.span is not None and side.span != NEVER), None)
    times = {} if span is None else {"since": span.low, "until": span.until}
    return {name: at for name, at in times.items() if abs(at) < TIME_MAX}


def _reads(inputs: Iterable[Input], names: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "from": side.origin if isinstance(side.origin, str) else names[side.origin],
            "steps": [
                _step(step) for step in side.steps if not isinstance(step.function, WindowBounds | WindowsWithin)
            ],
            "time": side.time,
            "delay_ms": side.delay_ms if side.time is not None else None,
        }
        for side in inputs
    ]


def _step(step: MapBatches | Transform) -> str:
    """The method of a step, and the name of the user's function."""
    word = "map_batches" if isinstance(step, MapBatches) else "transform"
    return f"{word} {function_name(getattr(step.function, 'function', step.function))}"
