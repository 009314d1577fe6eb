"""A compiled pipeline as people are shown it: sources, operators and outputs, with what each reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ferry.contract.descriptors import GLOBAL, OperatorDescriptor
from ferry.kernels.schemas import fired_schema
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import why_planned, works_of
from ferry.spark.pipeline import Input, MapBatches, Operator
from ferry.spark.pipeline import name_of as function_name


def described(plan: CompiledPipeline) -> dict[str, Any]:
    """JSON of {"sources", "operators", "outputs", "planned"}.

    `planned`: why Spark plans each epoch, so that the epoch mode is micro-batch; empty: epochs are continuous.
    """
    names = {operator.descriptor.index: operator.descriptor.name for operator in plan.operators}
    named = [operator for operator in plan.operators if operator.inputs]
    return {
        "sources": [{"name": name, "kind": type(source).__name__} for name, source in plan.sources.items()],
        "operators": [_operator(operator, names) for operator in named],
        "outputs": [
            *({"sink": repr(one.sink), "reads": _reads([one.input], names)} for one in plan.outputs),
            *(
                {"sink": repr(one.sink), "reads": _reads(one.inputs, names), "late": names[one.operator]}
                for one in plan.late
            ),
        ],
        "planned": why_planned(plan, works_of(plan, None, None)),
    }


def _operator(operator: Operator, names: dict[int, str]) -> dict[str, Any]:
    shape = operator.descriptor
    return {
        "name": shape.name,
        "kind": shape.kind,
        "key": [name for name, _ in shape.key],
        "window": _window(shape),
        "emit": shape.emit,
        "reads": _reads(operator.inputs, names),
        "columns": {field.name: str(field.type) for field in fired_schema(shape)},
    }


def _window(shape: OperatorDescriptor) -> str:
    return "" if shape.window == GLOBAL or shape.kind == "process" else str(shape.window)


def _reads(inputs: Iterable[Input], names: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "from": one.origin if isinstance(one.origin, str) else names[one.origin],
            "steps": [
                f"{'map_batches' if isinstance(step, MapBatches) else 'transform'} {function_name(step.function)}"
                for step in one.steps
            ],
            "time": one.time,
            "delay_ms": one.delay_ms if one.time is not None else None,
        }
        for one in inputs
    ]
