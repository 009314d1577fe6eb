"""Arguments and options of several commands."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from ferry.contract.errors import Refusal

Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or of its run (ferry ps).")]
ClusterJob = Annotated[str, typer.Argument(metavar="JOB", help="Name of the StreamJob.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file, a StreamJob.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the spec.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def event_time(text: str) -> int:
    """Milliseconds since 1970 of an event time in text form. Raises Refusal."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"--at-event-time {text}: a time is 2026-11-22T10:00Z, or milliseconds since 1970") from None
    if when.tzinfo is None:
        raise Refusal(f"--at-event-time {text}: add the time zone: {text}Z, {text}+02:00")
    return round(when.timestamp() * 1000)
