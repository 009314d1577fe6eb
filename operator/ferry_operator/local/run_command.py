"""The command line of `ferry run`, and the exit codes of `ferry`.

Must never import the modules that run a job: commands for clusters also work on machines without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ferry_operator.job.settings import Options

OK, FAILED, REFUSED, NO_SUCH_JOB = 0, 1, 2, 4
"""Exit codes of `ferry`."""


@dataclass(frozen=True, slots=True)
class RunCommand:
    """One call of `ferry run`."""

    job_file: Path
    sets: Sequence[str] = ()
    at: Sequence[str] = ()
    options: Options = field(default_factory=Options)
    plot: Path | None = None
    quiet: bool = False
    as_json: bool = False
