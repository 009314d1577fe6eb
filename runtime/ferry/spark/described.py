"""A compiled pipeline as people are shown it: sources, operators and outputs, with what each reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from ferry.contract.descriptors import OperatorDescriptor
from ferry.kernels.schemas import fired_schema
from ferry.spark.bounds import WindowBounds
from ferry.spark.compile import CompiledPipeline, source_schema
from ferry.spark.feeds import why_planned, works_of
from ferry.spark.pipeline import Input, MapBatches, Operator, Transform
from ferry.spark.pipeline import name_of as function_name


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
    """Its aggregates, or the name of its class."""
    if shape.process is not None:
        return [shape.process.made_of.partition(":")[2]]
    return [
        f"{one.name}={one.function}({', '.join(name for name in (one.column, one.by) if name)})"
        for one in shape.aggregates
    ]


def _window(shape: OperatorDescriptor) -> dict[str, int] | None:
    """Milliseconds; None: it has none, or a process keeps its own."""
    if not shape.windowed or shape.kind == "process":
        return None
    return {"size_ms": shape.window.size_ms, "slide_ms": shape.window.slide_ms}


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
