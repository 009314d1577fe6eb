"""Builds the pipeline of a job in a process of its own, which starts nothing: for `ferry validate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ferry.contract.errors import Refusal
from ferry.contract.last_words import last_words
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.local import environment

BUILD_SECONDS = 120.0
"""For the functions of a program, which may read schemas from afar; Spark starts in 5 s, where a program needs it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A pipeline that was built: `plan` as `ferry.spark.described` says it; or why it is refused."""

    plan: dict[str, Any] | None = None
    refused: str = ""


def pipeline(job: StreamJob, job_file: Path) -> Checked:
    """Build the pipeline of a job that was read from `job_file`. Raises Refusal where PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed: pipelines are built where ferry-stream is: pip install ferry-stream")
    file, one = spec.pipeline_file(job, job_file), job.spec
    asked = [
        one.pipeline.module,
        None if file is None else str(file.absolute()),
        dict(one.pipeline.args),
        None,
        one.events,
    ]
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        answer, errors = Path(folder) / "answer", Path(folder) / "errors"
        command = [sys.executable, "-m", "ferry.driver.check", json.dumps(asked), str(answer)]
        with suppress(Refusal):  # A program that needs no Spark needs no Java.
            environment.require_java()
        with errors.open("wb") as log:
            try:
                code = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=BUILD_SECONDS, env=os.environ
                ).returncode
            except subprocess.TimeoutExpired:
                return Checked(refused=f"sources() and pipeline() have not returned within {BUILD_SECONDS:g} s")
        if not answer.is_file():
            words = last_words(errors.read_text("utf-8", "replace").splitlines()) or "it says nothing"
            return Checked(refused=f"the process that builds the pipeline ended with code {code}: {words}")
        return Checked(**json.loads(answer.read_text("utf-8")))
