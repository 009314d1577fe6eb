"""The pure part of `bench/scale.py endurance`: what is flat, and what grows."""

from __future__ import annotations

import random

import pytest

from bench.parts.scale.flat import trend

HOUR = [(5.0 * n, n) for n in range(720)]
MIB = 1 << 20


def test_what_grows_only_at_first_is_flat() -> None:
    found = trend("anonymous", [(t, (100 + min(n, 200)) * MIB) for t, n in HOUR])
    assert found.flat and found.first == found.last == 300 * MIB and found.per_hour == 0


@pytest.mark.parametrize(("each", "flat"), [(0.005, True), (0.05, False)])
def test_a_slope_counts_by_what_it_comes_to(each: float, flat: bool) -> None:
    """Megabytes a sample, on a process of a hundred: 2.4 in the counted part is noise, 24 is a leak."""
    found = trend("anonymous", [(t, (100 + each * n) * MIB) for t, n in HOUR])
    assert found.flat is flat and found.growth == pytest.approx(480 * each * MIB, rel=0.01)
    assert found.per_hour == pytest.approx(720 * each * MIB, rel=0.01)


def test_what_comes_and_goes_is_flat_and_what_stays_is_not() -> None:
    chance = random.Random(1)
    noisy = [(t, 40 + chance.choice([0, 0, 1, 5])) for t, _ in HOUR]
    assert trend("descriptors", noisy).flat
    assert not trend("descriptors", [(t, v + n // 100) for (t, v), (_, n) in zip(noisy, HOUR, strict=True)]).flat
    assert trend("threads", [(t, 9 - n // 100) for t, n in HOUR]).flat, "less is no leak"


@pytest.mark.parametrize(("steps", "flat"), [([360], True), ([360, 500, 640], False)])
def test_one_step_is_no_leak_and_several_are(steps: list[int], flat: bool) -> None:
    found = trend("resident", [(t, (350 + 30 * sum(n >= step for step in steps)) * MIB) for t, n in HOUR])
    assert found.flat is flat and found.growth > 25 * MIB
