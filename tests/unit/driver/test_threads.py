"""A thread that the driver needs takes it along when it fails; one of Spark's bridge does not."""

from __future__ import annotations

import ast
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ferry.contract.exit_codes import ExitCode
from ferry.driver import __main__ as driver
from ferry.system import api_server
from ferry.system.api_server import ApiServer

RUNTIME = Path(driver.__file__).parents[1]


def test_every_thread_that_is_needed_has_the_name_that_is_looked_for() -> None:
    calls = (
        node
        for file in RUNTIME.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "threading.Thread"
    )
    named = {ast.unparse(k.value).strip("'") for call in calls for k in call.keywords if k.arg == "name"}
    assert set(driver.OURS) - {api_server.THREAD} <= named and "THREAD" in named
    server = ApiServer(lambda scope, receive, send: None, ("127.0.0.1", 0))  # type: ignore[arg-type, return-value]
    assert api_server.THREAD in {thread.name for thread in threading.enumerate()}
    server.close()


@pytest.mark.parametrize(("name", "ends"), [("coordinator", True), (api_server.THREAD, True), ("py4j", False)])
def test_who_is_needed_takes_the_driver_along(monkeypatch: pytest.MonkeyPatch, name: str, ends: bool) -> None:
    codes: list[int] = []
    monkeypatch.setattr(driver.os, "_exit", codes.append)
    failed: Any = SimpleNamespace(thread=SimpleNamespace(name=name), exc_value=ValueError("x"))
    driver.end_with_thread(failed)
    assert codes == ([ExitCode.THREAD_FAILED] if ends else [])


def test_a_thread_of_the_users_ends_alone_whatever_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ValueError("x")

    monkeypatch.setattr(driver.os, "_exit", lambda code: pytest.fail("the driver ends"))
    ended: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)
    thread = threading.Thread(target=fails, name="tick")
    thread.start()
    thread.join()
    driver.end_with_thread(ended[0])
