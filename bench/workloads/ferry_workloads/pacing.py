"""Generated streams that follow the clock: record i is created when it is due, independently of the job's speed.

The load is an open loop: a long epoch causes a backlog, and the latency of records includes their time in the backlog. The
start of the clock is in the position, so all tasks and drivers have the same clock. Must never keep state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ferry.connectors.splits import Position, Split
from ferry.contract.errors import SpecRefused
from ferry_workloads.arrivals import Arrivals, Ints
from ferry_workloads.ranges import ArrivalSplits

CREATED = "created"
"""Additional column of a paced source: the creation time, as int64 milliseconds since 1970."""

Step = tuple[float, float] | tuple[float, float, float]
"""(seconds, records per second), or (seconds, from, to) with a linear change of the rate."""

LEAST = 1e-300
"""Least divisor: makes 0 / 0 equal 0, for the first record of a step that begins with a rate of 0."""


@dataclass(frozen=True)
class ArrivalPace:
    """Arrivals per second, in steps that repeat after the last step.

    With rate a at the beginning of a step and slope s, n = a t + s t^2 / 2 have arrived after t seconds of it.
    """

    steps: tuple[tuple[float, float, float], ...]
    """(seconds, rate at the begin, rate at the end)"""

    @staticmethod
    def of(rate: float | None, profile: Sequence[Step]) -> ArrivalPace:
        """The pace of users' arguments. Raises SpecRefused."""
        declared: Sequence[Any] = profile or ((1.0, rate),)
        steps = tuple(
            (step[0], step[1], step[-1]) for step in declared if isinstance(step, list | tuple) and len(step) in (2, 3)
        )
        numbers = [value for step in steps for value in step]
        valid = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1e9 for v in numbers)
        if len(steps) != len(declared) or not valid or not all(s[0] > 0 and s[1] + s[2] > 0 for s in steps):
            raise SpecRefused(
                f"paced: rate={rate!r}, profile={profile!r}: give records per second, or a list of (seconds, rate) and "
                "(seconds, rate at the begin, rate at the end); a step needs a positive time and records"
            )
        return ArrivalPace(steps)

    @property
    def _edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds and arrivals before each step, and after the last step."""
        seconds = np.cumsum([0.0, *(length for length, _, _ in self.steps)])
        return seconds, np.cumsum([0.0, *(length * (begin + end) / 2 for length, begin, end in self.steps)])

    def due(self, seconds: float) -> int:
        """Number of arrivals after this time."""
        times, arrivals = self._edges
        rounds, rest = divmod(max(seconds, 0.0), float(times[-1]))
        step = min(int(np.searchsorted(times, rest, "right")) - 1, len(self.steps) - 1)
        length, begin, end = self.steps[step]
        within = rest - float(times[step])
        mine = begin * within + (end - begin) / length * within**2 / 2
        return math.floor(rounds * float(arrivals[-1]) + float(arrivals[step]) + mine)

    def seconds(self, numbers: Ints) -> NDArray[np.float64]:
        """Times of these arrivals, in seconds."""
        times, arrivals = self._edges
        rounds, rest = np.divmod(np.maximum(numbers, 0), arrivals[-1])
        step = np.minimum(np.searchsorted(arrivals, rest, "right") - 1, len(self.steps) - 1)
        lengths, begins, ends = np.array(self.steps).T
        n, a, s = rest - arrivals[step], begins[step], ((ends - begins) / lengths)[step]
        # The root of a t + s t^2 / 2 = n, in the form without cancellation, which also covers s = 0.
        within = 2 * n / np.maximum(a + np.sqrt(np.maximum(a * a + 2 * s * n, 0.0)), LEAST)
        return rounds * times[-1] + times[step] + within


def paced(source: ArrivalSplits, rate: float | None = None, profile: Sequence[Step] = ()) -> PacedSplits:
    """A generated stream that creates its records by the clock, with their creation time in the column `created`.

    Parameters:
        source: a stream of a generator, such as ``NexmarkSplits(NexmarkGenerator(rate=1e5), "bid")``.
        rate: arrivals per second, of all streams of the generator together. None: the generator's rate, so event time
            passes as fast as the clock.
        profile: steps (seconds, rate) or (seconds, rate at the begin, rate at the end) instead of a rate. They repeat after
            the last step. A triangle: ``[(60, 1e3, 1e5), (60, 1e5, 1e3)]``.
    Returns: the source. `maxRows` limits its epochs, too. Records beyond the limit wait in the backlog.
    Raises: SpecRefused, if rate or profile is invalid, or both are given, or the source is read in flows.
    Example:
        >>> source = paced(NexmarkSplits(NexmarkGenerator(rate=1e5), "bid"), profile=[(10, 1e4), (1, 2e5)])
    """
    if rate is not None and profile:
        raise SpecRefused("paced: give rate or profile, not both")
    if source.has_flows or not isinstance(source, ArrivalSplits):
        raise SpecRefused(f"paced: {source!r} is no generated stream that is read as one flow")
    return PacedSplits(source, ArrivalPace.of(source.generator.rate if rate is None else rate, profile))


class PacedSplits:
    """What `paced` returns; a position is how many arrivals there were, and when the clock began.

    Implements ferry.connectors.splits.Splits.
    """

    own_clock = True
    creation_time = CREATED

    def __init__(self, source: ArrivalSplits, pace: ArrivalPace) -> None:
        self.source = source
        self.pace = pace

    @property
    def counted_with(self) -> Arrivals:
        """Streams of the same generator."""
        return self.source.counted_with

    @property
    def finite(self) -> bool:
        """Whether there is an end."""
        return self.source.finite

    def __repr__(self) -> str:
        return f"paced({self.source!r}, {self.pace!r})"

    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return self.source.schema().append(pa.field(CREATED, pa.int64()))

    def start(self) -> Position:
        """Before the first arrival: now."""
        return {"since": time.time_ns() // 1000, "read": self.source.start()}

    def latest(self, start: Position, max_rows: int) -> Position:
        """All that is due by now, or max_rows arrivals later."""
        due = self.pace.due(time.time() - start["since"] / 1e6)
        return {**start, "read": self.source.latest(start["read"], min(max_rows, max(due - start["read"], 0)))}

    def lag(self, position: Position) -> int:
        """Arrivals that are due and not read yet."""
        due = self.pace.due(time.time() - position["since"] / 1e6)
        read: int = position["read"]
        return int(self.source.latest(read, max(due - read, 0))) - read

    def ended(self, position: Position) -> bool:
        """Whether this is the end of a finite input."""
        return self.source.ended(position["read"])

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` ranges with sizes that differ by one at most. The later position has the start of the clock.

        A driver that repeats the first epoch creates the position before it again, with a new start of the clock.
        """
        return [{**split, "since": stop["since"]} for split in self.source.plan(start["read"], stop["read"], tasks)]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The records among the arrivals of a split, in order of arrival."""
        names = self.schema().names if columns is None else list(columns)
        generated = [name for name in dict.fromkeys([*names, "seq"]) if name != CREATED]
        for batch in self.source.read(split, generated):
            assert isinstance(batch, pa.RecordBatch), "it is one flow"
            if CREATED in names:
                seconds = self.pace.seconds(batch.column("seq").to_numpy())
                created = np.floor(split["since"] / 1000 + seconds * 1000).astype(np.int64)
                batch = batch.append_column(CREATED, pa.array(created))
            yield batch.select(names)
