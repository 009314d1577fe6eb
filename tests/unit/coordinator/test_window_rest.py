"""How long windows last that hold records by now, from how fast event time goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferry.contract.descriptors import Window
from ferry.coordinator.window_rest import SPAN_SECONDS, WindowRest

MINUTE = Window(60_000, 60_000)


BEGIN = 100.0


class Told(WindowRest):
    """Of event time that goes `speed` times as fast as the clock, an epoch each 100 ms, from `start` on."""

    def __init__(
        self, *windows: Window, speed: float = 1.0, start: int = 0, seconds: float = 10.0, ahead: int = 0
    ) -> None:
        super().__init__()
        self.windows, self.now, self.watermark, self.ahead = windows, BEGIN, start, ahead
        self.tell(seconds, speed)

    def tell(self, seconds: float, speed: float) -> None:
        """It goes on."""
        begin, watermark = self.now, self.watermark
        for n in range(round(seconds * 10) + 1):
            self.now, self.watermark = begin + n / 10, watermark + round(n * 100 * speed)
            self.seen(self.now, self.watermark, dict.fromkeys(range(len(self.windows)), self.watermark + self.ahead))

    def rest(self, later: float = 0.0) -> float | None:
        """As it is now, or later."""
        return self.seconds(self.now + later)


def test_a_tumbling_window_lasts_until_its_end() -> None:
    assert Told(MINUTE, start=0).rest() == pytest.approx(50.0, rel=0.01)
    assert Told(MINUTE, start=40_000).rest() == pytest.approx(10.0, rel=0.01)
    assert Told(MINUTE, speed=2.0).rest() == pytest.approx(20.0, rel=0.01), "event time goes twice as fast"


def test_records_ahead_of_the_watermark_are_in_later_windows() -> None:
    assert Told(MINUTE, start=40_000, ahead=15_000).rest() == pytest.approx(70.0, rel=0.01)
    assert Told(MINUTE, start=40_000, ahead=3_600_000).rest() == pytest.approx(3610.0, rel=0.01), (
        "a flow is an hour ahead"
    )


def test_of_several_operators_the_last_one_decides() -> None:
    assert Told(MINUTE, Window(1_000, 1_000), start=0).rest() == pytest.approx(50.0, rel=0.01)


def test_it_is_not_known_while_event_time_stands_still_or_of_other_state() -> None:
    assert Told(MINUTE, speed=0.0).rest() is None
    assert Told(MINUTE, seconds=1.0).rest() is None, "too short a time"
    assert Told().rest() is None, "there are not only windows"
    halted = Told(MINUTE)
    halted.tell(SPAN_SECONDS / 2 + 1, speed=0.0)
    assert halted.rest() is None, "for half of the time"


def test_a_leap_of_event_time_is_no_speed() -> None:
    leaps = Told(MINUTE, start=3_600_000)
    leaps.tell(0.0, 0.0)
    leaps.watermark += 3_600_000
    leaps.tell(3.0, 1.0)
    found = leaps.rest()
    assert found is not None and found > 30.0


def test_what_was_seen_grows_old() -> None:
    one = Told(MINUTE)
    assert one.rest(1.0) is not None and one.rest(3.0) is None, "no epoch comes any more"
    seldom = WindowRest()
    seldom.windows = (MINUTE,)
    for n in range(4):
        seldom.seen(BEGIN + 30 * n, 30_000 * n, {})
    assert seldom.seconds(BEGIN + 120) is not None, "an epoch each half a minute"


def test_an_operator_without_sources_has_nothing_ahead_of_the_watermark_before_1970_either() -> None:
    one = WindowRest()
    one.windows = (MINUTE,)
    for n in range(11):
        one.seen(BEGIN + n, 1000 * n - 3_600_000, {})
    assert one.seconds(BEGIN + 10) == pytest.approx(50.0, rel=0.01)


def test_a_watermark_that_goes_back_begins_anew() -> None:
    one = Told(MINUTE)
    one.seen(one.now + 1, 500, {})
    assert one.rest(1.0) is None


@given(slide=st.integers(1, 10_000), size=st.integers(1, 8), ahead=st.integers(0, 30_000), start=st.integers(0, 10**9))
def test_it_lasts_at_most_as_long_as_a_window_and_what_is_ahead(slide: int, size: int, ahead: int, start: int) -> None:
    window = Window(slide * size, slide)
    found = Told(window, start=start, ahead=ahead, seconds=4.0).rest()
    assert found is not None and 0 < found <= (window.size_ms + ahead) / 1000 + 0.01
