"""Which graphs of operators are pipelines: acyclic ones, in which every source and every operator is read by somebody.

A cycle cannot be written down, for a stream is there before anybody reads it; what nobody reads is refused by name. A
pipeline of sources and sinks alone gets one operator that keeps nothing: what an epoch has read is committed with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ferry.api.pipeline import Input, Operator, Output
from ferry.connectors.splits import Splits
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused

OFFSETS = "offsets"
"""Name of the operator that keeps nothing."""


def refuse_unread(sources: Iterable[str], operators: Sequence[Operator], outputs: Sequence[Output]) -> None:
    """Refuse sources and operators that neither an operator nor a sink reads."""
    inputs: list[Input] = [one for operator in operators for one in operator.inputs]
    read = {one.origin for one in inputs} | {output.input.origin for output in outputs}
    for name in sources:
        if name not in read:
            raise SpecRefused(
                f"source {name!r} is read by no operator and no sink: use it, or leave it out of sources()"
            )
    for index, operator in enumerate(operators):
        if index not in read:
            raise SpecRefused(
                f"operator {operator.descriptor.name!r} is read by no operator and no sink: "
                "end it with .sink(...) and return that, or leave it out"
            )


def refuse_initial(sources: Mapping[str, Any], operators: Sequence[Operator], outputs: Sequence[Output]) -> None:
    """Refuse initial states that have no end, or are read as something else, too: that would wait for itself."""
    elsewhere = {one.origin for operator in operators for one in operator.inputs if not one.initial}
    elsewhere |= {output.input.origin for output in outputs}
    for operator in operators:
        for one in (one for one in operator.inputs if one.initial):
            what = f"operator {operator.descriptor.name!r}: initial_state comes from source {one.origin!r}"
            source = sources[str(one.origin)]
            if not isinstance(source, Splits) or not getattr(source, "finite", True):
                raise SpecRefused(
                    f"{what}, which has no end; give it files with finite=True, or another source of Ferry's that ends"
                )
            if one.origin in elsewhere:
                raise SpecRefused(f"{what}, which is read otherwise, too; have it in sources() under two names")


def offsets_only() -> Operator:
    """An operator that reads nothing."""
    none = Aggregate("records", "count")
    return Operator(OperatorDescriptor(OFFSETS, 0, "aggregate", (("none", "int"),), Window(1, 1), (none,)), ())


def first_readers(sources: Iterable[str], operators: Sequence[Operator]) -> dict[str, int]:
    """The operator that counts the records of each source: the first that reads it, or the first of all."""
    return {
        name: next((i for i, one in enumerate(operators) if any(side.origin == name for side in one.inputs)), 0)
        for name in sources
    }
