"""A generated stream as a source whose splits are ranges of arrival numbers, made inside the ingest tasks.

Positions are counts of arrivals, so the source can go on from anywhere. Must never keep state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ferry.spark.splits import Split

Ints = NDArray[np.int64]

BATCH_ARRIVALS = 262_144
"""Arrivals per batch of a generated split: large enough that the Python around the kernels does not show."""

_ORDER_BLOCK = 4 * 1024 * 1024
"""Most arrivals whose order is worked out at once (32 MiB of ids)."""


class Generator(Protocol):
    """What ArrivalSplits needs of a generator: NexmarkGenerator and YsbGenerator."""

    @property
    def events(self) -> int | None:
        """Length of the whole input; None: endless."""
        ...

    @property
    def in_order(self) -> bool:
        """True when arrival number and event id are the same."""
        ...

    def schema(self, stream: str) -> pa.Schema:
        """Columns of one stream."""
        ...

    def ids(self, start: int, stop: int) -> Ints:
        """Event ids in order of arrival."""
        ...

    def read(self, stream: str, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The records of one stream among arrivals start .. stop - 1."""
        ...

    def records(self, stream: str, first: int, ids: Ints, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The records of one stream among the events `ids`, which arrive as numbers first, first + 1, ..."""
        ...


class ArrivalSplits:
    """One stream of a generator as a source; a position is the number of arrivals so far, of all streams together.

    So max_rows counts arrivals of all streams, of which this stream has its share: the streams of one workload, read
    side by side, then stay together in event time. Implements ferry.spark.splits.Splits.
    """

    own_clock = True

    @property
    def counted_with(self) -> Generator:
        """Streams of the same generator."""
        return self.generator

    def __init__(self, generator: Generator, stream: str) -> None:
        self.generator = generator
        self.stream = stream
        generator.schema(stream)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.generator!r}, {self.stream!r})"

    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return self.generator.schema(self.stream)

    def start(self) -> int:
        """Before the first arrival."""
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        """max_rows arrivals later, or the end of a finite input."""
        stop = start + max(max_rows, 0)
        events = self.generator.events
        return stop if events is None else max(start, min(stop, events))

    def ended(self, position: int) -> bool:
        """True at the end of a finite input."""
        return self.generator.events is not None and position >= self.generator.events

    def plan(self, start: int, stop: int, tasks: int) -> list[Split]:
        """At most `tasks` ranges whose sizes differ by one at most."""
        count = max(stop - start, 0)
        parts = min(max(tasks, 1), count)
        edges = [start + count * i // parts for i in range(parts + 1)] if parts else [start]
        return [{"start": low, "stop": high} for low, high in pairwise(edges)]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Batches of the records among BATCH_ARRIVALS arrivals each, in order of arrival; empty ones are left out.

        The order is worked out for many batches at once, because its cost has a part that does not depend on size.
        """
        start, stop = int(split["start"]), int(split["stop"])
        for block in range(start, stop, _ORDER_BLOCK):
            block_stop = min(block + _ORDER_BLOCK, stop)
            ids = None if self.generator.in_order else self.generator.ids(block, block_stop)
            for first in range(block, block_stop, BATCH_ARRIVALS):
                last = min(first + BATCH_ARRIVALS, block_stop)
                if ids is None:
                    made = self.generator.read(self.stream, first, last, columns)
                else:
                    made = self.generator.records(self.stream, first, ids[first - block : last - block], columns)
                if made.num_rows:
                    yield made
