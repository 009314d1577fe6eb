"""What benchmarks have other programs fetch and build for the systems that they measure beside Ferry."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.shared.ferry_job import RunFailed


def artifact(coordinates: str, directory: Path) -> Path:
    """A jar (group:name:version) in this directory; Maven puts it there if need be. Raises RunFailed."""
    _, name, version = coordinates.split(":")
    jar = directory / f"{name}-{version}.jar"
    if not jar.exists():
        run(
            "Maven", "mvn", "-q", "dependency:copy", f"-Dartifact={coordinates}", f"-DoutputDirectory={directory}",
            "-Dmdep.useBaseVersion=true",
        )  # fmt: skip
    return jar


def run(what: str, *command: str) -> None:
    """Run a program that fetches or builds. Raises RunFailed with what it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    except FileNotFoundError as error:
        raise RunFailed(f"{what} is needed: {error}; leave the system out: see --systems") from None
    if done.returncode:
        why = (done.stdout + done.stderr)[-1500:]
        raise RunFailed(f"{what} says: {why}\nleave the system out: see --systems")
