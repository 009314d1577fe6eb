"""`ferry deploy --probation` waits for the verdict, also while the driver restarts."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from ferry.contract.errors import Unreachable
from ferry_operator.cli import deploys


class Programs:
    """Answers one after the other; None: the driver does not answer."""

    def __init__(self, *answers: dict[str, Any] | None, more: tuple[dict[str, Any], ...] = ()) -> None:
        self.left, self.more = [*answers], more

    def programs(self) -> list[dict[str, Any]]:
        answer = self.left.pop(0)
        if answer is None:
            raise Unreachable("the driver is starting")
        return [
            *self.more,
            {"number": 2, "state": "in force", "probation": 30.0, "refused": "", "wentBack": ""} | answer,
        ]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploys, "LOOK_SECONDS", 0.0)


def test_a_program_passes(capsys: pytest.CaptureFixture[str]) -> None:
    programs = Programs({}, None, {}, {"probation": 0.0})
    deploys._await_probation("sales", programs, 2)
    assert not programs.left and "program 2 has passed its probation" in capsys.readouterr().err


def test_a_program_that_the_job_has_left_is_not_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end:
        deploys._await("sales", Programs({"state": "over", "wentBack": "cents are negative"}), 2, 0.0, False)
    assert end.value.exit_code == 2
    shown = capsys.readouterr()
    assert "goes back from program 2: cents are negative" in shown.err.replace("\n", " ") and not shown.out


@pytest.mark.parametrize("answer", [{"wentBack": "cents are negative"}, {"refused": "cents are negative"}])
def test_the_job_goes_back(answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as end:
        deploys._await_probation("sales", Programs({}, answer), 2)
    assert end.value.exit_code == 2
    assert "the job goes back from program 2: cents are negative" in capsys.readouterr().err.replace("\n", " ")


def test_the_program_of_another_user_ends_the_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """A program that only goes on with this one does not."""
    follower, other = ({"number": 3, "state": "in force", "settles": settles} for settles in (2, None))
    programs = Programs({"state": "over"}, {"state": "over"}, {"probation": 0.0}, more=(follower,))
    deploys._await_probation("sales", programs, 2)
    assert not programs.left
    with pytest.raises(typer.Exit) as end:
        deploys._await_probation("sales", Programs({"state": "over"}, more=(other,)), 2)
    assert end.value.exit_code == 1
    said = capsys.readouterr().err.replace("\n", " ")
    assert "program 3 is in force, and the probation of program 2 was not over" in said
