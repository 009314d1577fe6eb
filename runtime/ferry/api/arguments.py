"""The arguments of a program: a plain dictionary that knows whether the bound of the input was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferry.contract.errors import SpecRefused

EVENTS = "events"


class Arguments(dict[str, Any]):
    """`asked`: somebody has taken the value of `events`, by name or with all others."""

    def __init__(self, given: Mapping[str, Any], events: int | None) -> None:
        super().__init__(given if events is None else {**given, EVENTS: events})
        self.bounded = events is not None
        self.asked = False

    def __getitem__(self, name: str) -> Any:
        self.asked |= name == EVENTS
        return super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        there = f"there are {', '.join(super().keys())}" if len(self) else "there are none"
        raise KeyError(f"spec.pipeline.args has no {name!r}; {there}")

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dictionary."""
        self.asked |= name == EVENTS
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """As of a dictionary."""
        self.asked |= name == EVENTS
        return super().pop(name, *default)

    def __iter__(self) -> Iterator[str]:
        # Not the dictionary's own: `{**args}` then takes the values one by one, through __getitem__.
        return iter(list(super().keys()))

    def items(self) -> Any:
        """As of a dictionary."""
        self.asked = True
        return super().items()

    def values(self) -> Any:
        """As of a dictionary."""
        self.asked = True
        return super().values()

    def copy(self) -> dict[str, Any]:
        """A plain dictionary."""
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(super().items()),)


def refuse_unbounded(args: Arguments, sources: Mapping[str, Any]) -> None:
    """`--events` ends a run only when the sources let it."""
    if not args.bounded:
        return
    endless = [name for name, source in sources.items() if hasattr(source, "isStreaming")]
    if endless:
        raise SpecRefused(f"--events (spec.events): source {endless[0]!r} is Spark's own and never ends; leave it out")
    if not args.asked:
        raise SpecRefused(
            "--events (spec.events): sources() does not read args['events'], so nothing would end the input; give it to the "
            "generator there, or leave it out"
        )
