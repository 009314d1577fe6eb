"""What an epoch commits with its state, for the driver after this one."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.api.graph import offsets_only
from ferry.contract.errors import Final, SpecRefused
from ferry.contract.ingest_runs import IngestRun
from ferry.contract.limits import FLOWS_MAX, WATERMARK_NONE
from ferry.contract.names import Fragment, Step
from ferry.contract.notes import EpochNotes, Receipt
from ferry.contract.programs import ProgramVersion, first_program
from ferry.contract.tickets import Judge, Right, stage_ticket
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.epochs import Epochs
from ferry.driver.poison import Poison
from ferry.process.api import SideRows
from ferry.protocol.coordinator import Ingested, StartIngest
from ferry.spark.compile import CompiledPipeline
from ferry.spark.feeds import works_of
from ferry.spark.shares import Batch
from ferry.spark.tasks.flight import Connections
from ferry.spark.tasks.ingest import IngestTask
from tests.unit.streams import sources


def operator(*idle_ms: int | None, origin: str | int = "a", index: int = 0) -> Any:
    """One with such inputs; their delay is 10."""
    idles = idle_ms or (None,)
    said = {"origin": origin, "delay_ms": 10, "initial": False, "flow": None}
    inputs = [SimpleNamespace(**said, idle_ms=idle) for idle in idles]
    return SimpleNamespace(inputs=inputs, descriptor=SimpleNamespace(name="counts", index=index))


TABLE = SimpleNamespace(programs=first_program(3))


def test_the_offsets_of_an_epoch_are_committed_with_all_its_steps(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for epoch in (3, 4):
        (tmp_path / f"offsets/{epoch}").write_text(f'v1\n{{}}\n{{"a":{epoch}}}')
    posted: list[Ingested] = []
    epochs: Any = object.__new__(Epochs)
    epochs._live = lambda programs: None
    epochs.loop = SimpleNamespace(
        machine=SimpleNamespace(generation=1, commits=SimpleNamespace(late=0), table=TABLE), post=posted.append
    )
    epochs._poison = Poison({}, cast(Any, None), False, lambda: 0, [])
    epochs.metrics = DriverMetrics("job", str(tmp_path))
    epochs.publisher = SimpleNamespace(dead_letters=SimpleNamespace(keep=lambda epoch, letters: None))
    epochs.plan = SimpleNamespace(operators=[operator(), operator(index=1)])
    epochs._checkpoint = Checkpoint(tmp_path)
    meta = b'{"spark":"of the epoch before"}'
    for step in (Step(4, 0), Step(4, 1)):
        epochs._ingested(StartIngest(step, 1, (), (), meta), [])
        meta = posted[-1].meta
        assert EpochNotes.load(meta).spark == epochs._checkpoint.notes(4)


def run_of(monkeypatch: pytest.MonkeyPatch, operator: Any, failed: str = "") -> IngestRun:
    """What tasks are told for the first operator of epoch 4, before which its watermark was 1234; and how they fail."""
    runs: list[IngestRun] = []

    def run_ingest(
        spark: Any, batch: Any, operator: Any, plan: Any, work: Any, run: IngestRun, *more: Any
    ) -> list[str]:
        runs.append(run)
        if failed:
            raise RuntimeError(failed)
        return []

    monkeypatch.setattr("ferry.driver.reading.run_ingest", run_ingest)
    epochs: Any = object.__new__(Epochs)
    epochs._live = lambda programs: None
    epochs._root, epochs._loops, epochs.spark = Right.root("secret"), None, None
    epochs._program = SimpleNamespace(works=[None], number=1)
    epochs._planned, epochs._poison = {}, Poison({}, cast(Any, None), False, lambda: 0, [])
    commits = SimpleNamespace(result_before=lambda step: SimpleNamespace(high=1234))
    epochs.loop = SimpleNamespace(machine=SimpleNamespace(generation=2, commits=commits), members=None)
    epochs.plan = CompiledPipeline({}, (operator,), ())
    epochs._checkpoint = SimpleNamespace(planned=lambda epoch: 1000 * epoch)
    assert epochs._receipts(StartIngest(Step(4, 0), 3, (), (), b""), Batch(cast(Any, None), [])) == []
    (run,) = runs
    return run


def test_the_tasks_of_a_run_get_the_right_to_stage_its_fragments_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run, root = run_of(monkeypatch, offsets_only()), Right.root("secret")
    assert run.planned == 4000, "ages are as of then"
    ticket = stage_ticket(run.right, 9, "0.0", "life")
    assert Judge(root, "0.0", "life").fragment(ticket, time.time()) == Fragment(Step(4, 0), 2, 3, 9)
    assert root.seal not in (run.right.seal, ticket) and root.seal.hex().encode() not in ticket


def test_tasks_that_condense_records_are_told_what_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = sources()["bids"].event_time("ts").key_by("bidder").window(ferry.session("1s"))
    (operator,) = visits.aggregate("visits", n=ferry.count()).build.operators
    plan = CompiledPipeline({}, (operator,), ())
    (work,) = works_of(plan, None, None).values()
    task = IngestTask(work, run_of(monkeypatch, operator), 1, 0, Connections(None))
    condense: Any = task.fragmenters[0]._contribution._condense
    times = np.array([234, 234, 235, 236])
    rows = SideRows(pa.record_batch({"bidder": [7] * 4}), np.zeros(4, np.int64), times)
    assert condense(rows).times.tolist() == [234, 234, 235]


def test_a_sum_that_is_too_great_for_a_task_is_too_great_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, refused in (("too large: a sum is too great", SpecRefused), ("a bug", RuntimeError)):
        with pytest.raises(refused, match=f"{text}$"):
            run_of(monkeypatch, offsets_only(), f"in a task of Spark: {text}")


class _Driver:
    """Epochs of a plan, with nothing around; epoch E was planned at E seconds."""

    def __init__(self, folder: Path, *operators: Any) -> None:
        (folder / "offsets").mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.posted: list[Ingested] = []
        self.epochs: Any = object.__new__(Epochs)
        self.epochs._live = lambda programs: None
        machine = SimpleNamespace(generation=1, commits=SimpleNamespace(late=0), table=TABLE)
        self.epochs.loop = SimpleNamespace(machine=machine, post=self.posted.append)
        self.epochs.publisher = SimpleNamespace(dead_letters=SimpleNamespace(keep=lambda epoch, letters: None))
        self.epochs.plan = SimpleNamespace(operators=operators)
        self.epochs._poison = Poison({}, cast(Any, None), False, lambda: 0, [])
        self.epochs.metrics = DriverMetrics("job", str(folder))
        self.epochs._checkpoint = Checkpoint(folder)
        self.epochs.idle = threading.Event()
        self.epochs.idle.set()
        self.low, self.meta = WATERMARK_NONE, b""

    def epoch(self, number: int, maxima: dict[int, dict[str, int]], flows: Any = None) -> int:
        """The watermark of the first operator after an epoch with these records."""
        (self.folder / f"offsets/{number}").write_text(f'v1\n{{"batchTimestampMs":{number * 1000}}}\n{{}}')
        self.low = max(self.low, self.step(Step(number, 0), maxima, flows))  # as the coordinator does
        return self.low

    def step(self, step: Step, maxima: dict[int, dict[str, int]], flows: Any = None, *fired: int) -> int:
        """What the watermark of the step's operator might be; those before it have these."""
        rows: Any = tuple(SimpleNamespace(high=high) for high in fired)
        self.epochs._ingested(StartIngest(step, 1, (), rows, self.meta), [Receipt(1, maxima=maxima, flows=flows or {})])
        self.meta = self.posted[-1].meta
        return self.posted[-1].high


