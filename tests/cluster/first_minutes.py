"""Does what `ferry init` says, as a person does in a terminal of 80 columns, and keeps what there is to see.

python -m tests.cluster.first_minutes         writes docs/first-minutes.txt anew
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cluster import terminal

TOLD = terminal.ROOT / "docs" / "first-minutes.txt"
HEAD = "The first minutes with Ferry, as a terminal of 80 columns shows them (python -m tests.cluster.first_minutes).\n"

SECONDS = 120.0
"""A command that has not ended by then is interrupted."""

UNTIL = "watermark"
"""What the last command has shown when a person ends it."""


def shown_now() -> dict[str, str]:
    """What each command shows today, in their order."""
    with TemporaryDirectory(prefix="f-") as name:
        folder = Path(name) / "jobs"
        folder.mkdir()
        more = {
            "TERM": "xterm",
            "FERRY_HOME": f"{name}/home",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        shown = {"ferry init shop": _shown("ferry init shop", folder, more)}
        said = shown["ferry init shop"].splitlines()
        _, *steps = [line.strip() for line in said if line.startswith("  ") and "#" not in line]
        (finite,) = [step for step in steps if "finite" in step]
        steps.insert(-1, f"{finite} --output filed > run.log 2>&1; cat run.log")
        for step in steps:
            shown[step] = _shown(step, folder / "shop", more, UNTIL if step == steps[-1] else None)
        return shown


def _shown(command: str, folder: Path, more: dict[str, str], until: str | None = None) -> str:
    chunks, code = terminal.watched(
        ["bash", "-c", f"exec {command}" if until else command], folder, more, SECONDS, until
    )
    ended = terminal.screen(chunks)
    assert code == 0, ended
    return f"{terminal.screen(chunks, until)}\n(Ctrl-C)\n\n{ended}" if until else ended


def document(shown: dict[str, str]) -> str:
    """The file."""
    return "\n".join([HEAD, *(f"$ {command}\n{_written(command, text)}" for command, text in shown.items())])


def _written(command: str, shown: str) -> str:
    """Durations of runs differ every day, and are masked; all other numbers stay."""
    return terminal.written_alike(shown) if command.startswith(("ferry run", "pytest")) else shown


def told() -> dict[str, str]:
    """What the file says that each command shows."""
    _, *commands = TOLD.read_text().split("\n$ ")
    return {one.partition("\n")[0]: one.partition("\n")[2] for one in commands}


if __name__ == "__main__":
    TOLD.write_text(document(shown_now()))
