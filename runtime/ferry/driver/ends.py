"""How the life of a driver ends before its job does. Imports next to nothing: a driver knows these before it has loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferry.contract.errors import FerryError, Unreachable, UserCodeFailed

if TYPE_CHECKING:
    from ferry.protocol import coordinator as core


class Halted(FerryError):
    """The coordinator stopped the job; `kind` and reason say why."""

    def __init__(self, halt: core.Halt) -> None:
        super().__init__(halt.text)
        self.kind = halt.kind


class Stopped(FerryError):
    """Somebody stopped the job while an epoch could not come to its end."""


class BeginsAgain(Unreachable):
    """The journal says which checkpoint the next driver begins with; this one ends."""


def end_of(halt: core.Halt) -> FerryError:
    """What a driver raises after this halt: of the user's code the line alone."""
    return UserCodeFailed(halt.reason) if halt.kind == "user-code" else Halted(halt)
