"""Arguments and options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferry.contract import durations

Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job, or of its run (ferry ps).")]
ClusterJob = Annotated[str, typer.Argument(metavar="JOB", help="Name of the StreamJob.")]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file, a StreamJob.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the spec.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def event_time(text: str) -> int:
    """Milliseconds since 1970 of an event time in text form. Raises SpecRefused."""
    return durations.event_time(text, "--at-event-time")
