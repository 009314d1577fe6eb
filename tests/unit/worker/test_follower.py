"""An executor of Spark runs at the driver that the registry names, and only there. Java is a shell script here."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ferry.contract.errors import Unreachable
from ferry.contract.executors import ExecutorStart, spark_secret
from ferry.contract.places import DriverPlace
from ferry.contract.settings import RunSettings
from ferry.contract.tickets import derived
from ferry.environment import Environment
from ferry.spark import private
from ferry.worker.follower import RESTART_SECONDS_MAX, Follower

SECRET = "s" * 16
START = ExecutorStart(512, ["-Da=b c", "-Dof={{EXECUTOR_ID}}"], {"spark.authenticate": "true"}, {"TOKEN": "the user's"})


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
    sealed = START.sealed(SECRET, life)
    return DriverPlace(generation, claimed, life, f"spark://S@10.0.0.{generation}:7078", "", 3, sealed)


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    java, home = tmp_path / "java" / "bin" / "java", tmp_path / "spark"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho "$FERRY_WORKER $TOKEN $*" >> {tmp_path}/started\nexec sleep 60\n')
    java.chmod(0o755)
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(home))
    settings = RunSettings(
        job="j", run="j-1", directory=str(tmp_path), secret=SECRET, redis="redis://127.0.0.1:1/0",
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
    registry.place = newer = place(2, "b")
    follower.look(1.0)
    runs = follower._process
    registry.place = place(1, "a")
    follower.look(2.0)
    assert follower._process is runs and follower._driver == newer
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
    assert line.startswith("4 the user's -Xmx512m -Da=b c -Dof=1004") and "-Dspark.authenticate=true" in line
    assert "--driver-url spark://S@10.0.0.1:7078" in line and "--hostname 10.0.0.9" in line and "--cores 3" in line
    assert re.search(r"--executor-id 1004\d{3} .*--app-id j-1-a ", line)
    assert SECRET not in line and spark_secret(SECRET, "a") not in line, "a command line is for everybody to see"
    registry.place = place(1, "a")
    follower.look(3.0)
    assert follower._process is first, "the same life: it was only claimed meanwhile"
    registry.away = True
    follower.look(4.0)
    assert follower._process is first and first.poll() is None
    registry.away, registry.place = False, place(2, "b")
    follower.look(5.0)
    assert first.poll() is not None and follower._process is not None
    assert "--driver-url spark://S@10.0.0.2:7078 --executor-id 2004" in started(follower, 2)[1]


def test_classes_of_the_user_come_before_sparks(follower: Follower) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    jars = str(follower._settings.path / "spark" / "jars")
    for generation, mine, expected in ((1, "", f"{jars}/*"), (2, "/a.jar:/b", f"/a.jar:/b:{jars}/*")):
        told = replace(START, class_path=mine).sealed(SECRET, f"life {generation}")
        registry.place = replace(place(generation, f"life {generation}"), executor=told)
        follower.look(1.0)
        assert f" -cp {expected} " in started(follower, generation)[-1]


def test_each_life_of_a_driver_has_a_secret_of_its_own(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """So an executor of an older life is refused, even by a driver at the same address."""
    shown = []
    monkeypatch.setattr(
        "ferry.worker.follower.environment.with_variables",
        lambda more: shown.append(more["_SPARK_AUTH_SECRET"]) or dict(os.environ),
    )
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    for generation, life in ((1, "a"), (2, "b")):
        registry.place = place(generation, life)
        follower.look(1.0)
    assert shown == [spark_secret(SECRET, "a"), spark_secret(SECRET, "b")] and shown[0] != shown[1]


def test_what_nobody_with_the_secret_has_written_starts_nothing(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever writes options of Java runs code: who has Redis alone may not."""
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    for wrong in ("", "nonsense", START.sealed("another secret", "a"), START.sealed(SECRET, "an older life")):
        registry.place = replace(place(1, "a"), executor=wrong)
        follower._driver = None
        follower.look(1.0)
        assert follower._process is None and "starts no executor" in caplog.messages[-1]
    registry.place = place(2, "b")
    follower.look(2.0)
    assert follower._process is not None


