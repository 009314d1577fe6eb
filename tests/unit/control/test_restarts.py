"""What the end of a driver means."""

from __future__ import annotations

import pytest

from ferry_operator.control.restarts import CRASHES_MAX, RestartPolicy


@pytest.mark.parametrize(("code", "kind"), [(0, "finished"), (2, "refused"), (3, "halted")])
def test_codes_that_end_the_job(code: int, kind: str) -> None:
    outcome = RestartPolicy().ended(code, expected=False, now=0.0)
    assert outcome is not None and outcome.kind == kind and outcome.ok == (code == 0)


def test_a_crash_is_followed_by_a_longer_and_longer_wait_and_then_by_the_end() -> None:
    care, now, waits = RestartPolicy(), 100.0, []
    for _ in range(CRASHES_MAX):
        assert care.ended(-9, expected=False, now=now) is None
        waits.append(next(w for w in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0) if care.may_start(now + w + 1e-9)))
        now += 10
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]
    outcome = care.ended(-9, expected=False, now=now)
    assert outcome is not None and outcome.kind == "crashed" and "killed by signal 9" in outcome.reason


def test_a_finished_epoch_forgives_earlier_crashes() -> None:
    care = RestartPolicy()
    for _ in range(3 * CRASHES_MAX):
        assert care.ended(1, expected=False, now=0.0) is None
        care.epoch_finished()
    assert care.may_start(0.2) and not care.may_start(0.19)


def test_a_driver_that_was_killed_on_purpose_comes_back_at_once() -> None:
    care = RestartPolicy()
    for _ in range(3 * CRASHES_MAX):
        assert care.ended(-9, expected=True, now=5.0) is None
        assert care.may_start(5.0)
