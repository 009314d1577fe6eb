"""Executors under `k8s://`: lost ones are noticed at once, ones of an older life are refused, Spark's pages show them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from ferry import environment
from ferry.contract.executors import ExecutorStart, application, worker_of
from ferry.contract.places import DriverPlace
from ferry.environment import Environment
from ferry.worker import launch
from tests.cluster import runner
from tests.cluster.hosts import SECRET, Host, Hosts, await_that
from tests.cluster.test_hosts import ARGS, EVENTS, settings
from tests.patience import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.turns, pytest.mark.timeout(400), pytest.mark.xdist_group("hosts")]

BACKEND = "KubernetesExecutorBackend"


def executor_of(host: Host) -> psutil.Process | None:
    """The JVM of a worker's executor."""
    for process in host.tree():
        with suppress(psutil.Error):
            if any(BACKEND in word for word in process.cmdline()):
                return process
    return None


def number_of(process: psutil.Process) -> str:
    line = process.cmdline()
    return line[line.index("--executor-id") + 1]


def log_of(hosts: Hosts) -> str:
    return (hosts.drivers[-1].directory / "log").read_text(errors="replace")


def begun(hosts: Hosts, base: Path, **changes: Any) -> DriverPlace:
    """A driver and two workers with executors in use."""
    hosts.start_redis()
    for index in (0, 1):
        hosts.start_worker(index)
    hosts.start_driver(base / "checkpoint", **changes)
    await_that(lambda: (hosts.drivers[0].directory / "slots").read_text() == "4", "task slots of both", 120)
    hosts.await_epochs(2)
    place = hosts.registry.driver()
    assert place is not None
    return place


def test_a_killed_executor_is_noticed_at_once(tmp_path: Path) -> None:
    """Nobody is told but by the connection that closes: nothing waits for a heartbeat, and results stay right."""
    hosts = Hosts(tmp_path, settings(tmp_path))
    try:
        begun(hosts, tmp_path)
        instances = {one.instance: one.pid for one in hosts.registrations()}
        before = executor_of(hosts.workers[1])
        assert before is not None
        number = number_of(before)
        assert worker_of(number) == 1
        killed = time.monotonic()
        before.send_signal(signal.SIGKILL)
        await_that(lambda: f"executor {number} of worker 1 has closed its connection" in log_of(hosts), "the loss", 10)
        noticed = time.monotonic() - killed
        hosts.await_epochs(1)
        print(f"noticed after {noticed:.2f} s, an epoch after {time.monotonic() - killed:.2f} s")
        assert noticed <= PATIENCE
        await_that(lambda: executor_of(hosts.workers[1]) is not None, "another executor", 20)
        after = executor_of(hosts.workers[1])
        assert after is not None and number_of(after) != number
        await_that(lambda: log_of(hosts).count("INFO 4 task slots") == 2, "its task slots", 60)
        assert {one.instance: one.pid for one in hosts.registrations()} == instances, "no sidecar noticed"
        assert "kubernetes.default.svc" not in log_of(hosts), "Spark has asked no API server"
        hosts.settings = replace(hosts.settings, epoch_max_rows=60_000, epoch_interval_ms=50)
        hosts.drivers[0].kill()
        hosts.start_driver(tmp_path / "checkpoint", epoch_max_rows=60_000, epoch_interval_ms=50)
        await_that(lambda: hosts.ended() is not None, "end of the input", 120)
        assert hosts.ended() == 0
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()
    missing, extra = runner.difference("nbq5", EVENTS, ARGS, tmp_path / "out", tmp_path)
    assert not missing and not extra, f"missing {len(missing)} {missing[:5]}, unexpected {len(extra)} {extra[:5]}"


