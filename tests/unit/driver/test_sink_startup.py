"""What a driver does with sinks before its first epoch, and what it does when one is away then."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ferry.connectors import sink as sinks
from ferry.connectors.console.sink import console
from ferry.connectors.files.parquet_sink import parquet
from ferry.connectors.sink import Sink
from ferry.contract.errors import Final, SpecRefused, Superseded, Unreachable
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.driver import sink_startup
from ferry.driver.sink_startup import SinkStartup


class Away(Sink):
    """A sink that is away when a driver begins. `then` is what happens at each try."""

    def __init__(self, *then: BaseException | None) -> None:
        self.then, self.done = list(then), list[tuple[str, int]]()

    def write(self, epoch: int, generation: int, rows: Any) -> None:
        raise AssertionError("no epoch yet")

    def open(self, committed: int) -> None:
        self._try("open", committed)

    def truncate_after(self, epoch: int) -> None:
        self._try("truncate", epoch)

    def keep_after(self, epoch: int) -> None:
        self._try("keep", epoch)

    def _try(self, what: str, epoch: int) -> None:
        error = self.then.pop(0)
        if error is not None:
            raise error
        self.done.append((what, epoch))


class Driver:
    """What `SinkStartup` needs of one. `claim` is looked at before a sink is cut."""

    def __init__(self, path: Path, *declared: Sink, limit: int | None = None, keep: bool = False) -> None:
        self.file = path / "timeline.jsonl"
        settings: Any = SimpleNamespace(sink_patience_ms=limit, restore_sink="keep" if keep else "truncate")
        self.stop = threading.Event()
        self.sink_startup = SinkStartup(declared, settings, self.stop)
        self.claim: Callable[[], None] = lambda: None
        self.ending = threading.Event()
        self.loop: Any = SimpleNamespace(
            ending=self.ending, halt=None, check_claim=lambda: self.claim(), stop=self.ending.set
        )
        self.metrics = DriverMetrics("job", str(path))

    def open(self) -> bool:
        return self.sink_startup.open(7, self.loop, self.metrics)

    def rewind(self) -> bool:
        return self.sink_startup.rewind(7, self.loop, self.metrics)

    def told(self) -> list[str]:
        """In its timeline."""
        assert not self.metrics.problems.current
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [json.loads(line)["kind"] for line in lines]


def test_a_sink_that_is_away_when_a_driver_begins_is_waited_for(tmp_path: Path) -> None:
    """The driver ended, and after the sixth one in a row the job: two seconds without an output folder did it."""
    away, there = Away(FileExistsError("a file"), OSError("stale handle"), None), Away(None)
    driver = Driver(tmp_path, away, there)
    assert driver.open()
    assert driver.told() == ["degraded", "mended"]
    assert away.done == there.done == [("open", 7)]


@pytest.mark.parametrize("keep", [False, True])
def test_a_sink_that_is_away_at_a_restore_is_waited_for(tmp_path: Path, keep: bool) -> None:
    """Its coordinator stood meanwhile, and then ended."""
    away, there = Away(OSError("stale handle"), None), Away(None)
    driver = Driver(tmp_path, away, there, keep=keep)
    assert driver.rewind()
    assert driver.told() == ["degraded", "mended"]
    assert away.done == there.done == [("keep" if keep else "truncate", 7)]


def test_a_sink_is_not_cut_any_more_once_another_driver_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that one has put out since would be gone."""
    away = Away(OSError("stale handle"), None)
    driver = Driver(tmp_path, away)
    answers = [None, Unreachable("no journal"), Superseded("generation 9")]

    def claim() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    driver.claim = claim
    monkeypatch.setattr(sink_startup, "RETRY_SECONDS", 0.001)
    with pytest.raises(Superseded, match="generation 9"):
        driver.rewind()
    assert not away.done and away.then == [None]


