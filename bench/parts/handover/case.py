"""What both sides of the handover benchmark share: sizes, and where a case puts its numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol

from rich.console import Console

USUAL_GAPS = 20
"""Distances of epochs whose median is the usual one."""


class Bench(Protocol):
    """One call of the benchmark, as a case sees it."""

    a: argparse.Namespace
    work: Path
    console: Console

    def add(self, system: str, case: str, metric: str, value: float, unit: str, size: str, repeat: int = 0) -> None:
        """One number of one size."""

    def say(self, system: str, size: str, text: str) -> None:
        """A line of progress."""
