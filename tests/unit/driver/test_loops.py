"""Loops over a real Flight server; their tasks are threads here, begun again a few times as Spark does."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.flight as fl
import pytest

from ferry.contract.certificates import authority, issue
from ferry.contract.errors import Exhausted, Refusal, SpecRefused
from ferry.contract.ingest_runs import Assignment, IngestRun
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Step
from ferry.contract.notes import Receipt
from ferry.contract.tickets import Right, loop_right, looping, stage_right
from ferry.contract.user_code import USER_CODE
from ferry.driver import loops as driver_loops
from ferry.driver.failures import last_words
from ferry.driver.loops import Loops
from ferry.spark.tasks import loops as tasks
from ferry.spark.tasks.flight import Connections, connect
from ferry.system import flight_places

SECRET = "a-secret-of-the-run"
ROOT = Right.root(SECRET)
GENERATION = 4


def run(number: int, epoch: int = 5) -> IngestRun:
    right = stage_right(ROOT, Step(epoch, 0), GENERATION, number, time.time())
    return IngestRun(Step(epoch, 0), GENERATION, number, (), right, WATERMARK_NONE)


class Died(Exception):
    """A task's process is gone."""


class Spark:
    """Runs tasks on threads; one that fails is begun again twice."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.begun = 0

    def parallelize(self, numbers: range, _: int) -> Spark:
        self.numbers = numbers
        return self

    def mapPartitions(self, task: Callable[[Any], Iterator[int]]) -> Any:
        def attempts(number: int) -> None:
            for _ in range(3):
                self.begun += 1
                try:
                    return list(task([number])) and None
                except (Died, fl.FlightError):
                    time.sleep(0.05)

        threads = [threading.Thread(target=attempts, args=(n,), daemon=True) for n in self.numbers]

        class Job:
            def collect(self) -> None:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

        return Job()


class Rig:
    """What a share says happens to it."""

    def __init__(self, place: flight_places.FlightPlace, monkeypatch: pytest.MonkeyPatch) -> None:
        self.assigned: list[int] = []
        self.freed = threading.Event()
        self.wanted = 2
        self.spark = Spark()
        monkeypatch.setattr(driver_loops, "LOOK_SECONDS", 0.05)
        monkeypatch.setattr(tasks, "IngestTask", self.task)
        spark: Any = self.spark
        identity, trusted = (issue(SECRET), authority(SECRET).decode()) if place.tls else (None, None)
        self.loaded: list[Any] = []
        monkeypatch.setattr(tasks, "load", self.loaded.append)
        works: Any = {0: SimpleNamespace(descriptor="counts", condense=None)}
        self.loops = Loops(spark, 1, works, place, identity, trusted, ROOT, lambda: self.wanted)

    def task(self, work: Any, run: IngestRun, task: int, turn: int, connections: Connections) -> Any:
        rig = self

        class Task:
            def run(self, inputs: list[Any]) -> str:
                ((name, split),) = inputs[0]
                rig.assigned.append(task)
                if name == "dies once" and rig.assigned.count(task) == 1 and len(rig.assigned) == 1:
                    raise SystemExit
                if name == "dies":
                    raise SystemExit
                if name == "users":
                    return Receipt(task, error=f"{USER_CODE}KeyError: 'n' (job.py:3), map_batches").dump()
                if name == "refuses":
                    raise SpecRefused("no column 'k'")
                if name == "fails" or (name == "fails once" and len(rig.assigned) == 1):
                    raise ValueError("a bug of the user's")
                if name == "waits" or (name == "waits once" and len(rig.assigned) == 1):
                    rig.freed.wait(20)
                return Receipt(task, rows=int(split)).dump()

        return Task()

    def await_loops(self, number: int) -> None:
        deadline = time.monotonic() + 10
        while len([one for one in self.loops._loops if not one.over]) != number:
            assert time.monotonic() < deadline, self.loops._loops
            time.sleep(0.01)


@pytest.fixture(params=["unix", "tls"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    tls = request.param == "tls"
    place = (
        flight_places.at_host("127.0.0.1", 0, True)
        if tls
        else flight_places.at_socket(tmp_path / "l", "l", "unix:///tmp/x")
    )
    made = Rig(place, monkeypatch)
    yield made
    made.freed.set()
    made.wanted = 0
    made.await_loops(0)


def test_a_loop_loads_its_kernels_before_it_gets_a_share(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.loops.await_all()
    assert rig.loaded == [[("counts", None)]] * 2
    loading, loaded = threading.Event(), threading.Event()

    def load(operators: list[Any]) -> None:
        loading.set()
        loaded.wait(20)

    monkeypatch.setattr(tasks, "load", load)
    monkeypatch.setattr(driver_loops, "ATTACH_ALL_SECONDS", 0.1)
    rig.wanted = 3
    assert loading.wait(20)
    with pytest.raises(Exhausted, match="2 loops have attached, 3 are wanted"):
        rig.loops.await_all()
    loaded.set()
    rig.await_loops(3)
    rig.loops.await_all()


def test_every_share_is_assigned_once_and_answered(rig: Rig) -> None:
    for number in range(3):
        receipts, _ = rig.loops.ingest(run(number), [[("a", "1")], [("b", "20")], [("c", "300")]])
        assert sum(r.rows for r in receipts) == 321
    assert sorted(rig.assigned) == list(range(1, 10)), "no number comes twice"
    assert rig.loops.ingest(run(3), []) == ([], [])


def test_a_share_that_fails_is_assigned_again_and_under_another_number(rig: Rig) -> None:
    ((receipt,), _) = rig.loops.ingest(run(1), [[("fails once", "7")]])
    assert (receipt.task, receipt.rows, rig.assigned) == (2, 7, [1, 2])


def test_a_share_that_always_fails_says_why(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="ValueError: a bug of the user's"):
        rig.loops.ingest(run(1), [[("fails", "7")]])
    assert len(rig.assigned) == driver_loops.FAILURES_MAX
    assert rig.loops.ingest(run(2), [[("a", "1")]])[0][0].rows == 1, "the loops are none the worse"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("deaths", [1, driver_loops.DEATHS_MAX])
def test_a_share_of_which_loops_die_is_given_back(rig: Rig, deaths: int) -> None:
    """Without this, the share would be assigned again for ever, without a report."""
    heard = queue.SimpleQueue[None]()
    rig.loops.on_death = lambda: heard.put(None)
    receipts, died = rig.loops.ingest(run(1), [[("dies", "7")], [("a", "20")]], deaths)
    assert [r.rows for r in receipts] == [20] and died == [[("dies", "7")]]
    assert len(rig.assigned) == deaths + 1
    for _ in range(deaths):
        heard.get(timeout=20)
    assert rig.loops.ingest(run(2), [[("a", "1")]])[0][0].rows == 1, "other loops are there"


def test_an_error_of_the_users_code_ends_the_run_at_once(rig: Rig) -> None:
    (receipt,), _ = rig.loops.ingest(run(1), [[("waits", "7")], [("users", "8")]])
    assert "KeyError: 'n' (job.py:3)" in str(receipt.error) and rig.assigned.count(2) <= 1
    rig.freed.set()


def test_what_no_other_try_would_mend_is_tried_once(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="no column 'k'"):
        rig.loops.ingest(run(1), [[("refuses", "7")]])
    assert len(rig.assigned) == 1


def test_while_no_task_asks_the_last_error_of_tasks_is_shown(rig: Rig) -> None:
    assert "machine is very slow" in rig.loops._no_loop_attached()
    text = "Job aborted: Traceback (most recent call last):\n  File \"w.py\", line 1\nModuleNotFoundError: No module named 'polarz'\n\n\tat x"
    rig.loops._last_words = last_words(text)
    assert rig.loops._no_loop_attached().endswith("ended with ModuleNotFoundError: No module named 'polarz'")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_loop_takes_along_is_assigned_again(rig: Rig) -> None:
    rig.await_loops(2)
    ((receipt,), _) = rig.loops.ingest(run(1), [[("dies once", "7")]])
    assert (receipt.task, receipt.rows) == (2, 7)


def test_loops_of_a_silent_worker_keep_nothing(rig: Rig) -> None:
    """Whose host is gone without a word: neither what they owe, nor what comes next."""
    rig.await_loops(2)
    for loop in rig.loops._loops:
        loop.worker = 1
    threading.Timer(0.2, rig.loops.silent, [1]).start()
    ((receipt,), _) = rig.loops.ingest(run(1), [[("waits once", "7")]])
    assert (receipt.task, receipt.rows) == (2, 7)
    rig.await_loops(2)
    assert all(loop.worker is None for loop in rig.loops._loops if not loop.over), "others have come"
    rig.freed.set()


def test_a_run_that_is_given_up_ends_and_leaves_nothing_to_the_next_one(rig: Rig) -> None:
    rig.await_loops(2)
    threading.Timer(0.2, rig.loops.give_up).start()
    ((receipt,), _) = rig.loops.ingest(run(1), [[("waits", "7")], [("waits", "8")]])
    assert receipt.error is not None and receipt.task == -1
    receipts, _ = rig.loops.ingest(run(2), [[("a", "1")], [("a", "2")]])
    assert sum(r.rows for r in receipts) == 3, "by others, for those wait still"
    rig.freed.set()
    rig.await_loops(2)
    deadline = time.monotonic() + 10
    while len(rig.loops._loops) != 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_loops_come_and_go_as_task_slots_do(rig: Rig) -> None:
    rig.await_loops(2)
    rig.wanted = 4
    rig.await_loops(4)
    rig.wanted = 1
    rig.await_loops(1)
    assert rig.loops.ingest(run(1), [[("a", "1")], [("a", "2")]]) and rig.spark.begun == 4


def test_a_deployed_program_has_loops_of_its_own_and_gets_all_once_it_is_settled(rig: Rig) -> None:
    """Shares go to loops of their program only; half as many loops until then, and the old ones can still be needed."""
    rig.wanted = 4
    rig.await_loops(4)
    works: Any = {0: SimpleNamespace(descriptor="counts", condense=None)}
    assert rig.loops.load(2, works, lambda: False) and rig.loops.has(2)

    def counts() -> tuple[int, int]:
        there = [loop.job.program for loop in rig.loops._loops if not loop.over]
        return there.count(1), there.count(2)

    def until(wanted: tuple[int, int]) -> None:
        deadline = time.monotonic() + 10
        while counts() != wanted:
            assert time.monotonic() < deadline, counts()
            time.sleep(0.01)

    until((4, 2))
    assert rig.loops.others(1) and rig.loops.others(2)
    taken: dict[int, set[int]] = {}
    for program in (2, 1, 2):
        receipts, _ = rig.loops.ingest(replace(run(program), program=program), [[("a", str(n))] for n in range(8)])
        assert len(receipts) == 8
        taken.setdefault(program, set()).update(receipt.task for receipt in receipts)
    rig.loops.settle(2)
    until((0, 4))
    assert not rig.loops.has(1) and not rig.loops.others(2) and rig.loops.others(1) and len(taken[1]) == 8
    assert len(rig.loops.ingest(replace(run(9), program=2), [[("a", "1")]])[0]) == 1


def test_loops_of_a_program_end_before_the_settled_program_is_loaded(rig: Rig) -> None:
    rig.await_loops(2)
    rig.loops.settle(2)
    rig.await_loops(0)
    assert not rig.loops.others(2) and rig.loops.load(3, {}, lambda: False) and not rig.loops.has(2)
    rig.loops.settle(3)


def test_a_program_that_is_forgotten_while_it_is_loaded_is_not_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken back meanwhile; the epoch that waited for its tasks stood still for ever."""
    rig.await_loops(2)
    keep, loaded = rig.loops._keep_program, list[bool]()
    monkeypatch.setattr(
        rig.loops, "_keep_program", lambda program, slots: None if program == 2 else keep(program, slots)
    )
    loading = threading.Thread(target=lambda: loaded.append(rig.loops.load(2, {}, lambda: False)), daemon=True)
    loading.start()
    deadline = time.monotonic() + 10
    while not rig.loops.has(2):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rig.loops.forget(2)
    loading.join(10)
    assert loaded == [False]


