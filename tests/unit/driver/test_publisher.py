"""Which failures pass by themselves, and which are final."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ferry.contract.documents import RunSettings
from ferry.contract.errors import Fault, Final, SpecRefused
from ferry.coordinator.progress import Progress
from ferry.driver import patience
from ferry.driver.epochs import Epochs
from ferry.driver.letters import DeadLetters
from ferry.driver.orders import Halted
from ferry.driver.publisher import Publisher, is_final, is_passing, refuse_final
from ferry.protocol.coordinator import FiredRows, Halt
from ferry.spark.compile import Plan


@pytest.mark.parametrize(
    ("text", "passing"),
    [
        ("pyarrow._flight.FlightUnavailableError: failed to connect", True),
        ("Job 61 cancelled as part of cancellation of all jobs", True),
        ("Task 0 in stage 5.0 failed 16 times: ExecutorLostFailure (executor 1 exited)", True),
        ("org.apache.spark.shuffle.FetchFailedException", True),
        ("ZeroDivisionError: division by zero", False),
    ],
)
def test_a_lost_instance_or_executor_passes_and_an_error_of_the_user_does_not(text: str, passing: bool) -> None:
    assert is_passing(RuntimeError(text)) is passing


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (Final("the table has other columns"), True),
        (SpecRefused("x"), True),
        (Halted(Halt("superseded", "x")), True),
        (Fault("what tasks wrote is not seen here"), False),
        (ConnectionError("the database is away"), False),
        (RuntimeError("Task 0 failed 4 times: ferry.contract.errors.Final: the table has other columns"), True),
        (RuntimeError("Task 0 failed 4 times: ConnectionError"), False),
    ],
    ids=str,
)
def test_a_sink_says_itself_whether_another_try_is_of_use(error: Exception, final: bool) -> None:
    assert is_final(error) is final


class Clock:
    """Time that only waiting moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, loop: Any, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "time", made)
    monkeypatch.setattr(patience, "sleep", made.sleep)
    return made


def publisher(tmp_path: Path, sink_patience_ms: int | None) -> tuple[Publisher, Progress]:
    """Of a job that says so much of its sinks, and has none."""
    settings = RunSettings.read(Path(__file__).parents[1] / "contract" / "released" / "v0_1_0.run.json")
    settings, progress = replace(settings, sink_patience_ms=sink_patience_ms), Progress("job", str(tmp_path))
    nobody: Any = None
    plan: Any = SimpleNamespace(outputs=())
    loop: Any = SimpleNamespace(stages={})
    letters = DeadLetters(tmp_path / "letters")
    made = Publisher(settings, nobody, plan, loop, progress, lambda epoch, stage: None, nobody, letters)
    made._local_rows = -1
    return made, progress


ROWS = cast(FiredRows, SimpleNamespace(fired=7))


def test_a_sink_that_is_away_is_tried_until_it_is_back(tmp_path: Path, clock: Clock) -> None:
    one, progress = publisher(tmp_path, None)
    tries: list[int] = []

    def write(rows: Any, table: Any, epoch: int) -> None:
        tries.append(epoch)
        if len(tries) < 1000:
            assert len(tries) == 1 or progress.troubles[0].reason == "SinkFailing"
            raise ConnectionError("the database is away")

    one._write = write  # type: ignore[method-assign]
    assert one._publish_rows(ROWS, 5) == 7
    assert len(tries) == 1000 and progress.troubles == () and clock.now > 1000 + 3600


def test_a_sink_is_tried_for_as_long_as_the_job_says(tmp_path: Path, clock: Clock) -> None:
    one, _ = publisher(tmp_path, 60_000)

    def write(rows: Any, table: Any, epoch: int) -> None:
        raise ConnectionError("the database is away") if clock.now < 1100 else Final("it is tried for too long")

    one._write = write  # type: ignore[method-assign]
    with pytest.raises(Final, match="the database is away"):
        one._publish_rows(ROWS, 5)
    assert clock.now == pytest.approx(1060)


def test_rows_that_cannot_be_read_for_what_they_hold_are_not_asked_for_again() -> None:
    refuse_final("FlightUnavailableError: connection refused")
    text = "Flight returned internal error, with message: integer overflow: operator x, s=sum('a'): too much. Detail: Python exception\nmore"
    publisher, epochs = object.__new__(Publisher), object.__new__(Epochs)
    for refuses in (
        refuse_final,
        lambda text: publisher._read_failed(cast(Any, None), RuntimeError(text)),
        lambda text: epochs._ingest_failed(cast(Any, None), text),
    ):
        with pytest.raises(SpecRefused, match=r"^integer overflow: operator x, s=sum\('a'\): too much$"):
            refuses(text)


@pytest.mark.parametrize(("patience_ms", "limit"), [(None, None), (90_000, 90.0)], ids=str)
def test_a_sink_is_waited_for_as_long_as_the_job_says(
    patience_ms: int | None, limit: float | None, tmp_path: Path
) -> None:
    settings: Any = SimpleNamespace(secret="s", encrypted=False, sink_patience_ms=patience_ms)
    some: Any = None
    made = Publisher(settings, some, Plan({}, (), ()), some, Progress("j", str(tmp_path)), some, some, some)
    assert (made._sinking._limit, made._reading._limit) == (limit, None)


def test_a_sink_that_will_never_take_the_rows_ends_the_job() -> None:
    def write(rows: Any, table: Any, epoch: int) -> None:
        raise Final("the table has other columns")

    publisher: Any = object.__new__(Publisher)
    publisher.loop, publisher.hook, publisher._local_rows = (
        SimpleNamespace(stages={}),
        lambda epoch, stage: None,
        -1,
    )
    publisher._write = write
    with pytest.raises(Final, match="other columns"):
        publisher._publish_rows(SimpleNamespace(fired=7), 5)
