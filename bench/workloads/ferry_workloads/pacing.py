"""Generated streams that follow the clock: record i is created when it is due, whatever the job does.

An open loop, as users are: a long epoch makes a backlog, and the time that records wait in it is in their latency. The
moment at which the clock began is in the position, so it is the same for every task and every driver. Must never keep state.
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
"""Column that a paced source has beside those of its generator: int64 milliseconds since 1970."""

Step = tuple[float, float] | tuple[float, float, float]
"""(seconds, records a second), or (seconds, from, to): the rate changes evenly meanwhile."""

LEAST = 1e-300
"""Nothing divided by nothing is nothing: of the first record of a step that begins with a rate of 0."""


@dataclass(frozen=True)
class ArrivalPace:
    """Arrivals a second, in steps that begin again after the last one.

    With rate a at the beginning of a step and slope s, n = a t + s t^2 / 2 have arrived after t seconds of it.
    """

    steps: tuple[tuple[float, float, float], ...]
    """(seconds, rate at the begin, rate at the end)"""

    @staticmethod
    def of(rate: float | None, profile: Sequence[Step]) -> ArrivalPace:
        """As users say it. Raises SpecRefused."""
        given: Sequence[Any] = profile or ((1.0, rate),)
        steps = tuple(
            (one[0], one[1], one[-1]) for one in given if isinstance(one, list | tuple) and len(one) in (2, 3)
        )
        numbers = [value for one in steps for value in one]
        well = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1e9 for v in numbers)
        if len(steps) != len(given) or not well or not all(one[0] > 0 and one[1] + one[2] > 0 for one in steps):
            raise SpecRefused(
                f"paced: rate={rate!r}, profile={profile!r}: records a second, or a list of (seconds, rate) and "
                "(seconds, rate at the begin, rate at the end); a step needs some time and some records"
            )
        return ArrivalPace(steps)

    @property
    def _edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Seconds and arrivals before each step, and after the last one."""
        seconds = np.cumsum([0.0, *(one[0] for one in self.steps)])
        return seconds, np.cumsum([0.0, *(one[0] * (one[1] + one[2]) / 2 for one in self.steps)])

    def due(self, seconds: float) -> int:
        """How many have arrived by then."""
        times, arrivals = self._edges
        rounds, rest = divmod(max(seconds, 0.0), float(times[-1]))
        step = min(int(np.searchsorted(times, rest, "right")) - 1, len(self.steps) - 1)
        length, begin, end = self.steps[step]
        within = rest - float(times[step])
        mine = begin * within + (end - begin) / length * within**2 / 2
        return math.floor(rounds * float(arrivals[-1]) + float(arrivals[step]) + mine)

    def seconds(self, numbers: Ints) -> NDArray[np.float64]:
        """When these arrive."""
        times, arrivals = self._edges
        rounds, rest = np.divmod(np.maximum(numbers, 0), arrivals[-1])
        step = np.minimum(np.searchsorted(arrivals, rest, "right") - 1, len(self.steps) - 1)
        lengths, begins, ends = np.array(self.steps).T
        n, a, s = rest - arrivals[step], begins[step], ((ends - begins) / lengths)[step]
        # The root of a t + s t^2 / 2 = n, in the form that has no difference of near numbers and knows s = 0.
        within = 2 * n / np.maximum(a + np.sqrt(np.maximum(a * a + 2 * s * n, 0.0)), LEAST)
        return rounds * times[-1] + times[step] + within


def paced(source: ArrivalSplits, rate: float | None = None, profile: Sequence[Step] = ()) -> PacedSplits:
    """A generated stream whose records are created as the clock passes, and say when that was, in the column `created`.

    Parameters:
        source: one stream of a generator, such as ``NexmarkSplits(NexmarkGenerator(rate=1e5), "bid")``.
        rate: arrivals a second, of all streams of the generator together; None: its own, so that event time passes as the
            clock does.
        profile: instead of a rate: steps (seconds, rate), or (seconds, rate at the begin, rate at the end), which begin
            again after the last one. A triangle: ``[(60, 1e3, 1e5), (60, 1e5, 1e3)]``.
    Returns: the source. An epoch's `maxRows` bounds it as any other; what it leaves is a backlog, and nothing is left out.
    Raises: SpecRefused, for numbers that are none, both of them, or a source that is read in flows.
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
        """True at the end of a finite input."""
        return self.source.ended(position["read"])

    def plan(self, start: Position, stop: Position, tasks: int) -> list[Split]:
        """At most `tasks` ranges whose sizes differ by one at most. The clock is that of the later position.

        The position before the first epoch is made again for a driver that begins this epoch again.
        """
        return [{**split, "since": stop["since"]} for split in self.source.plan(start["read"], stop["read"], tasks)]

    def read(self, split: Split, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The records among the arrivals of a split, in order of arrival."""
        names = self.schema().names if columns is None else list(columns)
        asked = [name for name in dict.fromkeys([*names, "seq"]) if name != CREATED]
        for batch in self.source.read(split, asked):
            assert isinstance(batch, pa.RecordBatch), "it is one flow"
            if CREATED in names:
                seconds = self.pace.seconds(batch.column("seq").to_numpy())
                created = np.floor(split["since"] / 1000 + seconds * 1000).astype(np.int64)
                batch = batch.append_column(CREATED, pa.array(created))
            yield batch.select(names)
