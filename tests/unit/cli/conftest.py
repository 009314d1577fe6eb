"""Commands against the cluster in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ferry_operator.cli import main, targets
from tests.unit.cli.fakes.fake_user import FakeUser, user

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeUser:
    """With a job at rest."""
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    found = user()
    monkeypatch.setattr(targets, "connect", lambda where: found)
    return found


@pytest.fixture
def run(api: FakeUser, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of `kubectl streamjob ...`."""

    def run(*arguments: object, plugin: bool = True) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["x", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main.main(plugin)
        said = capfd.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return run
