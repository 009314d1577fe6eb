"""Keys of the installation: created once, kept, and rotated while runs keep the key that they began with."""

from __future__ import annotations

import json
import logging
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

import pytest

from ferry.contract import certificates
from ferry_operator.kube import first_secrets
from ferry_operator.kube.api import names
from ferry_operator.kube.api.keys import keys_of, read_keys
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS, SECRETS, ApiError, Kind
from ferry_operator.kube.first_secrets import random_entry
from ferry_operator.kube.manifests.release import run_key
from ferry_operator.kube.metrics import Metrics
from ferry_operator.kube.observe.seen import Seen
from ferry_operator.kube.process import leader as leading
from ferry_operator.kube.process.leader import Leader
from tests.unit.kube.fakes.fake_api import FakeApi
from tests.unit.kube.fakes.fake_world import RELEASE, FakeLink, World, job, settled
from tests.unit.kube.test_isolation import NoWatch
from tests.unit.kube.test_suspension import begun, edit, events, memory, suspended

OLD, NEW = {1: "key"}, {1: "key", 2: "another"}


def api() -> FakeApi:
    return FakeApi(lambda: 0.0)


def coded(**texts: str) -> Doc:
    return {entry: b64encode(text.encode()).decode() for entry, text in texts.items()}


def values(api: FakeApi, name: str) -> dict[str, str]:
    return {entry: b64decode(text).decode() for entry, text in api.objects[SECRETS, name]["data"].items()}


# --- the Secrets


def test_a_secret_is_created_once_and_kept() -> None:
    server = api()
    assert first_secrets.ensure(server, "x-operator", random_entry("key"), "x") == "created"
    value = values(server, "x-operator")["key"]
    assert len(value) == 40 and value != values(_other(), "x-operator")["key"]
    assert first_secrets.ensure(server, "x-operator", random_entry("key"), "x") == "exists"
    assert values(server, "x-operator") == {"key": value}
    assert server.objects[SECRETS, "x-operator"]["metadata"]["labels"]["app.kubernetes.io/instance"] == "x"


def _other() -> FakeApi:
    server = api()
    first_secrets.ensure(server, "x-operator", random_entry("key"), "x")
    return server


def test_a_secret_that_lacks_the_entry_gets_it_and_keeps_the_rest() -> None:
    server = api()
    server.create(SECRETS, {"metadata": {"name": "mine"}, "data": coded(other="1")})
    assert "new entry" in first_secrets.ensure(server, "mine", random_entry("token"), "x")
    assert values(server, "mine")["other"] == "1" and len(values(server, "mine")["token"]) == 40


def test_a_retired_key_does_not_come_back() -> None:
    server = api()
    server.create(SECRETS, {"metadata": {"name": "mine"}, "data": coded(key2="b")})
    assert first_secrets.ensure(server, "mine", random_entry("key"), "x") == "exists" and values(server, "mine") == {
        "key2": "b"
    }


HOSTS = ("x-ferry-redis.streams.svc", "10.96.0.7", "FD00::7")


def test_a_certificate_is_created_once_and_issued_again_by_its_authority() -> None:
    server, missing = api(), first_secrets.certificate(HOSTS)
    assert first_secrets.ensure(server, "tls", missing, "x") == "created"
    first = values(server, "tls")
    assert certificates.covers(first["tls.crt"].encode(), HOSTS) and first["ca.crt"].startswith("-----BEGIN CERT")
    assert first_secrets.ensure(server, "tls", missing, "x") == "exists" and values(server, "tls") == first
    for entry in ("tls.crt", "tls.key"):
        del server.objects[SECRETS, "tls"]["data"][entry]
        assert "new entry" in first_secrets.ensure(server, "tls", missing, "x")
        second = values(server, "tls")
        assert second["tls.key"] != first["tls.key"] and second["ca.crt"] == first["ca.crt"]
    more = first_secrets.certificate((*HOSTS, "another"))
    assert (
        "new entry" in first_secrets.ensure(server, "tls", more, "x")
        and values(server, "tls")["ca.crt"] == first["ca.crt"]
    )
    server.objects[SECRETS, "tls"]["data"] |= coded(**{"tls.crt": "no certificate"})
    assert "new entry" in first_secrets.ensure(server, "tls", more, "x")


