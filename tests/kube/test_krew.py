"""krew itself installs the plugin from its archive and manifest, and kubectl finds it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kube.clusters import Lab

pytestmark = [pytest.mark.kube, pytest.mark.timeout(500)]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krew")
    subprocess.run([sys.executable, ROOT / "scripts" / "krew.py", folder], check=True, timeout=120)
    return folder


def test_the_manifest_names_the_archive(made: Path) -> None:
    manifest: dict[str, Any] = yaml.safe_load((made / "streamjob.yaml").read_text())
    (platform,) = manifest["spec"]["platforms"]
    archive = made / "kubectl-streamjob.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert platform["uri"] == archive.as_uri() and platform["bin"] == "kubectl-streamjob"


@pytest.mark.long
def test_krew_installs_the_plugin_and_kubectl_runs_it(made: Path, tmp_path: Path) -> None:
    Lab.setup("krew")
    Lab.setup("api")
    lab = Lab("krew")
    krew, kubectl = (lab.run("program", name).strip() for name in ("kubectl-krew", "kubectl"))
    path = f"{tmp_path}/bin:{Path(kubectl).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KREW_ROOT": str(tmp_path), "PATH": path, "PYTHON": sys.executable}
    environment.pop("PYTHONPATH", None)

    def run(*command: str) -> str:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, cwd=tmp_path)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    index = tmp_path / "index" / "default"  # without an index of plugins krew neither lists nor removes any
    (index / "plugins").mkdir(parents=True)
    run("git", "init", "--quiet", str(index))
    files = f"--manifest={made / 'streamjob.yaml'}", f"--archive={made / 'kubectl-streamjob.tar.gz'}"
    run(krew, "install", *files)
    assert "streamjob" in run(krew, "list")
    said = run(kubectl, "streamjob", "--help")
    assert "kubectl streamjob" in said and "diagnose" in said
    assert "kubectl streamjob" in run(kubectl, "streamjob", "scale", "--help")
    run(krew, "uninstall", "streamjob")
    assert not (tmp_path / "store" / "streamjob").exists() or not list((tmp_path / "store" / "streamjob").iterdir())
