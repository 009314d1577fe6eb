"""Which failures pass by themselves, and which are final."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import ferry
from ferry.api.pipeline import Input, LateOutput
from ferry.connectors import sink as sinks
from ferry.connectors.files.parquet_sink import parquet
from ferry.contract.descriptors import Window
from ferry.contract.errors import DataRefused, Fault, Final, SpecRefused
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.notes import EpochNotes
from ferry.contract.settings import RunSettings
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import patience
from ferry.driver.dead_letters import DeadLetters
from ferry.driver.epochs import Epochs
from ferry.driver.errors import Halted
from ferry.driver.patience import Answers
from ferry.driver.publisher import Publisher, is_final, is_passing, refuse_final
from ferry.driver.united import United
from ferry.protocol.coordinator import Emit, FiredRows, Halt, ReadFailed
from ferry.spark.compile import CompiledPipeline


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
        (Fault("the driver does not see the tasks' files"), False),
        (ConnectionError("the database is away"), False),
        (RuntimeError("Task 0 failed 4 times: ferry.contract.errors.Final: the table has other columns"), True),
        (RuntimeError("Task 0 failed 4 times: ConnectionError"), False),
    ],
    ids=str,
)
def test_a_sink_says_itself_whether_another_try_is_of_use(error: Exception, final: bool) -> None:
    assert is_final(error) is final


def giving(patience: Any, seconds: float = 60.0) -> Publisher:
    return cast(Publisher, SimpleNamespace(_answers=Answers(patience, seconds)))


def test_a_sink_that_does_not_return_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()
    patience, sink = SimpleNamespace(waiting=lambda text: texts.append(text) or said.set()), parquet("out")
    texts: list[str] = []
    monkeypatch.setattr(sink, "write", lambda *_: said.wait(10))
    Publisher._give(giving(patience, 0.01), sink, 7, 1, pa.table({}))
    assert texts[0] == "sink parquet('out') of epoch 7 has not answered for 0.01 s and more; the job waits for it"


def test_a_full_disk_of_a_sink_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sink = parquet(str(tmp_path / "out"))
    monkeypatch.setattr(sink, "write", write)
    with pytest.raises(OSError, match=r"No space left on device: '.*/out'"):
        Publisher._give(giving(None), sink, 1, 1, pa.table({}))
    sinks.identify([sink], "sales", "sales-a")
    monkeypatch.setattr("os.pwrite", write)
    with pytest.raises(OSError, match=r"No space left on device: '.*/out/_ferry-life'"):
        sink.open(-1)


def test_what_a_task_of_a_sink_refuses_ends_the_job_with_its_words() -> None:
    """PySpark's own error would be a crash, after which another driver meets the same value."""
    words = "column 'at' has a value of timestamp[s] that Spark's timestamp[us] cannot hold"
    error = PythonException(f"Traceback:\n  File x\nferry.contract.errors.DataRefused: {words}\n\tat java")
    with pytest.raises(DataRefused, match=f"^{re.escape(words)}$"):
        Publisher._sink_failed(object.__new__(Publisher), "sink of epoch 3", error)


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


def publisher(tmp_path: Path, sink_patience_ms: int | None) -> tuple[Publisher, DriverMetrics]:
    """Of a job that says so much of its sinks, and has none."""
    settings = RunSettings.read(Path(__file__).parents[2] / "released" / "v0.1.0" / "run.json")
    settings, metrics = replace(settings, sink_patience_ms=sink_patience_ms), DriverMetrics("job", str(tmp_path))
    nobody: Any = None
    plan: Any = SimpleNamespace(outputs=(), operators=())
    loop: Any = SimpleNamespace(stages={})
    letters = DeadLetters(tmp_path / "letters")
    made = Publisher(settings, nobody, plan, loop, metrics, lambda epoch, stage: None, nobody, letters, nobody)
    made._local_rows = -1
    return made, metrics


