"""Input that is unavailable, unread or empty: a job that has begun waits for it and reports it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ferry.connectors.files.directory import DirectorySplits
from ferry.contract.errors import InputAway, Unreachable
from ferry.coordinator.driver_metrics import DriverMetrics
from ferry.coordinator.problems import SLOW_CODE
from ferry.driver.patience import watched
from ferry.spark.source import PROBLEM

log = logging.getLogger("ferry.driver")

SOURCE_FAILING, NOT_READ = "SourceFailing", "NotRead"
"""Names in the driver's status: of a problem, and of a notice."""

SOURCE_QUIET_SECONDS = 2.0
"""A source that recovers within this time is not reported."""

LOOK_SECONDS = 1.0
"""Interval between two checks for unavailable input when a driver starts."""


T = TypeVar("T")


def built(build: Callable[[], T], begun: bool, metrics: DriverMetrics) -> T:
    """A pipeline, once its sources know their columns. A slow program is reported.

    Raises InputAway for a missing folder if the job has not `begun`.
    """
    seconds = metrics.problems.slow_ms / 1000
    while True:
        try:
            text = f"sources() and pipeline(), which look at folders of input, have run for more than {seconds:g} s"
            with watched(metrics, SLOW_CODE, seconds, text):
                pipeline = build()
        except (InputAway, Unreachable) as away:
            if isinstance(away, InputAway) and not begun:
                raise
            log.warning("source: %s", away)
            metrics.problems.report(SOURCE_FAILING, f"source: {away}")
            time.sleep(LOOK_SECONDS)
            continue
        metrics.problems.mended(SOURCE_FAILING)
        metrics.problems.mended(SLOW_CODE)
        return pipeline


def pass_on(directory: Path, metrics: DriverMetrics, reported: bool) -> bool:
    """Report what Ferry's source, run by Spark, waits for. Returns whether it waits; `reported`: the previous answer."""
    try:
        text = (directory / PROBLEM).read_text()
    except FileNotFoundError:
        text = ""
    if text:
        metrics.problems.report(SOURCE_FAILING, f"source: {text}")
    elif reported:
        metrics.problems.mended(SOURCE_FAILING)
    return bool(text)


def notice(metrics: DriverMetrics, text: str) -> None:
    """Report the part of the input that is not read; empty: all of it is read."""
    if text:
        metrics.problems.delayed(NOT_READ, text)
    else:
        metrics.problems.caught_up(NOT_READ)


def nothing_read(sources: Mapping[str, Any], malformed: int) -> str:
    """The warning for a finite job that has read no record."""
    about = (f"source {name!r} " + _contents(source) for name, source in sources.items())
    aside = f" ({malformed} were set aside as malformed)" if malformed else ""
    return f"no record was read{aside}: {'; '.join(about)}"


def _contents(source: Any) -> str:
    return source.contents() if isinstance(source, DirectorySplits) else "was at its end"
