"""Which helper a task tries first, and where malformed records go."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import ferry
from ferry.connectors.splits import Flow, Malformed
from ferry.contract.descriptors import Aggregate, OperatorDescriptor, Side, Window
from ferry.contract.errors import DataRefused, Fault, Final, Unreachable
from ferry.contract.ingest_runs import Assignment, IngestRun
from ferry.contract.latency import bucket_of
from ferry.contract.limits import WATERMARK_NONE
from ferry.contract.names import Step
from ferry.contract.notes import Receipt
from ferry.contract.places import Registration
from ferry.contract.tickets import Right, derived, stage_right
from ferry.driver.failures import refuse_final
from ferry.spark import cuts
from ferry.spark.cuts import aside_alone, left_out
from ferry.spark.tasks import ingest
from ferry.spark.tasks.flight import Connections
from ferry.spark.tasks.fragment import Fragmenter
from ferry.spark.tasks.ingest import DEAD_LETTERS_MAX, Feed, IngestTask, IngestWork, by_flow, ingest_shares
from ferry.spark.tasks.sender import in_turn

HELPERS = tuple(Registration(i, "life", i, 1, f"grpc+tcp://{i}", 1) for i in ("0.0", "1.0", "1.1", "12.0"))

RIGHT = stage_right(Right.root("a-secret-of-the-run"), Step(5, 0), 2, 3, 0.0)
RUN = IngestRun(Step(5, 0), 2, 3, HELPERS, RIGHT, WATERMARK_NONE, 1_800_000_000_000)


def tried(turn: int, worker: int | None) -> list[str]:
    return [helper.instance for helper in in_turn(HELPERS, turn, worker)]


def test_helpers_take_turns_where_tasks_are_beside_all_of_them() -> None:
    assert [tried(turn, None)[0] for turn in range(5)] == ["0.0", "1.0", "1.1", "12.0", "0.0"]
    assert sorted(tried(3, None)) == ["0.0", "1.0", "1.1", "12.0"]


def test_those_of_the_own_worker_come_first_and_take_turns() -> None:
    assert [tried(turn, 1)[:2] for turn in (0, 1)] == [["1.0", "1.1"], ["1.1", "1.0"]]
    assert sorted(tried(0, 1)[2:]) == ["0.0", "12.0"]


def test_a_worker_without_helpers_uses_any() -> None:
    assert [tried(turn, 2)[0] for turn in range(4)] == ["0.0", "1.0", "1.1", "12.0"]
    assert in_turn((), 0, 2) == []


def task(dead_letter: str | None) -> IngestTask:
    descriptor = OperatorDescriptor(
        "counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),)
    )
    return IngestTask(IngestWork(descriptor, {}, None, dead_letter), RUN, 77, 0, Connections(None))


def test_a_loop_is_told_all_that_a_task_of_a_job_would_be() -> None:
    assignment = Assignment(RUN, 8, 1, [("bids", '{"from": 1}'), ("", "tick")])
    assert Assignment.load(assignment.dump()) == assignment


def test_what_goes_through_spark_holds_neither_the_secret_nor_the_key_of_tickets() -> None:
    descriptor = OperatorDescriptor(
        "counts", 0, "aggregate", (("k", "int"),), Window(10, 10), (Aggregate("n", "count"),)
    )
    data = cloudpickle.dumps(ingest_shares(IngestWork(descriptor, {}, None, None), RUN))
    assert RIGHT.seal in data, "the right of this run goes along"
    for secret in ("a-secret-of-the-run", derived("a-secret-of-the-run", "tickets")):
        assert secret.encode() not in data
    assert bytes.fromhex(derived("a-secret-of-the-run", "tickets")) not in data


@pytest.mark.parametrize(("ahead_ms", "taken"), [(86_400_000, 1), (None, 2)], ids=["a day", "any"])
def test_a_task_judges_event_times_by_its_clock(
    ahead_ms: int | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_700_000_000_000
    monkeypatch.setattr(ingest.clock, "time", lambda: now / 1000)
    made = task(None)
    made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, SimpleNamespace(send=lambda batches: None)  # type: ignore[assignment]
    records = pa.record_batch({"k": [1, 2], "t": [now + 86_400_000, now * 1000]})
    made._contribute("bids", Feed(0, (), ("k",), "t", None, None, ahead_ms), records)
    assert (sum(b.num_rows for b in made.fragmenters[0].drain()), made.malformed) == (taken, 2 - taken)


def test_a_dead_letter_holds_what_python_has_no_word_for_and_its_own_reason() -> None:
    made = task(None)
    made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, SimpleNamespace(send=lambda batches: None)  # type: ignore[assignment]
    columns = {
        "k": pa.array([1, 2, 3]),
        "t": pa.array([None, 1_710_037_801_000_000_000, 5], pa.timestamp("s")),
        "until": pa.array([253_402_300_799_000_000] * 3, pa.timestamp("us", "Europe/Berlin")),
        "born": pa.array([3_700_000] * 3, pa.date32()),
        "price": pa.array([float("nan")] * 3),
        "raw": pa.array([{"x": b"\xff"}] * 3),
    }
    made._contribute("bids", Feed(0, (), ("k",), "t", None, None), pa.record_batch(columns))
    null, beyond = map(json.loads, made.dead_letters)
    assert null["reason"] == "bids: event time 't' is null" and "out of bounds" in beyond["reason"]
    rest = '"until":"9999-12-31T23:59:59+00:00","born":"+12100-04-04","price":"NaN","raw":{"x":"/w=="}}'
    assert null["record"] == '{"k":1,"t":null,' + rest
    assert beyond["record"] == '{"k":2,"t":"+54188942682-08-26T17:46:40",' + rest


def test_malformed_records_go_to_the_directory_that_is_shared(tmp_path: Path) -> None:
    made = task(str(tmp_path / "letters"))
    made._set_aside(2, ["{", "}"], "no JSON")
    assert (made.malformed, made.dead_letters) == (2, [])
    lines = (tmp_path / "letters" / ".epoch=5" / "5-0-2-3-77.jsonl").read_text().splitlines()
    assert [json.loads(line)["record"] for line in lines] == ["{", "}"]


def test_a_directory_that_takes_no_malformed_records_is_named(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("")
    with pytest.raises(
        Unreachable, match=r"records cannot be set aside in .*/letters: Not a directory; mend that folder"
    ):
        task(str(tmp_path / "letters"))._set_aside(1, ["{"], "no JSON")


def test_without_one_some_go_with_the_receipt_and_all_are_counted() -> None:
    made = task(None)
    for _ in range(3):
        made._set_aside(60, [str(n) for n in range(60)], "no JSON")
    assert made.malformed == 180 and len(made.dead_letters) == DEAD_LETTERS_MAX
    assert json.loads(made.dead_letters[61]) == {"reason": "no JSON", "record": "1"}


class _Sent:
    """What a task sends, kept."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def send(self, batches: list[pa.RecordBatch]) -> None:
        self.batches += batches


