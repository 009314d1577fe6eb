"""What all sides of the recovery benchmark share: the parts of a recovery, and where a case puts its numbers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from bench.shared.links import Links
from bench.shared.store import Store

STORE = "store, all lost"
"""The case that all systems have: every process and every local file is gone."""

ONE = "store, one worker lost"
"""With its files, and nobody has a copy."""

PAYLOAD = 240
"""Bytes of a row of state: key, count, window."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One of them, in seconds; None: the system does not tell."""

    total: float
    """From the loss, or from the start of what begins again, to the end of the next epoch (output, checkpointed or not)."""
    scheduling: float | None = None
    """Until state is looked for: it is noticed, and processes, plans and tasks are there."""
    fetching: float | None = None
    """Of the slowest who gets any: bytes of the state come from where they are."""
    loading: float | None = None
    """Of the same: they are put where the job reads them."""


class Bench(Protocol):
    """One call of the benchmark, as a case sees it."""

    a: argparse.Namespace
    work: Path
    console: Console

    def add(self, system: str, case: str, gigabytes: float, repeat: int, found: Recovery) -> None:
        """One recovery."""

    def store(self) -> Store:
        """Where checkpoints of the case under way go."""

    def apart(self) -> Links | None:
        """The machines of the case under way; None when all is on one."""
