"""What the tasks of one ingest run get: the run, common to all of them, and the share of each.

Values and wire forms (JSON). A loop outlives a run and gets the next one over a connection. Shares are (source, split
as JSON); only the source and its reader interpret a split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ferry.contract.names import Step
from ferry.contract.places import Registration
from ferry.contract.tickets import Right

Shares = list[tuple[str, str]]
"""The share of one task: (source, split as JSON)."""


@dataclass(frozen=True, slots=True)
class IngestRun:
    """One run of the ingest of a step."""

    step: Step
    generation: int
    run: int
    helpers: tuple[Registration, ...]
    right: Right
    """to stage fragments of this run"""
    watermark: int
    """of the operator before the epoch"""
    planned: int = 0
    """When the epoch was planned, in milliseconds: record ages refer to it, so tasks and attempts need not compare
    clocks."""
    program: int = 1
    """Number of the program that the task runs."""

    def dump(self) -> str:
        """JSON, for tasks."""
        doc = {
            "step": self.step,
            "generation": self.generation,
            "run": self.run,
            "helpers": [helper.dump() for helper in self.helpers],
            "right": self.right.dump().decode(),
            "watermark": self.watermark,
            "planned": self.planned,
            "program": self.program,
        }
        return json.dumps(doc)

    @staticmethod
    def load(text: str) -> IngestRun:
        """Inverse of dump."""
        doc = json.loads(text)
        helpers = tuple(Registration.load(helper) for helper in doc["helpers"])
        right, times = Right.load(doc["right"].encode()), (doc["watermark"], doc["planned"])
        return IngestRun(
            Step(*doc["step"]), doc["generation"], doc["run"], helpers, right, *times, doc.get("program", 1)
        )


@dataclass(frozen=True, slots=True)
class Assignment:
    """A share of a run, for one loop."""

    run: IngestRun
    task: int
    """Number of the assignment, unique in a generation."""
    turn: int
    """position of the share in the run: which helper is tried first"""
    shares: Shares

    def dump(self) -> bytes:
        """JSON, for a loop."""
        return json.dumps([self.run.dump(), self.task, self.turn, self.shares]).encode()

    @staticmethod
    def load(data: bytes) -> Assignment:
        """Inverse of dump."""
        run, task, turn, shares = json.loads(data)
        return Assignment(IngestRun.load(run), task, turn, [(source, split) for source, split in shares])
