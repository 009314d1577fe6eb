"""What fails for ever stops the job with a reason; a success in between begins the count again."""

from __future__ import annotations

import pytest

from ferry.contract.errors import Exhausted
from ferry.driver import patience


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= patience.RETRY_SECONDS_MAX
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    return made


def test_it_ends(clock: Clock) -> None:
    tries, one = 0, patience.Patience(return_deadline_ms=10_000)
    with pytest.raises(Exhausted, match=r"rows are away \(for 7\d s\); nothing is lost"):
        while tries < 1000:
            one.failed("rows are away")
            tries += 1
    assert 70 < clock.now - 1000 < 72


def test_a_success_begins_the_count_again(clock: Clock) -> None:
    one = patience.Patience(return_deadline_ms=0)
    for _ in range(1000):
        one.failed("x")
        one.succeeded()
