"""Input of the simulated job, its arithmetic, and the reference: what a single process would have computed.

Operators sum amounts per key, and have an id, which is in every row. Their inputs are the source, fired rows of earlier operators, or several of these (`Graph`).
Most operators sum in windows: a row is (operator, slice, key) -> sum. Some sum until a timer of the key fires: a row is
(operator, time of the timer, key) -> sum, and its result stays as (operator, EMITTED + epoch, key) -> (time, sum) until the
epoch is released. The reference is a tree of commit_ids: each commit_id's state follows from its parent's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import CommitId
from tests.sim.events import Dice

SIZE = (10, 20, 30, 20)
"""Window size of operators, by id (modulo 4)."""
DELAY = 6
"""Allowed disorder of event time."""

SOURCE = -1
"""Input of an operator that reads the source."""


class Node(NamedTuple):
    """An operator."""

    inputs: tuple[int, ...]
    """The operators (or SOURCE) that it reads."""
    timers: bool = False
    """Whether it sums until a timer fires, in place of windows."""
    id: int = 0
    before: int | None = None
    """The id from whose state its state was derived."""


Graph = tuple[Node, ...]
"""The operators of a program by position; inputs are positions, too."""

EMITTED = 1 << 40
TIMEOUT = 25
"""Time from the first record of a key to its timer."""

Row = tuple[int, int, int]
Rows = dict[Row, Any]
"""In a delta None removes the row."""
Record = tuple[int, int, int]
"""(event time, key, amount)"""
Partial = dict[tuple[int, int], tuple[int, int]]
"""(slice, key) -> (sum, number of records)"""


def size_of(operator: int) -> int:
    return SIZE[operator % len(SIZE)]


def end_of(operator: int, slice_: int) -> int:
    return (slice_ + 1) * size_of(operator)


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
    """The output of a task: sums by virtual node, slice and key."""
    out: dict[int, Partial] = {}
    size = size_of(operator)
    for time, key, amount in batch:
        part = out.setdefault(key % vnodes, {})
        at = (time // size, key)
        old = part.get(at, (0, 0))
        part[at] = (old[0] + amount, old[1] + 1)
    return out


def after_images(
    node: Node, epoch: int, state: Rows, parts: list[Partial], low: int, high: int
) -> tuple[Rows, int, int]:
    """(after-images, late records, fired rows) of one virtual node."""
    operator = node.id
    if node.timers:
        summed = [(s * size_of(operator), k, x) for p in parts for (s, k), (x, _) in p.items()]
        changes = timed(operator, epoch, state, summed, low, high)
        return changes, 0, sum(slice_ >= EMITTED for _, slice_, _ in changes)
    new: Rows = {}
    late = fired = 0
    size = size_of(operator)
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


def timed(operator: int, epoch: int, state: Rows, records: list[Record], low: int, high: int) -> Rows:
    """Changes of an operator with timers: first the records are added, then the timers fire."""
    changes = Rows()
    due = {key: (time, x) for (op, time, key), x in state.items() if op == operator and time < EMITTED}
    for key in sorted({key for _, key, _ in records}):
        size = size_of(operator)
        mine = [(time // size * size, x) for time, k, x in records if k == key]
        time, before = due.get(key, (min(time for time, _ in mine) + TIMEOUT, 0))
        due[key] = time, before + sum(x for _, x in mine)
        changes[operator, time, key] = due[key][1]
    for key, (time, x) in due.items():
        if time <= high:
            changes[operator, time, key] = None
            changes[operator, EMITTED + epoch, key] = max(time, low + 1), x
    return changes


def fired_rows(node: Node, epoch: int, state: Rows, low: int, high: int) -> list[tuple[int, int, int]]:
    """(event time, key, sum) of the rows that fired in a step of this operator."""
    operator = node.id
    if node.timers:
        mine = [(k, x) for (op, s, k), x in state.items() if op == operator and s == EMITTED + epoch]
        return [(time, key, x) for key, (time, x) in mine]
    size = size_of(operator)
    found = ((s, k, x) for (op, s, k), x in state.items() if op == operator)
    return [(end_of(operator, s) - 1, k, x) for s, k, x in found if low < (s + 1) * size <= high]


def as_records(rows: list[tuple[int, int, int]]) -> list[Record]:
    """Fired rows of an operator as input of another."""
    return [(time, key % 5, x) for time, key, x in rows]


def lives(timers: Sequence[bool], row: Row, floors: Sequence[int], released: int) -> bool:
    """Whether a row may still be needed when these watermarks are final and these epochs are released. By id of the operator:
    whether it has timers."""
    operator, slice_, _ = row
    if timers[operator]:
        return slice_ < EMITTED or slice_ - EMITTED > released
    return end_of(operator, slice_) > floors[operator]


@dataclass(slots=True)
class Reference:
    """The right state of one commit id."""

    commit_id: CommitId | None
    lows: tuple[int, ...] = ()
    highs: tuple[int, ...] = ()
    """Watermarks by id of the operator, before and after its last step."""
    greatest: tuple[int, ...] = ()
    """Greatest event time of the source, by id of the operator that read it."""
    fired: tuple[list[tuple[int, int, int]], ...] = ()
    """Fired rows of this epoch, by position of the operator, up to the committed operator."""
    late: int = 0
    live: dict[int, Rows] = field(default_factory=dict)
    """Rows by virtual node that fire in this commit id or later. Replaced, never changed."""
    ran: frozenset[int] = frozenset()
    """Ids of the operators that have had a step."""
    parent: Reference | None = None

    @staticmethod
    def root(operators: int, vnodes: int) -> Reference:
        """Before the first step."""
        none = (WATERMARK_NONE,) * operators
        return Reference(None, none, none, none, live={v: {} for v in range(vnodes)})

    def follow(
        self, commit_id: CommitId, batch: list[tuple[int, Record]], graph: Graph, vnodes: int, timers: Sequence[bool]
    ) -> Reference:
        """The reference after one more step with this input (a single process, record by record)."""
        position, epoch = commit_id.step.operator, commit_id.step.epoch
        parent, self = self, self.begins(graph) if position == 0 else self
        node = graph[position]
        operator = node.id
        greatest = max([self.greatest[operator], *(record[0] for origin, record in batch if origin == SOURCE)])
        low = self.highs[operator]
        # Rows that fired in the epoch before are released for every operator when the next epoch begins.
        out = Reference(commit_id, self.highs if position == 0 else self.lows, parent=parent)
        out.greatest = _put(self.greatest, operator, greatest)
        out.highs = _put(self.highs, operator, max(low, watermark(node, greatest, [self.highs[n.id] for n in graph])))
        high = out.highs[operator]
        out.live, out.ran = dict(self.live), self.ran | {operator}
        if position == 0:
            for v, rows in out.live.items():
                out.live[v] = {r: x for r, x in rows.items() if lives(timers, r, out.lows, epoch - 1)}
        records = [record for _, record in batch]
        if node.timers:
            out._fire_timers(operator, epoch, records, low, high, vnodes)
        else:
            out._add(operator, records, low, vnodes)
        fired = sorted(x for rows in out.live.values() for x in fired_rows(node, epoch, rows, low, high))
        out.fired = (*self.fired, fired) if position else (fired,)
        return out

    def begins(self, graph: Graph) -> Reference:
        """The reference with the state of altered operators, before the first step of their program."""
        out = self
        for after, before in derivations(graph, self.ran):
            live = {v: derived(rows, after, before) for v, rows in out.live.items()}
            out = replace(out, live=live, ran=out.ran | {after})
            for name in ("lows", "highs", "greatest"):
                values = getattr(out, name)
                setattr(out, name, _put(values, after, values[before]))
        return out

    def _add(self, operator: int, records: list[Record], low: int, vnodes: int) -> None:
        touched: dict[int, Rows] = {}
        for time, key, amount in records:
            slice_ = time // size_of(operator)
            if end_of(operator, slice_) <= low:
                self.late += 1
                continue
            v = key % vnodes
            rows = touched.get(v)
            if rows is None:
                rows = touched[v] = dict(self.live[v])
            row = (operator, slice_, key)
            rows[row] = rows.get(row, 0) + amount
        self.live.update(touched)

    def _fire_timers(self, operator: int, epoch: int, records: list[Record], low: int, high: int, vnodes: int) -> None:
        for v, rows in self.live.items():
            mine = [record for record in records if record[1] % vnodes == v]
            self.live[v] = apply(rows, timed(operator, epoch, rows, mine, low, high))


def derivations(graph: Graph, ran: Collection[int]) -> tuple[tuple[int, int], ...]:
    """Altered operators of a program without a step so far, each with the operator before it that had one."""
    return tuple((n.id, n.before) for n in graph if n.before is not None and n.id not in ran and n.before in ran)


def derived(rows: Rows, after: int, before: int) -> Rows:
    """The rows with the rows of an altered operator, which are equal to its rows before."""
    mine = {(after, s, k): x for (operator, s, k), x in rows.items() if operator == before}
    return {row: x for row, x in rows.items() if row[0] != after} | mine


def apply(rows: Rows, changes: Rows) -> Rows:
    """The rows after a delta."""
    return {row: x for row, x in {**rows, **changes}.items() if x is not None}


def watermark(node: Node, greatest: int, highs: Sequence[int]) -> int:
    """The watermark that the inputs of an operator allow; watermarks of operators by position."""
    source = greatest - DELAY if greatest != WATERMARK_NONE else WATERMARK_NONE
    return min(source if origin == SOURCE else highs[origin] for origin in node.inputs)


def _put(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])
