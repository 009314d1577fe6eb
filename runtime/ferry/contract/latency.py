"""How old records are, and how long they took: counts by buckets whose width grows with the value.

Buckets are those of DDSketch with 1 % accuracy: bucket i holds (g^(i-1), g^i] microseconds, bucket 0 all up to one. Counts
of any number of tasks, epochs and drivers are added, bucket by bucket; what is read from them is wrong by 2 % at most: an
age is in a bucket before it becomes part of a latency. Values only; must never look at a clock, or at single records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ACCURACY = 0.01
"""Of the value that stands for a bucket: it is wrong by this share of itself at most."""

GROWTH = (1 + ACCURACY) / (1 - ACCURACY)
LOG_GROWTH = math.log(GROWTH)

BUCKET_MAX = 2000
"""7000 years: what is older is here, too."""

assert math.exp(BUCKET_MAX * LOG_GROWTH) > 1e15, "so are times since 1970, in microseconds"

Counts = Mapping[int, int]
"""How many values there are, by bucket."""


def bucket_of(seconds: float) -> int:
    """Where a value is counted."""
    micros = seconds * 1e6
    return 0 if micros <= 1 else min(math.ceil(math.log(micros) / LOG_GROWTH), BUCKET_MAX)


def seconds_of(bucket: int) -> float:
    """What stands for all values of a bucket."""
    return math.exp(bucket * LOG_GROWTH) * 2e-6 / (1 + GROWTH) if bucket else 0.0


def added(counts: Iterable[Counts]) -> dict[int, int]:
    """Counts of all of them together, in the order of their buckets."""
    made: dict[int, int] = {}
    for one in counts:
        for bucket, count in one.items():
            made[bucket] = made.get(bucket, 0) + count
    return dict(sorted(made.items()))


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """What people read: seconds that this share of the records took at most."""

    records: int
    p50: float
    p90: float
    p99: float
    p999: float
    max: float

    def to_wire(self) -> dict[str, Any]:
        """Plain values, with a precision that says as much as is known."""
        return {name: value if name == "records" else round(value, 6) for name, value in asdict(self).items()}


@dataclass(slots=True)
class LatencyHistogram:
    """Latencies of records, which are added by the bucket."""

    counts: dict[int, int] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def add(self, ages: Counts, since: float) -> None:
        """Records that had these ages `since` seconds ago; less than nothing is taken for nothing, as of another clock."""
        for bucket, count in ages.items():
            mine = bucket_of(max(seconds_of(bucket) + since, 0.0))
            self.counts[mine] = self.counts.get(mine, 0) + count

    def merge(self, counts: Counts) -> None:
        """Those of another histogram."""
        for bucket, count in counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def quantile(self, share: float) -> float:
        """Seconds that at least `share` of the records took at most (nearest rank); 0 for none."""
        wanted, seen = math.ceil(share * self.records), 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return seconds_of(bucket)
        return 0.0

    def below(self, seconds: float) -> int:
        """How many took no longer."""
        return sum(count for bucket, count in self.counts.items() if seconds_of(bucket) <= seconds)

    def quantiles(self) -> LatencyQuantiles | None:
        """What people read; None: there are no records."""
        if not self.counts:
            return None
        shares = (0.5, 0.9, 0.99, 0.999, 1.0)
        return LatencyQuantiles(self.records, *(self.quantile(share) for share in shares))
