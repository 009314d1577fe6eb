"""What Spark's session is started with."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import pytest

from ferry.driver import session
from ferry.driver.session import shared_classes
from ferry.environment import Environment
from tests.unit.driver.test_cluster import settings


def test_an_archive_of_classes_is_used_where_there_is_one(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert shared_classes(archive) == ""
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive} " in shared_classes(archive)


def test_java_ends_without_memory_and_leaves_nothing_in_the_machines_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, str] = {}

    class Builder:
        def config(self, key: str, value: str) -> Builder:
            given[key] = value
            return self

        def master(self, name: str) -> Builder:
            return self

        appName = getOrCreate = lambda self, *_: self

    monkeypatch.setattr(session.private, "check", lambda spark: None)
    monkeypatch.setattr(session, "SparkSession", type("Session", (), {"builder": Builder()}))
    session.start(settings(), Environment(), lambda url, executor: None)
    for role in ("driver", "executor"):
        assert "-XX:+ExitOnOutOfMemoryError" in given[f"spark.{role}.defaultJavaOptions"]
    assert f'"-Djava.io.tmpdir={tempfile.gettempdir()}"' in given["spark.driver.defaultJavaOptions"]


def test_a_jvm_that_gives_no_answer_ends_the_driver() -> None:
    frozen, ended, asked = threading.Event(), threading.Event(), 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        if asked > 50:
            frozen.wait()

    threading.Thread(target=session.await_silence, args=(ask, ended.set, 0.005), daemon=True).start()
    assert ended.wait(30)
    assert asked == 51, "as long as there are answers nothing ends"
    frozen.set()


def test_a_jvm_that_has_ended_gives_no_answer() -> None:
    ended = threading.Event()

    def ask() -> None:
        raise ConnectionError

    threading.Thread(target=session.await_silence, args=(ask, ended.set, 0.005), daemon=True).start()
    assert ended.wait(30)


def test_what_the_jvm_says_while_it_starts_is_not_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for why a driver has ended looks at the end of its log."""
    log: list[str] = []

    def starts(*_: object) -> None:
        time.sleep(0.3)
        log.append("Setting default log level")

    monkeypatch.setattr(session, "_begun", [])
    monkeypatch.setattr(session, "_launch", starts)
    session.begin(settings(), Environment())
    session.kill()
    log.append("refused")
    assert log == ["Setting default log level", "refused"]
