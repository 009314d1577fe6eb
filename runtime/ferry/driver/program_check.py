"""Builds a program that is to be deployed in a child process, as the driver would: its errors and its time are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ferry.contract.errors import SpecRefused
from ferry.contract.last_words import last_words

CHECK_SECONDS = 60.0
"""Time for a program's `sources` and `pipeline` in the child process."""


def built_apart(request: dict[str, Any], is_copy: bool) -> dict[str, Any]:
    """The answer of `ferry.driver.check` to a request. `is_copy`: the program imports modules of its copy only.

    Raises SpecRefused for a process that does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="ferry-deploy-") as folder:
        answer, errors = Path(folder) / "answer", Path(folder) / "errors"
        command = [sys.executable, "-m", "ferry.driver.check", json.dumps(request), str(answer)]
        environment = {**os.environ, **({"PYTHONSAFEPATH": "1"} if is_copy else {})}
        with errors.open("wb") as output:
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    timeout=CHECK_SECONDS,
                ).returncode
            except subprocess.TimeoutExpired:
                raise SpecRefused(f"sources() and pipeline() have not returned within {CHECK_SECONDS:g} s") from None
        if not answer.is_file():
            words = last_words(errors.read_text("utf-8", "replace").splitlines()) or "it printed nothing"
            raise SpecRefused(f"the process that builds the pipeline ended with code {code}: {words}")
        built: dict[str, Any] = json.loads(answer.read_text("utf-8"))
        return built
