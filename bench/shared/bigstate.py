"""A job whose state has a given size: count per key, a text of 224 bytes or a number, in one window that never ends.

The first `keys` records bring every key once, in large epochs; every later record names one of them, so the state keeps its
size: any of them, or one of a range that drifts. Records are made inside the ingest tasks. Must never fire anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import ferry

KEY_BYTES = 224
STATE_BYTES = 250
"""What one key counts for when a size of state is named: its bytes, its count, and some overhead."""

NUMBER_BYTES = 24
"""The same of a key that is a number: eight bytes, its count, and its place in the table."""

SIZES = {
    "2MB": 2_000_000,
    "10MB": 10_000_000,
    "16MB": 16_000_000,
    "100MB": 100_000_000,
    "1GB": 1_000_000_000,
    "4GB": 4_000_000_000,
}
"""Of states, as they are named on a command line."""

FILL_ROWS = 250_000
BATCH = 32_768
BASE_MS = 1_436_918_400_000

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.string())])
NUMBERED = pa.schema([("ts", pa.int64()), ("key", pa.int64())])


def mix(x: Any) -> Any:
    """The splitmix64 finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def texts(numbers: Any) -> pa.Array:
    """A text of KEY_BYTES printable characters for each number."""
    words = KEY_BYTES // 8
    seeds = numbers.astype(np.uint64)[:, None] * np.uint64(words) + np.arange(1, words + 1, dtype=np.uint64)[None, :]
    data = (mix(seeds).view(np.uint8) & np.uint8(63)) + np.uint8(48)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * KEY_BYTES
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1)))


@dataclass(frozen=True)
class Keys:
    """The source; a position is a number of records."""

    keys: int
    share: float = 1.0
    """of the keys, what records name while the range drifts once; 1: there is no range"""
    drift: int = 1
    """Records during which the range moves by its own width, which is half of `share`."""
    numbered: bool = False
    """Keys are numbers."""
    own_clock: ClassVar[bool] = True

    def numbers(self, start: int, stop: int) -> Any:
        """The keys that these records name, as numbers."""
        n = np.arange(start, stop, dtype=np.uint64)
        keys = np.uint64(self.keys)
        if self.share == 1.0:
            return np.where(n < keys, n, mix(n) % keys)
        width = np.uint64(max(int(self.keys * self.share / 2), 1))
        moved = (np.maximum(n, keys) - keys) * width // np.uint64(self.drift)
        return np.where(n < keys, n, (mix(n) % width + moved) % keys)

    def schema(self) -> pa.Schema:
        """Event time and key."""
        return NUMBERED if self.numbered else SCHEMA

    def start(self) -> int:
        """Before the first record."""
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        """Large steps until every key is there, then steps of max_rows."""
        return min(start + FILL_ROWS, self.keys) if start < self.keys else start + max_rows

    def ended(self, position: int) -> bool:
        """Never."""
        return False

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, Any]]:
        """Ranges of equal size."""
        edges = [start + (stop - start) * i // tasks for i in range(tasks + 1)]
        return [{"start": a, "stop": b} for a, b in pairwise(edges) if b > a]

    def read(self, split: dict[str, Any], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The records of a split."""
        for first in range(split["start"], split["stop"], BATCH):
            keys = self.numbers(first, min(first + BATCH, split["stop"]))
            names = list(columns) if columns is not None else SCHEMA.names
            yield pa.RecordBatch.from_arrays([self._column(name, keys) for name in names], names=names)

    def _column(self, name: str, keys: Any) -> pa.Array:
        if name != "key":
            return pa.array(np.full(len(keys), BASE_MS))
        return pa.array(keys.astype(np.int64)) if self.numbered else texts(keys)


def sources(spark: Any, args: dict[str, Any]) -> dict[str, Any]:
    """The keys."""
    return {"keys": Keys(int(args["keys"]), float(args.get("share", 1.0)), int(args.get("drift", 1)))}


def pipeline(streams: Any, args: dict[str, Any]) -> Any:
    """Count per key; the window is so long that nothing fires."""
    keyed = streams["keys"].event_time("ts").key_by("key").window(ferry.tumbling("10000d"))
    return keyed.aggregate("counts", num=ferry.count()).sink(ferry.parquet("rows"))
