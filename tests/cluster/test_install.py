"""What a person gets who has no repository: wheels in empty environments, and what each extra is for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

UV = Path(sys.executable).with_name("uv")
ROOT = Path(__file__).resolve().parents[2]

Install = Callable[..., Path]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The distributions of this repository, by name, and PySpark's, which has no wheel at the index."""
    folder = tmp_path_factory.mktemp("wheels")
    copy = tmp_path_factory.mktemp("sources")  # Builds leave files beside what they build.
    for part in ("runtime", "operator", "bench/workloads"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, copy)
    for source in (copy, copy / "operator" / "client", copy / "bench" / "workloads"):
        pip(Path(sys.executable), "wheel", "--no-deps", "-w", str(folder), str(source))
    pip(Path(sys.executable), "wheel", "--use-pep517", "--no-deps", "-w", str(folder), f"pyspark=={version('pyspark')}")
    return {wheel.name.split("-")[0]: wheel for wheel in folder.iterdir()}


def pip(python: Path, *arguments: str) -> None:
    told([python, "-m", "pip", "-q", *arguments])


def told(command: Sequence[str | Path]) -> None:
    """Run it without PYTHONPATH: pip takes packages there for installed ones."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def install(tmp_path: Path, wheels: dict[str, Path]) -> Iterator[Install]:
    """Installs into an empty environment, and returns the folder of its programs."""
    folder = tmp_path / "venv"

    def installed(*wanted: str, by: str = "uv", options: Sequence[str] = ()) -> Path:
        """uv links the files of libraries that it has; pip is what users have.

        uv would build PySpark in every test again, and keep 1.4 GB of each build.
        """
        options = ("--find-links", str(wheels["pyspark"].parent), *options)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        if by == "pip":
            pip(python, "install", "--no-compile", *options, *wanted)
        else:
            told([UV, "pip", "install", "-q", "--python", python, *options, *wanted])
        return folder / "bin"

    yield installed
    shutil.rmtree(folder, ignore_errors=True)  # it has more than a gigabyte


def surroundings(folder: Path) -> dict[str, str]:
    """Of a person who has nothing else."""
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
        **java,
    }


def run(folder: Path, *command: str | Path, code: int = 0) -> str:
    """Run a command as a person does who has nothing else: what it prints."""
    done = subprocess.run(command, cwd=folder, env=surroundings(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_wheel_in_an_empty_environment_is_all_that_is_needed(
    wheels: dict[str, Path], install: Install, tmp_path: Path
) -> None:
    """From nothing to a job that is scaled while it runs, as `ferry init` says."""
    programs = install(str(wheels["ferry_stream"]), str(wheels["ferry_workloads"]), "pytest", by="pip")
    run(tmp_path, programs / "python", "-c", "import ferry_workloads.jobs.q5")
    (tmp_path / "typed.py").write_text(TYPED)
    mypy = [sys.executable, "-m", "mypy", "--python-executable", programs / "python", "--cache-dir", tmp_path / "mypy"]
    assert "typed.py:7" in run(tmp_path, *mypy, "typed.py", code=1).splitlines()[0]
    ferry, shop = programs / "ferry", tmp_path / "shop"
    said = run(tmp_path, ferry, "init", "shop")
    folder, *steps, live = [line.strip() for line in said.splitlines() if re.match("  [^#]", line)]
    assert folder == "cd shop"
    shown = [run(shop, "bash", "-c", f"PATH={programs}:$PATH; {step}") for step in steps]
    assert [text in one for text, one in zip(("1 passed", "shop: valid", "sales"), shown)] == [True] * 3, shown
    assert "2023-11-14 22:15:10 south" in shown[-1] and rows_of(shop, programs) == 3 * 12, shown[-1]
    command = ["bash", "-c", f"exec {programs}/{live}"]
    with subprocess.Popen(command, cwd=shop, env=surroundings(shop), stderr=subprocess.DEVNULL) as job:
        try:
            await_that(lambda: rows_of(shop, programs, "live") > 0, job)
            assert "scaling" in run(shop, ferry, "scale", "shop", "--workers", "3")
            assert "driver" in run(shop, ferry, "logs", "shop", "--driver")
            assert "shop" in run(shop, ferry, "status", "shop")
            run(shop, ferry, "stop", "shop")
            assert job.wait(60) == 0
        finally:
            job.terminate()


TYPED = """
import ferry

