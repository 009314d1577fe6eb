"""A generated stream as a source. Its splits are ranges of arrival numbers, generated inside the ingest tasks.

A position is a number of arrivals, so the source can start from any position. Must never keep state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Self

import pyarrow as pa

from ferry.connectors.splits import Flow, Split
from ferry.contract.errors import SpecRefused
from ferry_workloads.arrivals import Arrivals

BATCH_ARRIVALS = 262_144
"""Arrivals per batch of a generated split, large enough to hide the cost of the Python code around the kernels."""

_ORDER_BLOCK = 4 * 1024 * 1024
"""Greatest number of arrivals in a computation of their order (32 MiB of ids)."""


class ArrivalSplits:
    """A stream of a generator as a source. A position is the number of arrivals of all streams of the generator.

    max_rows counts the arrivals of all streams, so the streams of a workload stay together in event time when they are read
    in parallel. Implements ferry.connectors.splits.Splits.
    """

    own_clock = True

    @property
    def counted_with(self) -> Arrivals:
        """The generator: its streams share a row limit."""
        return self.generator

    def __init__(self, generator: Arrivals, stream: str) -> None:
        self.generator = generator
        self.stream = stream
        self.parts = 1
        generator.schema(stream)

    def in_flows(self, parts: int) -> Self:
        """The same records in another order: the input in `parts` consecutive parts, read in parallel, each a flow."""
        if parts < 1 or (parts > 1 and self.generator.events is None):
            raise SpecRefused(
                f"{self!r} in {parts} flows: a positive number is needed, and a finite input (events=...)"
            )
        source = copy.copy(self)
        source.parts = parts
        return source

    @property
    def finite(self) -> bool:
        """Whether the input has an end."""
        return self.generator.events is not None

    @property
    def has_flows(self) -> bool:
        """Whether the input is read in several parts."""
        return self.parts > 1

    def flows(self, position: int) -> dict[str, bool]:
        """Numbers of the parts, and whether they have unread arrivals. All parts end together."""
        return {str(part): not self.ended(position) for part in range(self.parts)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.generator!r}, {self.stream!r})"

    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return self.generator.schema(self.stream)

    def start(self) -> int:
        """The position before the first arrival."""
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        """The position max_rows arrivals later, or the end of a finite input."""
        stop = start + max(max_rows, 0)
        events = self.generator.events
        return stop if events is None else max(start, min(stop, events))

    def ended(self, position: int) -> bool:
        """Whether this is the end of a finite input."""
        return self.generator.events is not None and position >= self.generator.events

    def plan(self, start: int, stop: int, tasks: int) -> list[Split]:
        """At most `tasks` ranges with sizes that differ by one at most."""
        count = max(stop - start, 0)
        parts = min(max(tasks, 1), count)
        edges = [start + count * i // parts for i in range(parts + 1)] if parts else [start]
        return [{"start": low, "stop": high} for low, high in pairwise(edges)]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch | Flow]:
        """The stream's records among the arrivals of a split, in order of arrival; with flows, part by part."""
        start, stop = int(split["start"]), int(split["stop"])
        if not self.has_flows:
            yield from self._range(start, stop, columns)
            return
        for part in range(self.parts):
            yield Flow(str(part))
            yield from self._range(self._arrival(part, start), self._arrival(part, stop), columns)

    def _arrival(self, part: int, position: int) -> int:
        """The position of a part when the whole input is at this position."""
        events = self.generator.events
        assert events is not None
        low, high = events * part // self.parts, events * (part + 1) // self.parts
        return low + (high - low) * position // max(events, 1)

    def _range(self, start: int, stop: int, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Batches of the records among BATCH_ARRIVALS arrivals each, in order of arrival, without empty batches.

        The order is computed for many batches at once, because the computation has a fixed cost.
        """
        for block in range(start, stop, _ORDER_BLOCK):
            block_stop = min(block + _ORDER_BLOCK, stop)
            ids = None if self.generator.in_order else self.generator.ids(block, block_stop)
            for first in range(block, block_stop, BATCH_ARRIVALS):
                last = min(first + BATCH_ARRIVALS, block_stop)
                if ids is None:
                    batch = self.generator.read(self.stream, first, last, columns)
                else:
                    batch = self.generator.records(self.stream, first, ids[first - block : last - block], columns)
                if batch.num_rows:
                    yield batch
