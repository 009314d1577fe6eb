"""The output folder of a run of this machine, before anything is started. The driver, which has the last word, looks only
when Spark is there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ferry.contract.errors import SpecRefused
from ferry.contract.run_directory import LIFE
from ferry.contract.settings import RunSettings


def require(settings: RunSettings, restores: bool) -> None:
    """Raises SpecRefused for a folder that a new run cannot write to.

    A run that `restores` takes it over from another run, and waits for it where it is away.
    """
    if settings.output is None or restores:
        return
    output = Path(settings.output)
    with suppress(OSError):  # which the driver waits for
        there = next(one for one in (output, *output.parents) if one.exists())
        if not there.is_dir():
            raise SpecRefused(f"output {output}: {there} is a file; make it a folder, or choose another --output")
        for file in sorted(output.glob(f"*/{LIFE}")):
            run = _run_of(file, settings.job)
            if run not in ("", settings.run) and any(file.parent.glob("epoch=*")):
                raise SpecRefused(
                    f"output {output}: {file.parent} is written by run {run}; choose another --output, or delete that "
                    "directory if nobody needs it any more"
                )


def _run_of(file: Path, job: str) -> str:
    """The run of this job that has claimed the folder; empty: none has."""
    try:
        mark = json.loads(file.read_text())
        return str(mark["run"]) if mark["job"] == job else ""
    except (OSError, ValueError, TypeError, KeyError):
        return ""
