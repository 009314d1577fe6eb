"""The arguments of a program: a dictionary that records whether the program has read `events`, the bound of the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ferry.contract.errors import SpecRefused

EVENTS = "events"


class Arguments(dict[str, Any]):
    """The arguments by name. `bound_read`: the program has read `events`, by name or with all others."""

    def __init__(self, arguments: Mapping[str, Any], events: int | None) -> None:
        super().__init__(arguments if events is None else {**arguments, EVENTS: events})
        self.bounded = events is not None
        self.bound_read = False

    def __getitem__(self, name: str) -> Any:
        self.bound_read |= name == EVENTS
        return super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        there = f"there are {', '.join(super().keys())}" if len(self) else "there are none"
        raise KeyError(f"spec.pipeline.args has no {name!r}; {there}")

    def get(self, name: str, default: Any = None) -> Any:
        """As `dict` does it."""
        self.bound_read |= name == EVENTS
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """As `dict` does it."""
        self.bound_read |= name == EVENTS
        return super().pop(name, *default)

    def __iter__(self) -> Iterator[str]:
        # Overridden so that `{**args}` reads each value through __getitem__.
        return iter(list(super().keys()))

    def items(self) -> Any:
        """As `dict` does it."""
        self.bound_read = True
        return super().items()

    def values(self) -> Any:
        """As `dict` does it."""
        self.bound_read = True
        return super().values()

    def copy(self) -> dict[str, Any]:
        """A plain dictionary."""
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(super().items()),)


def refuse_unbounded(args: Arguments, sources: Mapping[str, Any]) -> None:
    """Refuse `--events` for sources that it cannot end. Raises SpecRefused."""
    if not args.bounded:
        return
    endless = [name for name, source in sources.items() if hasattr(source, "isStreaming")]
    if endless:
        raise SpecRefused(f"--events (spec.events): source {endless[0]!r} is Spark's own and never ends; leave it out")
    if not args.bound_read:
        raise SpecRefused(
            "--events (spec.events): sources() does not read args['events'], so nothing would end the input; give it to the "
            "generator there, or leave it out"
        )