def test_a_program_that_no_task_loads_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.await_loops(2)
    keep = rig.loops._keep_program
    monkeypatch.setattr(
        rig.loops, "_keep_program", lambda program, slots: None if program == 2 else keep(program, slots)
    )
    assert not rig.loops.load(2, {}, lambda: True)
    rig.loops.forget(2)
    assert not rig.loops.has(2)


def test_without_loops_a_run_is_to_be_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.await_loops(2)
    monkeypatch.setattr(driver_loops, "ATTACH_SECONDS", 0.2)
    monkeypatch.setattr(rig.loops, "_hand_out", lambda: None)
    ((receipt,), _) = rig.loops.ingest(run(1), [[("a", "1")]])
    assert "no Spark task has requested" in str(receipt.error)


def test_without_executors_a_run_waits_for_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job of Spark's does: nothing is wrong while workers still start."""
    rig.await_loops(2)
    rig.wanted = 0
    rig.await_loops(0)
    monkeypatch.setattr(driver_loops, "ATTACH_SECONDS", 0.2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.loops.ingest, run(1), [[("a", "7")]])
        time.sleep(0.5)  # More than ATTACH_SECONDS.
        assert not asked.done()
        monkeypatch.setattr(driver_loops, "ATTACH_SECONDS", 20.0)
        rig.wanted = 1
        assert [receipt.rows for receipt in asked.result(20)[0]] == [7]


@pytest.mark.parametrize("whose", ["another root", "another life", "a fragment's"])
def test_nobody_else_gets_a_share(rig: Rig, whose: str) -> None:
    mine = rig.loops._life
    rights = {
        "another root": loop_right(Right.root("another"), mine),
        "another life": loop_right(ROOT, "another"),
        "a fragment's": run(1).right,
    }
    ticket = rights[whose].narrowed({"job": 1, "worker": None}).dump()
    with pytest.raises(Refusal):
        looping(ROOT, ticket, mine)
    place = rig.loops._place
    with connect(place.uri, place.authority) as client, pytest.raises(fl.FlightUnauthorizedError):
        _, reader = client.do_exchange(fl.FlightDescriptor.for_command(ticket))
        reader.read_chunk()


def test_a_deal_is_read_as_it_was_written() -> None:
    assignment = Assignment(run(3), 9, 1, [("a", "{}"), ("", "tick")])
    assert Assignment.load(assignment.dump()) == assignment
