"""A job of `ferry_workloads.jobs` whose clock begins at a given moment: each system has the same rate when the act comes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.parts.reconfigure import profile
from ferry.connectors.splits import Position
from ferry_workloads.pacing import PacedSplits

OWN = ("query", "clock_us")
"""Arguments that the query's job does not know."""


class Clocked(PacedSplits):
    """A paced stream that begins then, whenever the job does."""

    def __init__(self, source: PacedSplits, clock_us: int) -> None:
        super().__init__(source.source, source.pace)
        self.clock_us = clock_us

    def start(self) -> Position:
        """Before the first arrival."""
        return {**super().start(), "since": self.clock_us}


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Those of the query."""
    return {name: Clocked(one, args["clock_us"]) for name, one in _job(args).sources(spark, _rest(args)).items()}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """The query."""
    return _job(args).pipeline(streams, _rest(args))


def _job(args: dict[str, Any]) -> Any:
    return import_module(f"ferry_workloads.jobs.{args['query']}")


def _rest(args: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in args.items() if name not in OWN}
    return {**known, "profile": profile.of_text(args["profile"])}
