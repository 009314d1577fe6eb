"""Input of the simulated job, its arithmetic, and the reference: what a single process would have computed.

Operator 0 sums amounts per key in windows of 10; the others sum the fired rows of the one before, in larger windows.
A row is (operator, slice, key) -> sum. The reference is a tree of labels: each label's state follows from its parent's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId, Step
from tests.sim.events import Dice

SIZE = (10, 20, 30)
DELAY = 6
"""Allowed disorder of event time."""

Row = tuple[int, int, int]
Rows = dict[Row, int]
Record = tuple[int, int, int]
"""(event time, key, amount)"""
Partial = dict[tuple[int, int], tuple[int, int]]
"""(slice, key) -> (sum, number of records)"""


def end_of(operator: int, slice_: int) -> int:
    return (slice_ + 1) * SIZE[operator]


@lru_cache(maxsize=64)
def records(seed: int, block: int, flavour: tuple[int, int], keys: int, splits: int) -> list[list[Record]]:
    """One block of the source by split; `flavour` tells apart runs that see different input."""
    rnd = Dice(f"{seed}/{block}/{flavour}")
    if rnd.random() < 0.15:
        return [[] for _ in range(splits)]
    base = block * 7
    return [
        [
            (max(0, base + rnd.randint(-14, 6)), rnd.randrange(keys), rnd.randint(1, 1000))
            for _ in range(rnd.randint(0, 5))
        ]
        for _ in range(splits)
    ]


def between(seed: int, blocks: tuple[int, int], flavour: tuple[int, int], keys: int, splits: int) -> list[list[Record]]:
    """The input of an epoch that covers these blocks, by split."""
    parts = [records(seed, block, flavour, keys, splits) for block in range(*blocks)]
    return [[r for part in parts for r in part[i]] for i in range(splits)] if parts else []


def partial(operator: int, batch: list[Record], vnodes: int) -> dict[int, Partial]:
    """What a task streams: sums by virtual node, slice and key."""
    out: dict[int, Partial] = {}
    size = SIZE[operator]
    for time, key, amount in batch:
        part = out.setdefault(key % vnodes, {})
        at = (time // size, key)
        old = part.get(at, (0, 0))
        part[at] = (old[0] + amount, old[1] + 1)
    return out


def after_images(operator: int, state: Rows, parts: list[Partial], low: int, high: int) -> tuple[Rows, int, int]:
    """(after-images, late records, fired rows) of one virtual node."""
    new: Rows = {}
    late = fired = 0
    size = SIZE[operator]
    for part in parts:
        for (slice_, key), (amount, n) in part.items():
            if (slice_ + 1) * size <= low:
                late += n
                continue
            row = (operator, slice_, key)
            new[row] = new.get(row, state.get(row, 0)) + amount
    if low < high:
        for op, s, _ in {**state, **new} if new else state:
            if op == operator and low < (s + 1) * size <= high:
                fired += 1
    return new, late, fired


def fired_rows(operator: int, state: Rows, low: int, high: int) -> list[tuple[int, int, int]]:
    size = SIZE[operator]
    return [(s, k, x) for (op, s, k), x in state.items() if op == operator and low < (s + 1) * size <= high]


def as_records(operator: int, rows: list[tuple[int, int, int]]) -> list[Record]:
    """Fired rows of an operator as input of the next."""
    return [(end_of(operator, s) - 1, k % 5, x) for s, k, x in rows]


@dataclass(slots=True)
class Reference:
    """The truth about one label."""

    label: CommitId | None
    low: int = WATERMARK_NONE
    high: int = WATERMARK_NONE
    greatest: int = WATERMARK_NONE
    fired: list[tuple[int, int, int]] = field(default_factory=list)
    late: int = 0
    live: dict[int, Rows] = field(default_factory=dict)
    """Rows by virtual node that matter from this label on: those that fire in it or later. Never changed, but replaced."""
    parent: Reference | None = None

    def follow(self, label: CommitId, batch: list[Record], vnodes: int) -> Reference:
        """The reference after one more step with this input (a single process, record by record)."""
        step: Step = label.step
        out = Reference(label, parent=self)
        if step.operator == 0:
            out.low = self.high
            out.greatest = max([self.greatest, *(t for t, _, _ in batch)])
            out.high = max(self.high, out.greatest - DELAY if out.greatest != WATERMARK_NONE else WATERMARK_NONE)
        else:
            out.low, out.high, out.greatest = self.low, self.high, self.greatest
        operator, low, high = step.operator, out.low, out.high
        touched: dict[int, Rows] = {}
        size = SIZE[operator]
        for time, key, amount in batch:
            slice_ = time // size
            if (slice_ + 1) * size <= low:
                out.late += 1
                continue
            v = key % vnodes
            rows = touched.get(v)
            if rows is None:
                rows = touched[v] = dict(self.live[v])
            row = (operator, slice_, key)
            rows[row] = rows.get(row, 0) + amount
        out.live = {**self.live, **touched}
        for v, rows in out.live.items():
            if rows and high > low:
                out.fired += fired_rows(operator, rows, low, high)
            if low > self.low:
                out.live[v] = {r: x for r, x in rows.items() if (r[1] + 1) * SIZE[r[0]] > low}
        out.fired.sort()
        return out