def test_a_flow_that_lags_holds_the_watermark_back_until_it_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _Driver(tmp_path, operator(3000))
    both = {0: {"fast": False, "slow": False}}
    assert driver.epoch(1, {0: {"fast": 3600}}, both) == WATERMARK_NONE, "the other has brought nothing"
    assert driver.epoch(2, {0: {"fast": 3700, "slow": 50}}, both) == 40
    assert driver.epoch(3, {0: {"fast": 3800}}, both) == 40
    driver = _another(driver, tmp_path, operator(3000))
    assert driver.epoch(4, {0: {"fast": 3900}}, both) == 40
    for now, wanted in ((4.9, False), (5.0, True)):
        monkeypatch.setattr(
            "ferry.driver.epochs.time", SimpleNamespace(time=lambda now=now: now, monotonic=lambda now=now: now)
        )
        assert driver.epochs.wants_tick() is wanted
    assert driver.epoch(5, {}, both) == 3890, "it was heard at second 2"
    assert driver.epoch(6, {0: {"slow": 60}}, both) == 3890, "back again, it is judged by the watermark as it is"
    assert driver.epoch(7, {0: {"fast": 4000}}, both) == 3890
    assert driver.epoch(20, {}, both) == 3890, "all are idle"
    assert driver.epoch(21, {0: {"fast": 5000}}, both) == 4990
    assert driver.epoch(40, {}, {0: {"fast": False, "slow": True}}) == 4990, "what waits to be read is waited for"
    assert driver.epoch(41, {0: {"fast": 6000}}, both) == 4990


