"""Executors count when they are warm, and lose their tasks when their worker is silent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from ferry.contract.executors import executor_id
from ferry.contract.status import SparkStatus
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import executors
from ferry.driver.executors import NO_EXECUTOR, NO_HEARTBEAT, QUIET_SECONDS, Executors

A, B, C = (str(executor_id(1, worker, 7)) for worker in range(3))


class FakeScheduler:
    """Spark has these executors."""

    application = "run-life"

    def __init__(self) -> None:
        self.present = set[str]()
        self.closed = set[str]()
        self.removed: list[tuple[str, bool]] = []

    def executors(self) -> frozenset[str]:
        return frozenset(self.present)

    def disconnected(self) -> frozenset[str]:
        return frozenset(self.closed)

    def remove(self, executor: str, why: str, by_work: bool = True) -> None:
        self.removed.append((executor, by_work))
        self.present.discard(executor)
        self.closed.discard(executor)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.backend, self.file = FakeScheduler(), directory / "slots"
        self.warmed: list[int] = []
        self.may = threading.Event()
        self.metrics = DriverMetrics("job", str(directory))
        self.problems = self.metrics.problems
        scheduler: Any = self.backend
        self.executors = Executors(scheduler, 2, self.file, self.warm_up, self.metrics)

    def warm_up(self, slots: int) -> None:
        self.warmed.append(slots)
        assert self.may.wait(10)

    def settle(self) -> None:
        """Look until nobody is being warmed up."""
        while True:
            self.executors.look()
            if (thread := self.executors._warming) is None:
                return
            thread.join(10)

    def slots(self) -> str | None:
        return self.file.read_text() if self.file.exists() else None


def test_slots_count_when_they_are_warm(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.settle()
    assert rig.slots() is None and rig.warmed == []
    rig.backend.present = {A}
    rig.executors.look()
    rig.backend.present = {A, B}
    rig.executors.look()
    assert rig.slots() is None, "cold"
    rig.may.set()
    rig.settle()
    assert (rig.slots(), rig.warmed) == ("4", [2, 4])
    rig.backend.present = {B}
    rig.settle()
    assert (rig.slots(), rig.warmed) == ("2", [2, 4]), "nobody new"


def test_executors_that_cannot_be_warmed_up_work_all_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    def fail(slots: int) -> None:
        raise RuntimeError("cancelled")

    rig.executors._warm_up = fail
    rig.backend.present = {A}
    rig.settle()
    assert rig.slots() == "2"


def test_those_of_a_silent_worker_are_given_up_and_no_others(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A, B, C, "?"}
    rig.settle()
    rig.executors.silent(1)
    rig.settle()
    assert (rig.backend.removed, rig.slots()) == ([(B, False)], "6")
    rig.backend.present.add(B)
    rig.settle()
    assert rig.backend.removed == [(B, False)], "it came back"


def test_a_closed_connection_is_the_loss_of_an_executor(tmp_path: Path) -> None:
    """Its tasks count as failed, for its work may be the cause; Spark alone would wait for Kubernetes."""
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A, B}
    rig.settle()
    rig.backend.closed = {A}
    rig.executors.look()
    assert (rig.backend.removed, rig.slots()) == ([(A, True)], "2")


def test_an_executor_that_is_removed_already_is_told_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A}
    rig.backend.remove = lambda executor, why, by_work=True: rig.backend.removed.append((executor, by_work))  # type: ignore[method-assign]
    rig.backend.closed = {A}
    for _ in range(3):
        rig.executors.look()
    assert rig.backend.removed == [(A, True)] and rig.slots() is None, "Spark has not answered yet"


def test_an_executor_that_spark_removes_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each loss has its reason in the log, once; removals by the tracker have another one."""
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A, B, C}
    rig.settle()
    rig.backend.present = {A, B}
    rig.settle()
    rig.executors.silent(1)
    rig.settle()
    rig.backend.closed = {A}
    rig.settle()
    rig.settle()
    assert caplog.messages == [
        f"Spark has removed executor {C} of worker 2: {NO_HEARTBEAT}",
        f"executor {B} is given up: worker 1 is silent",
        f"executor {A} of worker 0 has closed its connection",
    ]


def test_a_removal_that_spark_has_not_done_yet_is_no_other_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A, B}
    rig.settle()
    rig.backend.remove = lambda executor, why, by_work=True: None  # type: ignore[method-assign]
    rig.executors.silent(1)
    rig.settle()
    rig.backend.present = {A}
    rig.settle()
    assert caplog.messages == [f"executor {B} is given up: worker 1 is silent"]


def test_a_silent_worker_is_not_forgotten_when_java_does_not_answer(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {A, B}
    rig.settle()
    remove = rig.backend.remove

    def fail(executor: str, why: str, by_work: bool = True) -> None:
        raise Py4JError("no answer")

    rig.backend.remove = fail  # type: ignore[method-assign]
    rig.executors.silent(1)
    with pytest.raises(Py4JError):
        rig.executors.look()
    rig.backend.remove = remove  # type: ignore[method-assign]
    rig.settle()
    assert rig.backend.removed == [(B, False)]


def test_no_executor_is_a_problem_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, now = Rig(tmp_path), [100.0]
    rig.may.set()
    monkeypatch.setattr(executors.time, "monotonic", lambda: now[0])
    rig.executors.look()
    now[0] += QUIET_SECONDS
    rig.executors.look()
    assert rig.problems.current == (), "they come in seconds"
    now[0] += 27
    rig.executors.look()
    (problem,) = rig.problems.current
    assert problem.reason == NO_EXECUTOR and "for 42 s" in problem.text and "container `executor`" in problem.text
    rig.backend.present = {A}
    rig.settle()
    assert rig.problems.current == ()
    rig.backend.present = set()
    rig.executors.look()
    now[0] += QUIET_SECONDS + 1
    rig.executors.look()
    assert [problem.reason for problem in rig.problems.current] == [NO_EXECUTOR], "all are lost"


def test_the_status_names_the_executor_of_each_worker(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.may.set()
    rig.backend.present = {B, A}
    rig.settle()
    assert rig.metrics.spark == SparkStatus("run-life", ((0, A), (1, B)))
    rig.backend.closed = {A}
    rig.executors.look()
    assert rig.metrics.spark.executors == ((1, B),)
