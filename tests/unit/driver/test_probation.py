"""The verdict on the first epochs of a program, and the number of drivers that may begin with it."""

from __future__ import annotations

import pytest

from ferry.contract.catalogue import ProgramRecord
from ferry.driver import probation
from ferry.driver.probation import EPOCHS_MIN, SLOW_SECONDS, Probation, deployed, exhausted

BEFORE = [0.3] * EPOCHS_MIN


def test_a_violation_takes_the_job_back_at_once() -> None:
    assert Probation(30, 5, BEFORE).judged(0, 0.1, ["cents are positive: 3 rows"]) == "cents are positive: 3 rows"


@pytest.mark.parametrize(
    ("seconds", "slower", "before", "goes_back"),
    [
        (1.6, 5, BEFORE, True),
        (1.4, 5, BEFORE, False),
        (1.6, 10, BEFORE, False),
        (1.6, 0, BEFORE, False),
        (1.6, 5, BEFORE[1:], False),
        (0.9, 5, [0.01] * EPOCHS_MIN, False),
    ],
    ids=["slower", "not so much", "allowed", "off", "nothing to compare with", "fast enough"],
)
def test_epochs_that_last_much_longer_take_the_job_back(
    seconds: float, slower: float, before: list[float], goes_back: bool
) -> None:
    probation = Probation(30, slower, before)
    said = [probation.judged(number * seconds, seconds, []) for number in range(EPOCHS_MIN)]
    assert said[:-1] == [""] * (EPOCHS_MIN - 1) and bool(said[-1]) == goes_back
    assert not goes_back or said[-1].startswith(
        "its epochs last 1.6 s, more than 5 times as long as before the switch (0.30 s"
    )


def test_a_few_slow_epochs_are_no_reason() -> None:
    probation = Probation(30, 5, BEFORE)
    lasted = [0.3, 60.0, 0.3, 60.0, 0.3, 0.3, 60.0]
    assert [probation.judged(number, seconds, []) for number, seconds in enumerate(lasted)] == [""] * len(lasted)


def test_a_probation_ends_after_its_time_and_enough_epochs() -> None:
    probation = Probation(10, 5, BEFORE)
    assert not probation.is_over(1000), "no epoch had rows"
    probation.judged(5, SLOW_SECONDS, [])
    assert not probation.is_over(16)
    for _ in range(EPOCHS_MIN - 1):
        probation.judged(6, 0.1, [])
    assert not probation.is_over(14.9) and probation.is_over(15)
    other = Probation(10, 5, [])
    other.judged(5, SLOW_SECONDS, [])
    assert other.is_over(15), "there is nothing to compare with"


def test_three_drivers_try_a_program() -> None:
    assert [bool(exhausted(tries)) for tries in range(5)] == [False, False, False, True, True]


def test_the_times_of_a_program_begin_with_its_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the state, or a wait for an event time, is no part of the time for which a program is kept."""
    monkeypatch.setattr(probation.time, "time", lambda: 500.0)
    now = deployed(ProgramRecord(2, (0,), (), deployed_at=100.0), 7)
    assert (now.since, now.deployed_at) == (7, 500.0)
    monkeypatch.setattr(probation.time, "time", lambda: 900.0)
    assert deployed(now, 7).deployed_at == 500.0, "told once more"