def test_a_journal_that_is_away_is_nothing_of_the_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose patience it does not count for."""
    sink = Away(OSError("stale handle"), None)
    driver = Driver(tmp_path, sink, limit=100)
    answers = [None, *[Unreachable("no journal")] * 20, None]

    def claim() -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    driver.claim = claim
    monkeypatch.setattr(sink_startup, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(sink_startup, "QUIET_SECONDS", 0.1)
    assert driver.rewind() and sink.done and driver.told() == ["degraded", "mended"]
    assert "stale handle" in driver.file.read_text(), "and not that it has not answered"
    answers.append(Unreachable("no journal"))
    driver.ending.set()
    sink.then = [None]
    assert not driver.rewind() and len(sink.done) == 1, "a stop ends it"


def test_what_a_sink_has_noticed_is_a_warning(tmp_path: Path) -> None:
    sink = parquet(str(tmp_path / "out"))
    sinks.identify([sink], "sales", "sales-a")
    driver = Driver(tmp_path, sink)
    assert driver.sink_startup.open(3, driver.loop, driver.metrics)
    assert [one.reason for one in driver.metrics.problems.lasting] == ["OutputIsNew"]
    assert "has committed epoch 3: is it mounted?" in driver.metrics.problems.lasting[0].text


def test_where_the_output_is_and_what_is_printed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed, files = console(), parquet("out")
    sinks.place([printed, files], None)
    driver = Driver(tmp_path, printed, files)
    assert driver.open()
    printed.write(3, 1, pa.table({"n": [1, 2]}))
    monkeypatch.setattr(sink_startup, "PRINTED_MAX", 5)
    printed.write(4, 1, pa.table({"n": [3]}))
    output, first, cut = map(json.loads, driver.file.read_text().splitlines())
    assert (output["kind"], output["text"]) == ("output", str(tmp_path / "out"))
    assert (first["kind"], first["text"]) == ("printed", "-- epoch 3: 2 rows\n   n=1\n   n=2")
    assert cut["text"] == "-- ep ... (the full text is in the log of the driver)"
    assert capsys.readouterr().out == f"{first['text']}\n-- epoch 4: 1 rows\n   n=3\n"


def test_who_gives_a_file_for_the_output_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("")
    file = parquet(str(tmp_path / "afile" / "sales"))
    driver = Driver(tmp_path, file, limit=0)
    with pytest.raises(Final, match=r"NotADirectoryError: .*every 30 s: make it a folder, or stop .* another --output"):
        driver.open()


def test_a_sink_that_hangs_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_startup, "QUIET_SECONDS", 0.01)
    said: list[str] = []

    class Hangs(Away):
        def _try(self, what: str, epoch: int) -> None:
            deadline = time.monotonic() + 10
            while not driver.metrics.problems.current and time.monotonic() < deadline:
                time.sleep(0.005)
            said.extend(problem.text for problem in driver.metrics.problems.current)
            super()._try(what, epoch)

    driver = Driver(tmp_path, Hangs(None))
    assert driver.open() and driver.told() == ["degraded", "mended"]
    assert len(said) == 1 and "is to be opened, and has not answered for 0.01 s" in said[0]


def test_a_sink_that_is_refused_or_away_for_too_long_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(SpecRefused, match="of another run"):
        Driver(tmp_path, Away(SpecRefused("epoch 9 of another run"))).open()
    for act in (Driver.open, Driver.rewind):
        with pytest.raises(Final, match=r"cannot be .*: OSError: gone .*nothing is lost"):
            act(Driver(tmp_path, Away(*[OSError("gone")] * 100), limit=50))


def test_a_job_that_is_stopped_does_not_wait_for_its_sink(tmp_path: Path) -> None:
    """Which is tried again after half a minute, if it is away for long."""

    class Asked(Away):
        def _try(self, what: str, epoch: int) -> None:
            driver.sink_startup.stop(driver.loop)
            super()._try(what, epoch)

    driver = Driver(tmp_path, Asked(OSError("gone"), OSError("a second try")))
    assert not driver.open() and driver.ending.is_set()
    driver = Driver(tmp_path, Asked(OSError("gone"), OSError("a second try")))
    assert not driver.rewind() and driver.ending.is_set()


def test_a_stop_while_epochs_run_lets_the_one_under_way_end(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    assert driver.open()
    driver.sink_startup.stop(driver.loop)
    assert driver.stop.is_set() and not driver.ending.is_set()


@pytest.mark.parametrize("keep", [False, True])
def test_a_sink_that_a_deploy_brings_back_after_a_restore_is_rolled_back_first(tmp_path: Path, keep: bool) -> None:
    """Only the sinks of the program at the restore were: others may hold epochs of the life that was lost."""
    there, new = Away(None), Away(None, None, None)
    driver = Driver(tmp_path, there, keep=keep)
    assert driver.open()
    follow = driver.sink_startup.follow
    assert follow([there, new], 9, driver.loop, driver.metrics, lambda: False, cut=True)
    assert new.done == [("keep" if keep else "truncate", 9), ("open", 9)] and there.done == [("open", 7)]


def test_a_sink_that_cannot_remove_rows_keeps_them_when_a_deploy_brings_it_back(tmp_path: Path) -> None:
    new = Away(SpecRefused("it cannot"), None, None)
    driver = Driver(tmp_path)
    assert driver.sink_startup.follow([new], 9, driver.loop, driver.metrics, lambda: False, cut=True)
    assert new.done == [("keep", 9), ("open", 9)]
