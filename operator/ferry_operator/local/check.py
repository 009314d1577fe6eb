"""Builds the pipeline of a job in a separate process that starts no query: for `ferry validate`, and before a run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ferry.contract.errors import Refusal, SpecRefused
from ferry.contract.settings import RunSettings
from ferry.system.built_apart import built_apart
from ferry_operator.job import spec
from ferry_operator.job.models import StreamJob
from ferry_operator.local import environment

BUILD_SECONDS = 120.0
"""Time for sources() and pipeline(), which may read remote schemas. Spark, if the program needs it, starts in 5 s."""

FIRST_SECONDS = 10.0
"""The same time before a run, whose driver builds the pipeline again."""


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
    _require_pyspark()
    spec.require_local_pipeline(job)
    file, pipeline_spec = spec.pipeline_file(job, job_file), job.spec.pipeline
    program = (pipeline_spec.module, None if file is None else str(file.absolute()), None)
    with suppress(Refusal):  # A program that needs no Spark needs no Java.
        environment.require_java()
    return _checked(program, [dict(pipeline_spec.args), None, job.spec.events], BUILD_SECONDS)


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
    _require_pyspark()
    seconds = min(BUILD_SECONDS, max(wait, FIRST_SECONDS))
    return _checked(program, [arguments, output, events], seconds, operators=True)


def refusal(settings: RunSettings) -> str:
    """Why the pipeline of a run is refused; empty: no refusal, or the check needs Spark or more time: the driver does it."""
    arguments = [settings.pipeline_args, settings.output, settings.events]
    request = {"pipeline": settings.pipeline, "arguments": arguments, "spark": False}
    try:
        refused: str = built_apart(request, FIRST_SECONDS).get("refused", "")
    except SpecRefused:
        return ""
    return refused


def _checked(program: Program, arguments: list[Any], seconds: float, operators: bool = False) -> Checked:
    request = {"pipeline": program, "arguments": arguments, "spark": True, "operators": operators}
    try:
        return Checked(**built_apart(request, seconds))
    except SpecRefused as refused:
        return Checked(refused=str(refused))


def _require_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise Refusal("PySpark is not installed, and a pipeline is built with it: pip install ferry-stream")
