"""Builds the pipeline of a job in a process of its own, which starts nothing: for `ferry validate`, and before a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ferry.contract import user_code
from ferry.contract.errors import Refusal
from ferry.contract.last_words import last_words
from ferry.contract.settings import RunSettings
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.local import environment

BUILD_SECONDS = 120.0
"""For the functions of a program, which may read schemas from afar; Spark starts in 5 s, where a program needs it."""

FIRST_SECONDS = 10.0
"""For the same before a run, whose driver builds the pipeline again."""


ABORT_SECONDS = 2.0


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
    program = (one.pipeline.module, None if file is None else str(file.absolute()), None)
    with suppress(Refusal):  # A program that needs no Spark needs no Java.
        environment.require_java()
    try:
        code, words, checked = _built(program, [dict(one.pipeline.args), None, one.events], True, BUILD_SECONDS)
    except subprocess.TimeoutExpired as late:
        place = user_code.place_in((late.stderr or b"").decode("utf-8", "replace"))
        return Checked(
            refused=f"sources() and pipeline() have not returned within {BUILD_SECONDS:g} s{f' ({place})' if place else ''}"
        )
    if checked is None:
        return Checked(refused=f"the process that builds the pipeline ended with code {code}: {words}")
    return checked


def refusal(settings: RunSettings) -> str:
    """Why the pipeline of a run is refused. Empty: it is not, or that takes Spark or a while to tell: its driver will."""
    arguments = [settings.pipeline_args, settings.output, settings.events]
    try:
        checked = _built(settings.pipeline, arguments, False, FIRST_SECONDS)[2]
    except subprocess.TimeoutExpired:
        return ""
    return "" if checked is None else checked.refused


def _built(
    program: tuple[str | None, str | None, str | None], arguments: list[Any], spark: bool, seconds: float
) -> tuple[int, str, Checked | None]:
    """How the process has ended that builds a pipeline, its last words, and its answer. Raises TimeoutExpired."""
    asked = {"pipeline": program, "arguments": arguments, "spark": spark}
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        answer, errors = Path(folder) / "answer", Path(folder) / "errors"
        # With the handler Python prints its stack when a signal ends it: after a crash, or when it took too long.
        command = [sys.executable, "-X", "faulthandler", "-m", "ferry.driver.check", json.dumps(asked), str(answer)]
        # A user's json.py is no module of Python's; where there is no copy, modules are found in the working directory.
        safe = {"PYTHONSAFEPATH": "1"} if program[2] is not None else {}
        with errors.open("wb") as log:
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **safe}
            ) as process:
                try:
                    code = process.wait(seconds)
                except subprocess.TimeoutExpired as late:
                    _aborted(process)
                    late.stderr = errors.read_bytes()
                    raise
                except BaseException:
                    process.kill()
                    raise
        words = last_words(errors.read_text("utf-8", "replace").splitlines()) or "it says nothing"
        return code, words, Checked(**json.loads(answer.read_text("utf-8"))) if answer.is_file() else None


def _aborted(process: subprocess.Popen[bytes]) -> None:
    """End it, so that it says where it is, if it can."""
    with suppress(subprocess.TimeoutExpired):
        process.send_signal(signal.SIGABRT)
        process.wait(ABORT_SECONDS)
    process.kill()
    process.wait()
