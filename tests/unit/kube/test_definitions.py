"""The hook that applies definitions before an upgrade: a newer definition stays, and every failure says what to do."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from ferry_operator.crd import schema
from ferry_operator.kube import definitions
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import DEFINITIONS, ApiError, Kind
from tests.unit.kube.fakes.fake_api import FakeApi

NAME = "streamjobs.ferry.dev"


class Server(FakeApi):
    """An API server that applies whole documents."""

    def __init__(self, present: Doc | None) -> None:
        super().__init__(lambda: 0.0)
        if present is not None:
            self.create(DEFINITIONS, present)

    def apply(self, kind: Kind, name: str, document: Doc) -> Doc:
        return self._call("apply", kind, name, lambda: self._store(kind, document))

    @property
    def applied(self) -> list[str]:
        return [name for verb, _, name in self.calls if verb == "apply"]


def without(*paths: str) -> Doc:
    """The present definition without some fields."""
    found = copy.deepcopy(schema.definition())
    for path in paths:
        above, _, name = path.rpartition(".")
        node: Any = schema.node_at(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"], above)
        del node["properties"][name]
    return found


def test_an_older_definition_gets_the_fields_that_it_lacks() -> None:
    server = Server(without("spec.deploy", "spec.epoch.maxRows"))
    assert definitions.ensure(server, schema.definition()) == "has now spec.deploy, spec.epoch.maxRows"
    assert server.objects[DEFINITIONS, NAME]["spec"] == schema.definition()["spec"]


def test_rules_and_words_are_applied_too() -> None:
    server = Server(schema.definition())
    mine = schema.definition()
    mine["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "better words"
    assert definitions.ensure(server, mine) == "is up to date" and server.applied == [NAME]


def test_a_newer_definition_stays() -> None:
    server = Server(schema.definition())
    assert "newer release, and has spec.deploy" in definitions.ensure(server, without("spec.deploy"))
    assert not server.applied


def test_of_two_definitions_of_which_none_is_newer_no_field_is_dropped() -> None:
    server = Server(without("spec.epoch.maxRows"))
    with pytest.raises(definitions.Diverged, match=r"has spec\.deploy, and lacks spec\.epoch\.maxRows"):
        definitions.ensure(server, without("spec.deploy"))
    assert not server.applied


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "streamjobs.yaml").write_text(schema.to_yaml(schema.definition()))
    return tmp_path


def ended(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(definitions, "DefinitionsClient", lambda *_: server)
    monkeypatch.setattr(definitions, "AGAIN_SECONDS", 0.0)
    return definitions.main([str(folder)])


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "networkPolicies.apiServerPorts"), (403, "ClusterRole"), (404, "administrator"), (500, "")],
)
def test_why_nothing_was_applied_is_one_line(
    status: int, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(schema.definition())

    def fail(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(status, "No", "no\nanswer")

    server.before = fail
    assert ended(server, folder, monkeypatch) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (definitions.ATTEMPTS if status in (0, 500) else 1) and all(words in line for line in lines)


def test_an_api_server_that_comes_back_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(without("spec.deploy"))

    def fail_once(verb: str, kind: Kind, name: str) -> None:
        server.before = lambda *_: None
        raise ApiError(503, "Busy", "busy")

    server.before = fail_once
    assert ended(server, folder, monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"the definition {NAME} has now spec.deploy"


def test_a_folder_without_definitions_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(Server(None), tmp_path, monkeypatch) == 1