def test_a_driver_of_release_0_1_gets_a_worker_of_its_master(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new image rolls the workers before the driver."""
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(
        "ferry.worker.follower.environment.with_variables",
        lambda more: shown.append(more) or os.environ | more,  # type: ignore[func-returns-value]
    )
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = DriverPlace(1, True, "a", "spark://10.0.0.1:7077", "", 3)
    follower.look(1.0)
    (line,) = started(follower, 1)
    assert "org.apache.spark.deploy.worker.Worker --host 10.0.0.9 --port 7077 " in line and "--cores 3" in line
    assert line.endswith(" spark://10.0.0.1:7077") and derived(SECRET, "spark") not in line
    assert shown[0]["_SPARK_AUTH_SECRET"] == derived(SECRET, "spark")
    assert shown[0]["SPARK_EXECUTOR_ATTRIBUTE_FERRY_WORKER"] == "4" and shown[0]["SPARK_SCALA_VERSION"] == "2.13"
    assert "spark.authenticate true" in (follower._files.directory / "worker.conf").read_text()
    registry.place = place(2, "b")
    follower.look(2.0)
    assert "KubernetesExecutorBackend" in started(follower, 2)[1], "the driver was rolled, too"


def test_the_users_variables_do_not_replace_ferrys(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(
        "ferry.worker.follower.environment.with_variables",
        lambda more: shown.append(more) or os.environ | more,  # type: ignore[func-returns-value]
    )
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    mine = replace(START, variables={"FERRY_WORKER": "9", "_SPARK_AUTH_SECRET": "x", "SPARK_LOCAL_IP": "0.0.0.0"})
    registry.place = replace(place(1, "a"), executor=mine.sealed(SECRET, "a"))
    follower.look(1.0)
    assert shown[0]["FERRY_WORKER"] == "4" and shown[0]["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert shown[0]["_SPARK_AUTH_SECRET"] == spark_secret(SECRET, "a")


def test_files_of_an_executor_are_gone_with_it(follower: Follower) -> None:
    """Spark puts the files of a job into its working directory."""
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    follower.look(1.0)
    assert follower._process is not None
    assert Path(f"/proc/{follower._process.pid}/cwd").resolve() == follower._files.work.resolve()
    (follower._files.work / "program.zip").touch()
    registry.place = place(2, "b")
    follower.look(2.0)
    assert list(follower._files.work.iterdir()) == []


def test_files_that_cannot_be_deleted_stop_no_executor(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """User code may lock a folder, or Python processes of the executor before may still write."""

    def keep(folder: Path, ignore_errors: bool = False) -> None:
        (folder / "kept").touch()
        if not ignore_errors:
            raise PermissionError(folder)

    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    follower.look(1.0)
    started(follower, 1)
    monkeypatch.setattr("ferry.worker.follower.shutil.rmtree", keep)
    registry.place = place(2, "b")
    follower.look(2.0)
    assert len(started(follower, 2)) == 2 and (follower._files.work / "kept").exists()


def test_another_process_of_a_worker_goes_on_with_other_numbers(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses a number that it has already."""
    monkeypatch.setattr("ferry.worker.follower.time.time", lambda: 1_700_000_123.9)
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    for generation, life in ((1, "a"), (2, "b")):
        registry.place = place(generation, life)
        follower.look(1.0)
        lines = started(follower, generation)
    assert "--executor-id 1004123 " in lines[0] and "--executor-id 2004124 " in lines[1]


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
    assert "SYSTEM_ERR" in follower._files.logging.read_text(), "what executors say is in the log of the container"


def test_one_that_fails_for_hours_is_still_waited_for(follower: Follower) -> None:
    follower._failures, follower._started = 5000, 100.0
    follower._ended(100.0, 1)
    assert follower._not_before == 100.0 + RESTART_SECONDS_MAX


def test_the_class_of_an_executor_is_one_that_the_driver_checks(follower: Follower) -> None:
    registry: FakeRegistry = follower._registry  # type: ignore[assignment]
    registry.place = place(1, "a")
    follower.look(1.0)
    assert private.EXECUTOR in private.PARTS and f" {private.EXECUTOR} " in started(follower, 1)[0]