JOIN = OperatorDescriptor(
    "pairs", 0, "join", (("k", "string"),), Window(10, 10), (), Side((("a", "a", "string"),)), Side(())
)


def sent(records: pa.RecordBatch, *maps: Any) -> list[pa.RecordBatch]:
    made = task(None)
    made.rows, made.fragmenters, made.sender = 0, {0: Fragmenter(JOIN)}, _Sent()  # type: ignore[assignment]
    made._add("s", Feed(0, maps, ("k",), "t", None, None), records)
    made.sender.send(made.fragmenters[0].drain())
    return made.sender.batches  # type: ignore[attr-defined,no-any-return]


def test_what_is_sent_at_once_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "PIECE_BYTES", 5000)
    texts = [f"{i}" * 100 for i in range(100)]
    batches = sent(pa.record_batch({"k": texts, "t": list(range(100)), "a": texts}))
    assert [t for b in batches for t in b["l_a"].to_pylist()] == texts
    assert len(batches) > 5 and max(b.nbytes for b in batches) < 10_000
    (large,) = sent(pa.record_batch({"k": ["x"], "t": [1], "a": ["y" * 9000]}))
    assert large.num_rows == 1


def test_every_batch_of_a_table_that_a_function_returns_is_taken() -> None:
    one = pa.record_batch({"k": ["x", "y"], "t": [1, 2], "a": ["1", "2"]})
    batches = sent(one, lambda batch: pa.Table.from_batches([batch, batch]), lambda batch: batch)
    assert [t for b in batches for t in b["l_a"].to_pylist()] == ["1", "2", "1", "2"]
    assert sent(one, lambda batch: pa.Table.from_batches([], schema=batch.schema), lambda batch: batch) == []


