"""What becomes of a driver's process whose job begins again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ferry.contract import variables
from ferry.contract.exit_codes import ExitCode
from ferry.contract.settings import RunSettings
from ferry.driver import __main__ as program
from ferry.driver import job
from ferry.driver.errors import BeginsAgain
from tests.unit.driver.test_cluster import settings


class Followed(Exception):
    """The next driver runs."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done with Spark, in order."""
    done: list[str] = []

    def run(of: RunSettings) -> int:
        raise BeginsAgain("the job begins again")

    def execute(path: str, arguments: list[str]) -> None:
        done.append("followed")
        raise Followed

    monkeypatch.setattr(program.sys, "argv", ["driver", "run.json"])
    monkeypatch.setattr(RunSettings, "read", lambda file: settings())
    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr(program.session, "begin", lambda *_: None)
    monkeypatch.setattr(program.session, "keep", lambda: done.append("kept"))
    monkeypatch.setattr(program.session, "kill", lambda: done.append("killed"))
    monkeypatch.setattr(os, "execv", execute)
    for name in (variables.GATEWAY_PORT, variables.GATEWAY_SECRET):
        monkeypatch.delenv(name, raising=False)
    return done


def test_the_next_driver_is_the_same_process_with_the_same_spark(done: list[str]) -> None:
    with pytest.raises(Followed):
        program.main()
    assert done == ["kept", "followed"]


@pytest.mark.parametrize(("steady_seconds", "followed"), [(1000.0, False), (0.0, True)])
def test_one_that_follows_and_fails_soon_leaves_the_next_to_others(
    done: list[str], steady_seconds: float, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that loses its state again and again would take all of the processor."""
    monkeypatch.setenv(variables.GATEWAY_PORT, "1")
    monkeypatch.setattr(program, "STEADY_SECONDS", steady_seconds)
    if followed:
        with pytest.raises(Followed):
            program.main()
    else:
        assert program.main() == ExitCode.CRASHED
    assert done == (["kept", "followed"] if followed else ["killed"])


class OfJava(Exception):
    """As PySpark's, whose words Java has."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def __str__(self) -> str:
        if self._done:
            raise ConnectionError
        return "no room"


def test_the_last_line_has_the_words_that_java_has(done: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    program.end(OfJava(done))
    assert done == ["killed"] and capfd.readouterr().err.splitlines()[-1] == "ends: OfJava: no room"


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("import os; from ferry.driver import exits; exits.guard(); users.leaves()", ExitCode.HALTED),
        ("import os; from ferry.driver import exits; exits.guard(); os.fork() or users.leaves(); os.wait()", 0),
        ("import os; from ferry.driver import exits, __main__; exits.guard(); __main__.os._exit(0)", 0),
    ],
    ids=["driver", "child", "ferry"],
)
def test_an_exit_in_the_users_code_is_no_end_of_the_job(program: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text("import os\ndef leaves():\n    os._exit(0)\n")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", f"import users; {program}"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended.stderr
    if code:
        assert ended.stderr.startswith('user code: os._exit(0) (users.py:3 in leaves: "os._exit(0)")')
