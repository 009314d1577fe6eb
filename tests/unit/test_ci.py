"""`.ci/run`: its exit code is that of the tests."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("make", "code"), [("exit 0", 0), ("[[ $1 == setup ]] || exit 2", 2), ("[[ $1 != setup ]] || exit 3", 3)]
)
def test_the_exit_code_is_that_of_the_tests_also_after_everything_is_built(tmp_path, make, code):
    programs = {".ci/run": None, "scripts/test": "exit 0", "bin/make": make}
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir()
        if text is None:
            shutil.copy(REPOSITORY / name, path)
        else:
            # The build ahead of the tests ends before the tests do.
            path.write_text(f"#!/usr/bin/env bash\nsleep 0.2\n{text}\n")
            path.chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ran = subprocess.run(["bash", tmp_path / ".ci/run"], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.returncode == code, ran.stdout + ran.stderr
