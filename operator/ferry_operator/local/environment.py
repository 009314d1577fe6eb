"""Places on this machine: `ferry.env` of the installation, the home of Java, and the directory of runs.

The only place that reads settings from the environment; all other modules get values.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from ferry.contract.errors import SpecRefused

JAVAS = "Java 17 or 21"


def read_ferry_env(file: Path | None = None) -> None:
    """Set the environment variables that `make setup` has written (JAVA_HOME), unless they are set already."""
    try:
        text = (file or Path(sys.prefix) / "ferry.env").read_text()
    except OSError:
        return
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not key.startswith("#"):
            os.environ.setdefault(key.strip(), value.strip())


def require_java() -> None:
    """Set JAVA_HOME to a Java that Spark supports. Raises SpecRefused if there is none."""
    if named := os.environ.get("JAVA_HOME"):
        if problem := _unfit(Path(named)):
            raise SpecRefused(f"JAVA_HOME is {named}: {problem}; Spark needs {JAVAS}")
        return
    on_path = shutil.which("java")
    homes = [Path(on_path).resolve().parents[1]] if on_path else []
    for folder in [*homes, *sorted(Path("/usr/lib/jvm").glob("*"))]:
        if not _unfit(folder):
            os.environ["JAVA_HOME"] = str(folder)
            return
    raise SpecRefused(f"Spark needs {JAVAS}: install it (Debian, Ubuntu: openjdk-17-jre-headless), or set JAVA_HOME")


def _unfit(home: Path) -> str:
    """Why Spark cannot run with this Java; empty: it can."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return "there is no bin/java"
    try:
        release = (home / "release").read_text(errors="replace")
    except OSError:
        return ""
    version = re.search(r'JAVA_VERSION="(\d+)', release)
    if version is not None and int(version[1]) not in (17, 21):
        return f"it is Java {version[1]}"
    if "MODULES=" in release and "jdk.incubator.vector" not in release:
        return "it lacks the module jdk.incubator.vector"
    return ""


def home() -> Path:
    """`$FERRY_HOME`, or .ferry in the user's home; holds `runs` and `registry`. Raises SpecRefused if there is neither."""
    try:
        return Path(os.environ.get("FERRY_HOME") or Path.home() / ".ferry").absolute()
    except (RuntimeError, FileNotFoundError) as error:  # the user has no home, or the working directory is deleted
        raise SpecRefused(
            f"no directory for runs: {error}; set FERRY_HOME to the absolute path of a folder of yours"
        ) from None
