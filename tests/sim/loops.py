"""Long-running tasks with assigned shares, like `ferry.driver.loops`: tasks fail, die, and answer after their run is over.

A loop may live longer than its run, and than its driver: data that it stages later has a void assignment number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ferry.contract.names import Fragment
from ferry.protocol import coordinator as core
from tests.sim import data

if TYPE_CHECKING:
    from tests.sim.driver import Batch, Driver

Winners = dict[str, list[Fragment]]
Done = Callable[[Winners | None], None]


@dataclass(eq=False, slots=True)
class Loop:
    """A loop, as its driver sees it."""

    owes: dict[int, Batch] = field(default_factory=dict)
    """Unanswered shares, by the number of the assignment."""


class Loops:
    """The loops of one driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.world = driver, driver.world
        self.loops = [Loop() for _ in range(self.world.rnd.randint(1, 3))]
        self.number = 0
        """of the next assignment; never used again"""
        self.open = 0
        """shares without a receipt"""
        self.failed = False
        self.winners: Winners = {}

    def ingest(self, job: core.StartIngest, batches: list[Batch], done: Done) -> None:
        """Assign a share for each batch; `done(None)`: the run must be retried."""
        for loop in self.loops:  # Unanswered shares are void; the loops that hold them get no more assignments.
            if loop.owes:
                self.replace(loop)
        self.job, self.done, self.open, self.failed, self.winners = job, done, len(batches), False, {}
        self.node = self.driver.node_of(job.step)
        for batch in batches:
            self.assign(job, batch)
        if not batches:
            self.world.after(1, done, {})

    def replace(self, loop: Loop) -> list[Batch]:
        """Replace a loop, which gets no more assignments; returns its unanswered batches."""
        owed = list(loop.owes.values())
        if self.world.takes_owed:
            loop.owes = {}
        if loop in self.loops:
            self.loops[self.loops.index(loop)] = Loop()
        return owed

    def assign(self, job: core.StartIngest, batch: Batch) -> None:
        rnd, fair = self.world.rnd, self.world.net.fair
        loop, task = min(self.loops, key=lambda one: len(one.owes)), self.number
        self.number += 1
        loop.owes[task] = batch
        fate = rnd.choice(("fails", "dies", "silent")) if not fair and rnd.random() < 0.15 else ""
        if fate in ("dies", "silent"):
            self.world.after(rnd.randint(1, 12), self.gone, loop)
        if fate != "dies" or rnd.random() < 0.5:
            stands = not fair and rnd.random() < 0.06
            self.world.after(
                rnd.randint(40, 400) if stands else rnd.randint(1, 6),
                self.work,
                loop,
                job,
                self.node.id,
                task,
                batch,
                fate,
            )

    def gone(self, loop: Loop) -> None:
        """The process of a loop is gone; or its worker is silent, and the loop continues."""
        for batch in self.replace(loop) if loop in self.loops and self.driver.alive else ():
            self.assign(self.job, batch)

    # ---- in the loop
    def work(self, loop: Loop, job: core.StartIngest, operator: int, task: int, batch: Batch, fate: str) -> None:
        """Stage the records of a share for an operator, by its id, and answer: also without its driver, but not after the
        loss of everything."""
        if self.driver.run != self.world.run_number:
            return
        world, helper, ok = self.world, self.world.rnd.choice(job.helpers), [True]
        fragment = Fragment(job.step, self.driver.generation, job.run, task)
        world.checks.fragments[fragment] = batch
        part = data.partial(operator, [record for _, record in batch], world.vnodes)

        def staged() -> None:
            world.after(world.rnd.randint(0, 4), self.answered, loop, task, helper, ok[0], fate == "fails")

        self.driver.stream(helper, fragment, part, ok, staged)

    # ---- in the driver
    def answered(self, loop: Loop, task: int, helper: str, reached: bool, fails: bool) -> None:
        """A receipt counts only for a share that its loop owes."""
        if not self.driver.alive or (self.world.takes_owed and task not in loop.owes):
            return
        batch, job = loop.owes.pop(task, None), self.job
        if fails and batch is not None:
            self.assign(job, batch)
            return
        self.failed |= not reached
        self.winners.setdefault(helper, []).append(Fragment(job.step, self.driver.generation, job.run, task))
        self.open -= 1
        if self.open == 0:
            self.world.after(1, self.done, None if self.failed else self.winners)
