"""How sources share the rows of an epoch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ferry
from ferry.connectors.splits import WHOLE
from ferry.contract.errors import Fault, Unreachable, UserCodeFailed
from ferry.spark import source as spark_source
from ferry.spark.control_rows import FLOWS, TICK
from ferry.spark.source import PROBLEM, WaitingReader
from ferry.spark.split_reader import SplitsReader
from ferry_workloads.nexmark import NexmarkGenerator, NexmarkSplits


@dataclass
class Waiting:
    """A source with so many rows; a position is a number of them."""

    rows: int
    finite: bool = False

    def start(self) -> int:
        return 0

    def latest(self, start: int, max_rows: int) -> int:
        return min(start + max_rows, self.rows)

    def ended(self, position: int) -> bool:
        return self.finite and position == self.rows

    def plan(self, start: int, end: int, tasks: int) -> list[dict[str, int]]:
        return [{"from": start, "to": end}]


class Answers(Waiting):
    """Of a user's; `wrong` is what a method gives, or raises."""

    has_flows = True

    def __init__(self, **wrong: Any) -> None:
        super().__init__(1000)
        self.wrong = wrong

    def __getattribute__(self, name: str) -> Any:
        wrong = object.__getattribute__(self, "__dict__").get("wrong", {})
        if name not in wrong:
            return object.__getattribute__(self, name)
        if name in ("has_flows", "counted_with"):
            raise wrong[name]

        def answer(*given: Any) -> Any:
            if isinstance(wrong[name], Exception):
                raise wrong[name]
            return wrong[name]

        return answer

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def read(self, split: dict[str, int], columns: Any) -> Iterator[pa.RecordBatch]:
        yield from ()

    def plan(self, start: int, stop: int, tasks: int) -> list[dict[str, int]]:
        return [{"from": start}]

    def flows(self, position: int) -> dict[str, bool]:
        return {"a": True}

    def lag(self, position: int) -> int:
        return 7


METHODS = ("start", "latest", "ended", "plan", "flows", "lag", "has_flows", "counted_with")
GIVEN = {"start": {1}, "latest": np.arange(2), "plan": ["a split"], "flows": ["a"], "lag": "many"}


def ask_everything(reader: SplitsReader) -> None:
    begin = reader.initial_offset()
    end = reader.latest_offset(begin)
    reader.ended("s", end["positions"])
    reader.shares(begin, end)
    reader.lags(end)


@pytest.mark.parametrize(("method", "wrong"), [*((one, KeyError(one)) for one in METHODS), *GIVEN.items()], ids=str)
def test_what_a_source_of_the_users_raises_or_gives_in_the_driver_is_told(
    tmp_path: Path, method: str, wrong: Any
) -> None:
    ask_everything(SplitsReader({"s": Answers()}, 90, 2, tmp_path, False))  # type: ignore[dict-item]
    reader = SplitsReader({"s": Answers(**{method: wrong})}, 90, 2, tmp_path, False)  # type: ignore[dict-item]
    with pytest.raises(UserCodeFailed) as failed:
        ask_everything(reader)
    text = str(failed.value)
    assert text.startswith("user code: KeyError" if isinstance(wrong, KeyError) else "user code: TypeError"), text
    assert f"{method}" in text and "source 's'" in text and "(test_source.py:" in text, text


def test_what_a_source_of_the_users_does_in_the_driver_is_known_while_it_lasts(tmp_path: Path) -> None:
    texts: list[str] = []

    @contextmanager
    def running(text: str) -> Iterator[None]:
        texts.append(text)
        yield

    ask_everything(SplitsReader({"s": Answers()}, 90, 2, tmp_path, False, running=running))  # type: ignore[dict-item]
    assert {text.partition("(")[0] for text in texts} == set(METHODS[:6])
    assert all(" of source 's' (test_source.py:" in text and text.endswith(") has run for") for text in texts), texts


def test_what_a_source_of_the_users_does_beside_sparks_own_is_said_when_it_takes_long(tmp_path: Path) -> None:
    said = threading.Event()

    class Slow(Answers):
        def latest(self, start: int, max_rows: int) -> int:
            assert said.wait(20)
            return start

    reader = WaitingReader({"s": Slow()}, 90, 2, tmp_path, slow_ms=1)  # type: ignore[dict-item]
    tell, texts = reader._say, []

    def say(text: str) -> None:
        tell(text)
        if text:
            texts.append((tmp_path / PROBLEM).read_text())
            said.set()

    reader._say = say  # type: ignore[method-assign]
    reader.latestOffset(reader.initialOffset(), None)
    assert "latest() of source 's' (test_source.py:" in texts[-1] and "has run for more than 0.001 s" in texts[-1]
    assert not (tmp_path / PROBLEM).exists(), "it is over"