ROWS = FiredRows(CommitId(Step(5, 0), Attempt(1, 1)), 1, 0, 10, (), 7, 0)


def test_a_sink_that_is_away_is_tried_until_it_is_back(tmp_path: Path, clock: Clock) -> None:
    one, metrics = publisher(tmp_path, None)
    tries: list[int] = []

    def write(rows: Any, table: Any, epoch: int) -> None:
        tries.append(epoch)
        if len(tries) < 1000:
            assert len(tries) == 1 or metrics.problems.current[0].reason == "SinkFailing"
            raise ConnectionError("the database is away")

    one._write = write  # type: ignore[method-assign]
    assert one._publish_rows(ROWS, 5) == 7
    assert len(tries) == 1000 and metrics.problems.current == () and clock.now > 1000 + 3600


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
    text = "Flight returned internal error, with message: too large: operator x, s=sum('a'): too much. Detail: Python exception\nmore"
    publisher, epochs = object.__new__(Publisher), object.__new__(Epochs)
    for refuses in (
        refuse_final,
        lambda text: publisher._read_failed(cast(Any, None), RuntimeError(text)),
        lambda text: epochs._ingest_failed(cast(Any, None), text),
    ):
        with pytest.raises(SpecRefused, match=r"^too large: operator x, s=sum\('a'\): too much$"):
            refuses(text)


@pytest.mark.parametrize(("patience_ms", "limit"), [(None, None), (90_000, 90.0)], ids=str)
def test_a_sink_is_waited_for_as_long_as_the_job_says(
    patience_ms: int | None, limit: float | None, tmp_path: Path
) -> None:
    settings: Any = SimpleNamespace(secret="s", encrypted=False, sink_patience_ms=patience_ms, path=tmp_path)
    some: Any = None
    made = Publisher(
        settings, some, CompiledPipeline({}, (), ()), some, DriverMetrics("j", str(tmp_path)), some, some, some, some
    )
    assert (made._sinking._limit, made._reading._limit) == (limit, None)


def test_a_sink_that_will_never_take_the_rows_ends_the_job() -> None:
    def write(rows: Any, table: Any, epoch: int) -> None:
        raise Final("the table has other columns")

    publisher: Any = object.__new__(Publisher)
    publisher._row_bytes = {}
    publisher.loop, publisher.hook, publisher._local_rows = (
        SimpleNamespace(stages={}),
        lambda epoch, stage: None,
        -1,
    )
    publisher._write = write
    with pytest.raises(Final, match="other columns"):
        publisher._publish_rows(ROWS, 5)


def test_other_readers_of_any_operator_are_asked_for_by_the_step_under_way() -> None:
    publisher: Any = object.__new__(Publisher)
    posted: list[Any] = []
    publisher.loop = SimpleNamespace(stages={}, post=posted.append)
    publisher.hook, publisher._united = lambda epoch, stage: None, United(())
    publisher._outputs, publisher.plan = {0: ["a sink"]}, SimpleNamespace(sources={})
    publisher._publish_rows = lambda rows, epoch: None
    last = replace(ROWS, commit_id=CommitId(Step(5, 1), Attempt(1, 2)))
    batch: Any = None
    assert not publisher.publish(Emit(Step(5, 1), (ROWS, last), b""), EpochNotes(), cast(Any, SimpleNamespace()), batch)
    assert posted == [ReadFailed(Step(5, 1))], "the coordinator heeds no other one"


