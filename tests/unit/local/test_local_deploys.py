"""Deploys of a run on this machine: a number that another driver has used again is another program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ferry.contract.catalogue import first_catalogue
from ferry.contract.errors import Unreachable
from ferry.contract.run_directory import DRIVER, DriverAddress
from ferry.contract.timeline import TIMELINE
from ferry_operator.local.check import Checked
from ferry_operator.local.deploys import JobEnded, LocalDeploys
from tests.unit.sidecar.test_data import settings_of


def test_a_number_that_is_used_again_is_not_the_program_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_of(tmp_path).write()
    deploys, listed = LocalDeploys(tmp_path), list[dict[str, Any]]()
    monkeypatch.setattr(deploys, "_call", lambda method, *_: listed if method == "GET" else {"number": 7})
    request = {"module": None, "file": "b.py", "folder": "/b", "arguments": {"n": [1]}, "at": 0}
    assert deploys.deploy(request) == 7
    mine = {"number": 7, "state": "in force", "since": 4, **{name: request[name] for name in request if name != "at"}}
    first = {"number": 1, "state": "over", "module": None, "file": "a.py", "folder": "/a", "arguments": {}}
    for other in ({}, {"folder": "/a", "file": "a.py"}, {"arguments": {"n": [2]}}):
        listed[:] = [{**mine, **other}, first]
        assert [one["number"] for one in deploys.programs()] == ([1] if other else [7, 1])


def test_a_repeated_rollback_says_that_it_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of(tmp_path).write()
    sent = list[dict[str, Any]]()

    def call(method: str, path: str, purpose: str, body: dict[str, Any]) -> dict[str, Any]:
        sent.append(body)
        return {"number": 3}

    first, second = LocalDeploys(tmp_path), LocalDeploys(tmp_path)
    for deploys in (first, first, second):
        monkeypatch.setattr(deploys, "_call", call)
        deploys.rollback(None)
    assert sent[0] == sent[1] != sent[2] and sent[0]["attempt"]


def test_a_command_ends_when_the_job_has_ended(tmp_path: Path) -> None:
    """No driver will answer it."""
    settings_of(tmp_path).write()
    (tmp_path / DRIVER).write_text(DriverAddress("http://127.0.0.1:9", 1, 1).dump())
    deploys = LocalDeploys(tmp_path)
    with pytest.raises(Unreachable):
        deploys.programs()
    ended = {"kind": "ended", "outcome": "halted", "text": "user code: KeyError", "t": 1.0}
    (tmp_path / TIMELINE).write_text(json.dumps(ended) + "\n")
    for _ in range(2):
        with pytest.raises(JobEnded, match="has halted: user code: KeyError"):
            deploys.programs()
        (tmp_path / DRIVER).unlink(missing_ok=True)
    with (tmp_path / TIMELINE).open("a") as timeline:
        timeline.write(json.dumps({"kind": "action", "text": "start", "t": 2.0}) + "\n")
    with pytest.raises(Unreachable, match="is starting"):
        deploys.programs()
    shutil.rmtree(tmp_path)
    with pytest.raises(JobEnded, match="has ended"):
        deploys.programs()


def test_a_text_that_the_run_has_imported_already_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of(tmp_path).write()
    deploys = LocalDeploys(tmp_path)
    listed = [
        {"number": 3, "module": None, "file": "/v2/a.py", "folder": "/c", "arguments": {"n": 1}},
        {"number": 2, "module": None, "file": "/v1/a.py", "folder": "/b", "arguments": {"n": 2}},
        {"number": 1, "module": None, "file": "/v1/a.py", "folder": "/b", "arguments": {"n": 1}},
    ]
    monkeypatch.setattr(deploys, "_call", lambda *_: listed)
    request = {"module": None, "file": "/v1/a.py", "folder": "/b", "arguments": {"n": 1}}
    again = "files that it reads at import are not read again by a process that has imported it"
    assert deploys.known_text(request) == f"the text and the arguments are those of program 1: {again}"
    assert deploys.known_text({**request, "arguments": {}}) == f"the text is that of program 2: {again}"
    assert deploys.known_text({**request, "folder": "/d"}) == ""
    assert deploys.known_text({**request, "folder": None}) == ""


def test_a_request_names_the_program_that_it_was_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of that program and operators of a newer one: the driver refuses such a request."""
    settings_of(tmp_path).write()
    deploys, catalogue = LocalDeploys(tmp_path), first_catalogue([], file="a.py", folder="/a", arguments={"n": 1})
    first = {"number": 1, "state": "in force", **dict.fromkeys(("module", "folder")), "file": "a.py", "arguments": {}}
    listed = [first]

    def call(method: str, path: str, *_: object) -> Any:
        if path == "programs":
            return listed
        listed[:] = [{**first, "number": 2, "arguments": {"n": 2}}]  # Another terminal deploys.
        return {"catalogue": catalogue.dump(), "inForce": []}

    monkeypatch.setattr(deploys, "_call", call)
    monkeypatch.setattr("ferry_operator.local.check.deployable", lambda *_: Checked(operators=[], sources=[]))
    _, request = deploys.compared(None, lambda arguments: {**arguments, "m": 3}, 1.0)
    assert (request["base"], request["arguments"]) == (1, {"m": 3})
