"""Ages and latencies of records: counts by buckets whose width grows with the value.

Buckets as in DDSketch with 1 % accuracy: bucket i holds (g^(i-1), g^i] microseconds, bucket 0 all up to one.
Counts of any number of tasks, epochs and drivers are added, bucket by bucket. A quantile is wrong by at most 2 %,
because an age was already rounded to a bucket. Values only; must never look at a clock, or at single records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ACCURACY = 0.01
"""Largest relative error of the value that stands for a bucket."""

GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
LOG_GROWTH = math.log(GROWTH)

BUCKET_MAX = 2000
"""7000 years: older values are in this bucket, too."""

assert math.exp(BUCKET_MAX * LOG_GROWTH) > 1e15, "so are times since 1970, in microseconds"

Counts = Mapping[int, int]
"""Number of values by bucket."""


def bucket_of(seconds: float) -> int:
    """Bucket of a value."""
    micros = seconds * 1e6
    return 0 if micros <= 1 else min(math.ceil(math.log(micros) / LOG_GROWTH), BUCKET_MAX)


def seconds_of(bucket: int) -> float:
    """The value that stands for a bucket."""
    return math.exp(bucket * LOG_GROWTH) * 2e-6 / (1 + GROWTH) if bucket else 0.0


def added(counts: Iterable[Counts]) -> dict[int, int]:
    """The sum of several counts, in the order of buckets."""
    made: dict[int, int] = {}
    for one in counts:
        for bucket, count in one.items():
            made[bucket] = made.get(bucket, 0) + count
    return dict(sorted(made.items()))


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """Latencies for people: the seconds within which this share of the records arrived."""

    records: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    def to_wire(self) -> dict[str, Any]:
        """Plain values, rounded to the precision of the buckets."""
        return {name: value if name == "records" else round(value, 6) for name, value in asdict(self).items()}


@dataclass(slots=True)
class LatencyHistogram:
    """Latencies of records, which are added by the bucket."""

    counts: dict[int, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(self.counts.values())

    def add(self, ages: Counts, since: float) -> None:
        """Add records that had these ages `since` seconds ago; a negative `since`, from another clock, counts as 0."""
        for bucket, count in ages.items():
            mine = bucket_of(max(seconds_of(bucket) + since, 0.0))
            self.counts[mine] = self.counts.get(mine, 0) + count

    def merge(self, counts: Counts) -> None:
        """Add the counts of another histogram."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, share: float) -> float:
        """Seconds within which at least `share` of the records arrived (nearest rank); 0 without records."""
        wanted, seen = math.ceil(share * self.records), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return seconds_of(bucket)
        return 0.0

    def below(self, seconds: float) -> int:
        """Number of records that took no longer than this."""
        return sum(count for bucket, count in self.counts.items() if seconds_of(bucket) <= seconds)

    def quantiles(self) -> LatencyQuantiles | None:
        """Quantiles for people; None: there are no records."""
        if not self.counts:
            return None
        shares = (0.5, 0.9, 0.99, 0.999, 1.0)
        return LatencyQuantiles(self.records, *(self.quantile(share) for share in shares))
