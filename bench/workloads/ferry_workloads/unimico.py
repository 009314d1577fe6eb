"""UniMiCo: two streams of readings at locations, S and T, with strictly increasing event times.

Equal value for value, and type for type, to the reference generator under tests/oracle for the same arguments.
Only the requested columns are generated. Must never generate a record in a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from ferry_workloads.arrivals import Arrivals, Ints, Values, picked
from ferry_workloads.ranges import ArrivalSplits

M_MAX, X_BELOW = 45, 100

_INT, _TEXT = pa.int64(), pa.string()
SCHEMA = pa.schema([("seq", _INT), ("ts", _INT), ("l", _TEXT), ("m", _INT), ("x", _INT)])
SCHEMAS = {"s": SCHEMA, "t": SCHEMA}


@dataclass(frozen=True, kw_only=True)
class UnimicoGenerator(Arrivals):
    """Streams ``s`` and ``t``, always in order, with the reference generator's arguments."""

    title = "UniMiCo"
    schemas = SCHEMAS

    rate: float = 10.0
    """tuples per second of event time, of both streams together (same_streams: of each), rounded to a whole ms per tuple"""
    locations: int = 20
    same_streams: bool = False
    """t repeats each tuple of s as the next arrival, with the same event time; an odd last arrival is left out"""

    def __post_init__(self) -> None:
        self._number("rate", 1e-6, 1000.0, "a number of tuples per second from 0.000001 to 1000")
        super().__post_init__()
        self._whole("locations", 1, 9999)
        if not isinstance(self.same_streams, bool):
            raise self._refused("same_streams", "True or False")

    @property
    def gap_ms(self) -> int:
        """Length of a gap. Event n has a random time in the n-th gap."""
        return round(1000 / self.rate)

    @property
    def spacing_us(self) -> int:
        """Mean microseconds of event time between two events."""
        return self.gap_ms * 1000

    def times(self, n: Ints) -> Ints:
        """Event times, in milliseconds since the epoch, of these events."""
        return super().times(n) + self.below(n, 401, self.gap_ms)

    def _share(self, stream: str, first: int, ids: Ints) -> tuple[Ints, Ints]:
        if not self.same_streams:
            mine = ids[(self.below(ids, 405, 2) == 0) == (stream == "s")]
            return mine, mine
        seq = ids[ids % 2 == (stream == "t")]
        if self.events is not None:
            seq = seq[seq // 2 < self.events // 2]
        return seq, seq // 2

    def _column(self, stream: str, name: str, n: Ints) -> Values:
        return _COLUMNS[name](self, n)


@lru_cache(maxsize=4)
def _places(locations: int) -> tuple[str, ...]:
    return tuple(f"location{number:02d}" for number in range(1, locations + 1))


_COLUMNS: dict[str, Callable[[UnimicoGenerator, Ints], Values]] = {
    "ts": lambda g, n: g.times(n),
    "l": lambda g, n: picked(_places(g.locations), g.below(n, 402, g.locations)),
    "m": lambda g, n: 1 + g.below(n, 403, M_MAX),
    "x": lambda g, n: g.below(n, 404, X_BELOW),
}


class UnimicoSplits(ArrivalSplits):
    """A stream of UniMiCo, generated inside the ingest tasks: ``UnimicoSplits(UnimicoGenerator(rate=20), "s")``."""
