"""Whether a series of samples is flat: what fits its last two thirds, as the first one is warm-up. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Allowed:
    """How much a series may grow over the part that counts: room for what comes and goes, not for what stays."""

    share: float
    """of its mean"""
    more: float
    """beside that, in its own unit"""


ALLOWED = {
    "anonymous": Allowed(0.05, 4 << 20),
    "resident": Allowed(0.05, 8 << 20),
    "descriptors": Allowed(0.0, 2.0),
    "threads": Allowed(0.0, 2.0),
    "processes": Allowed(0.0, 1.0),
}
"""By what was sampled."""


@dataclass(frozen=True, slots=True)
class Trend:
    """What a series did."""

    first: float
    last: float
    per_hour: float
    """slope of the line that fits the last two thirds"""
    growth: float
    """of that line, from its begin to its end"""
    flat: bool


def trend(what: str, samples: Sequence[tuple[float, float]]) -> Trend:
    """Of (seconds, value), in order. `first` is the first value that counts."""
    begin, end = samples[0][0], samples[-1][0]
    counted, last = ([(t, v) for t, v in samples if t >= begin + (end - begin) * n / 3] for n in (1, 2))
    slope = _slope(counted)
    growth, lately = (_slope(some) * (some[-1][0] - some[0][0]) for some in (counted, last))
    allowed = ALLOWED[what]
    flat = growth <= allowed.share * fmean(v for _, v in counted) + allowed.more
    # A leak goes on, and half of it is in the last third. A step does not: Java collects all once in half an hour.
    flat = flat or lately < growth / 4
    return Trend(counted[0][1], counted[-1][1], slope * 3600, growth, flat)


def _slope(samples: Sequence[tuple[float, float]]) -> float:
    middle, mean = fmean(t for t, _ in samples), fmean(v for _, v in samples)
    spread = sum((t - middle) ** 2 for t, _ in samples)
    return sum((t - middle) * (v - mean) for t, v in samples) / spread if spread else 0.0