@pytest.mark.parametrize("tls", ["run", "off"])
def test_an_executor_of_an_older_life_is_refused(tls: str, tmp_path: Path) -> None:
    """Even at the address of the present driver. The same start with the present life is taken."""
    hosts = Hosts(tmp_path, replace(settings(tmp_path), tls=tls))
    try:
        place = begun(hosts, tmp_path)
        assert hosts.workers[0].address != hosts.address(30)
        start = ExecutorStart.opened(SECRET, place.life, place.executor)

        def started(life: str, number: int) -> subprocess.Popen[bytes]:
            files, home = launch.Files(tmp_path / f"own-{number}"), environment.spark_home()
            files.work.mkdir(parents=True)
            files.local.mkdir()
            files.logging.write_text(launch.LOGGING)
            claimed, env = replace(place, life=life), Environment(host=hosts.address(30))
            more = launch.of_life(hosts.settings, claimed, start) | launch.variables(hosts.settings, 9, files, home)
            command = launch.command("nbq5-1", env, files, home, claimed, start, number)
            with open(tmp_path / f"own-{number}" / "log", "wb") as log:
                return subprocess.Popen(command, cwd=files.work, env={**os.environ, **more}, stdout=log, stderr=log)

        old = started("of-a-driver-before", 1_009_001)
        try:
            assert old.wait(60 * PATIENCE) == 1
        finally:
            old.kill()
        new = started(place.life, 1_009_002)
        try:
            await_that(lambda: "INFO 6 task slots" in log_of(hosts), "a third executor", 60)
        finally:
            new.kill()
            new.wait()
        await_that(lambda: "executor 1009002 of worker 9 has closed" in log_of(hosts), "its end", 10)
        assert "1009001" not in log_of(hosts)
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()


def test_a_job_without_executors_says_so(tmp_path: Path) -> None:
    """Before, its status said only that tasks take long."""
    hosts = Hosts(tmp_path, settings(tmp_path))
    try:
        begun(hosts, tmp_path)
        for host in hosts.workers.values():
            for process in host.processes[1:]:
                process.kill()  # what follows the driver; its executor ends with it

        def told() -> list[str]:
            return [p["text"] for p in hosts.ask("status")["problems"] if p["reason"] == "NoExecutor"]

        await_that(lambda: bool(told()), "a problem", 60)
        assert re.search(r"no executor is registered with Spark.* for \d+ s: look at the workers", told()[0])
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        hosts.close()


def got(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def history_server(events: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    home = environment.spark_home()
    options = {"fs.logDirectory": events.as_uri(), "ui.port": str(port), "fs.update.interval": "1s"}
    command = [environment.java(), "-Xmx400m", "-XX:TieredStopAtLevel=1", "-cp", f"{home / 'jars'}/*"]
    command += [f"-Dspark.history.{key}={value}" for key, value in options.items()]
    command += ["org.apache.spark.deploy.history.HistoryServer"]
    with open(log, "wb") as out:
        return subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, stdout=out, stderr=out)


def test_sparks_pages_and_a_history_server_show_executors(tmp_path: Path) -> None:
    """Of two lives of a driver: each is an application of its own, so the second log replaces nothing."""
    events, port = tmp_path / "events", free_port()
    events.mkdir()
    wanted = {
        "spark.ui.enabled": "true", "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(),
    }  # fmt: skip
    mine = settings(tmp_path)
    hosts, server = Hosts(tmp_path, replace(mine, spark={**mine.spark, **wanted})), None
    try:
        first = begun(hosts, tmp_path)
        pages = f"http://127.0.0.1:{port}/api/v1/applications"
        assert [one["id"] for one in got(pages)] == [application("nbq5-1", first.life)]
        shown = {one["id"] for one in got(f"{pages}/{application('nbq5-1', first.life)}/executors")}
        assert {worker_of(one) for one in shown - {"driver"}} == {0, 1}
        hosts.drivers[0].kill()
        hosts.start_driver(tmp_path / "checkpoint")
        hosts.await_epochs(2)
        second = hosts.registry.driver()
        assert second is not None and second.life != first.life
        lives = {application("nbq5-1", place.life) for place in (first, second)}
        there = free_port()
        server, pages = (
            history_server(events, there, tmp_path / "history.log"),
            f"http://127.0.0.1:{there}/api/v1/applications",
        )
        await_that(lambda: {one["id"] for one in got(pages)} == lives, "both applications", 60)
        assert {one["name"] for one in got(pages)} == {"ferry-nbq5"}
        for place, generation in ((first, 1), (second, 2)):
            found = got(f"{pages}/{application('nbq5-1', place.life)}/allexecutors")
            numbers = {int(one["id"]) for one in found if one["id"] != "driver"}
            assert {number // 1_000_000 for number in numbers} == {generation}
            assert {worker_of(str(number)) for number in numbers} == {0, 1}
    except (AssertionError, TimeoutError) as failed:
        raise AssertionError(f"{failed}\n{hosts.story()}") from failed
    finally:
        if server is not None:
            server.kill()
            server.wait()
        hosts.close()