def taken(tmp_path: Path, sources: Any, epochs: int = 1, first: Any = MappingProxyType({})) -> dict[str, int]:
    """Positions after some epochs of 90 rows at most."""
    reader = SplitsReader(sources, 90, 2, tmp_path, False, first)
    offset = reader.initial_offset()
    for _ in range(epochs):
        offset = reader.latest_offset(offset)
    return dict(offset["positions"])


def test_all_sources_together_have_the_rows_of_an_epoch(tmp_path: Path) -> None:
    assert taken(tmp_path, {n: Waiting(1000) for n in "abc"}) == {"a": 30, "b": 30, "c": 30}
    assert taken(tmp_path, {"a": Waiting(1000)}) == {"a": 90}


def test_what_has_nothing_new_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    some = {"a": Waiting(1000), "b": Waiting(30), "c": Waiting(0)}
    assert taken(tmp_path, some) == {"a": 45, "b": 30, "c": 0}
    assert taken(tmp_path, some, 2) == {"a": 135, "b": 30, "c": 0}
    assert taken(tmp_path, {"a": Waiting(0), "b": Waiting(0)}) == {"a": 0, "b": 0}


def test_what_states_begin_from_is_read_to_its_end_before_all_else(tmp_path: Path) -> None:
    some = {"a": Waiting(1000), "b": Waiting(100, True), "c": Waiting(30, True), "d": Waiting(1000)}
    first = {"b": 60, "c": 60}
    assert taken(tmp_path, some, 1, first) == {"a": 0, "b": 60, "c": 30, "d": 0}
    assert taken(tmp_path, some, 2, first) == {"a": 0, "b": 100, "c": 30, "d": 0}
    assert taken(tmp_path, some, 3, first) == {"a": 45, "b": 100, "c": 30, "d": 45}
    assert taken(tmp_path, {**some, "c": Waiting(30)}, 5, first) == {"a": 0, "b": 100, "c": 30, "d": 0}, "more may come"


def test_beside_sources_that_do_not_wait_it_is_in_the_first_epoch(tmp_path: Path) -> None:
    some = {"a": Waiting(1000), "b": Waiting(500, True), "c": Waiting(300, True)}
    assert taken(tmp_path, some, 1, {"b": WHOLE, "c": WHOLE}) == {"a": 0, "b": 500, "c": 300}
    with pytest.raises(Fault, match="source 'a', from which an operator's state begins, did not end"):
        taken(tmp_path, some, 1, {"a": WHOLE})


def test_streams_of_one_generator_count_each_other(tmp_path: Path) -> None:
    made = {n: NexmarkSplits(NexmarkGenerator(), n) for n in ("person", "auction")}
    assert taken(tmp_path, made) == {"person": 90, "auction": 90}
    assert taken(tmp_path, {**made, "x": Waiting(1000)}) == {"person": 45, "auction": 45, "x": 45}


def test_a_source_that_is_added_begins_with_its_first_position_and_one_that_returns_goes_on(tmp_path: Path) -> None:
    some: Any = {"a": Waiting(1000), "b": Waiting(1000)}
    reader = SplitsReader({"a": some["a"]}, 90, 2, tmp_path, False)
    old = reader.latest_offset(reader.initial_offset())
    reader.follow(some)
    assert reader.shares(old, old) == [[("", TICK)]], "an epoch that was planned before is repeated"
    added = reader.latest_offset(old)
    assert added["positions"] == {"a": 90, "b": 0}
    assert reader.shares(old, added) == [[("", TICK)]], "its first position is in the offsets before any record of it"
    both = reader.latest_offset(added)
    assert both["positions"] == {"a": 135, "b": 45}
    reader.follow({"a": some["a"]})
    assert [name for share in reader.shares(added, both) for name, _ in share] == ["a"], (
        "no operator reads the removed source"
    )
    gone = reader.latest_offset(both, added)
    assert (gone["positions"], gone["left"]) == ({"a": 135}, {"b": 0}), "where the epoch of the switch began"
    later = reader.latest_offset(gone)
    reader.follow(some)
    back = reader.latest_offset(later)
    assert (back["positions"], back["left"]) == ({"a": 225, "b": 0}, {})
    assert reader.latest_offset(back)["positions"] == {"a": 270, "b": 45}


