"""Checkpoints are listed and deleted where they lie, whether or not their job is there."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ferry.contract.manifest import Chain, Manifest, StoredFile
from ferry.contract.names import Attempt, CommitId, Step
from ferry.durable.catalog import CheckpointCatalog
from ferry.durable.location import Location
from ferry_operator.cli import main, stored_checkpoints

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: counts}
spec:
  pipeline: {module: counts}
  state: {checkpoint: {location: LOCATION}}
"""


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints: one without state, one with a name, and one that lacks its file."""
    monkeypatch.setenv("FERRY_HOME", str(tmp_path / "home"))
    found = CheckpointCatalog(Location(str(tmp_path / "store"), "counts"))
    commit = CommitId(Step(9, 0), Attempt(1, 1))
    one = Manifest(1, "counts", "counts-1", "l", 1, 1000.0, commit, (), b"", 8, (), ())
    lost = Chain((0,), (StoredFile("files/gone", 2_000_000, 1, 0, "scan", 9, 1),))
    for each in (one, replace(one, number=2, name="before"), replace(one, number=3, chains=(lost,))):
        found.publish(each)
    (tmp_path / "job.yaml").write_text(JOB.replace("LOCATION", str(tmp_path / "store")))
    return tmp_path / "store"


def ferry(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ferry", *arguments])
    with pytest.raises(SystemExit) as left:
        main.main()
    printed = capfd.readouterr()
    return int(left.value.code or 0), printed.out, printed.err


def test_a_list(location: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (("counts", "--location", str(location)), (str(location.parent / "job.yaml"),)):
        code, out, _ = ferry(monkeypatch, capfd, "checkpoints", *arguments)
        lines = [line.rstrip() for line in out.splitlines()]
        assert code == 0 and lines[0].split() == ["NUMBER", "NAME", "EPOCH", "AGE", "MB", "COMPLETE"]
        assert "files/gone is missing" in lines[1] and lines[1].split()[3] == "2.0"
        assert lines[2].split()[:3] == ["2", "before", "9"] and lines[2].endswith("yes") and len(lines) == 4
    _, out, _ = ferry(monkeypatch, capfd, "checkpoints", "counts", "--location", str(location), "--json")
    assert [(one["number"], one["complete"]) for one in json.loads(out)["checkpoints"]] == [
        (3, False),
        (2, True),
        (1, True),
    ]


def test_one_is_deleted(location: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    where = ("counts", "--location", str(location))
    assert ferry(monkeypatch, capfd, "checkpoints", *where, "--delete", "2")[0] == 0
    assert [one["number"] for one in stored_checkpoints.listed(str(location), "counts")] == [3, 1]
    code, _, err = ferry(monkeypatch, capfd, "checkpoints", *where, "--delete", "2")
    assert code == 2 and "there is no checkpoint 2" in err


def test_what_is_not_there(location: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = ferry(monkeypatch, capfd, "checkpoints", "other", "--location", str(location))
    assert (code, out) == (0, "") and "there are no checkpoints at" in err
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    assert ferry(monkeypatch, capfd, "checkpoints", "counts")[0] == 4
    (location.parent / "job.yaml").write_text(JOB.replace("LOCATION", "null"))
    code, _, err = ferry(monkeypatch, capfd, "checkpoints", str(location.parent / "job.yaml"))
    assert code == 2 and "no durable checkpoints" in err
