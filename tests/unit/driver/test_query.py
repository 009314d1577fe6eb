"""The driver's own query: which epochs it runs, with what, and what it leaves for the query after it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ferry.contract.errors import Fault, RowsGone, Unreachable
from ferry.driver import query as query_module
from ferry.driver.checkpoint import KEPT_EPOCHS, Checkpoint
from ferry.driver.query import OwnQuery


class Numbers:
    """A source of numbers up to `end`; two for an epoch."""

    def __init__(self, end: int) -> None:
        self.end = end

    def initial_offset(self) -> Any:
        return {"a": 0}

    def latest_offset(self, start: Any, before: Any = None) -> Any:
        return {"a": min(start["a"] + 2, self.end)}

    def ticked(self, offset: Any) -> Any:
        return offset

    def lags(self, offset: Any) -> dict[str, int]:
        return {"a": self.end - offset["a"]}

    def problems(self) -> list[str]:
        return []

    def notice(self) -> str:
        return ""

    def failed(self, end: Any, reason: str) -> None:
        """Nothing can be mended."""

    def shares(self, start: Any, end: Any) -> Any:
        rows = [("a", json.dumps(i)) for i in range(start["a"], end["a"])]
        return [[row] for row in rows]


class Stop(Exception):
    """Of a test."""


def epochs(checkpoint: Checkpoint, end: int, stop: int | None = None) -> list[tuple[int, list[int]]]:
    """(number, what it had) of the epochs that a query runs until the source is dry, or `stop` fails."""
    found: list[tuple[int, list[int]]] = []
    dry = threading.Event()

    def run(batch: Any, epoch: int) -> None:
        found.append((epoch, [json.loads(split) for share in batch.shares() for _, split in share]))
        if epoch == stop:
            raise Stop(f"epoch {epoch}")
        if found[-1][1][-1:] == [end - 1]:
            dry.set()

    query: Any = OwnQuery(None, Numbers(end), checkpoint, 0.0, run).start()  # type: ignore[arg-type]
    if stop is not None:
        query._thread.join(10)
        assert not query.isActive and isinstance(query.exception(), Stop)
    else:
        assert dry.wait(10) and query.isActive
    return found


def test_epochs_follow_one_another(tmp_path: Path) -> None:
    assert epochs(Checkpoint(tmp_path), 5) == [(0, [0, 1]), (1, [2, 3]), (2, [4])]


def test_an_epoch_that_was_not_seen_to_its_end_is_run_again_as_it_was_planned(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    assert epochs(checkpoint, 10, stop=0) == [(0, [0, 1])]
    assert (checkpoint.begun(), checkpoint.ended()) == ((0, False), -1)
    when = checkpoint.planned(0)
    assert epochs(checkpoint, 10, stop=2) == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]
    assert checkpoint.planned(0) == when
    assert (checkpoint.begun(), checkpoint.ended()) == ((2, False), 1)
    assert epochs(checkpoint, 7)[:2] == [(2, [4, 5]), (3, [6])]


def test_what_an_epoch_commits_brings_its_files_back(tmp_path: Path) -> None:
    checkpoint, lost = Checkpoint(tmp_path / "here"), Checkpoint(tmp_path / "elsewhere")
    epochs(checkpoint, 10, stop=2)
    notes = checkpoint.notes(2)
    assert lost.settle(2, False, notes, []) is True
    assert epochs(lost, 7)[:2] == [(2, [4, 5]), (3, [6])]
    again = Checkpoint(tmp_path / "final")
    assert again.settle(2, True, notes, []) is False
    assert epochs(again, 7)[0] == (3, [6])


def test_what_another_driver_has_planned_is_not_planned_anew(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.begin(0, {"a": 1})
    with pytest.raises(Unreachable, match="another driver"):
        checkpoint.begin(0, {"a": 2})
    assert checkpoint.offset(0) == {"a": 1}


def test_logs_do_not_grow(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    epochs(checkpoint, 100)
    checkpoint._removing.shutdown()  # Files are removed by a thread of their own.
    for log in ("offsets", "commits"):
        assert len(list((tmp_path / log).iterdir())) <= KEPT_EPOCHS + 1


class Patience:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def failed(self, what: str) -> None:
        self.said.append(what)

    def partly(self, what: str) -> None:
        self.said.append(what or "ok")

    def waiting(self, what: str) -> None:
        self.said.append(what)


class Unsteady(Numbers):
    """Cannot be reached every other time; somebody asks for ticks meanwhile."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.calls = 0
        self.tick = 0

    def latest_offset(self, start: Any, before: Any = None) -> Any:
        self.calls += 1
        if self.calls % 2:
            raise Unreachable("no broker")
        return {**start, **super().latest_offset(start)}

    def ticked(self, offset: Any) -> Any:
        return {**offset, "tick": self.tick} if self.tick > offset.get("tick", 0) else offset


