"""Ages of records: none is lost, and quantiles of what tasks, epochs and lines have counted are near the exact ones."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferry.contract.latency import (
    ACCURACY,
    BUCKET_MAX,
    LatencyHistogram,
    added,
    bucket_of,
    seconds_of,
)
from ferry.kernels.ages import ages

NOW = 1_800_000_000_000

AGES = st.lists(
    st.lists(st.one_of(st.integers(0, 60), st.integers(0, 100_000_000)), max_size=300), min_size=1, max_size=4
)
"""Milliseconds, by task."""


def counted(created: pa.Array) -> dict[int, int]:
    found = ages(created, NOW)
    return {int(bucket): int(found[bucket]) for bucket in np.flatnonzero(found)}


@settings(max_examples=80, deadline=None)
@given(AGES, st.floats(0, 100), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_what_several_tasks_count_is_every_record_once_and_its_quantiles_are_near(
    tasks: list[list[int]], since: float, share: float
) -> None:
    counts = added(counted(pa.array([NOW - age for age in task], pa.int64())) for task in tasks)
    exact = [age / 1000 + since for task in tasks for age in task]
    found = LatencyHistogram()
    found.add(counts, since)
    assert sum(counts.values()) == found.records == len(exact)
    if exact:
        right = float(np.quantile(exact, share, method="inverted_cdf"))
        assert math.isclose(found.quantile(share), right, rel_tol=2 * ACCURACY + ACCURACY**2, abs_tol=1e-6)


@settings(max_examples=200, deadline=None)
@given(st.floats(2e-6, 1e8))
def test_what_stands_for_a_bucket_is_near_all_that_it_holds(seconds: float) -> None:
    assert math.isclose(seconds_of(bucket_of(seconds)), seconds, rel_tol=ACCURACY * (1 + 1e-9))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("many", [1, 500], ids=["few", "as many as there are milliseconds"])
def test_timestamps_of_every_unit_are_as_old_as_milliseconds(unit: str, many: int) -> None:
    times = pa.array([NOW - 60_000, NOW, None, NOW - 5_000] * many, pa.int64())
    stamps = times.cast(pa.timestamp("ms")).cast(pa.timestamp(unit))
    assert counted(stamps) == counted(times) == {0: many, bucket_of(5.0): many, bucket_of(60.0): many}


def test_what_another_clock_says_is_kept_within_bounds() -> None:
    assert counted(pa.array([NOW + 1, NOW + 10**9])) == {0: 2}, "it was created later than it was read"
    assert counted(pa.array([-(2**61)])) == {BUCKET_MAX: 1}
    assert counted(pa.array([], pa.int64())) == counted(pa.array([None], pa.int64())) == {}


def test_a_latency_is_never_less_than_nothing() -> None:
    found = LatencyHistogram()
    found.add({bucket_of(0.001): 3}, -5.0)
    assert (found.records, found.quantile(0.5)) == (3, 0.0)


def test_histograms_are_told_in_numbers_for_people_and_for_bounds() -> None:
    found = LatencyHistogram()
    assert found.quantiles() is None and found.quantile(0.5) == 0.0
    for n in range(1, 1001):
        found.add({bucket_of(n / 1000): 1}, 0.0)
    quantiles = found.quantiles()
    assert quantiles is not None and quantiles.records == 1000
    for value, right in ((quantiles.p50, 0.5), (quantiles.p99, 0.99), (quantiles.p999, 0.999), (quantiles.max, 1.0)):
        assert math.isclose(value, right, rel_tol=0.021)
    assert abs(found.below(0.5) - 500) <= 10 and found.below(2.0) == 1000
    assert quantiles.to_wire()["records"] == 1000
