"""The archive of `diagnose`: all that helps, and no secret of the run."""

from __future__ import annotations

import json
import tarfile
from base64 import b64decode
from pathlib import Path

import pytest

from ferry_operator.cli.remote import bundle, redact
from ferry_operator.cli.remote.port import DEFINITIONS
from ferry_operator.cli.remote.remote import RemoteJob
from ferry_operator.kube.api.names import Doc
from ferry_operator.kube.api.port import JOBS, LEASES, PODS, SECRETS, ApiError
from tests.unit.cli.fakes.fake_user import FakeUser, user

HIDDEN = ("hunter2", "pw-of-args", "pw-of-spark", "pw-of-url", "pw-of-redis")


def leaking() -> tuple[FakeUser, list[str]]:
    """A job that shows its secrets wherever it can, and these."""
    args = {"password": HIDDEN[1], "url": f"jdbc:db://me:{HIDDEN[3]}@db/x"}
    api = user(pipeline={"module": "jobs.nbq5", "args": args}, spark={"spark.db.secret.key": HIDDEN[2]})
    run = json.loads(b64decode(api.api.objects[SECRETS, "nbq5-run"]["data"]["run.json"]))["secret"]
    said = [
        f"connected to redis://:{HIDDEN[4]}@redis:6379/0", f"run {run}", f"token={run}", f"Bearer {run}",
        f'{{"secret": "{run}"}}', f"--db-password {HIDDEN[0]}", "epoch 7 is committed",
    ]  # fmt: skip
    for name in api.api.names(PODS):
        env = [{"name": "DB_PASSWORD", "value": HIDDEN[0]}, {"name": "URL", "value": f"redis://:{HIDDEN[4]}@redis"}]
        pod = api.api.objects[PODS, name]
        for one in pod["spec"]["containers"]:
            one["env"] = [*one["env"], *env]
            one["args"] = [*one["args"], "--db-password", HIDDEN[0]]
            api.logs[name, one["name"], False] = "\n".join(said).encode() + b"\n\xff\n"
            api.logs[name, one["name"], True] = f"before: {said[0]}\n".encode()
    api.api.set_status(PODS, "nbq5-driver", containerStatuses=[{"name": "driver", "restartCount": 1}])
    operator = {"containers": [{"name": "operator", "env": [{"name": "FERRY_KEY", "value": HIDDEN[0]}]}]}
    labels = {"app.kubernetes.io/component": "operator", "app.kubernetes.io/name": "ferry"}
    api.create(PODS, {"metadata": {"name": "ferry-operator-0", "labels": labels}, "spec": operator})
    api.logs["ferry-operator-0", "operator", False] = f"leads with key={HIDDEN[0]} and {run}\n".encode()
    api.create(LEASES, {"metadata": {"name": "ferry-operator"}, "spec": {"holderIdentity": "ferry-operator-0-ab"}})
    return api, [*HIDDEN, run]


def collected(api: FakeUser, to: Path) -> dict[str, bytes]:
    """Files of the archive, without the directory in front."""
    found = bundle.collect(RemoteJob(api, "nbq5"), lambda text: None)
    bundle.write(found, to, "nbq5-x", 1000.0)
    with tarfile.open(to) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name.removeprefix("nbq5-x/"): file.read() for name, file in files.items() if file is not None}


def test_no_secret_of_the_run_is_in_it(tmp_path: Path) -> None:
    api, secrets = leaking()
    files = collected(api, tmp_path / "a.tar.gz")
    assert not [(secret, name) for secret in secrets for name, data in files.items() if secret.encode() in data]
    assert (tmp_path / "a.tar.gz").stat().st_mode & 0o777 == 0o600
    assert not [call for call in api.api.calls if call[1] == SECRETS and call[0] in ("get", "list")]


def test_the_secrets_would_be_found_if_they_were_not_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, secrets = leaking()
    monkeypatch.setattr(redact, "value", lambda one: one)
    monkeypatch.setattr(redact, "text", lambda one: one)
    data = b"".join(collected(api, tmp_path / "a.tar.gz").values())
    assert [secret for secret in secrets if secret.encode() not in data] == []


def test_all_that_helps_is_in_it(tmp_path: Path) -> None:
    api, _ = leaking()
    files = collected(api, tmp_path / "a.tar.gz")
    for name in (
        "streamjob.json", "status.txt", "pods.json", "events.txt", "events/nbq5.json", "logs/nbq5-driver.driver.log",
        "logs/nbq5-driver.driver.previous.log", "logs/nbq5-worker-0.executor.log", "operator/pods.json",
        "operator/lease.json", "operator/logs/ferry-operator-0.operator.log", "versions.json", "missing.txt",
    ):  # fmt: skip
        assert name in files, (name, sorted(files))
    document = json.loads(files["streamjob.json"])
    assert document["status"]["phase"] == "Running" and document["spec"]["workers"] == 2
    assert b"epoch 7 is committed" in files["logs/nbq5-driver.driver.log"]
    assert b"HandoverStarted" in files["events.txt"] or b"Ready" in files["events.txt"]
    missing = files["missing.txt"].decode()
    assert "logs/nbq5-worker-0.sidecar.log" in missing and "definition.json" in missing


def test_the_version_of_the_resource_is_compared(tmp_path: Path) -> None:
    api, _ = leaking()
    crd: Doc = bundle.definition()
    api.create(DEFINITIONS, crd)
    versions = json.loads(collected(api, tmp_path / "a.tar.gz")["versions.json"])
    assert versions["schema of the cluster"] == versions["schema of this command"] and versions["served"] == [
        "v1alpha1"
    ]


def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    api, _ = leaking()

    def forbidden(*_: object, **__: object) -> None:
        raise ApiError(403, "Forbidden", "not for you")

    api.find = forbidden  # type: ignore[assignment]
    api.events = forbidden  # type: ignore[method-assign, assignment]
    files = collected(api, tmp_path / "a.tar.gz")
    assert b"pods.json: not for you" in files["missing.txt"] and b"streamjob.json" not in files["missing.txt"]


def test_a_log_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api, _ = leaking()
    monkeypatch.setattr(bundle, "LOG_BYTES_MAX", 40)
    files = collected(api, tmp_path / "a.tar.gz")
    assert b"cut here" in files["logs/nbq5-driver.driver.log"]


def test_a_job_that_is_not_there_makes_no_archive(tmp_path: Path) -> None:
    api = user()
    api.api.remove(JOBS, "nbq5")
    with pytest.raises(Exception, match="no StreamJob"):
        collected(api, tmp_path / "a.tar.gz")
    assert list(tmp_path.iterdir()) == []