def test_a_source_that_cannot_be_reached_is_asked_again_and_ticks_go_on(tmp_path: Path) -> None:
    patience, source, lags, dry = Patience(), Unsteady(4), [], threading.Event()
    found: list[int] = []

    def run(batch: Any, epoch: int) -> None:
        found.append(len(batch.shares()))
        source.tick = int(len(found) == 2)
        if len(found) == 3:
            dry.set()

    checkpoint = Checkpoint(tmp_path)
    query: Any = OwnQuery(None, source, checkpoint, 0.0, run, patience, lags.append).start()  # type: ignore[arg-type]
    assert dry.wait(10) and query.isActive
    assert found[:3] == [2, 2, 0], "the third epoch is for a tick"
    assert "source: no broker" in patience.said and "ok" in patience.said and {"a": 2} in lags
    assert {"a": 4} not in lags, "what the next epoch reads does not wait"


@pytest.mark.parametrize("kind", [Unreachable, RowsGone, Fault])
def test_whatever_may_be_mended_is_waited_for(tmp_path: Path, kind: type[Fault]) -> None:
    class Broken(Numbers):
        left = 2

        def shares(self, start: Any, end: Any) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise kind("in/f is broken")
            return super().shares(start, end)

    patience, dry = Patience(), threading.Event()
    args: Any = None, Broken(2), Checkpoint(tmp_path), 0.0, lambda *_: dry.set(), patience
    query: Any = OwnQuery(*args).start()
    assert dry.wait(10) and query.isActive and patience.said.count("source: in/f is broken") == 2


def test_a_source_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "ANSWER_SECONDS", 0.02)
    answers, dry = threading.Event(), threading.Event()

    class Said(Patience):
        def waiting(self, what: str) -> None:
            super().waiting(what)
            answers.set()

    class Hangs(Numbers):
        asked = "source 'a' (/mnt/in)"

        def latest_offset(self, start: Any, before: Any = None) -> Any:
            assert answers.wait(10)
            return super().latest_offset(start)

    patience = Said()
    args: Any = None, Hangs(2), Checkpoint(tmp_path), 0.0, lambda *_: dry.set(), patience
    query: Any = OwnQuery(*args).start()
    assert dry.wait(10) and query.isActive
    assert "source: source 'a' (/mnt/in) has not answered for 0.02 s and more; the job waits for it" in patience.said


def test_what_cannot_be_read_in_part_is_said_while_the_rest_goes_on(tmp_path: Path) -> None:
    source, patience, notices, dry = Numbers(4), Patience(), [], threading.Event()
    source.problems = lambda: ["source 'a': in/f is broken"]  # type: ignore[method-assign]
    source.notice = lambda: "in/done is not read"  # type: ignore[method-assign]
    found: list[Any] = []

    def run(batch: Any, epoch: int) -> None:
        found.append(batch)
        if len(found) == 2:
            dry.set()

    args: Any = None, source, Checkpoint(tmp_path), 0.0, run, patience, lambda _: None, notices.append
    OwnQuery(*args).start()
    assert dry.wait(10) and "source 'a': in/f is broken" in patience.said and "in/done is not read" in notices


def test_an_epoch_that_could_not_be_read_is_planned_as_its_input_is_now(tmp_path: Path) -> None:
    class Mended(Numbers):
        told: tuple[Any, str] | None = None

        def failed(self, end: Any, reason: str) -> None:
            self.told = end, reason

        def shares(self, start: Any, end: Any) -> Any:
            rows = [("a", "mended" if self.told else "broken")]
            return [rows]

    source, found, dry = Mended(2), [], threading.Event()

    def run(batch: Any, epoch: int) -> None:
        found.append(batch.shares())
        batch.failed("in/f cannot be read")
        found.append(batch.shares())
        dry.set()

    args: Any = None, source, Checkpoint(tmp_path), 0.0, run
    OwnQuery(*args).start()
    assert dry.wait(10) and found == [[[("a", "broken")]], [[("a", "mended")]]]
    assert source.told == ({"a": 2}, "in/f cannot be read")


def test_without_patience_it_ends_the_query(tmp_path: Path) -> None:
    query: Any = OwnQuery(None, Unsteady(4), Checkpoint(tmp_path), 0.0, lambda *_: None).start()  # type: ignore[arg-type]
    query._thread.join(10)
    assert isinstance(query.exception(), Unreachable)


def test_ticks_do_not_say_that_a_source_can_be_read_again(tmp_path: Path) -> None:
    class Gone(Numbers):
        def latest_offset(self, start: Any, before: Any = None) -> Any:
            raise Unreachable("the folder is away")

        def ticked(self, offset: Any) -> Any:
            return {**offset, "tick": offset.get("tick", 0) + 1}

    patience, dry = Patience(), threading.Event()

    def run(batch: Any, epoch: int) -> None:
        if epoch == 3:
            dry.set()
            raise Stop("enough")

    args: Any = None, Gone(2), Checkpoint(tmp_path), 0.0, run, patience
    OwnQuery(*args).start()
    assert dry.wait(10) and "source: the folder is away" in patience.said
    assert "ok" not in patience.said[1:], "but for the first offset, which was there"
