"""A function as a source: each answer is kept before an epoch has it, and is that epoch's for ever."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ferry
from ferry.connectors.poll import source as polling
from ferry.contract.errors import RowsGone, SpecRefused, Unreachable, UserCodeFailed
from ferry.spark.split_reader import SplitsReader

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("shop", pa.string())])
calls: list[Any] = []
answers: dict[Any, Any] = {}


def orders(state: Any) -> Any:
    """The answer for this state."""
    calls.append(state)
    answer = answers[state]
    if isinstance(answer, BaseException):
        raise answer
    return answer


@pytest.fixture(autouse=True)
def nothing_so_far() -> None:
    calls.clear()
    answers.clear()


def polled(folder: Path, **more: Any) -> Any:
    return ferry.poll(orders, SCHEMA, folder / "journal", **{"every": 0, "first": "a", **more})


def read(source: Any, start: Any, stop: Any) -> list[Any]:
    task = pickle.loads(pickle.dumps(source))
    splits = json.loads(json.dumps(source.plan(start, stop, 2)))
    return [row for split in splits for batch in task.read(split) for row in batch.to_pylist()]


def test_the_next_call_has_the_state_that_the_last_one_returned(tmp_path: Path) -> None:
    answers.update(a=([{"id": 1}], "b"), b=([], "c"), c=(pa.table({"id": [2], "shop": ["x"]}), None))
    answers[None] = pa.RecordBatch.from_pylist([], schema=SCHEMA), "d"
    source = polled(tmp_path)
    first = source.start()
    second = source.latest(first, 10)
    assert source.latest(second, 10) == second, "no rows: no epoch"
    third = source.latest(second, 10)
    assert source.latest(third, 10) == third and calls == ["a", "b", "c", None]
    assert read(source, first, second) == [{"id": 1, "shop": None}]
    assert read(source, second, third) == [{"id": 2, "shop": "x"}]
    assert next(source.read(source.plan(second, third, 1)[0], ["shop"])).schema.names == ["shop"]


def test_an_answer_that_was_kept_is_not_asked_for_again(tmp_path: Path) -> None:
    answers.update(a=([{"id": 1}], "b"), b=([{"id": 2}], "c"))
    source = polled(tmp_path)
    first = source.start()
    second = source.latest(first, 10)
    third = source.latest(second, 10)
    answers.update(a=([{"id": 7}], "z"), b=([{"id": 8}], "z"))
    again = polled(tmp_path, every="1h")  # a driver after this one
    assert again.latest(first, 10) == second and again.latest(second, 10) == third and calls == ["a", "b"]
    assert read(again, second, third) == [{"id": 2, "shop": None}]
    assert polled(tmp_path).latest(polled(tmp_path).start(), 10)["state"] == "z", "another job asks for itself"


def test_it_is_asked_no_more_often_than_it_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(polling.time, "monotonic", lambda: now[0])
    answers.update(a=([], "a"))
    source = polled(tmp_path, every="10 seconds")
    start = source.start()
    for now[0] in (50.0, 59.0, 60.0, 61.0, 70.5):
        source.latest(start, 10)
    assert len(calls) == 3


def test_a_finite_input_ends_with_the_first_answer_without_rows(tmp_path: Path) -> None:
    answers.update(a=([{"id": n} for n in range(5)], "b"), b=([], "b"))
    source = polled(tmp_path, finite=True)
    first = source.start()
    second = source.latest(first, 1)
    end = source.latest(second, 1)
    assert (source.ended(second), source.ended(end)) == (False, True) and source.latest(end, 1) == end
    assert [row["id"] for row in read(source, first, second)] == [0, 1, 2, 3, 4] and read(source, second, end) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([{"id": 1}], "TypeError: it returned list; return (rows, next state)"),
        (("rows", 1), "TypeError: it returned str for rows; give a list of dicts"),
        ((pa.table({"id": [1]}), 1), "it returned columns ['id']; its schema has ['id', 'shop']"),
        (([{"id": "x"}], 1), "Arrow"),
        (([{"id": None}], 1), "a null in column 'id'"),
        (([{"id": 1}], {1, 2}), "a state that is not a JSON value"),
        (([{"id": 1}], float("nan")), "a state that is not a JSON value"),
        (([{"id": 1.5}], 1), "ValueError: it returned 1.5 in column 'id', which is int64"),
        (([(1, "x")], 1), "TypeError: it returned tuple for a row; give dicts"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero (test_polling.py:"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error_of_the_function(answer: Any, words: str, tmp_path: Path) -> None:
    answers["a"] = answer
    source = polled(tmp_path)
    start = source.start()
    for _ in range(2):
        with pytest.raises(UserCodeFailed) as failed:
            source.latest(start, 10)
        assert words in str(failed.value) and "orders of ferry.poll" in str(failed.value), failed.value
    answers["a"] = [{"id": 1}], "b"
    assert source.latest(start, 10)["number"] == 1, "tried again at once"


def test_a_function_that_changes_the_state_that_it_got_passes_over_nothing(tmp_path: Path) -> None:
    fails = iter([True, False, True, False])

    def pages(state: Any) -> Any:
        state["page"] += 1
        if next(fails):
            raise ConnectionError("no shop")
        return [{"id": state["page"]}] if state["page"] > 1 else [], state

    source = ferry.poll(pages, SCHEMA, tmp_path / "journal", every=0, first={"page": 0})
    start = position = source.start()
    for _ in range(4):
        try:
            position = source.latest(position, 10)
        except Unreachable:
            assert start["state"] == {"page": 0}
    assert read(polled(tmp_path), start, position) == [{"id": 2, "shop": None}] and position["state"] == {"page": 2}


def test_of_two_drivers_the_answer_of_the_first_one_stays(tmp_path: Path) -> None:
    other = polled(tmp_path)
    answers["a"] = [{"id": 2}], "other"
    start = other.start()
    found = []

    def slow(state: Any) -> Any:
        found.append(other.latest(start, 10))  # the next driver, while this one stands still
        return [{"id": 1}, {"id": 1}], "mine"

    mine = ferry.poll(slow, SCHEMA, tmp_path / "journal", every=0, first="a")
    assert mine.latest(start, 10) == found[0] and read(other, start, found[0]) == [{"id": 2, "shop": None}]
    assert len(os.listdir(tmp_path / "journal")) == 1


def test_a_journal_that_was_removed_is_waited_for(tmp_path: Path) -> None:
    answers["a"] = [{"id": 1}], "b"
    source = polled(tmp_path)
    start = source.start()
    (tmp_path / "journal").rmdir()
    with pytest.raises(Unreachable, match=r"the journal .*/journal: FileNotFoundError"):
        source.latest(start, 10)
    (tmp_path / "journal").mkdir()
    assert source.latest(start, 10)["number"] == 1


def test_what_is_away_is_waited_for(tmp_path: Path) -> None:
    answers["a"] = ConnectionError("no shop")
    source = polled(tmp_path)
    start = source.start()
    with pytest.raises(Unreachable, match="ConnectionError: no shop"):
        source.latest(start, 10)
    (tmp_path / "file").touch()
    with pytest.raises(Unreachable, match=r"the journal .*file/journal: NotADirectoryError"):
        polled(tmp_path / "file").start()


def test_answers_are_kept_for_as_long_as_checkpoints_may_need_them(tmp_path: Path) -> None:
    answers.update(a=([{"id": 1}], "b"), b=([{"id": 2}], "c"), c=([{"id": 3}], "d"))
    source = polled(tmp_path, keep="1h")
    positions = [source.start()]
    for _ in range(2):
        positions.append(source.latest(positions[-1], 10))
    (old, _) = files = sorted((tmp_path / "journal").glob("*.arrow"))
    os.utime(old, (time.time() - 4000, time.time() - 4000))
    positions.append(source.latest(positions[-1], 10))
    assert sorted((tmp_path / "journal").glob("*.arrow"))[:1] == files[1:]
    with pytest.raises(RowsGone, match="keeps answers for 3600 s"):
        source.plan(*positions[:2], 2)
    with pytest.raises(RowsGone, match="answer 3 does not follow 1"):
        source.plan(positions[1], positions[3], 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"function": lambda: None}, r"is not a function of \(state\)"),
        ({"schema": ["id"]}, "give a pyarrow.schema"),
        ({"journal": None}, "poll: journal None; give its path"),
        ({"every": 10}, "poll: every: 10 has no unit"),
        ({"first": object()}, "is not a JSON value"),
    ],
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)  # fmt: skip
def test_what_cannot_be_polled_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match=words):
        ferry.poll(**{"function": orders, "schema": SCHEMA, "journal": tmp_path, **given})


def test_how_long_the_function_runs_is_known(tmp_path: Path) -> None:
    texts: list[str] = []

    @contextmanager
    def running(text: str) -> Iterator[None]:
        texts.append(text)
        yield

    answers["a"] = [{"id": 1}], "b"
    reader = SplitsReader({"s": polled(tmp_path)}, 90, 2, tmp_path, False, running=running)
    assert reader.latest_offset(reader.initial_offset())["positions"]["s"]["number"] == 1
    assert any(text.startswith("latest() of source 's'") for text in texts)
