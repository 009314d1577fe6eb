"""Which graphs of operators run today: a chain. What would give other rows than it says is refused, by name.

An epoch is run operator after operator, and each later one reads what the one before it has fired, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ferry.contract.errors import SpecRefused
from ferry.spark.stream import Operator

TODAY = (
    "Today a pipeline is a chain: its first operator reads every source, and each further operator reads the one before it "
    "and nothing else. Run the rest as a job of its own, which may read what this one's sink has written"
)


def refuse_but_chains(sources: Iterable[str], operators: Sequence[Operator]) -> None:
    """Refuse branches, operators beside each other, later operators that read a source, and sources that nobody reads."""
    for operator in operators:
        index, name = operator.descriptor.index, operator.descriptor.name
        for side in operator.inputs:
            if index and isinstance(side.origin, str):
                raise SpecRefused(
                    f"operator {name!r} reads source {side.origin!r}, but it is not the first operator. {TODAY}"
                )
            if index and side.origin != index - 1:
                read, before = operators[int(side.origin)].descriptor.name, operators[index - 1].descriptor.name
                raise SpecRefused(
                    f"operator {name!r} reads operator {read!r}, but the one before it is {before!r}. {TODAY}"
                )
    used = {side.origin for operator in operators for side in operator.inputs}
    unread = [source for source in sources if source not in used]
    if operators and unread:
        raise SpecRefused(f"source {unread[0]!r} is read by no operator: use it, or leave it out of sources(). {TODAY}")