def test_flows_that_records_name_are_waited_for_though_nobody_lists_them(tmp_path: Path) -> None:
    counts = operator(3000)
    counts.inputs[0].flow = "partition"
    driver = _Driver(tmp_path, counts)
    assert driver.epoch(1, {0: {"0": 3600, "1": 50}}) == 40
    assert driver.epoch(2, {0: {"0": 3700}}) == 40
    assert driver.epoch(3, {}) == 40, "no task has said anything"
    assert driver.epoch(4, {0: {"0": 3800}}) == 3790, "the other is idle"
    assert driver.epoch(9, {}) == 3790 and driver.epoch(10, {0: {"1": 3900}}) == 3890, "all were"


def _another(driver: _Driver, folder: Path, *operators: Any) -> _Driver:
    """The driver after this one, which knows what was committed."""
    made = _Driver(folder, *operators)
    made.low, made.meta = driver.low, driver.meta
    return made


def test_an_input_without_any_record_becomes_idle_when_it_may(tmp_path: Path) -> None:
    for idle_ms, later in ((None, WATERMARK_NONE), (2000, 490)):
        driver = _Driver(tmp_path / str(idle_ms), operator(None, idle_ms))
        assert driver.epoch(1, {0: {"": 100}}) == WATERMARK_NONE
        assert driver.epoch(3, {0: {"": 500}}) == later


def test_what_an_operator_fires_is_idle_when_all_its_inputs_are(tmp_path: Path) -> None:
    second = operator(None, None, index=1)
    second.inputs[0].origin, second.inputs[0].delay_ms = 0, 0
    driver = _Driver(tmp_path, operator(2000), second)
    highs = []
    for number in (1, 2, 3):
        first = driver.epoch(number, {0: {"": 100}} if number == 1 else {})
        highs.append(driver.step(Step(number, 1), {1: {"": 1000 * number}}, None, first))
    assert highs == [90, 90, 2990] and driver.low == 90


def test_rows_that_an_operator_fires_may_come_late_as_records_may(tmp_path: Path) -> None:
    second = operator(None, origin=0, index=1)
    driver = _Driver(tmp_path, operator(None), second)
    assert driver.epoch(1, {0: {"": 100}}) == 90
    assert driver.step(Step(1, 1), {}, None, 90) == 80
    assert driver.step(Step(2, 1), {}, None, WATERMARK_NONE) == WATERMARK_NONE


def test_nobody_waits_for_the_event_times_of_an_initial_state(tmp_path: Path) -> None:
    first, second = operator(None, None), operator(None, origin=0, index=1)
    first.inputs[1].initial = True
    driver = _Driver(tmp_path, first, second)
    assert driver.epoch(1, {}) == WATERMARK_NONE, "it is no sign that records have come"
    assert driver.step(Step(1, 1), {}, None, WATERMARK_NONE) == WATERMARK_NONE
    assert driver.epoch(2, {0: {"": 100}}) == 90
    assert driver.step(Step(2, 1), {}, None, 90) == 80


def test_a_timer_of_the_clock_asks_for_an_epoch_once_instances_have_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = _Driver(tmp_path, operator())
    timers: list[int | None] = [None, 5_000, 5_000, 5_000, 5_000]
    driver.epochs.loop.move_metrics = SimpleNamespace(next_timer=lambda: timers.pop(0))
    found = []
    for now, ended in ((6.0, None), (4.9, None), (5.0, None), (5.5, 5.2), (7.0, 5.2)):
        monkeypatch.setattr(
            "ferry.driver.epochs.time", SimpleNamespace(time=lambda now=now: now, monotonic=lambda now=now: now)
        )
        driver.epochs._last_end = ended
        found.append(driver.epochs.timer_is_due())
    assert found == [False, False, True, False, True]


