"""Errors that end a driver before its job ends. Imports little, because a driver needs them before it has loaded."""

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
    """The user stopped the job while an epoch could not complete."""


class BeginsAgain(Unreachable):
    """The journal names a checkpoint or a program that the next driver begins with; this driver ends."""


def end_of(halt: core.Halt) -> FerryError:
    """The error that a driver raises after this halt: for the user's code only its line."""
    return UserCodeFailed(halt.reason) if halt.kind == "user-code" else Halted(halt)