@pytest.fixture
def late(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A publisher of a job with a sink for late records, and what it gives that sink; reading them again says no more."""
    one: Any = publisher(tmp_path, None)[0]
    written: list[Any] = []
    sink = SimpleNamespace(write=lambda epoch, generation, made: written.append((epoch, made)))
    one.plan = CompiledPipeline(
        {}, (), (), (LateOutput(0, (Input("clicks", (), pa.schema([]), "ts", 0),), Window(10, 10), cast(Any, sink)),)
    )
    one._watch = SimpleNamespace(on=lambda instances: nullcontext([*instances]))
    one.splits = lambda rows: []
    one.dead_letters = SimpleNamespace(publish=lambda epoch, letters: None)
    one.loop.machine = SimpleNamespace(generation=1)
    one.loop.post = lambda event: None
    monkeypatch.setattr("ferry.driver.publisher.late_frame", lambda spark, batch, plan, output, rows, low: (low, rows))
    return one, written


def published(one: Any, *rows: FiredRows) -> bool:
    order = Emit(Step(5, len(rows) - 1), rows, b"")
    return bool(
        one.publish(order, EpochNotes(), cast(Any, SimpleNamespace(fired=0)), cast(Any, SimpleNamespace(frame=None)))
    )


def test_records_are_read_again_when_some_were_late_only(late: tuple[Any, list[Any]]) -> None:
    one, written = late
    assert published(one, ROWS) and written == []
    assert published(one, replace(ROWS, low=3, late=2)) and written == [(5, (3, {}))]


@pytest.mark.parametrize("origin", ["clicks", 0])
def test_late_records_that_cannot_be_read_are_tried_again_or_asked_for_elsewhere(
    late: tuple[Any, list[Any]], origin: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, written = late
    output = replace(one.plan.late[0], operator=1, inputs=(replace(one.plan.late[0].inputs[0], origin=origin),))
    one.plan = replace(one.plan, late=(output,))
    failures = ["pyarrow._flight.FlightUnavailableError"]

    def frame(spark: Any, batch: Any, plan: Any, output: Any, rows: Any, low: int) -> Any:
        if failures:
            raise RuntimeError(failures.pop())
        return low, rows

    monkeypatch.setattr("ferry.driver.publisher.late_frame", frame)
    second = FiredRows(CommitId(Step(5, 1), Attempt(1, 2)), 1, 4, 10, (), 0, 2)
    if origin == 0:
        assert not published(one, ROWS, second), "others may have the rows"
    assert published(one, ROWS, second)
    assert written == [(5, (4, {} if origin == "clicks" else {0: []}))]


@pytest.mark.parametrize(("low", "high", "fired", "asked"), [(5, 5, 0, 0), (5, 6, 0, 0), (5, 6, 3, 1), (5, 5, 3, 1)])
def test_rows_are_asked_for_when_there_are_some(low: int, high: int, fired: int, asked: int) -> None:
    publisher: Any = object.__new__(Publisher)
    stages: list[str] = []
    publisher.loop, publisher.hook = SimpleNamespace(stages={}), lambda epoch, stage: stages.append(stage)
    publisher._united = United(())
    publisher._outputs, publisher.plan = {0: [SimpleNamespace(sink="a sink")]}, CompiledPipeline({}, (), ())
    publisher.dead_letters = SimpleNamespace(publish=lambda epoch, letters: None)
    calls: list[int] = []
    publisher._publish_rows = lambda rows, epoch: calls.append(epoch) or fired
    commit_id = CommitId(Step(7, 0), Attempt(1, 1))
    record: Any = SimpleNamespace(fired=0)
    order = Emit(commit_id.step, (FiredRows(commit_id, 1, low, high, (), fired, 0),), b"")
    batch: Any = None
    assert publisher.publish(order, EpochNotes(), record, batch)
    assert calls == [7] * asked and record.fired == fired
    assert stages == (["emit"] if asked else ["emit", "sink"]), "what is scheduled for a stage comes in every epoch"


class Probed(Publisher):
    """Gives rows to sinks that fail as they are told to, and has tasks try them, which die or not."""

    def __init__(self, writes: list[Exception], probes: list[Exception]) -> None:
        output = SimpleNamespace(sink="a sink", input=None)
        self._outputs: Any = {0: [output]}
        self._row_bytes, self._local_rows = {}, -1
        self.loop: Any = SimpleNamespace(stages={})
        self.hook: Any = lambda epoch, stage: None
        self._watch: Any = SimpleNamespace(on=lambda instances: nullcontext([*instances]))
        self.splits: Any = lambda rows: ["a split"]
        self.did, self.plan = list[str](), cast(Any, SimpleNamespace(outputs=()))
        self._reading: Any = SimpleNamespace(failed=self.did.append, succeeded=lambda: None)
        self._sinking = self._tries = self._reading
        self._probing: Any = SimpleNamespace(of=lambda *of: self._next("probe", probes))
        self._write: Any = lambda *of: self._next("write", writes)

    def _next(self, what: str, failures: list[Exception]) -> None:
        self.did.append(what)
        if failures:
            raise failures.pop(0)


DIED = RuntimeError("Job aborted: Task 0 failed 8 times: Python worker exited unexpectedly (crashed)")


def test_tasks_try_rows_first_that_a_driver_before_may_have_died_of() -> None:
    one = Probed([], [])
    assert one._publish_rows(ROWS, 5) == 7 and one.did == ["write"]
    one = Probed([], [Final("row 3 kills")])
    one._again = 5
    with pytest.raises(Final, match="row 3 kills"):
        one._publish_rows(ROWS, 5)
    assert one.did == ["probe"], "no driver dies of it"
    one = Probed([], [RuntimeError("FlightUnavailableError")])
    one._again = 5
    assert one._publish_rows(ROWS, 5) is None and one.did[0] == "probe", "other readers are asked for"
    one = Probed([], [])
    one._again = 5
    assert one._publish_rows(ROWS, 5) == 7 and one._publish_rows(ROWS, 6) == 7
    assert one.did == ["probe", "write", "write"]


def test_a_row_is_looked_for_where_tasks_die_before_a_sink() -> None:
    one = Probed([DIED], [Final("row 3 kills")])
    with pytest.raises(Final, match="row 3 kills"):
        one._publish_rows(ROWS, 5)
    one = Probed([DIED, DIED], [])
    assert one._publish_rows(ROWS, 5) == 7
    assert [*map(str, one.did)][:3] == ["write", "probe", "write"]
    assert "the process of a task dies" in str(one.did[3]), (
        "it is not in the functions before the sink: a few tries more"
    )


class Called:
    """The registry's count of drivers that have not come back from a sink."""

    def __init__(self) -> None:
        self.entered: dict[str, int] = {}

    def enter(self, what: str) -> int:
        self.entered[what] = self.entered.get(what, 0) + 1
        return self.entered[what] - 1

    def leave(self) -> None:
        self.entered.clear()


def test_a_sink_of_which_drivers_die_ends_the_job(tmp_path: Path) -> None:
    registry, written = Called(), list[int]()

    class Mine(ferry.Sink):
        """Of a user's."""

        def write(self, epoch: int, generation: int, rows: Any) -> None:
            written.append(epoch)

    def driver(dies: bool, again: int = 5) -> None:
        one: Any = object.__new__(Publisher)
        one.loop, one.metrics = SimpleNamespace(registry=registry), DriverMetrics("job", str(tmp_path))
        one._again = again
        if dies:
            registry.leave, kept = lambda: None, registry.leave  # type: ignore[method-assign]
        try:
            one._give(Mine(), 5, 1, None)
        finally:
            if dies:
                registry.leave = kept  # type: ignore[method-assign]

    driver(dies=True, again=-1)
    assert not registry.entered, "an epoch that is new costs no call"
    driver(dies=True)
    driver(dies=False)
    for _ in range(2):
        driver(dies=True)
    with pytest.raises(
        Final,
        match=r"^user code: 3 drivers have died in sink \S+Mine \(test_publisher.py:\d+\), with the rows of epoch 5",
    ):
        driver(dies=False)
    assert len(written) == 5
    driver(dies=False)
