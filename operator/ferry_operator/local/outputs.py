"""Checks the output folder of a run on this machine before processes start. The driver checks again, once Spark runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ferry.contract.errors import SpecRefused
from ferry.contract.run_directory import LIFE
from ferry.contract.settings import RunSettings


def require(settings: RunSettings, restores: bool) -> None:
    """Raise SpecRefused for a folder that a new run cannot write to.

    A run that `restores` takes the folder over from another run, and waits for an unreachable folder.
    """
    if settings.output is None or restores:
        return
    output = Path(settings.output)
    with suppress(OSError):  # the driver waits for an unreachable folder
        existing = next(path for path in (output, *output.parents) if path.exists())
        if not existing.is_dir():
            raise SpecRefused(f"output {output}: {existing} is a file; make it a folder, or choose another --output")
        for file in sorted(output.glob(f"*/{LIFE}")):
            run = _run_of(file, settings.job)
            if run not in ("", settings.run) and any(file.parent.glob("epoch=*")):
                raise SpecRefused(
                    f"output {output}: {file.parent} is written by run {run}; choose another --output, or delete that "
                    "directory if you do not need it any more"
                )


def _run_of(file: Path, job: str) -> str:
    """The run of this job that has claimed the folder; empty: unclaimed."""
    try:
        mark = json.loads(file.read_text())
        return str(mark["run"]) if mark["job"] == job else ""
    except (OSError, ValueError, TypeError, KeyError):
        return ""
