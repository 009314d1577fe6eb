"""What a person gets who has no repository: wheels in empty environments, and what each extra is for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]

Install = Callable[[str], Path]

PROGRAM = """
import pyarrow as pa
import ferry

def sources(spark, args):
    return {"orders": ferry.json_files("in", pa.schema([("user", pa.string()), ("n", pa.int64())]), finite=True)}

def pipeline(streams, args):
    per_user = streams["orders"].key_by("user")
    return per_user.aggregate("sums", n=ferry.sum("n"), emit=ferry.at_end()).sink(ferry.parquet("sums"))
"""

JOB = """
apiVersion: ferry.dev/v1alpha1
kind: StreamJob
metadata: {name: shop}
spec:
  pipeline: {file: job.py}
  output: out
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The distributions of this repository, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    copy = tmp_path_factory.mktemp("sources")  # Builds leave files beside what they build.
    for part in ("runtime", "operator"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    for source in (copy, copy / "operator" / "client"):
        pip(Path(sys.executable), "wheel", "--no-deps", "-w", str(folder), str(source))
    return {wheel.name.split("-")[0]: wheel for wheel in folder.iterdir()}


def pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([python, "-m", "pip", "-q", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Installs into an empty environment, and returns the folder of its programs."""
    folder = tmp_path / "venv"

    def installed(wanted: str) -> Path:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip(folder / "bin" / "python", "install", "--no-compile", wanted)
        return folder / "bin"

    yield installed
    shutil.rmtree(folder, ignore_errors=True)  # it has more than a gigabyte


def run(folder: Path, *command: str | Path, code: int = 0) -> str:
    """Run a command as a person does who has nothing else: what it prints."""
    known = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder / "home"), "LANG": "C.UTF-8", "COLUMNS": "80"}
    if "JAVA_HOME" in os.environ:
        known["JAVA_HOME"] = os.environ["JAVA_HOME"]
    done = subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_wheel_in_an_empty_environment_runs_a_job(wheels: dict[str, Path], install: Install, tmp_path: Path) -> None:
    programs = install(str(wheels["ferry_stream"]))
    (tmp_path / "in").mkdir()
    lines = ['{"user": "ann", "n": 1}', '{"user": "bob", "n": 2}', '{"user": "ann", "n": 4}', ""]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB)
    run(tmp_path, programs / "ferry", "run", "job.yaml")
    rows = "import pyarrow.parquet as pq; print(sorted(map(str, pq.read_table('out/sums', columns=['user', 'n']).to_pylist())))"
    assert run(tmp_path, programs / "python", "-c", rows).strip() == str(
        ["{'user': 'ann', 'n': 5}", "{'user': 'bob', 'n': 2}"]
    )


def test_the_client_needs_no_spark(wheels: dict[str, Path], install: Install, tmp_path: Path) -> None:
    programs = install(str(wheels["ferry_stream_client"]))
    assert not list((tmp_path / "venv").glob("lib/*/site-packages/pyspark"))
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\nclusters: []\n")
    said = run(tmp_path, programs / "kubectl-streamjob", "--kubeconfig", "config", "status", "shop", code=2)
    assert "kubeconfig config" in said and "Traceback" not in said, said
    assert "JOB" in run(tmp_path, programs / "ferry", "ps")
    (tmp_path / "job.yaml").write_text(JOB)
    assert "pip install ferry-stream" in run(tmp_path, programs / "ferry", "run", "job.yaml", code=2)


@pytest.mark.turns
@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (
            "kafka",
            "import confluent_kafka, fastavro, ferry.spark.kafka_client",
        ),
        ("client", "import ferry_operator.kube.api.client, ferry_operator.cli.remote.remote"),
        ("operator", "import runpy; runpy.run_module('ferry_operator.kube', run_name='ferry_operator.kube')"),
    ],
)
def test_an_extra_brings_what_it_is_for(
    wheels: dict[str, Path], install: Install, tmp_path: Path, extra: str, code: str
) -> None:
    programs = install(f"{wheels['ferry_stream']}[{extra}]")
    run(tmp_path, programs / "python", "-c", code)
