"""Counters go on where the committed notes left them, and an epoch that is emitted again is counted once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract import messages as m
from ferry.contract.names import Attempt, InstanceId, Step, Term
from ferry.contract.notes import EpochCounts, EpochNotes
from ferry.contract.plans import Plan
from ferry.contract.routing import Group, Table, Version
from ferry.contract.status import Status
from ferry.coordinator.driver_metrics import DriverMetrics, EpochRecord
from ferry.coordinator.move_metrics import MoveMetrics
from ferry.coordinator.problems import TEXT_MAX
from ferry.coordinator.status import is_at_rest, is_settled, status_of
from ferry.coordinator.work_rates import WorkRates
from ferry.protocol.backoff import Backoff
from ferry.protocol.coordinator import Connected, Coordinator, CoordinatorSettings, Tick

NOTES = EpochNotes(rows=100, malformed=7, late=3, epoch=EpochCounts(40, 2, 1))
"""After an epoch of 40 rows, 2 malformed; 1 late record at its first operator, and 5 at its last."""


def test_a_new_driver_goes_on_from_a_finished_epoch(tmp_path: Path) -> None:
    metrics = DriverMetrics("job", str(tmp_path))
    metrics.resume(8, NOTES, 5, again=False)
    assert (metrics.epoch, metrics.rows, metrics.malformed, metrics.late) == (8, 100, 7, 8)
    assert metrics.began == 8


def test_an_epoch_that_is_emitted_again_is_counted_once(tmp_path: Path) -> None:
    metrics = DriverMetrics("job", str(tmp_path))
    metrics.resume(7, NOTES, 5, again=True)
    metrics.finish_epoch(EpochRecord(8, 1.0, 2.0, 40, 0, 6, 2), 2, 0)
    assert (metrics.epoch, metrics.rows, metrics.malformed, metrics.late) == (8, 100, 7, 8)
    assert metrics.began == 8, "it was committed by the driver before: it says nothing of this one's program"
    assert json.loads((tmp_path / "timeline.jsonl").read_text())["rows"] == 40


@pytest.mark.parametrize(
    ("in_sync", "settled", "at_rest"),
    [(("1.0", "0.0"), True, True), (("1.0", "0.0", "2.0"), True, False), (("0.0", "1.0"), False, False)],
    ids=["as desired", "a former member is still there", "another leads"],
)
def test_a_job_is_at_rest_when_former_members_are_gone(in_sync: tuple[str, ...], settled: bool, at_rest: bool) -> None:
    table = Table(Version(1, 1), (Group(Term(1, 0), tuple(InstanceId(i) for i in in_sync)),))
    desired = Plan(1, ((InstanceId("1.0"), InstanceId("0.0")),))
    machine: Any = SimpleNamespace(
        table=table, moves=SimpleNamespace(plan=desired), alive=dict.fromkeys(("0.0", "1.0", "2.0"), True)
    )
    assert (is_settled(machine), is_at_rest(machine)) == (settled, at_rest)


def test_a_problem_is_told_once_and_stays_in_the_status_with_its_latest_text_until_it_is_mended(tmp_path: Path) -> None:
    metrics = DriverMetrics("job", str(tmp_path))
    metrics.problems.report("SinkFailing", "try 1")
    (first,) = metrics.problems.current
    metrics.problems.report("SinkFailing", "try 2" + "x" * 5000)
    metrics.problems.report("IngestFailing", "rows are away")
    sink, ingest = metrics.problems.current
    assert (sink.reason, sink.since, ingest.reason) == ("SinkFailing", first.since, "IngestFailing")
    assert sink.text.startswith("try 2") and len(sink.text) <= TEXT_MAX
    metrics.problems.mended("SinkFailing")
    metrics.problems.mended("SinkFailing")
    assert metrics.problems.current == (ingest,)
    told = [json.loads(line)["kind"] for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert told == ["degraded", "degraded", "mended"]


def test_what_is_worked_around_is_in_the_status_with_its_reason(tmp_path: Path) -> None:
    a, b = InstanceId("0.0"), InstanceId("1.0")
    machine = Coordinator(
        CoordinatorSettings(retry_ms=5000), Table(Version(0, 0), (Group(Term(0, 0), (a,)),) * 3), None
    )
    machine.start()
    machine.step(Tick(1000))
    machine.step(m.Failed(a, "Exhausted: the disk is full"))
    machine.moves.refuse(b, (0, 2), "no data from 0.0 for 600 s")
    machine.reachability.apart[(a, b)] = Backoff(500, 9000, 8000)
    status = Status.from_wire(
        json.loads(json.dumps(status_of(DriverMetrics("job", str(tmp_path)), machine, MoveMetrics()).to_wire()))
    )
    assert {n.reason: n.text for n in status.notices} == {
        "InstanceFailed": "0.0: Exhausted: the disk is full",
        "InstancesApart": "0.0 and 1.0 cannot reach each other",
        "MovesGivenUp": "2 copies on 1.0: no data from 0.0 for 600 s",
    }
    assert status.moves.given_up == 2 and not status.problems
    assert {round(time.time() - n.since, 1) for n in status.notices} == {0.0, 0.5}
    machine.step(Tick(6000))
    status = status_of(DriverMetrics("job", str(tmp_path)), machine, MoveMetrics())
    assert status.moves.given_up == 0 and [n.reason for n in status.notices] == ["InstanceFailed", "InstancesApart"]
    metrics = DriverMetrics("job", str(tmp_path))
    metrics.problems.warn("JournalNotSafe", "Redis is set to appendonly no")
    assert status_of(metrics, machine, MoveMetrics()).notices[0].reason == "JournalNotSafe"


def test_a_status_is_not_copied_to_be_sent(tmp_path: Path) -> None:
    """Of thousands of virtual nodes that held up the epochs of the driver which is looked at."""
    table = Table(Version(0, 0), (Group(Term(0, 0), (InstanceId("0.0"),)),) * 3)
    status = status_of(
        DriverMetrics("job", str(tmp_path)), Coordinator(CoordinatorSettings(), table, None), MoveMetrics()
    )
    assert status.to_wire()["groups"] is status.groups and status.to_wire()["load"]["vnodes"] is status.load.vnodes


def test_what_waits_is_told_as_of_now(tmp_path: Path) -> None:
    """The last epoch may be long ago."""
    now, moves, metrics = [0.0], MoveMetrics(), DriverMetrics("job", str(tmp_path))
    moves.work = WorkRates(lambda: now[0])
    for now[0] in (1.0, 2.0):
        moves.work.epoch(1000, 1, 0.5, 5000)
    metrics.lags["clicks"] = 0
    now[0] = 60.0
    group = Group(Term(0, 0), (InstanceId("0.0"),))
    work = status_of(metrics, Coordinator(CoordinatorSettings(), Table(Version(0, 0), (group,)), None), moves).load.work
    assert work is not None and work.backlog == 0


def test_a_step_of_the_clock_on_the_wall_changes_no_rate_and_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = DriverMetrics("job", str(tmp_path))
    for epoch, wall in enumerate((10_000.0, 10_001.0, 50.0, 99_000.0)):
        record = EpochRecord(epoch, wall, wall, 100, 0, 0, 0)
        record.lasted(0.5, 7.0 + epoch)
        metrics.finish_epoch(record, 1, 0)
    assert metrics.rates() == (400 / 3.5, 0.5)
    metrics.problems.report("SinkFailing", "try 1")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    metrics.problems.mended("SinkFailing")
    last = json.loads((tmp_path / "timeline.jsonl").read_text().splitlines()[-1])
    assert last["text"] == "SinkFailing, after 0.0 s"


def test_the_users_code_is_a_problem_while_it_fails_and_when_it_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    a, b = InstanceId("0.0"), InstanceId("1.0")
    machine = Coordinator(CoordinatorSettings(), Table(Version(0, 0), (Group(Term(0, 0), (a,)),), initial=True), None)
    machine.start()
    for i in (a, b):
        machine.step(Connected(i))
    machine.step(Tick(100_000))
    machine.step(m.Pulse(a, 70_000, "operator 'w' in epoch 3", 70_000))
    machine.step(m.Pulse(b, 59_000, "operator 'w' in epoch 3", 59_000))
    metrics = DriverMetrics("job", str(tmp_path))

    def problems() -> list[tuple[str, str]]:
        metrics.problems.tell_slow_code(machine)
        return [(one.reason, one.text) for one in status_of(metrics, machine, MoveMetrics()).problems]

    assert problems() == [("SlowCode", "0.0: operator 'w' in epoch 3, for 70 s")]
    sooner = DriverMetrics("job", str(tmp_path), slow_ms=50_000)
    sooner.problems.tell_slow_code(machine)
    assert sooner.problems.current[0].text.count("operator 'w' in epoch 3, for") == 2, "spec.failure.slow"
    with metrics.problems.running("latest() of source 's' (job.py:3) has run for"):
        now[0] += 61
        assert (
            problems()[0][1]
            == "latest() of source 's' (job.py:3) has run for 61 s; 0.0: operator 'w' in epoch 3, for 70 s"
        )
    assert len(problems()) == 1
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert [one["kind"] for one in lines] == ["degraded", "degraded"], "the terminal hears of it once"
    machine.attempts.code.failed(m.CodeFailed(b, Step(3, 0), Attempt(1, 1), "user code: KeyError"), True)
    machine.step(m.Pulse(a, 0))
    assert problems() == [("UserCode", "user code: KeyError")]
    machine.attempts.code.over()
    assert not problems()