def test_an_epoch_is_under_way_from_its_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of the work has to know, or one that stands still would look like a quiet source."""
    epochs, told = _Driver(tmp_path, operator()).epochs, list[str]()

    def order(loop: Any) -> None:
        raise InterruptedError

    monkeypatch.setattr("ferry.driver.epochs.next_order", order)
    epochs.finished, epochs._loops, epochs._last_end, epochs._halting = False, None, None, threading.Event()
    epochs.hook = lambda epoch, what: None
    work = SimpleNamespace(begins=lambda: told.append("work"))
    more = {"stages": {}, "begins": lambda epoch: None, "move_metrics": SimpleNamespace(work=work)}
    epochs.loop = SimpleNamespace(post=lambda event: None, **more)
    with pytest.raises(InterruptedError):
        epochs.run(None, 7)
    assert told == ["work"] and not epochs.idle.is_set()


def test_too_many_flows_are_refused_with_the_name_of_the_operator(tmp_path: Path) -> None:
    driver = _Driver(tmp_path, operator())
    flows = {str(n): False for n in range(FLOWS_MAX + 1)}
    with pytest.raises(SpecRefused, match=r"operator 'counts': an input has 1001 flows, at most 1000"):
        driver.epoch(1, {}, {0: flows})
    with pytest.raises(SpecRefused, match=r"the name of flow 'n.*' has 101 characters"):
        driver.epoch(1, {}, {0: {"n" * 101: False}})


def test_an_ingest_that_fails_is_an_attempt_and_no_run() -> None:
    said: list[str] = []
    epochs: Any = object.__new__(Epochs)
    epochs._live = lambda programs: None
    epochs._patience = SimpleNamespace(failed=lambda what, at_once: said.append(what))
    epochs.loop = SimpleNamespace(post=lambda event: None)
    epochs._ingest_failed(StartIngest(Step(4, 0), 2, (), (), b""), "no task was there")
    assert said == ["ingest of epoch 4, attempt 2: no task was there"]


@pytest.mark.parametrize("way", ["receipt", "refusal", "instance", "earlier"])
def test_a_step_whose_rows_are_not_written_is_void_once_its_code_has_failed(tmp_path: Path, way: str) -> None:
    """Nothing is read any more, nothing waits, and an error that would stop the job does not."""
    driver, line, asked = (
        _Driver(tmp_path, operator(), operator(index=1)),
        "user code: ValueError: x (job.py:1)",
        list[int](),
    )
    (tmp_path / "offsets/1").write_text("v1\n{}\n{}")
    epochs, number = driver.epochs, 0

    def receipts(order: Any, batch: Any) -> list[Receipt]:
        asked.append(order.step.operator)
        if way == "refusal":
            raise Final("3 records kill it")
        return [Receipt(error=line)]

    epochs.plan.silent, epochs.plan.failed, epochs._receipts = frozenset([number]), "", receipts
    epochs._program = SimpleNamespace(number=2)
    epochs.hook = lambda epoch, stage: None
    epochs._watch = SimpleNamespace(on=lambda instances: nullcontext())
    epochs._not_slow = lambda order: nullcontext()
    epochs._code_in_tasks = lambda operator: ""
    meta = (
        EpochNotes(failed=(2, line)).dump() if way == "earlier" else EpochNotes(failed=(1, "of another program")).dump()
    )
    order = StartIngest(Step(1, 0), 7, (), (), meta, line if way == "instance" else "")
    epochs._ingest(order, cast(Any, None), cast(Any, None))
    (void,) = driver.posted
    assert (void.step, void.run, void.winners, void.is_void) == (Step(1, 0), 7, (), True)
    notes = EpochNotes.load(void.meta)
    words = "user code: 3 records kill it, a task of operator 'counts'" if way == "refusal" else line
    assert notes.failed == (2, words) and notes.spark is not None
    assert asked == ([] if way in ("instance", "earlier") else [0])
    epochs.plan.silent = frozenset()
    assert epochs._begun(Step(2, 0), notes).failed is None, "the half is gone"


def test_the_first_epoch_of_a_program_opens_its_sinks_also_in_a_driver_that_begins_with_it() -> None:
    """And its functions may fail twice: the driver that had switched to it has died in this epoch."""
    program: Any = SimpleNamespace(number=2, works={}, plan=SimpleNamespace(sources={}, operators=[]))
    followed, asked = SimpleNamespace(follow=lambda *parts: None), list[tuple[int, int]]()

    def version(number: int, epoch: int) -> Any:
        asked.append((number, epoch))
        return program

    for is_first_epoch in (False, True):
        epochs: Any = object.__new__(Epochs)
        epochs._live = lambda programs: None
        epochs.spark, epochs._program, epochs._is_open = None, program, not is_first_epoch
        epochs._versions, epochs._poison = SimpleNamespace(version=version), followed
        epochs.publisher = followed
        programs = (ProgramVersion(1, 0, ()), ProgramVersion(2, 7, ()))
        epochs.loop = SimpleNamespace(machine=SimpleNamespace(table=SimpleNamespace(programs=programs)))
        epochs._follow(7)
        epochs._follow(7)
        assert asked == [(2, 7)] * is_first_epoch and epochs._unsettled == is_first_epoch