def test_a_removed_source_keeps_its_position_when_sources_change_again_at_once(tmp_path: Path) -> None:
    """Nobody read the records of the epoch that was planned before the source was removed."""
    some: Any = {name: Waiting(1000) for name in "abc"}
    reader = SplitsReader({"a": some["a"], "b": some["b"]}, 90, 2, tmp_path, False)
    first = reader.latest_offset(reader.initial_offset())
    planned = reader.latest_offset(first)
    reader.follow({"a": some["a"]})  # in force in the epoch that is planned already
    gone = reader.latest_offset(planned, first)
    assert gone["left"] == {"b": first["positions"]["b"]}
    reader.follow({"a": some["a"], "c": some["c"]})
    again = reader.latest_offset(gone, planned)
    assert again["left"] == gone["left"]
    reader.follow(some)
    assert reader.latest_offset(again, gone)["positions"]["b"] == first["positions"]["b"]


def test_the_reader_keeps_the_lists_of_files_beside_the_offsets(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b'{"a": 1}\n')
    source = ferry.json_files(tmp_path / "in", pa.schema([("a", pa.int64())]))
    reader = SplitsReader({"s": source}, 90, 2, tmp_path, False)
    offset = reader.latest_offset(reader.initial_offset())
    assert reader.latest_offset(offset) == offset
    assert (tmp_path / "checkpoint" / "files" / "s.jsonl").exists()


def test_flows_go_to_the_tasks_with_every_epoch_also_without_data(tmp_path: Path) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "b").mkdir()
    (tmp_path / "in" / "a" / "1").write_bytes(b'{"a": 1}\n')
    schema = pa.schema([("a", pa.int64())])
    flows = ferry.json_files(tmp_path / "in", schema, flow="{flow}/*")
    reader = SplitsReader({"s": flows, "t": Waiting(0)}, 90, 2, tmp_path, False)
    start = reader.initial_offset()
    assert said(reader, start, start) == [FLOWS + '["s", {"a": true, "b": false}]']
    stop = reader.latest_offset(start)
    assert said(reader, start, stop) == [FLOWS + '["s", {"a": false, "b": false}]']
    assert said(reader, stop, stop) == [FLOWS + '["s", {"a": false, "b": false}]']


def said(reader: SplitsReader, start: Any, stop: Any) -> list[str]:
    """What the rows of an epoch say that are of no source."""
    return [split for share in reader.shares(start, stop) for name, split in share if not name]


class Away(Waiting):
    """Cannot be read for the next `times` calls."""

    times = 0

    def latest(self, start: int, max_rows: int) -> int:
        if self.times:
            self.times -= 1
            raise Unreachable("the folder is away")
        return super().latest(start, max_rows)


def test_beside_sparks_own_sources_what_is_away_is_said_in_a_file(tmp_path: Path) -> None:
    away = Away(1000)
    reader = WaitingReader({"a": away}, 90, 2, tmp_path)  # type: ignore[dict-item]
    start = reader.initialOffset()
    away.times = 1
    assert reader.latestOffset(start, None) == start
    assert (tmp_path / PROBLEM).read_text() == "the folder is away"
    assert reader.latestOffset(start, None)["positions"] == {"a": 90} and not (tmp_path / PROBLEM).exists()


def test_what_states_begin_from_is_waited_for_by_sparks_own_sources(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(spark_source, "WAIT_SECONDS", 0.0)
    away = Away(50, True)
    reader = WaitingReader({"a": away}, 90, 2, tmp_path, {"a": WHOLE})  # type: ignore[dict-item]
    start = reader.initialOffset()
    away.times = 3
    assert reader.latestOffset(start, None)["positions"] == {"a": 50} and not away.times


def test_what_is_wrong_with_folders_is_said_of_their_sources(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "loop").symlink_to("loop")
    (tmp_path / "in" / "dead").symlink_to("nowhere")
    source = ferry.json_files(tmp_path / "in", pa.schema([("a", pa.int64())]))
    reader = SplitsReader({"clicks": source, "b": Waiting(0)}, 90, 2, tmp_path, False)  # type: ignore[dict-item]
    reader.latest_offset(reader.initial_offset())
    assert reader.problems()[0].startswith("source 'clicks': ") and "loop" in reader.problems()[0]
    assert reader.notice().startswith("source 'clicks': ") and "dead (a broken link)" in reader.notice()
