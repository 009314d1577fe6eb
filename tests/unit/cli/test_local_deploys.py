"""`ferry deploy` of a run on this machine: a text that the run has imported already is no news to its processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ferry_operator.cli import deploys, targets
from ferry_operator.cli.client import Local


class Known:
    """A run that has imported the text."""

    def __init__(self, directory: Path) -> None:
        pass

    def compared(self, *_: Any) -> Any:
        return [], {"file": "sales.py"}

    def known_text(self, request: Any) -> str:
        assert request == {"file": "sales.py"}
        return "the text is that of program 1: files are not read again"

    def state_bytes(self) -> int:
        return 0

    def deploy(self, request: Any) -> int:
        raise AssertionError("a check deploys nothing")


@pytest.mark.parametrize(
    ("arguments", "is_told"),
    [(["sales.py"], True), ([], True), (["sales.py", "--set", "pipeline.args.n=1"], True), (["--set", "n=1"], False)],
)
def test_a_known_text_is_told_unless_only_arguments_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], is_told: bool
) -> None:
    run = Local(cast(Any, SimpleNamespace(directory=str(tmp_path))), cast(Any, None))
    monkeypatch.setattr(targets, "find", lambda *_: run)
    monkeypatch.setattr(deploys, "LocalDeploys", Known)
    monkeypatch.setattr(deploys, "give_way", lambda: None)
    done = CliRunner().invoke(deploys.app, ["deploy", "sales", *arguments, "--check"])
    assert done.exit_code == 0, done.output
    assert (
        "sales: the text is that of program 1: files are not read again" in done.output.replace("\n", " ")
    ) == is_told
