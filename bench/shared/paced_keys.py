"""Keys of `bigstate` whose records come at the pace of the clock, once all keys are there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bench.shared import bigstate

CREATED, NUMBER = "created", "number"


class PacedKeys:
    """The keys of `bigstate`: first each of them, as fast as can be; then record n is created n / rate seconds later.

    A position says how many records there were, and when the last key was loaded (microseconds since 1970).
    """

    own_clock, creation_time = True, CREATED

    def __init__(self, keys: int, rate: float, numbered: bool = False) -> None:
        self.source, self.rate = bigstate.Keys(keys, numbered=numbered), rate

    def schema(self) -> pa.Schema:
        """Event time, key, creation, and number of the record."""
        return self.source.schema().append(pa.field(CREATED, pa.int64())).append(pa.field(NUMBER, pa.int64()))

    def start(self) -> dict[str, int]:
        """Before the first record."""
        return {"read": 0, "since": 0}

    def latest(self, start: dict[str, int], max_rows: int) -> dict[str, int]:
        """The next keys in large steps, or all that is due by now."""
        read, since, keys = start["read"], start["since"], self.source.keys
        if read < keys:
            stop = self.source.latest(read, max_rows)
            return {"read": stop, "since": time.time_ns() // 1000 if stop == keys else 0}
        due = keys + int((time.time() - since / 1e6) * self.rate)
        return {"read": max(read, min(due, read + max_rows)), "since": since}

    def ended(self, position: dict[str, int]) -> bool:
        """Never."""
        return False

    def plan(self, start: dict[str, int], stop: dict[str, int], tasks: int) -> list[dict[str, Any]]:
        """Ranges of equal size."""
        made = self.source.plan(start["read"], stop["read"], tasks)
        return [{**split, "since": stop["since"]} for split in made]

    def read(self, split: dict[str, Any], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The records of a split; loaded keys are as old as their reading."""
        names = list(columns) if columns is not None else self.schema().names
        first, keys, now = split["start"], self.source.keys, time.time() * 1000
        for batch in self.source.read(split, [*(name for name in names if name not in (CREATED, NUMBER)), "ts"]):
            n = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            due = np.where(n < keys, now, split["since"] / 1000 + (n - keys) * (1000 / self.rate))
            made = dict(zip(batch.schema.names, batch.columns, strict=True))
            made[CREATED], made[NUMBER] = pa.array(np.floor(due).astype(np.int64)), pa.array(n)
            yield pa.RecordBatch.from_arrays([made[name] for name in names], names=names)