def test_ages_of_all_records_are_counted_where_the_source_is_read_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made = task(None)
    made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    created = [RUN.planned - age for age in (0, 5, 5, 5, 70_000)]
    records = pa.record_batch({"k": [1, 2, 3, 4, None], "t": [1, 2, 3, 4, 5], "created": created})
    first = Feed(0, (lambda batch: batch.slice(0, 2),), ("k",), "t", None, None, created="created")
    made._add("s", first, records)
    made._add("s", replace(first, counted=False), records)
    made._add("s", replace(first, side=ingest.NO_SIDE), records)
    found = {int(bucket): int(made._ages[bucket]) for bucket in made._ages.nonzero()[0]}
    assert found == {0: 2, bucket_of(0.005): 6, bucket_of(70.0): 2} and made.rows == 10
    monkeypatch.setattr(made, "sender", SimpleNamespace(send=lambda batches: None, finish=lambda: None, helper="0.0"))
    assert Receipt.load(made.run([])).ages == found


class _Lines:
    """Two records, and a line that is none."""

    def read(self, split: Any, columns: Any) -> Any:
        yield Malformed(1, ["{"], "1.json: no JSON")
        yield pa.record_batch({"k": [1, 2], "t": pa.array([None, 5], pa.int64())})


def test_each_reader_of_a_source_is_given_all_records_and_the_first_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ingest.reading, "is_ferrys", lambda source: True)

    def read(feed: Feed) -> list[int]:
        made = task(None)
        made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
        made.work = replace(made.work, feeds={"lines": (feed,)})
        made.read([("lines", "{}")])
        assert made.first_malformed == "1.json: no JSON"
        return [made.rows, made.malformed, made.given, made.bad]

    first = Feed(0, (), ("k",), "t", cast(Any, _Lines()), None)
    assert read(first) == [2, 2, 3, 2]
    assert read(replace(first, counted=False)) == [0, 1, 3, 2], "a null time is malformed to each"
    assert read(replace(first, side=ingest.NO_SIDE)) == [2, 1, 3, 1]


def test_a_dead_letter_of_an_event_time_has_the_place_of_its_file(tmp_path: Path) -> None:
    made = task(None)
    made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    for name in "ab":
        (tmp_path / name).write_text('{"n":9,"k":1}\n{"k":1,"t":5}\n')
    source = ferry.json_files(tmp_path, pa.schema([("n", pa.int64()), ("k", pa.int64()), ("t", pa.int64())]))
    made.work = replace(made.work, feeds={"odd": (Feed(0, (), ("k",), "t", source, ("k", "t")),)})
    (split,) = source.plan(source.start(), source.latest(source.start(), 10), 1)
    made.read([("odd", json.dumps(split)), ("odd", cuts.cut(json.dumps({"pieces": split["pieces"][:1]}), 0, 1))])
    assert [json.loads(one) for one in made.dead_letters] == [
        {"reason": f"odd: {name}, bytes 0 to 27: event time 't' is null", "record": '{"k":1,"t":null}'}
        for name in "aba"
    ]
    assert made.rows == 5


def test_what_a_dead_letter_shows_as_text_is_there_as_bytes_if_it_is_none() -> None:
    made = task(None)
    records = ["é", b'{"a":"\xff"}'.decode("utf-8", "surrogateescape"), "\ud800"]
    made._set_aside(3, records, "not UTF-8")
    plain, raw, odd = map(json.loads, made.dead_letters)
    assert plain == {"reason": "not UTF-8", "record": "é"} and odd["record"] == "\ud800"
    assert raw["record"] == '{"a":"\ufffd"}' and base64.b64decode(raw["base64"]) == b'{"a":"\xff"}'


class _Shops:
    """Two flows in one split, and records before the first one is named."""

    has_flows = True

    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("t", pa.int64())])

    def read(self, split: Any, columns: Any) -> Any:
        for flow, times in (("", [3]), ("north", [50, 70]), ("south", [20]), ("north", [60])):
            if flow:
                yield Flow(flow)
            yield pa.record_batch({"k": [1] * len(times), "t": times})
            yield pa.record_batch({"k": [1], "t": [2**62]})


