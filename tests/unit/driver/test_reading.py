"""What a run of an ingest gives back where tasks die: the receipts that there are, and the shares that have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

import ferry
from ferry.api.pipeline import Operator
from ferry.api.user_batches import code_of
from ferry.contract.errors import Final
from ferry.contract.ingest_runs import Shares
from ferry.contract.notes import Receipt
from ferry.driver import reading
from ferry.driver.reading import Reading
from ferry.spark.compile import CompiledPipeline
from ferry.spark.cuts import cut
from ferry.spark.feeds import works_of
from ferry.spark.shares import Batch
from ferry.spark.tasks.ingest import NO_SIDE, Feed
from tests.unit.streams import sources

DIED = RuntimeError("Job aborted: Task 0 failed 8 times: Python worker exited unexpectedly (crashed)")
SHARES: list[Shares] = [[("bids", "1"), ("", "tick")], [("bids", "2")]]


class Jobs:
    """In place of jobs of Spark: what is asked for, and what comes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any, in_spark: bool = False) -> None:
        self.answers, self.asked = list(answers), list[tuple[Any, Any, Any]]()
        monkeypatch.setattr(reading, "run_ingest", self.run)
        monkeypatch.setattr(reading, "through_spark", lambda *of: in_spark)
        bids = sources()["bids"].map_batches(lambda batch: batch).event_time("ts").key_by("bidder")
        self.operator: Operator
        (self.operator,) = bids.window(ferry.tumbling("1s")).aggregate("w", n=ferry.count()).build.operators
        plan = CompiledPipeline({"bids": cast(Any, Mine())}, (self.operator,), ())
        self.plan = plan
        work = works_of(CompiledPipeline({}, (self.operator,), ()), None, None)[0]
        nobody: Any = None
        self.reading = Reading(nobody, plan, self.operator, work, nobody, {}, None, {})

    def run(self, spark: Any, batch: Any, operator: Any, plan: Any, work: Any, run: Any, rows: Any, *more: Any) -> Any:
        self.asked.append((batch.shares(), rows, more[-1]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [receipt.dump() for receipt in answer]


class Mine:
    """A source of a user's."""

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    start = latest = ended = plan = read = schema


BATCH = Batch(cast(Any, None), SHARES)


def test_a_share_whose_task_died_too_often_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch, [Receipt(3, rows=5), Receipt(died=True)])
    receipts, died = jobs.reading.all(BATCH)
    assert [r.rows for r in receipts] == [5] and died == [SHARES[1]]
    assert jobs.asked == [(SHARES, {}, 3)]


def test_where_records_pass_through_spark_all_shares_are_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one it was does Spark not say: its own tries fail, and with them the job."""
    jobs = Jobs(monkeypatch, DIED, in_spark=True)
    assert jobs.reading.all(BATCH) == ([], SHARES) and jobs.asked[0][2] is None
    jobs = Jobs(monkeypatch, ValueError("another"), in_spark=True)
    with pytest.raises(ValueError, match="another"):
        jobs.reading.all(BATCH)


def test_one_share_is_read_by_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    part = ("bids", cut("2", 3, 4))
    jobs = Jobs(monkeypatch, [Receipt(died=True)], [Receipt(4, rows=1)], [Receipt(5)])
    assert jobs.reading.one([part]) is None
    assert [r.rows for r in jobs.reading.one([part]) or ()] == [1]
    jobs.reading.one([("@0", '{"flight": "x"}')])
    assert jobs.asked == [([[part]], {}, 1), ([[part]], {}, 1), ([], {0: [{"flight": "x"}]}, 1)]


def test_a_source_of_sparks_own_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch, DIED, in_spark=True)
    monkeypatch.setattr(reading, "DataFrame", Mine)
    with pytest.raises(Final, match=r"tasks of operator 'w' die repeatedly; .* source 'bids' is Spark's own"):
        jobs.reading.all(BATCH)
    jobs = Jobs(monkeypatch, DIED, in_spark=True)
    behind = replace(jobs.operator, descriptor=replace(jobs.operator.descriptor, index=1))
    fired = replace(jobs.reading, operator=behind, work=replace(jobs.reading.work, feeds={"@0": ()}), rows={0: [{}]})
    assert fired.all(BATCH) == ([], [[("@0", "{}")]]), "rows of an operator can be, wherever they came from"


def test_the_users_code_of_an_operator_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(monkeypatch)
    text = code_of(jobs.operator.inputs, jobs.plan.sources)
    assert "source 'bids' (test_reading.py:" in text and "<lambda> (test_reading.py:" in text


@pytest.mark.parametrize("read", [True, False])
def test_a_record_that_kills_is_set_aside_once(monkeypatch: pytest.MonkeyPatch, read: bool) -> None:
    """Also where records pass through Spark's SQL, and tasks that only count them read them as well."""
    jobs, given = Jobs(monkeypatch, in_spark=True), list[Shares]()
    feed = Feed(NO_SIDE, (), (), None, cast(Any, Mine()) if read else None, None)
    monkeypatch.setattr(reading, "run_shares", lambda spark, shares, work, run: given.extend(shares) or [])
    one = replace(jobs.reading, work=replace(jobs.reading.work, feeds={"bids": (feed,)}))
    assert one.left_out([("bids", '{"numbers": [1]}', 0)]) == []
    assert [share for share in given if share] == ([] if read else [[("bids", cut('{"numbers": [1]}', 0, 1, [0]))]])
