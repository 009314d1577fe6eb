"""How long windows last that hold records by now, from how fast event time goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.descriptors import Window
from ferry.coordinator.window_rest import SPAN_SECONDS, WindowRest

MINUTE = Window(60_000, 60_000)


def rest(*windows: tuple[Window, int], speed: float = 1.0, start: int = 0, seconds: float = 10.0) -> WindowRest:
    """Of event time that goes `speed` times as fast as the clock, an epoch each 100 ms; it ends at `start` + that."""
    one = WindowRest()
    one.windows = windows
    for n in range(round(seconds * 10) + 1):
        one.seen(100.0 + n / 10, start + round(n * 100 * speed))
    return one


def test_a_tumbling_window_lasts_until_its_end() -> None:
    assert rest((MINUTE, 0), start=0).seconds() == pytest.approx(50.0, rel=0.01)
    assert rest((MINUTE, 0), start=40_000).seconds() == pytest.approx(10.0, rel=0.01)
    assert rest((MINUTE, 0), speed=2.0).seconds() == pytest.approx(20.0, rel=0.01), "event time goes twice as fast"


def test_what_is_ahead_of_the_watermark_is_in_the_next_window() -> None:
    assert rest((MINUTE, 15_000), start=40_000).seconds() == pytest.approx(70.0, rel=0.01)


def test_of_several_operators_the_last_one_decides() -> None:
    second = Window(1_000, 1_000)
    assert rest((MINUTE, 0), (second, 0), start=0).seconds() == pytest.approx(50.0, rel=0.01)


def test_it_is_not_known_while_event_time_stands_still_or_of_other_state() -> None:
    assert rest((MINUTE, 0), speed=0.0).seconds() is None
    assert rest((MINUTE, 0), seconds=1.0).seconds() is None, "too short a time"
    assert rest().seconds() is None, "there are not only windows"
    halted = rest((MINUTE, 0))
    for n in range(round(SPAN_SECONDS * 10) + 20):
        halted.seen(110.0 + n / 10, 10_000)
    assert halted.seconds() is None


def test_a_watermark_that_goes_back_begins_anew() -> None:
    one = rest((MINUTE, 0))
    one.seen(111.0, 500)
    assert one.seconds() is None


@given(slide=st.integers(1, 10_000), size=st.integers(1, 8), ahead=st.integers(0, 30_000), start=st.integers(0, 10**9))
def test_it_lasts_at_most_as_long_as_a_window_and_what_is_ahead(slide: int, size: int, ahead: int, start: int) -> None:
    window = Window(slide * size, slide)
    found = rest((window, ahead), start=start).seconds()
    assert found is not None and 0 < found <= (window.size_ms + ahead) / 1000 + 0.01
