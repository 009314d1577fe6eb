"""Where things are on this machine: `ferry.env` of the installation, and the directory in which runs live.

The only place that reads the environment for settings of its own; everything else gets values.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ferry.contract.errors import SpecRefused


def read_ferry_env(file: Path | None = None) -> None:
    """Put what `make setup` found (JAVA_HOME, FERRY_REDIS_SERVER) into the environment; what is set there wins."""
    try:
        text = (file or Path(sys.prefix) / "ferry.env").read_text()
    except OSError:
        return
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            os.environ.setdefault(key.strip(), value.strip())


def home() -> Path:
    """`$FERRY_HOME`, or .ferry in the user's directory; holds `runs` and `registry`. Raises SpecRefused without either."""
    try:
        return Path(os.environ.get("FERRY_HOME") or Path.home() / ".ferry").absolute()
    except (RuntimeError, FileNotFoundError) as error:  # no directory of the user, or none in which this process is
        raise SpecRefused(
            f"no directory for runs: {error}; set FERRY_HOME to the absolute path of a folder of yours"
        ) from None
