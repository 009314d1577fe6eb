"""The common part of generated workloads: checked arguments, event time, order of arrival, skewed keys, columns.

A generated stream is a pure function of its arguments, equal value for value to the reference generator under
tests/oracle. Any range of arrivals is generated independently. Must never keep state beyond caches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ferry.contract.errors import Exhausted, RowsGone, SpecRefused
from ferry.kernels import draws

Ints = NDArray[np.int64]
Values: TypeAlias = "NDArray[Any] | pa.Array"
"""The values of a column."""

BASE_MS = 1_436_918_400_000
"""2015-07-15T00:00:00Z: the event time of event 0."""

KEYS = ("nexmark", "uniform", "zipf", "pareto")

_LATE_FIELD = 900
_UNIT_STEPS = 2**53


@dataclass(frozen=True, kw_only=True)
class Arrivals(ABC):
    """A workload with events in order of event time, and the common arguments of all generators.

    The arguments have the names and meanings of the reference generator's options.
    """

    title: ClassVar[str]
    schemas: ClassVar[dict[str, pa.Schema]]
    """columns of every stream"""

    seed: int = 7
    rate: float = 1000.0
    """events per second of event time, all streams of the workload together"""
    events: int | None = None
    """length of the whole input, all streams of the workload together; None: endless"""

    def __post_init__(self) -> None:
        self._whole("seed", 0, 2**64 - 1)
        self._number("rate", 1e-6, 2e6, "a number of events per second from 0.000001 to below 2,000,000")
        if self.spacing_us == 0:
            raise self._refused("rate", "below 2,000,000: events are whole microseconds apart in event time")
        if self.events is not None:
            self._whole("events", 0)
            if self.events * self.spacing_us >= 2**62:
                raise self._refused(
                    "events", f"below {2**62 // self.spacing_us} at this rate: event time would overflow"
                )

    def _refused(self, name: str, allowed: str) -> SpecRefused:
        return SpecRefused(
            f"{type(self).__name__}: {name}={getattr(self, name)!r} is not allowed; it must be {allowed}"
        )

    def _whole(self, name: str, low: int, high: int = 2**62) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            bound = f"of at least {low}" if high == 2**62 else f"from {low} to {high}"
            raise self._refused(name, f"a whole number {bound}")

    def _number(self, name: str, low: float, high: float, allowed: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._refused(name, allowed)

    def _one_of(self, name: str, allowed: tuple[str, ...]) -> None:
        if getattr(self, name) not in allowed:
            raise self._refused(name, "one of " + ", ".join(allowed))

    @property
    def spacing_us(self) -> int:
        """Microseconds of event time between two events."""
        return round(1_000_000 / self.rate)

    @property
    def in_order(self) -> bool:
        """Whether every arrival number equals the event id."""
        return True

    def check(self, start: int, stop: int) -> None:
        """Raise RowsGone unless the input has arrivals start .. stop - 1."""
        if not 0 <= start <= stop or (self.events is not None and stop > self.events):
            raise RowsGone(f"{type(self).__name__} has no arrivals {start} to {stop} with events={self.events}")

    def ids(self, start: int, stop: int) -> Ints:
        """Ids of the events that arrive as numbers start .. stop - 1, in order of arrival."""
        self.check(start, stop)
        return np.arange(start, stop, dtype=np.int64)

    def disorder_bound_ms(self) -> int:
        """Milliseconds by which an event time may be below an earlier arrival's event time, at most; 0 if in order."""
        return 0

    def schema(self, stream: str) -> pa.Schema:
        """Columns of one stream."""
        if stream not in self.schemas:
            raise SpecRefused(f"{self.title} has no stream {stream!r}; it must be one of {', '.join(self.schemas)}")
        return self.schemas[stream]

    def read(self, stream: str, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The stream's records among arrivals start .. stop - 1 of all streams, in order of arrival."""
        return self.records(stream, start, self.ids(start, stop), columns)

    def records(self, stream: str, first: int, ids: Ints, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """The stream's records among the events `ids`, which arrive as numbers first, first + 1, ..."""
        self.schema(stream)
        return self._batch(stream, *self._share(stream, first, ids), columns)

    def _share(self, stream: str, first: int, ids: Ints) -> tuple[Ints, Ints]:
        """(arrival numbers, ids) of the stream's events among `ids`. Here all events belong to a single stream."""
        return np.arange(first, first + len(ids), dtype=np.int64), ids

    def _batch(self, stream: str, seq: Ints, n: Ints, columns: Sequence[str] | None) -> pa.RecordBatch:
        """Records of the events n, which arrive as numbers seq."""
        schema = self.schema(stream)

        def values(name: str) -> Values:
            return seq if name == "seq" else self._column(stream, name, n)

        return to_batch(schema, schema.names if columns is None else columns, values, len(n))

    @abstractmethod
    def _column(self, stream: str, name: str, n: Ints) -> Values:
        """Values of a column other than seq for the stream's events n."""

    def times(self, n: Ints) -> Ints:
        """Event times, in milliseconds since the epoch, of these events."""
        return draws.event_times(n, BASE_MS, self.spacing_us)

    def below(self, n: Ints, field: int, bound: int) -> Ints:
        """Uniform integers in [0, bound) for these events."""
        return draws.below(n, np.uint64(self.seed), field, bound)

    def zipf(self, n: Ints, field: int, domain: int, s: float) -> Ints:
        """Integers in [0, domain) for these events, P(k) ~ 1 / (k + 1)^s."""
        return draws.ranked(n, np.uint64(self.seed), field, *_zipf(domain, s))

    def weighted(self, n: Ints, field: int, weights: tuple[int, ...]) -> Ints:
        """Integers in [0, len(weights)) for these events, P(k) ~ weights[k]."""
        return draws.ranked(n, np.uint64(self.seed), field, *_weighted(weights))


@dataclass(frozen=True, kw_only=True)
class DisorderedArrivals(Arrivals):
    """A workload with events that may arrive out of order."""

    group: int = 1
    """arrivals are shuffled inside groups of this many events (1: in order)"""
    delay_prob: float = 0.0
    """this share of the events arrives delay_ms late"""
    delay_ms: int = 3000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._whole("group", 1)
        self._number("delay_prob", 0.0, 1.0, "a share from 0.0 to 1.0")
        self._whole("delay_ms", 0)

    @property
    def in_order(self) -> bool:
        """Whether every arrival number equals the event id."""
        return self.group == 1 and self.delay_prob == 0

    def ids(self, start: int, stop: int) -> Ints:
        """Ids of the events that arrive as numbers start .. stop - 1, in order of arrival.

        The reference shuffles positions inside groups of g, then sorts all of them, stably, by event time + lateness.
        Let D be the number of events in delay_ms: if position j <= i - W with W = 2 (g - 1) + D, then
        id(j) + D <= id(i), so even if j is late and i is not, key(j) <= key(i), and j ranks first.
        So every record moves by less than W, ranks start .. stop - 1 all lie at positions inside
        [start - W, stop + W), every position below that window ranks before them, and sorting the window alone and
        dropping its first start - low elements gives them.
        """
        self.check(start, stop)
        full = 2**62 if self.events is None else self.events // self.group * self.group
        if self.delay_prob == 0 or start == stop:
            return draws.shuffled(start, stop, self.group, full)
        reach = self._reach
        low = max(start - reach, 0)
        high = stop + reach if self.events is None else min(stop + reach, self.events)
        threshold = np.uint64(math.ceil(self.delay_prob * _UNIT_STEPS))
        late = (np.uint64(self.seed), _LATE_FIELD, threshold, self.spacing_us, self.delay_ms)
        first_key = max(low - self.group + 1, 0) * self.spacing_us // 1000
        keys = (high + self.group) * self.spacing_us // 1000 + self.delay_ms - first_key + 1
        if keys <= 4 * (high - low):
            return draws.delayed_order(low, high, self.group, full, late, first_key, keys, start - low, stop - start)
        # Few events share a millisecond: a counter per millisecond would need more memory than the window.
        ids = draws.shuffled(low, high, self.group, full)
        order = np.argsort(draws.delayed_keys(ids, late), kind="stable")
        return ids[order[start - low : stop - low]]

    @property
    def _reach(self) -> int:
        """Shuffle and delay together move every record by less than this (W of `ids`)."""
        return 2 * (self.group - 1) + -(-self.delay_ms * 1000 // self.spacing_us) + 1

    def disorder_bound_ms(self) -> int:
        """Milliseconds by which an event time may be below an earlier arrival's event time, at most; 0 if in order.

        With delays: if i arrives after j, time(j) <= key(j) <= key(i) <= time(i) + delay_ms, for any shuffle.
        Without: the largest step back in ids inside a full group, in time, rounded up to a millisecond.
        """
        if self.delay_prob > 0:
            return 0 if self.delay_prob >= 1 else self.delay_ms
        if self.group == 1 or (self.events is not None and self.events < self.group):
            return 0
        return -(-_step_back(self.group) * self.spacing_us // 1000)


@dataclass(frozen=True, kw_only=True)
class KeyedArrivals(DisorderedArrivals):
    """A workload with a choice of key distributions."""

    keys: str = "nexmark"
    """distribution of the keys: nexmark | uniform | zipf | pareto"""
    domain: int = 100_000
    """number of keys of the uniform, zipf and pareto draws"""
    zipf_s: float = 1.0
    pareto_alpha: float = 1.16

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("keys", KEYS)
        self._whole("domain", 1, 2**53)
        self._number("zipf_s", 0.0, 100.0, "a number from 0 to 100")
        self._number("pareto_alpha", 1e-3, 1e3, "a number from 0.001 to 1000")
        if self.keys == "zipf" and self.domain > 10**8:
            raise self._refused("domain", "at most 100,000,000 for zipf keys: their weights are kept in memory")

    def skewed_keys(self, n: Ints, field: int, domain: int) -> Ints:
        """Keys in [0, domain) for these events, with the distribution `keys` (nexmark means uniform here)."""
        if self.keys == "zipf":
            return self.zipf(n, field, domain, float(self.zipf_s))
        if self.keys == "pareto":
            rank = np.floor((1.0 - draws.unit(n, np.uint64(self.seed), field)) ** (-1.0 / self.pareto_alpha)) - 1
            return np.minimum(rank, domain - 1).astype(np.int64)
        return self.below(n, field, domain)


@lru_cache(maxsize=16)
def _step_back(group: int) -> int:
    """Largest (greatest id so far - id) inside a shuffled group."""
    ids = draws.shuffled(0, group, group, group)
    return int((np.maximum.accumulate(ids) - ids).max())


_Ranks: TypeAlias = "tuple[NDArray[np.float64], Ints, int]"
"""(cumulative weights, guide, bits of the guide), the arguments of draws.ranked."""


@lru_cache(maxsize=4)
def _zipf(domain: int, s: float) -> _Ranks:
    return _guided(np.cumsum(1.0 / np.arange(1, domain + 1) ** s))


@lru_cache(maxsize=16)
def _weighted(weights: tuple[int, ...]) -> _Ranks:
    return _guided(np.cumsum(weights) / sum(weights))


def _guided(cdf: NDArray[np.float64]) -> _Ranks:
    bits = 14
    starts = np.arange(2**bits + 1) * 2.0**-bits * cdf[-1]
    return cdf, np.searchsorted(cdf, starts, side="right").astype(np.int64), bits


def picked(words: Sequence[str], which: Ints) -> pa.Array:
    """A string column of words[which[i]]."""
    return pa.array(list(words), pa.string()).take(pa.array(which))


def text(offsets: Ints, data: NDArray[np.uint8]) -> pa.Array:
    """A string column from int64 offsets (one more than rows) and the bytes they point into."""
    if offsets[-1] > 2**31 - 1:
        raise Exhausted("a text column of over 2 GiB in one batch; read fewer arrivals at once")
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))


def to_batch(schema: pa.Schema, columns: Sequence[str], values: Callable[[str], Values], rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows with these columns of the schema. values(name): the values of a column."""
    unknown = [c for c in columns if c not in schema.names]
    if unknown:
        raise SpecRefused(f"unknown columns {unknown}; this stream has {', '.join(schema.names)}")
    if not columns:
        # A batch without arrays would lose its number of rows.
        return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["none"]).select([])
    arrays = [pa.array(v) if isinstance(v, np.ndarray) else v for v in map(values, columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([schema.field(c) for c in columns]))
