"""Ages of the records of a batch at a moment, counted by the buckets of `ferry.contract.latency`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ferry.contract.latency import BUCKET_MAX, LOG_GROWTH

_PER_MS = {"s": 1, "ms": 1, "us": 1_000, "ns": 1_000_000}


def ages(created: pa.Array, moment_ms: int) -> NDArray[np.int64]:
    """Counts by age bucket: distance of these times, integers of milliseconds or timestamps, before a moment; nulls are
    left out.

    Later times, from another clock, count as the moment itself.
    """
    unit = created.type.unit if pa.types.is_timestamp(created.type) else "ms"
    values = created.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
    if not len(values):
        return np.zeros(BUCKET_MAX + 1, np.int64)
    values = values * 1000 if unit == "s" else values
    moment, micros = moment_ms * _PER_MS[unit], 1000 / _PER_MS[unit]
    least = int(values.min())
    if int(values.max()) - least > len(values):
        return _counted(moment - values, None, micros)
    # Many records share a millisecond: count these first, and take logarithms of few numbers.
    counts = np.bincount(values - least)
    there = np.flatnonzero(counts)
    return _counted(moment - least - there, counts[there], micros)


def _counted(before: NDArray[np.int64], counts: NDArray[np.int64] | None, micros: float) -> NDArray[np.int64]:
    """By bucket; each number counts once, or as often as `counts` says."""
    passed = np.maximum(before * micros, 1.0).astype(np.float32)
    buckets = np.minimum(np.ceil(np.log(passed) * np.float32(1 / LOG_GROWTH)), BUCKET_MAX).astype(np.int64)
    # Sums of integers are exact as floats.
    return np.bincount(buckets, counts, BUCKET_MAX + 1).astype(np.int64)
