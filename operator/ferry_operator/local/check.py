"""Builds the pipeline of a job in a separate process that starts no query: for `ferry validate`, and before a run."""

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
"""Time for sources() and pipeline(), which may read remote schemas. Spark, if the program needs it, starts in 5 s."""

FIRST_SECONDS = 10.0
"""The same time before a run, whose driver builds the pipeline again."""

ABORT_SECONDS = 2.0


Program = tuple[str | None, str | None, str | None]
"""(module, file, folder of the copy)"""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a build: `plan`, a value of `ferry.spark.described`; or the reason of a refusal."""

    plan: dict[str, Any] | None = None
    refused: str = ""
    operators: list[dict[str, Any]] | None = None
    """Descriptors of the operators, for a deploy."""
    sources: list[tuple[str, str]] | None = None
    """Names of the sources, and digests of their settings, for a deploy."""


def pipeline(job: StreamJob, job_file: Path) -> Checked:
    """Build the pipeline of a job that was read from `job_file`. Raises Refusal if PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed, and a pipeline is built with it: pip install ferry-stream")
    spec.require_local_pipeline(job)
    file, pipeline_spec = spec.pipeline_file(job, job_file), job.spec.pipeline
    program = (pipeline_spec.module, None if file is None else str(file.absolute()), None)
    with suppress(Refusal):  # A program that needs no Spark needs no Java.
        environment.require_java()
    try:
        code, words, checked = _built(program, [dict(pipeline_spec.args), None, job.spec.events], True, BUILD_SECONDS)
    except subprocess.TimeoutExpired as late:
        return Checked(refused=_late(late))
    if checked is None:
        return Checked(refused=f"the process that builds the pipeline ended with code {code}: {words}")
    return checked


def deployable(
    program: Program,
    arguments: dict[str, Any],
    output: str | None,
    events: int | None,
    wait: float = BUILD_SECONDS,
) -> Checked:
    """Build a program for a deploy, and return the result. `wait`: seconds that the user waits.

    Raises Refusal if PySpark is not installed.
    """
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed, and a pipeline is built with it: pip install ferry-stream")
    seconds = min(BUILD_SECONDS, max(wait, FIRST_SECONDS))
    try:
        build = _built(program, [arguments, output, events], True, seconds, operators=True)
    except subprocess.TimeoutExpired as late:
        return Checked(refused=_late(late))
    code, words, checked = build
    return checked or Checked(refused=f"the process that builds the pipeline ended with code {code}: {words}")


def refusal(settings: RunSettings) -> str:
    """Why the pipeline of a run is refused; empty: no refusal, or the check needs Spark or more time: the driver does it."""
    arguments = [settings.pipeline_args, settings.output, settings.events]
    try:
        checked = _built(settings.pipeline, arguments, False, FIRST_SECONDS)[2]
    except subprocess.TimeoutExpired:
        return ""
    return "" if checked is None else checked.refused


def _built(
    program: Program, arguments: list[Any], spark: bool, seconds: float, operators: bool = False
) -> tuple[int, str, Checked | None]:
    """Build a pipeline in a process: its exit code, its last error, its answer. Raises TimeoutExpired."""
    request = {"pipeline": program, "arguments": arguments, "spark": spark, "operators": operators}
    with tempfile.TemporaryDirectory(prefix="ferry-check-") as folder:
        asked, answer, errors = (Path(folder) / name for name in ("request", "answer", "errors"))
        asked.write_text(json.dumps(request), "utf-8")
        # With faulthandler Python prints its stack when a signal ends it, after a crash or a timeout.
        command = [sys.executable, "-X", "faulthandler", "-m", "ferry.driver.check", str(asked), str(answer)]
        # A user's json.py must not replace Python's module; without a copy, modules are imported from the working directory.
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
        words = last_words(errors.read_text("utf-8", "replace").splitlines()) or "it printed nothing"
        return code, words, Checked(**json.loads(answer.read_text("utf-8"))) if answer.is_file() else None


def _late(late: subprocess.TimeoutExpired) -> str:
    place = user_code.place_in((late.stderr or b"").decode("utf-8", "replace"))
    return f"sources() and pipeline() have not returned within {late.timeout:g} s{f' ({place})' if place else ''}"


def _aborted(process: subprocess.Popen[bytes]) -> None:
    """End a process; SIGABRT first, so that Python prints its stack."""
    with suppress(subprocess.TimeoutExpired):
        process.send_signal(signal.SIGABRT)
        process.wait(ABORT_SECONDS)
    process.kill()
    process.wait()
