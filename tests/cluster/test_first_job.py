"""The first job of `docs/jobs.md`, as a reader follows it: its files, its commands in two terminals, what it has written."""

from __future__ import annotations

import doctest
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster import runner
from tests.documents import ROOT, WALK, Block, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def shell(block: Block, folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Begin the commands of a block; the first one that fails ends them."""
    return subprocess.Popen(
        ["bash", "-exc", block.text],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def done(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """The commands of a block have ended well."""
    process = shell(block, folder, environment)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output


def test_the_first_job_does_what_its_description_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, document, prepare, first, *second = [b for b in blocks(WALK) if not b.session and not b.cluster][:6]
    (tmp_path / "sales.py").write_text(python.text)
    (tmp_path / "sales.yaml").write_text(document.text)
    paths = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "FERRY_HOME": str(tmp_path / "home"), "PATH": paths}
    environment["PYTHONPATH"] = f"{ROOT / 'runtime'}:{ROOT / 'operator'}"
    done(prepare, tmp_path, environment)
    job = runner.Running(tmp_path / "home", tmp_path / "out", shell(first, tmp_path, environment))
    try:
        for number, block in enumerate(second):
            job.await_epoch(number, 200)
            done(block, tmp_path, environment)
        output, _ = job.process.communicate(timeout=60)
        assert job.process.returncode == 0 and not runner.settle(tmp_path / "home"), output
    finally:
        for process in runner.processes_of(tmp_path / "home"):  # none, unless something went wrong
            process.kill()
    (session,) = [block for block in blocks(WALK) if block.session]
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    test = doctest.DocTestParser().get_doctest(session.text, {}, WALK.name, None, 0)
    doctest.DocTestRunner().run(test, out=said.append)
    assert not said, "".join(said)
