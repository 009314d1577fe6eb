"""The job whose checkpoint a release freezes: a state of each kind, from records that are computed from their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

import ferry

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("user", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.int64()),
        ("ts", pa.timestamp("ms")),
    ]
)

FROZEN, LAST = 4_000, 8_000
"""Records before the checkpoint, and records of a run that goes on from it."""


def records(start: int, stop: int) -> pa.RecordBatch:
    """These records. Event times rise by 10 ms a record; a user pauses for seconds again and again."""
    number = np.arange(start, stop, dtype=np.int64)
    user = (number // 300 * 5 + number * 7 % 11) % 40
    columns = [
        pa.array(number),
        pa.array(user),
        pa.array([f"user {one}" for one in user]),
        pa.array(number * 31 % 1009),
        pa.array(number * 10, pa.timestamp("ms")),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass
class Numbers:
    """Records up to `end`; afterwards there is nothing new, or the input is over."""

    end: int
    finite: bool

    own_clock = True

    def schema(self) -> pa.Schema:
        return SCHEMA

    def start(self) -> int:
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        return min(start + max_rows, self.end)

    def ended(self, position: int) -> bool:
        return self.finite and position == self.end

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, int]]:
        bounds = np.linspace(start, stop, tasks + 1).astype(int)
        return [{"start": int(a), "stop": int(b)} for a, b in pairwise(bounds) if a < b]

    def read(self, split: dict[str, int], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        yield records(split["start"], split["stop"])


@dataclass
class Latest(ferry.Process):
    """The last amount of a user, emitted when the input ends: the timer is set beyond all event times."""

    column: str

    tables = {"latest": ferry.StateTable(pa.schema([("value", pa.int64())]))}
    output = pa.schema([("user", pa.int64()), ("value", pa.int64())])

    def process(self, work: ferry.Work) -> None:
        due = work.timers().key
        users = work.keys.column("user").take(pa.array(due))
        work.emit(due, {"user": users, "value": work.get("latest").column("value").take(pa.array(due))})
        changed = np.flatnonzero(np.diff(work.spans()))
        value = work.rows().column(self.column).take(pa.array(work.spans()[1:][changed] - 1))
        work.put("latest", changed, {"value": value})
        work.set_timer(changed, np.full(changed.size, 1_000_000))


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """One source: records up to FROZEN, or all of them."""
    whole = bool(args.get("whole"))
    return {"numbers": Numbers(LAST if whole else FROZEN, whole)}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """An aggregate with and without windows, a join, sessions, a process."""
    numbers = streams["numbers"].event_time("ts", delay="1s")
    by_user, by_name = numbers.key_by("user"), numbers.key_by("name")
    counts = by_user.window(ferry.sliding("10s", "5s")).aggregate(
        "counts", n=ferry.count(), total=ferry.sum("amount"), top=ferry.max("amount"), mean=ferry.mean("amount")
    )
    totals = by_name.aggregate("totals", emit=ferry.changes(), n=ferry.count(), first=ferry.min("number"))
    pairs = by_user.window(ferry.tumbling("5s")).join(
        "pairs", numbers.key_by("amount"), {"left": "number"}, {"right": "number"}
    )
    visits = by_user.window(ferry.session("2s")).aggregate("visits", n=ferry.count(), top=ferry.max("amount"))
    latest = by_user.process("latest", Latest("amount"))
    named = {"counts": counts, "totals": totals, "pairs": pairs, "visits": visits, "latest": latest}
    return [stream.sink(ferry.parquet(name)) for name, stream in named.items()]
