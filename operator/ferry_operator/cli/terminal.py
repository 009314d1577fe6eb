"""Output of commands: results on standard output, as tables or JSON; progress and errors on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType

from ferry.contract.one_line import printable
from ferry_operator.local.timeline.console import PlainConsole

PIPE_WIDTH = 240
"""Width of a table without a terminal: lines are not wrapped, so that `grep` finds whole rows."""


def say(text: str) -> None:
    """Print progress, a warning or an error."""
    PlainConsole(stderr=True).say(text, indent=2)


def show(result: RenderableType) -> None:
    """Print a result for users."""
    console = PlainConsole(soft_wrap=True)
    if not console.is_terminal:
        console = PlainConsole(soft_wrap=True, width=PIPE_WIDTH)
    console.print(result)


def show_json(document: Any, indent: int | None = 1) -> None:
    """Print a result for programs."""
    print(json.dumps(document, indent=indent), flush=True)


def done(job: str, as_json: bool, text: str) -> None:
    """Print the line about a change that is done or has begun."""
    print(json.dumps({"job": job, "done": text}) if as_json else printable(f"{job}: {text}"))