def test_a_receipt_has_the_greatest_event_time_of_each_flow() -> None:
    made = task(None)
    made.fragmenters, made.sender = {1: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    shops = Feed(1, (), ("k",), "t", cast(Any, _Shops()), None, number=1)
    made.work = replace(made.work, feeds={"sales": (shops,)})
    made.read([("", 'flows ["sales", {"north": true, "south": false}]'), ("", 'flows ["others", {"x": true}]')])
    made.read([("sales", "{}")])
    assert made.flows == {1: {"north": True, "south": False}} and not made.flush
    assert made.maxima == {1: {"": 3, "north": 70, "south": 20}} and made.malformed == 4


def test_what_nobody_can_read_is_a_dead_letter_with_its_place() -> None:
    made = task(None)
    made.fragmenters, made.sender = {1: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    made.work = replace(made.work, feeds={"sales": (Feed(1, (), ("k",), "t", cast(Any, _Shops()), None),)})
    made.read([("sales", left_out('{"pieces": [["f", 3, 4]]}', [-2])), ("sales", aside_alone("{}", -1))])
    letters = [json.loads(one)["record"] for one in made.dead_letters]
    assert letters == ['{"pieces": [["f", 3, 4]]}', "{}"], "not the records that it has read before"
    assert (made.rows, made.unread, made.malformed) == (1, 2, 2)


def test_records_from_which_states_begin_have_no_event_times_also_where_others_have() -> None:
    made = task(None)
    made.fragmenters, made.sender = {1: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    records = pa.record_batch({"k": [1, 2], "window_end": ["never", "soon"]})
    made._contribute("old", Feed(1, (), ("k",), None, None, None, initial=True), records)
    assert sum(b.num_rows for b in made.fragmenters[1].drain()) == 2 and not made.maxima


@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_a_column_may_say_of_which_flow_a_record_is(kind: pa.DataType) -> None:
    made = task(None)
    made.fragmenters, made.sender = {0: Fragmenter(made.work.descriptor)}, _Sent()  # type: ignore[assignment]
    feed = Feed(0, (), ("k",), "t", None, None, flow="partition", number=2)
    for partitions, times in (([7, 8, None, 7], [50, 20, 5, 60]), ([8, 8], [30, 2**62]), ([], [])):
        of = pa.array([None if n is None else n if kind == pa.int32() else str(n) for n in partitions], kind)
        columns = [pa.array([1] * len(times), pa.int64()), pa.array(times, pa.int64()), of]
        made._add("s", feed, pa.record_batch(columns, ["k", "t", "partition"]))
    assert made.maxima == {2: {"7": 60, "8": 30, "None": 5}} and (made.rows, made.malformed) == (6, 1)
    drained = made.fragmenters[0].drain()
    assert sum(sum(b["n"].to_pylist()) for b in drained) == 5
    assert by_flow(pa.record_batch({"p": ["", "a"]}), "p")[0][0] == "''", "a name of its own"


@pytest.mark.parametrize(("kind", "name"), [
    (pa.date32(), "+5881580-07-11"), (pa.timestamp("ms", "Etc/GMT+12"), "1970-01-25T20:31:23.647+00:00"),
    (pa.timestamp("ns"), "1970-01-01T00:00:02.147483647"),
])  # fmt: skip
def test_flows_are_named_by_times_of_all_years(kind: pa.DataType, name: str) -> None:
    days = pa.array([2**31 - 1, None], pa.int32()).cast(pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    assert [named for named, _ in by_flow(pa.record_batch({"p": days}), "p")] == [name, "None"]


def test_input_that_cannot_be_read_is_the_receipts_error_and_not_the_tasks() -> None:
    class Broken:
        def schema(self) -> pa.Schema:
            return pa.schema([("k", pa.string())])

        def read(self, split: Any, columns: Any) -> Any:
            raise Fault("in/f.parquet cannot be read: OSError: Corrupt snappy compressed data")

    one = task(None)
    one.work.feeds["clicks"] = (Feed(0, (), ("k",), None, cast(Any, Broken()), None),)  # type: ignore[index]
    receipt = Receipt.load(one.run([[("clicks", "{}")]]))
    assert receipt.error == "Fault: in/f.parquet cannot be read: OSError: Corrupt snappy compressed data"


class NoRoom(Final):
    """A user's own."""


@pytest.mark.parametrize(("refusal", "raised"), [(NoRoom("no room"), Final), (DataRefused("no room"), DataRefused)])
def test_what_no_other_attempt_would_mend_is_the_receipts_error_and_no_death(
    refusal: Exception, raised: type[Exception]
) -> None:
    class Full:
        def schema(self) -> pa.Schema:
            return pa.schema([("k", pa.string())])

        def read(self, split: Any, columns: Any) -> Any:
            raise refusal

    one = task(None)
    one.work.feeds["clicks"] = (Feed(0, (), ("k",), None, cast(Any, Full()), None),)  # type: ignore[index]
    receipt = Receipt.load(one.run([[("clicks", "{}")]]))
    with pytest.raises(raised, match=r"^no room$"):
        refuse_final(receipt.error or "")
