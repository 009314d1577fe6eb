"""Checks of the graph of operators: every source and every operator has a reader.

A cycle cannot be declared, because a stream exists before its readers. A source or operator without a reader is refused by
name. A pipeline of sources and sinks alone gets one operator without state, which commits the offsets of each epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ferry.api.pipeline import Input, Operator, Output
from ferry.connectors.splits import Splits
from ferry.contract.descriptors import NO_RECORDS, Aggregate, OperatorDescriptor, Window
from ferry.contract.errors import SpecRefused

OFFSETS = "offsets"
"""Name of the operator without state."""


def refuse_unread(sources: Iterable[str], operators: Sequence[Operator], outputs: Sequence[Output]) -> None:
    """Refuse sources and operators that neither an operator nor a sink reads."""
    inputs: list[Input] = [source for operator in operators for source in operator.inputs]
    read = {source.origin for source in inputs} | {output.input.origin for output in outputs}
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
    """Refuse an initial state that has no end, or has a second reader, which would wait for its own input."""
    elsewhere = {side.origin for operator in operators for side in operator.inputs if not side.initial}
    elsewhere |= {output.input.origin for output in outputs}
    for operator in operators:
        for side in (side for side in operator.inputs if side.initial):
            place = f"operator {operator.descriptor.name!r}: initial_state comes from source {side.origin!r}"
            source = sources[str(side.origin)]
            if not isinstance(source, Splits) or not getattr(source, "finite", True):
                raise SpecRefused(
                    f"{place}, which has no end; give it files with finite=True, or another finite source of Ferry"
                )
            if side.origin in elsewhere:
                raise SpecRefused(f"{place}, which has another reader, too; return it from sources() under two names")


def offsets_only() -> Operator:
    """The operator without inputs and state."""
    none = Aggregate("records", "count")
    return Operator(OperatorDescriptor(OFFSETS, 0, "aggregate", NO_RECORDS, Window(1, 1), (none,)), ())


def first_readers(
    sources: Iterable[str], operators: Sequence[Operator], silent: Collection[int] = ()
) -> dict[str, int]:
    """By source: the index of the operator that counts its records, its first reader; 0 without a reader.

    A reader in `silent` counts only if no other one does: its step may be left out.
    """
    order = sorted(range(len(operators)), key=lambda i: i in silent)
    return {
        name: next((i for i in order if any(side.origin == name for side in operators[i].inputs)), order[0])
        for name in sources
    }
