"""A worker of Spark runs at the driver that the registry names, and only there. Java is a shell script here."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ferry.contract.errors import Unreachable
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.environment import Environment
from ferry.worker.follower import RESTART_SECONDS_MAX, Follower


class FakeRegistry:
    """Says where the driver is."""

    def __init__(self) -> None:
        self.place: DriverPlace | None = None
        self.away = False

    def driver(self) -> DriverPlace | None:
        if self.away:
            raise Unreachable("Redis does not answer")
        return self.place


def place(generation: int, life: str, claimed: bool = True) -> DriverPlace:
    return DriverPlace(generation, claimed, life, f"spark://10.0.0.{generation}:7077", "", cores=3)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    java, home = tmp_path / "java" / "bin" / "java", tmp_path / "spark"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$FERRY_WORKER $*" >> {tmp_path}/started\nexec sleep 60\n')
    java.chmod(0o755)
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(home))
    settings = RunSettings(
        job="j", run="j-1", directory=str(tmp_path), secret="s" * 16, redis="redis://127.0.0.1:1/0",
        pipeline_module="m", pipeline_file=None, pipeline_args={}, virtual_nodes=4, replicas=0, workers=1,
        instances_per_worker=1, memory_bytes=1 << 20, epoch_interval_ms=0, epoch_max_rows=1, cores=1,
    )  # fmt: skip
    made = Follower(settings, 4, Environment(host="10.0.0.9", fixed_ports=True))
    made._registry = FakeRegistry()  # type: ignore[assignment]
    made._files.directory.mkdir(parents=True)
    yield made
    made._kill()


def started(follower: Follower, count: int) -> list[str]:
    """What was started, once it is this many."""
    file = follower._settings.path / "started"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.01)
    raise AssertionError(f"not {count} times")


def test_it_does_not_go_back_to_an_older_driver(follower: Follower) -> None:
    """One that a Redis which has forgotten everything hears first."""
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(2, "b")
    follower.look(1.0)
    runs = follower._process
    registry.place = place(1, "a")
    follower.look(2.0)
    assert follower._process is runs and follower._driver == place(2, "b")
    registry.place = place(2, "c", claimed=False)
    follower.look(3.0)
    assert follower._process is not runs and follower._driver == registry.place, "who of two has the generation is open"


def test_it_follows_the_driver_from_life_to_life(follower: Follower) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    follower.look(1.0)
    assert follower._process is None, "no driver yet"
    registry.place = place(1, "a", claimed=False)
    follower.look(2.0)
    first = follower._process
    assert first is not None
    line = started(follower, 1)[0]
    assert line.startswith("4 ") and line.endswith(" spark://10.0.0.1:7077")
    assert "--host 10.0.0.9 --port 7077" in line and "--cores 3" in line
    assert "s" * 16 not in line and "_SPARK" not in line, "a command line is for everybody to see"
    registry.place = place(1, "a")
    follower.look(3.0)
    assert follower._process is first, "the same life: it was only claimed meanwhile"
    registry.away = True
    follower.look(4.0)
    assert follower._process is first and first.poll() is None
    registry.away, registry.place = False, place(2, "b")
    follower.look(5.0)
    assert first.poll() is not None and follower._process is not None
    assert started(follower, 2)[1].endswith(" spark://10.0.0.2:7077")


def test_executors_log_no_more_than_the_worker_of_spark(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take their configuration of logs from the directory that Spark's worker names to them."""
    given: dict[str, str] = {}
    monkeypatch.setattr("ferry.worker.follower.environment.with_variables", lambda more: given.update(more) or {})
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    follower.look(1.0)
    assert Path(given["SPARK_CONF_DIR"]) / "log4j2.properties" == follower._files.logging


def test_what_executors_print_is_in_the_log_of_the_container(
    follower: Follower, capsys: pytest.CaptureFixture[str]
) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    old = follower._files.work / "app-0" / "0"
    old.mkdir(parents=True)
    (old / "stderr").write_text("of the container before\n")
    follower.look(1.0)
    executor = follower._files.work / "app-1" / "3"
    executor.mkdir(parents=True)
    (executor / "stderr").write_text("a warning of the user's code\n")
    follower.look(2.0)
    assert said(capsys) == ["executor 3 stderr: a warning of the user's code"], "while it runs"
    with (executor / "stderr").open("a") as errors:
        errors.write("last words\n")
    registry.place = place(2, "b")
    follower.look(3.0)
    follower.look(4.0)
    assert said(capsys) == ["executor 3 stderr: last words"]
    executor = follower._files.work / "app-2" / "0"
    executor.mkdir(parents=True)
    (executor / "stdout").write_text("the pod ends")
    follower._kill()
    assert said(capsys) == ["executor 0 stdout: the pod ends"]


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What executors have said since the last look."""
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("executor ")]


def test_one_that_dies_is_started_again_a_little_later_each_time(follower: Follower) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place, now, delays = place(1, "a"), 100.0, []
    for count in range(1, 9):
        follower.look(now)
        assert follower._process is not None
        started(follower, count)
        follower._process.kill()
        follower._process.wait()
        follower.look(now)
        assert follower._process is None
        delays.append(follower._not_before - now)
        follower.look(now + delays[-1] / 2)
        assert follower._process is None, "too early"
        now += delays[-1]
    assert delays == sorted(delays) and delays[0] < 0.5 and delays[-1] == pytest.approx(RESTART_SECONDS_MAX)
    follower.look(now)
    assert follower._process is not None
    follower._process.kill()
    follower._process.wait()
    follower.look(now + 3600)
    assert follower._not_before - now - 3600 == pytest.approx(delays[0]), "it ran long: no grudge"


def test_the_end_of_a_pod_is_the_end_of_its_tasks(follower: Follower) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    pids: list[int] = []

    def end() -> None:
        started(follower, 1)
        while follower._process is None:  # it has begun, and is noted in a moment
            time.sleep(0.01)
        pids.append(follower._process.pid)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        signal.signal(signal.SIGTERM, lambda *_: None)  # should it come before `run` has begun
        thread = threading.Thread(target=end)
        thread.start()
        assert follower.run() == 0
        thread.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert (follower._files.configuration).read_text().count("spark.authenticate true") == 1


def test_one_that_fails_for_hours_is_still_waited_for(follower: Follower) -> None:
    follower._failures, follower._started = 5000, 100.0
    follower._ended(100.0, 1)
    assert follower._not_before == 100.0 + RESTART_SECONDS_MAX
