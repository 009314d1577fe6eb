"""A compiled pipeline as people are shown it: sources, operators and outputs, with what each reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.api.bounds import WindowBounds
from ferry.api.pipeline import Input, MapBatches, Operator, Transform
from ferry.contract.descriptors import OperatorDescriptor
from ferry.contract.user_code import function_name
from ferry.kernels.schemas import fired_schema
from ferry.process.users import is_users_class
from ferry.spark.compile import CompiledPipeline, source_schema
from ferry.spark.feeds import why_planned, works_of

BOUNDS = ("size_ms", "slide_ms")
"""What processes call the size and the slide of their windows."""

SHOWN = (int, str, list)
"""Of what a process was given."""


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
            *({"sink": _shown(one.sink), "reads": _reads([one.input], names)} for one in plan.outputs),
            *(
                {"sink": _shown(one.sink), "reads": _reads(one.inputs, names), "late": names[one.operator]}
                for one in plan.late
            ),
        ],
        "planned": why_planned(plan, works_of(plan, None, None)),
    }


def _source(name: str, source: Any) -> dict[str, Any]:
    kind = "spark.readStream" if isinstance(source, DataFrame) else _shown(source)
    return {"name": name, "kind": kind, "columns": _columns(source_schema(name, source))}


def _shown(thing: object) -> str:
    """A source or a sink, as its class shows it, else by the name of its class."""
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
        "ttl_ms": shape.ttl_ms,
        "emit": shape.emit,
        "reads": _reads(operator.inputs, names),
        "computes": _computes(shape),
        "columns": _columns(operator.gives or fired_schema(shape)),
    }


def _computes(shape: OperatorDescriptor) -> list[str]:
    """Its aggregates, or the name of its class; of Ferry's own classes with what it was given, and their aggregates."""
    if shape.process is None:
        return [_call(one.name, asdict(one)) for one in shape.aggregates]
    name, given = shape.process.made_of.partition(":")[2], _given(shape)
    functions = given.get("aggregator", {}).get("arguments", {}).get("aggregates", {})
    plain = [
        f"{key}={value}"
        for key, value in given.items()
        if key not in BOUNDS and value != [] and isinstance(value, SHOWN)
    ]
    return [
        f"{name}({', '.join(plain)})" if plain else name,
        *(_call(out, one["arguments"]) for out, one in functions.items()),
    ]


def _call(out: str, aggregate: Mapping[str, Any]) -> str:
    columns = ", ".join(name for name in (aggregate["column"], aggregate["by"]) if name)
    return f"{out}={aggregate['function']}({columns})"


def _given(shape: OperatorDescriptor) -> dict[str, Any]:
    """What a class of Ferry's was given; nothing of a user's."""
    process = shape.shape
    return {} if is_users_class(process.made_of) else dict(json.loads(process.arguments))


def _window(shape: OperatorDescriptor) -> dict[str, int] | None:
    """Milliseconds; None: it has none, or a process of the user's keeps its own."""
    if shape.kind == "process":
        given = _given(shape)
        return {key: given[key] for key in BOUNDS} if given.keys() >= {*BOUNDS} else None
    return {"size_ms": shape.window.size_ms, "slide_ms": shape.window.slide_ms} if shape.windowed else None


def _reads(inputs: Iterable[Input], names: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "from": one.origin if isinstance(one.origin, str) else names[one.origin],
            "steps": [_step(step) for step in one.steps if not isinstance(step.function, WindowBounds)],
            "time": one.time,
            "delay_ms": one.delay_ms if one.time is not None else None,
        }
        for one in inputs
    ]


def _step(step: MapBatches | Transform) -> str:
    """Its word, and the name of the user's function."""
    word = "map_batches" if isinstance(step, MapBatches) else "transform"
    return f"{word} {function_name(getattr(step.function, 'function', step.function))}"
