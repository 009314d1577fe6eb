"""The user's code that fails is named at once, tried again a few times, and ends the job."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.errors import UserCodeFailed
from ferry.contract.names import Attempt, CommitId, Step
from ferry.contract.notes import EpochNotes, Receipt
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import patience
from ferry.driver.__main__ import code_of
from ferry.driver.checkpoint import Checkpoint
from ferry.driver.epochs import Epochs
from ferry.driver.patience import TRY_AGAIN_SECONDS, UserCodeTries
from ferry.driver.query import OwnQuery
from ferry.protocol.coordinator import FiredRows
from tests.unit.driver.test_publisher import publisher

LINE = "user code: KeyError: 'n' (job.py:3 in f), f in map_batches on source 's'"


class Clock:
    """Time that only waiting moves."""

    now = 0.0

    def sleep(self, loop: Any, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(patience, "sleep", made.sleep)
    return made


def tries(folder: Path) -> tuple[UserCodeTries, DriverMetrics]:
    metrics, loop = DriverMetrics("job", str(folder)), SimpleNamespace(ending=None, halt=None)
    return UserCodeTries(loop, metrics), metrics  # type: ignore[arg-type]


def test_it_is_named_at_once_and_the_job_stops_within_a_quarter_of_a_minute(tmp_path: Path, clock: Clock) -> None:
    made, metrics = tries(tmp_path)
    for _ in TRY_AGAIN_SECONDS:
        made.failed(UserCodeFailed(LINE))
        assert [(p.reason, p.text) for p in metrics.problems.current] == [("UserCode", LINE)]
    with pytest.raises(UserCodeFailed, match="KeyError"):
        made.failed(UserCodeFailed(LINE))
    assert clock.now == 12 and code_of(UserCodeFailed(LINE)) == 3, "no other driver is started for it"


def test_one_that_works_again_has_all_its_tries_again(tmp_path: Path, clock: Clock) -> None:
    made, metrics = tries(tmp_path)
    for _ in range(5):
        made.failed(UserCodeFailed(LINE))
        made.succeeded()
        assert not metrics.problems.current


def test_a_receipt_with_an_error_of_the_users_is_no_failure_of_instances(tmp_path: Path, clock: Clock) -> None:
    epochs: Any = object.__new__(Epochs)
    epochs._tries, metrics = tries(tmp_path)
    epochs._versions = SimpleNamespace(leaves=lambda why, again: False)
    posted: list[Any] = []
    deploying = SimpleNamespace(may_take_back=lambda number: False)
    epochs.loop = SimpleNamespace(post=posted.append, machine=SimpleNamespace(deploying=deploying))
    epochs._program = SimpleNamespace(number=2)
    epochs._unsettled = True  # The program behind it was taken back: that is no first epoch.
    order: Any = SimpleNamespace(step=Step(3, 0), run=1)
    for _ in TRY_AGAIN_SECONDS:
        epochs._ingest_failed(order, LINE)
    with pytest.raises(UserCodeFailed, match="KeyError"):
        epochs._ingest_failed(order, LINE)
    assert [p.reason for p in metrics.problems.current] == ["UserCode"] and len(posted) == len(TRY_AGAIN_SECONDS)


def test_a_users_sink_stops_the_job_and_one_that_is_away_does_not(tmp_path: Path, clock: Clock) -> None:
    made, metrics = publisher(tmp_path, None)
    rows = FiredRows(CommitId(Step(5, 0), Attempt(1, 1)), 1, 0, 10, (), 7, 0)
    errors: list[Exception] = [ConnectionError("down"), UserCodeFailed(LINE), ConnectionError("down")]
    reasons: list[str] = []

    def write(*args: Any) -> None:
        reasons.append(",".join(sorted(problem.reason for problem in metrics.problems.current)))
        if errors:
            raise errors.pop(0)

    made._write = write  # type: ignore[method-assign]
    assert made._publish_rows(rows, 5) == 7 and not metrics.problems.current
    assert reasons == ["", "SinkFailing", "SinkFailing,UserCode", "SinkFailing,UserCode"]
    errors += [UserCodeFailed(LINE)] * 9
    with pytest.raises(UserCodeFailed, match="KeyError"):
        made._publish_rows(rows, 6)
    assert len(errors) == 9 - len(TRY_AGAIN_SECONDS) - 1


@pytest.mark.parametrize("what", ["initial_offset", "latest_offset", "shares", "lags"])
def test_a_source_that_raises_in_the_driver_ends_the_job_after_its_tries(
    what: str, tmp_path: Path, clock: Clock
) -> None:
    asked: list[str] = []

    class Reader:
        def __getattr__(self, name: str) -> Any:
            def answer(*args: Any) -> Any:
                if name == what:
                    asked.append(name)
                    raise UserCodeFailed(LINE)
                return {"initial_offset": {"a": 0}, "latest_offset": {"a": 1}}.get(name, {})

            return answer

    made, metrics = tries(tmp_path)
    query: Any = OwnQuery(None, Reader(), Checkpoint(tmp_path / "c"), 0.0, print, tries=made)  # type: ignore[arg-type]
    query.start()._thread.join(20)
    assert str(query.exception()) == LINE and len(asked) == len(TRY_AGAIN_SECONDS) + 1
    assert [problem.text for problem in metrics.problems.current] == [LINE]


def test_a_position_that_is_no_json_is_refused(tmp_path: Path) -> None:
    class Reader:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: {"initial_offset": {"a": 0}, "latest_offset": {"a": {1, 2}}}.get(name, {})

    query: Any = OwnQuery(None, Reader(), Checkpoint(tmp_path / "c"), 0.0, print)  # type: ignore[arg-type]
    query.start()._thread.join(20)
    assert "returned a position that is no JSON value: Object of type set" in str(query.exception())


def _judging(tmp_path: Path, operators: int) -> Any:
    epochs: Any = object.__new__(Epochs)
    epochs.metrics, epochs.publisher = DriverMetrics("job", str(tmp_path)), SimpleNamespace(dead_letters="/letters")
    epochs.plan = SimpleNamespace(operators=[None] * operators)
    return epochs


def test_malformed_records_are_reported_with_the_first_reason_and_when_they_are_most(tmp_path: Path) -> None:
    epochs = _judging(tmp_path, 1)

    def judge(epoch: int, malformed: int, *receipts: Receipt) -> None:
        notes = EpochNotes(malformed=malformed)
        epochs._judge_input(Step(epoch, 0), notes, notes.add(0, receipts, ()), receipts)

    bad = {"malformed": 2, "unread": 2, "bad": 2, "first_malformed": "1.json, line at byte 3: no object"}
    few = [Receipt(rows=90, given=90), Receipt(rows=8, given=10, **bad)]  # type: ignore[arg-type]
    most = Receipt(rows=4, malformed=6, unread=6, given=10, bad=6, first_malformed="2.json, line at byte 0: no object")
    refused = Receipt(rows=10, malformed=6, given=10, bad=6, first_malformed="null key")
    judge(1, 0, *few)
    judge(2, 2, *few)
    lines = [json.loads(line) for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert [(one["kind"], one["text"]) for one in lines] == [
        ("malformed", "the first malformed record: 1.json, line at byte 3: no object; see /letters")
    ]
    for epoch, receipt in ((3, most), (6, refused)):
        judge(epoch, 2, receipt)
        (problem,) = epochs.metrics.problems.current
        assert problem.reason == "Malformed" and "6 of 10 records" in problem.text
        judge(epoch + 1, 8)
        assert epochs.metrics.problems.current, "an epoch without records says nothing"
        judge(epoch + 2, 8, *few)
        assert not epochs.metrics.problems.current


def test_malformed_records_are_a_share_of_what_their_own_operator_was_given(tmp_path: Path) -> None:
    epochs = _judging(tmp_path, 2)

    def epoch(number: int, *steps: Receipt) -> list[str]:
        notes = EpochNotes()
        for operator, receipt in enumerate(steps):
            before, notes = notes, notes.add(operator, [receipt], ())
            epochs._judge_input(Step(number, operator), before, notes, [receipt])
        return [problem.text.partition(" are")[0] for problem in epochs.metrics.problems.current]

    first, few = Receipt(rows=1019, given=1019), Receipt(malformed=2, given=1019, bad=2, first_malformed="no time")
    assert not epoch(1, first, few), "the operator before it has counted the records"
    most = Receipt(malformed=900, given=1019, bad=900, first_malformed="no time")
    for number in (2, 3):
        assert epoch(number, first, most) == ["900 of 1019 records of an epoch"]
    assert epoch(4, Receipt(), Receipt()), "an epoch without records says nothing"
    assert not epoch(5, first, Receipt()), "also where the last operator reads none"
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "timeline.jsonl").read_text().splitlines()]
    assert kinds == ["malformed", "degraded", "mended"], "the first operator of an epoch does not end it"
