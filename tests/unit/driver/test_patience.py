"""What fails is tried again for as long as the job may wait, and said meanwhile; an end of the job ends every wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.errors import (
    Bug,
    DataRefused,
    Exhausted,
    FerryError,
    Final,
    SpecRefused,
    StateUnavailable,
    Superseded,
)
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import patience
from ferry.driver.__main__ import code_of
from ferry.driver.errors import Halted, Stopped, end_of
from ferry.protocol.coordinator import Halt


class Clock:
    """Time that only waiting moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        assert 0 <= seconds <= patience.RETRY_SECONDS_MAX
        self.now += seconds
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    return made


def test_a_day_is_not_too_long_and_a_success_begins_the_count_again(clock: Clock, tmp_path: Path) -> None:
    metrics, loop = DriverMetrics("job", str(tmp_path)), SimpleNamespace(ending=clock, halt=None)
    one = patience.ReportedPatience(loop, metrics, "SinkFailing")  # type: ignore[arg-type]
    tries = 0
    while clock.now < 1000 + 86_400:
        one.failed("the database is away")
        tries += 1
    assert [t.reason for t in metrics.problems.current] == ["SinkFailing"] and tries < 4000
    one.succeeded()
    assert metrics.problems.current == ()
    before = clock.now
    one.failed("again")
    assert clock.now - before == pytest.approx(patience.RETRY_SECONDS)


def test_what_lasts_for_a_moment_is_no_problem_yet(clock: Clock, tmp_path: Path) -> None:
    metrics, loop = DriverMetrics("job", str(tmp_path)), SimpleNamespace(ending=clock, halt=None)
    one = patience.ReportedPatience(loop, metrics, "IngestFailing", quiet=5.0)  # type: ignore[arg-type]
    while clock.now < 1004.9:
        assert not metrics.problems.current
        one.failed("an instance is gone")
    one.failed("an instance is gone")
    one.failed("an instance is gone")
    assert [t.reason for t in metrics.problems.current] == ["IngestFailing"]


def test_a_limit_that_the_user_has_set_ends_the_job(clock: Clock, tmp_path: Path) -> None:
    metrics, loop = DriverMetrics("job", str(tmp_path)), SimpleNamespace(ending=clock, halt=None)
    one = patience.ReportedPatience(loop, metrics, "SinkFailing", limit=60.0)  # type: ignore[arg-type]
    with pytest.raises(Final, match=r"no room \(for 60 s\); nothing is lost"):
        while clock.now < 2000:
            one.failed("no room")
    assert clock.now == pytest.approx(1060)


@pytest.mark.parametrize("halt", [None, Halt("superseded", "generation 3 has taken over")])
def test_an_end_of_the_job_ends_the_wait_at_once(halt: Halt | None, tmp_path: Path) -> None:
    loop: Any = SimpleNamespace(ending=threading.Event(), halt=halt)
    one = patience.ReportedPatience(loop, DriverMetrics("job", str(tmp_path)), "SinkFailing")
    one._since = time.monotonic() - 1000
    threading.Timer(0.05, loop.ending.set).start()
    began = time.monotonic()
    with pytest.raises(Halted if halt else Stopped):
        one.failed("the database is away")
    assert time.monotonic() - began < patience.RETRY_SECONDS_MAX / 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecRefused("x"), 2), (DataRefused("x"), 3), (Final("x"), 3), (StateUnavailable("x"), 3), (Superseded("x"), 3),
        (Halted(Halt("superseded", "x")), 3), (Halted(Halt("unavailable", "x")), 3), (Halted(Halt("lost-epoch", "x")), 3),
        (Halted(Halt("away", "x")), 1), (Halted(Halt("failed", "x")), 1), (Halted(Halt("bug", "x")), 1),
        (Exhausted("x"), 1), (Bug("x"), 1), (end_of(Halt("user-code", "x")), 3), (end_of(Halt("away", "x")), 1),
    ],
    ids=lambda one: str(one) if isinstance(one, int) else f"{type(one).__name__} {one}",
)  # fmt: skip
def test_only_what_another_start_would_not_mend_is_final(error: FerryError, code: int) -> None:
    assert code_of(error) == code


def test_what_fails_in_part_is_a_problem_and_waits_for_nothing(clock: Clock, tmp_path: Path) -> None:
    metrics, loop = DriverMetrics("job", str(tmp_path)), SimpleNamespace(ending=clock, halt=None)
    one = patience.ReportedPatience(loop, metrics, "SourceFailing", quiet=2.0)  # type: ignore[arg-type]
    one.partly("in/loop: Too many levels")
    assert clock.now == 1000 and metrics.problems.current == ()
    clock.now += 2
    one.partly("in/loop: Too many levels")
    assert [t.text for t in metrics.problems.current] == ["in/loop: Too many levels"] and clock.now == 1002
    one.partly("")
    assert metrics.problems.current == ()
    one.failed("in/f cannot be read", at_once=True)
    assert [t.text for t in metrics.problems.current] == ["in/f cannot be read"]