def test_of_two_replicas_the_first_decides() -> None:
    server = api()

    def faster(verb: str, kind: Kind, name: str) -> None:
        if verb == "create":
            server.before = lambda *_: None
            server.create(SECRETS, {"metadata": {"name": "mine"}, "data": coded(key="of the first")})

    server.before = faster
    assert first_secrets.ensure(server, "mine", random_entry("key"), "x") == "exists"
    assert values(server, "mine") == {"key": "of the first"}


@pytest.mark.parametrize(
    ("status", "words"), [(0, "networkPolicies.apiServerPorts"), (403, "Role of the operator in streams")]
)
def test_why_the_secrets_cannot_be_created_is_one_line(
    status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = api()

    def fail(verb: str, kind: Kind, name: str) -> None:
        raise ApiError(status, "No", "no\nanswer")

    server.before = fail
    monkeypatch.setattr(first_secrets, "KubeApi", lambda *_: server)
    monkeypatch.setattr(first_secrets, "AGAIN_SECONDS", 0.0)
    assert first_secrets.main(["--namespace", "streams", "--release", "x", "x-operator=key"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (first_secrets.ATTEMPTS if status == 0 else 1) and all(words in line for line in lines)


def test_the_entries_of_keys_have_numbers() -> None:
    secret = {"data": coded(key="a", key2="b", key12="c", key1="d", key02="e", keys="f", key3="")}
    assert keys_of(secret) == {1: "a", 2: "b", 12: "c"}
    server = api()
    server.create(SECRETS, {"metadata": {"name": "mine"}, "data": coded(token="t")})
    with pytest.raises(ApiError, match="has no entry `key`"):
        read_keys(server, "mine")


def test_a_missing_key_is_not_taken_for_a_missing_definition(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leading, "JobWatches", NoWatch)
    caplog.set_level(logging.INFO, "ferry.operator")
    leader = Leader(FakeApi(lambda: 0.0), replace(RELEASE, key_secret="gone"), 1, lambda: True, Metrics())
    monkeypatch.setattr(leader._end, "wait", lambda _: leader._end.set())
    leader._nodes = None
    leader._keep_listing()
    assert "the Secret gone does not exist: put it back" in caplog.text and "definition" not in caplog.text


# --- runs


class Checking(FakeLink):
    """Requests show the secret that the driver has read from its settings."""

    def status(self, url: str, secret: str) -> Any:
        assert secret == _settings(self.world)["secret"]
        return super().status(url, secret)


def _settings(world: World) -> Doc:
    found: Doc = json.loads(values(world.api, "nbq5-run")["run.json"])
    return found


def rotated(world: World, keys: dict[int, str]) -> None:
    world.release = RELEASE.with_keys(keys)
    world.operator.release = world.release
    world.operator.driver_client = Checking(world)  # type: ignore[assignment]


def uids(world: World) -> set[str]:
    return {world.pod(name)["metadata"]["uid"] for name in world.pods()}


def test_a_run_keeps_its_key_and_the_next_run_takes_the_newest() -> None:
    world = begun()
    before, secret = uids(world), _settings(world)["secret"]
    assert memory(world)["key"] == 1
    rotated(world, NEW)
    edit(world, workers=3)
    world.until(lambda w: settled(w) and w.status["workers"] == 3)
    assert before < uids(world) and _settings(world)["secret"] == secret and memory(world)["key"] == 1
    assert {world.pod(name)["metadata"]["annotations"][names.KEY] for name in world.pods()} == {"1"}
    world.begin_operator()
    rotated(world, NEW)
    world.rounds(5)
    assert before < uids(world) and world.lives == 1, "another operator reads the number"
    edit(world, suspend=True)
    world.until(suspended)
    edit(world, suspend=False)
    world.until(settled)
    assert memory(world)["key"] == 2 and list(world.runs.values()) == [None, "latest"]
    uid = world.api.objects[JOBS, "nbq5"]["metadata"]["uid"]
    assert _settings(world)["secret"] == run_key(world.release, uid) != secret


def test_a_new_job_takes_the_newest_key_and_survives_the_loss_of_its_status() -> None:
    world = World()
    rotated(world, NEW)
    world.api.create(JOBS, job())
    world.until(settled)
    assert memory(world)["key"] == 2
    before = uids(world)
    del world.api.objects[JOBS, "nbq5"]["status"]
    rotated(world, {**NEW, 3: "third"})
    world.rounds(5)
    assert memory(world)["key"] == 2 and uids(world) == before, "the pods have the number"


def test_a_run_without_pods_keeps_the_key_in_its_status() -> None:
    def key(status: Doc) -> int:
        return Seen(
            {"metadata": {"name": "a", "uid": "u"}, "status": status}, (), {}, None, None, None, 0.0, newest_key=2
        ).memory.key

    assert key({"memory": {"uid": "u", "run": 1, "key": 1}}) == 1
    assert key({"memory": {"uid": "u"}}) == 1, "of an operator that had one key"
    assert key({}) == key({"memory": {"uid": "of another object", "key": 1}}) == 2


def test_without_the_key_of_its_run_a_job_is_left_alone_until_the_key_is_back() -> None:
    world = begun()
    before = uids(world)
    rotated(world, {2: "another"})
    world.release = world.operator.release = replace(world.release, key_secret="keys")
    world.rounds(3)
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "KeyMissing")
    assert "the entry `key` of the Secret keys in the namespace jobs is not there" in degraded["message"]
    world.rounds(100)
    assert uids(world) == before and world.lives == 1 and memory(world)["key"] == 1
    rotated(world, NEW)
    world.until(settled)
    assert world.condition("Degraded")["status"] == "False" and uids(world) == before


def annotate(world: World, name: str, value: str) -> None:
    world.api.edit(JOBS, "nbq5", {"metadata": {"annotations": {name: value}}})


def replaced(keys: dict[int, str] | None = None) -> tuple[World, str, set[str]]:
    """A running job, another operator after the loss of the Secret, the message of the condition, the pods."""
    world = begun()
    before = uids(world)
    world.begin_operator()
    rotated(world, keys or {1: "created again"})
    world.rounds(3)
    degraded = world.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "KeyMissing" if keys else "KeyReplaced")
    return world, degraded["message"], before


def test_a_key_that_was_created_again_is_not_taken_for_the_key_of_a_run() -> None:
    world, message, before = replaced()
    assert message.startswith("the key of this run is gone") and "back from a backup" in message
    assert [text in message for text in events(world, "KeyReplaced")] == [True]
    world.rounds(100)
    assert uids(world) == before and world.lives == 1 and memory(world)["run"] == 1
    world.release = world.operator.release = RELEASE.with_keys(OLD)
    world.until(settled)
    assert world.condition("Degraded")["status"] == "False" and uids(world) == before


@pytest.mark.parametrize("keys", [None, {2: "another"}])
def test_a_run_whose_key_is_lost_ends_by_the_command_of_its_condition(keys: dict[int, str] | None) -> None:
    world, message, before = replaced(keys)
    world.take_checkpoint(None)
    command = re.search(r"annotate --overwrite sj/nbq5 (\S+)=(\w+)`", message)
    assert command is not None
    annotate(world, command[1], "of another key")
    world.rounds(5)
    assert uids(world) == before, "the command accepts the key that it names, not any later one"
    annotate(world, command[1], command[2])
    world.until(settled)
    assert not uids(world) & before and list(world.runs.values()) == [None, "latest"]
    assert (memory(world)["run"], memory(world)["key"]) == (2, max(keys or {1: ""}))
    assert world.condition("Degraded")["status"] == "False"


def test_the_condition_names_the_secret_and_its_namespace() -> None:
    world = begun()
    world.begin_operator()
    rotated(world, {1: "created again"})
    world.operator.release = replace(world.release, key_secret="ferry-operator", home="ferry/ferry")
    world.rounds(2)
    message = world.condition("Degraded")["message"]
    assert "the entry `key` of the Secret ferry-operator in the namespace ferry has another value" in message
    assert "kubectl -n jobs annotate" in message


def test_a_job_that_has_begun_no_run_takes_the_key_that_is_there() -> None:
    world = begun()
    edit(world, suspend=True)
    world.until(suspended)
    rotated(world, {1: "created again"})
    edit(world, suspend=False)
    world.until(settled)
    assert list(world.runs.values()) == [None, "latest"]


def test_a_leader_notices_a_further_key() -> None:
    server = api()
    server.create(SECRETS, {"metadata": {"name": "keys"}, "data": coded(key="a")})
    leader = Leader(server, replace(RELEASE, key_secret="keys"), 1, lambda: True, Metrics())
    leader._list_all()
    reconciler = leader._reconcilers["jobs"]
    assert (reconciler.release.key, reconciler.release.newest_key) == ("a", 1)
    server.edit(SECRETS, "keys", {"data": coded(key2="b")})
    leader._list_all()
    assert (reconciler.release.key, reconciler.release.newest_key) == ("b", 2)
    first = reconciler.release.of_run(1)
    assert first is not None and first.key == "a" and reconciler.release.of_run(3) is None
