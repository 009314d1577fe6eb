"""Input of the simulated job, its arithmetic, and the reference: what a single process would have computed.

Operator 0 sums amounts per key in windows of 10; operator 1 sums the fired rows of operator 0 per key in windows of 20.
A row is (operator, slice, key) -> sum. The reference is a tree of labels: each label's state follows from its parent's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Label, Step

SIZE = (10, 20)
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


def records(seed: int, epoch: int, flavour: tuple[int, int], keys: int, splits: int) -> list[list[Record]]:
    """Input of one epoch by split; `flavour` tells apart runs that see different input."""
    rnd = random.Random(f"{seed}/{epoch}/{flavour}")
    if rnd.random() < 0.15:
        return [[] for _ in range(splits)]
    base = epoch * 7
    return [
        [
            (max(0, base + rnd.randint(-14, 6)), rnd.randrange(keys), rnd.randint(1, 1000))
            for _ in range(rnd.randint(0, 5))
        ]
        for _ in range(splits)
    ]


def partial(operator: int, batch: list[Record], vnodes: int) -> dict[int, Partial]:
    """What a task streams: sums by virtual node, slice and key."""
    out: dict[int, Partial] = {}
    for time, key, amount in batch:
        part = out.setdefault(key % vnodes, {})
        at = (time // SIZE[operator], key)
        old = part.get(at, (0, 0))
        part[at] = (old[0] + amount, old[1] + 1)
    return out


def after_images(operator: int, state: Rows, parts: list[Partial], low: int, high: int) -> tuple[Rows, int, int]:
    """(after-images, late records, fired rows) of one virtual node."""
    new: Rows = {}
    late = 0
    for part in parts:
        for (slice_, key), (amount, n) in part.items():
            if end_of(operator, slice_) <= low:
                late += n
                continue
            row = (operator, slice_, key)
            new[row] = new.get(row, state.get(row, 0)) + amount
    fired = sum(1 for (op, s, _) in {**state, **new} if op == operator and low < end_of(op, s) <= high)
    return new, late, fired


def fired_rows(operator: int, state: Rows, low: int, high: int) -> list[tuple[int, int, int]]:
    return [(s, k, x) for (op, s, k), x in state.items() if op == operator and low < end_of(op, s) <= high]


def as_records(rows: list[tuple[int, int, int]]) -> list[Record]:
    """Fired rows of operator 0 as input of operator 1."""
    return [(end_of(0, s) - 1, k % 5, x) for s, k, x in rows]


@dataclass(slots=True)
class Reference:
    """The truth about one label."""

    label: Label | None
    low: int = WATERMARK_NONE
    high: int = WATERMARK_NONE
    greatest: int = WATERMARK_NONE
    state: dict[int, Rows] = field(default_factory=dict)
    fired: list[tuple[int, int, int]] = field(default_factory=list)
    late: int = 0
    live: dict[int, Rows] = field(default_factory=dict)
    """Rows that matter from this label on: those that fire in it or later."""
    parent: Reference | None = None

    def follow(self, label: Label, batch: list[Record], vnodes: int) -> Reference:
        """The reference after one more step with this input (a single process, record by record)."""
        step: Step = label.step
        out = Reference(label, parent=self)
        if step.operator == 0:
            out.low = self.high
            out.greatest = max([self.greatest, *(t for t, _, _ in batch)])
            out.high = max(self.high, out.greatest - DELAY if out.greatest != WATERMARK_NONE else WATERMARK_NONE)
        else:
            out.low, out.high, out.greatest = self.low, self.high, self.greatest
        out.state = {v: dict(self.state.get(v, {})) for v in range(vnodes)}
        for time, key, amount in batch:
            slice_ = time // SIZE[step.operator]
            if end_of(step.operator, slice_) <= out.low:
                out.late += 1
                continue
            rows = out.state[key % vnodes]
            row = (step.operator, slice_, key)
            rows[row] = rows.get(row, 0) + amount
        for rows in out.state.values():
            out.fired += fired_rows(step.operator, rows, out.low, out.high)
        out.fired.sort()
        for v, rows in out.state.items():
            out.live[v] = {r: x for r, x in rows.items() if end_of(r[0], r[1]) > out.low}
            out.state[v] = dict(out.live[v])
        return out
