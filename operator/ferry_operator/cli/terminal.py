"""How commands speak: results on standard output, for people or as JSON; progress and errors on standard error."""

from __future__ import annotations

import json
from typing import Any

from rich.console import RenderableType

from ferry.contract.one_line import printable
from ferry_operator.local.timeline.console import PlainConsole

PIPE_WIDTH = 240
"""Width of a table that no terminal shows: lines are not broken, so that they can be searched."""


def say(text: str) -> None:
    """Progress, a warning or an error."""
    PlainConsole(stderr=True).say(text, indent=2)


def show(what: RenderableType) -> None:
    """A result for people."""
    console = PlainConsole(soft_wrap=True)
    if not console.is_terminal:
        console = PlainConsole(soft_wrap=True, width=PIPE_WIDTH)
    console.print(what)


def show_json(document: Any, indent: int | None = 1) -> None:
    """A result for programs."""
    print(json.dumps(document, indent=indent), flush=True)


def done(job: str, as_json: bool, text: str) -> None:
    """Print the line about a change that was made, or is under way."""
    print(json.dumps({"job": job, "done": text}) if as_json else printable(f"{job}: {text}"))
