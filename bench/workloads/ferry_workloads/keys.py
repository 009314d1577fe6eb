"""Keys to count: the input of Slash's RO and of Megaphone's hash-count and key-count.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ferry.connectors.splits import Split
from ferry_workloads.arrivals import BASE_MS, Ints, KeyedArrivals, Values, to_batch
from ferry_workloads.ranges import BATCH_ARRIVALS, ArrivalSplits

SCHEMAS = {"keys": pa.schema([("seq", pa.int64()), ("ts", pa.int64()), ("key", pa.int64())])}


@dataclass(frozen=True, kw_only=True)
class KeysGenerator(KeyedArrivals):
    """Stream ``keys``: keys in [0, domain), with the reference generator's arguments."""

    title = "keys"
    schemas = SCHEMAS

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        return _COLUMNS[name](self, n)


_COLUMNS: dict[str, Callable[[KeysGenerator, Ints], Values]] = {
    "ts": lambda g, n: g.times(n),
    "key": lambda g, n: g.skewed_keys(n, 301, g.domain),
}


class KeysSplits(ArrivalSplits):
    """The keys, generated inside the ingest tasks: ``KeysSplits(KeysGenerator(rate=1e6, domain=10**8))``."""

    def __init__(self, generator: KeysGenerator, stream: str = "keys") -> None:
        super().__init__(generator, stream)


class PreloadedKeysSplits(KeysSplits):
    """Every key of the domain once, in order, then the keys: ``PreloadedKeysSplits(KeysGenerator(domain=10**6))``.

    A position counts the loaded keys, too. Loaded keys have numbers below 0 and the event time of the first arrival.
    """

    def __init__(self, generator: KeysGenerator) -> None:
        super().__init__(generator)
        self.domain = generator.domain

    def latest(self, start: int, max_rows: int) -> int:
        """The position max_rows keys later, or the end of a finite input."""
        stop = start + max(max_rows, 0)
        return max(start, stop if self._end is None else min(stop, self._end))

    def ended(self, position: int) -> bool:
        """Whether this is the end of a finite input."""
        return self._end is not None and position >= self._end

    @property
    def _end(self) -> int | None:
        events = self.generator.events
        return None if events is None else self.domain + events

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Batches of loaded keys, then batches of arrivals."""
        start, stop = int(split["start"]), int(split["stop"])
        loaded = min(stop, self.domain)
        for first in range(start, loaded, BATCH_ARRIVALS):
            yield self._loaded(np.arange(first, min(first + BATCH_ARRIVALS, loaded)), columns)
        if stop > self.domain:
            yield from super().read({"start": max(start - self.domain, 0), "stop": stop - self.domain}, columns)

    def _loaded(self, keys: Ints, columns: Sequence[str] | None) -> pa.RecordBatch:
        values = {"seq": keys - self.domain, "ts": np.full(keys.size, BASE_MS), "key": keys}
        schema = self.schema()
        return to_batch(schema, schema.names if columns is None else columns, values.__getitem__, keys.size)