def pipeline(streams: dict[str, ferry.Stream], args: dict[str, str]) -> object:
    shops: ferry.KeyedStream = streams["orders"].event_time("ts", delay="3s").key_by("shop")
    sales: ferry.WindowedStream = shops.window(ferry.tumbling("10s"))
    shops.window("10s")
    return sales.aggregate("sales", orders=ferry.count()).sink(ferry.parquet("sales"))
"""
"""A pipeline with a wrong window in line 7. mypy finds it by the types of the wheel."""


def rows_of(shop: Path, programs: Path, output: str = "output") -> int:
    """How many rows the job has written."""
    if not list(shop.glob(f"{output}/sales/*/*.parquet")):
        return 0
    count = f"import pyarrow.parquet as p; print(p.read_table('{output}/sales').num_rows)"
    return int(run(shop, programs / "python", "-c", count))


def await_that(true: Callable[[], bool], job: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.5)


def test_the_client_needs_no_spark(wheels: dict[str, Path], install: Install, tmp_path: Path) -> None:
    programs = install(str(wheels["ferry_stream_client"]))
    assert not list((tmp_path / "venv").glob("lib/*/site-packages/pyspark"))
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\nclusters: []\n")
    said = run(tmp_path, programs / "kubectl-streamjob", "--kubeconfig", "config", "status", "shop", code=2)
    assert "kubeconfig config" in said and "Traceback" not in said, said
    assert "JOB" in run(tmp_path, programs / "ferry", "ps")
    run(tmp_path, programs / "ferry", "init", "shop")
    assert "pip install ferry-stream" in run(tmp_path, programs / "ferry", "run", "shop/shop.yaml", code=2)


EXTRAS = {
    "kafka": "import confluent_kafka, fastavro, ferry.connectors.kafka.client",
    "delta,iceberg,postgres": "import ferry; ferry.delta('d'); ferry.postgres('host=db', 't'); "
    "s = ferry.iceberg('a.b', catalog={'type': 'sql', 'uri': 'sqlite://'}); s._connected()",
    "client": "import ferry_operator.kube.api.client, ferry_operator.cli.remote.remote",
    "operator": "import runpy; runpy.run_module('ferry_operator.kube', run_name='ferry_operator.kube')",
}
"""What each is for."""


@pytest.mark.turns
@pytest.mark.parametrize(("extra", "code"), EXTRAS.items(), ids=EXTRAS)
def test_an_extra_brings_what_it_is_for(
    wheels: dict[str, Path], install: Install, tmp_path: Path, extra: str, code: str
) -> None:
    programs = install(f"{wheels['ferry_stream']}[{extra}]")
    run(tmp_path, programs / "python", "-c", code)


@pytest.mark.turns
def test_the_lowest_versions_that_are_allowed_work(wheels: dict[str, Path], install: Install, tmp_path: Path) -> None:
    wheel, lowest = f"{wheels['ferry_stream']}[{','.join(EXTRAS)}]", ("--resolution", "lowest-direct")
    programs = install(wheel, "pytest>=8", options=lowest)
    run(tmp_path, programs / "ferry", "init", "shop")
    shop = tmp_path / "shop"
    assert "1 passed" in run(shop, programs / "pytest", "-q")
    run(shop, programs / "ferry", "run", "shop.yaml", "--set", "pipeline.args.finite=true")
    assert rows_of(shop, programs) == 3 * 12
    for code in EXTRAS.values():
        run(tmp_path, programs / "python", "-c", code)
