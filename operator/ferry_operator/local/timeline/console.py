"""A console that prints foreign text safely: without markup, escape sequences or moves of the cursor.

Errors, names and reasons come from users' programs, sinks, brokers and clusters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ferry.contract.one_line import one_line, printable


def _wrapped(line: str, width: int, indent: int) -> list[str]:
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    ) or [""]


class PlainConsole(Console):
    """A console of rich without automatic markup, emoji and highlighting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def say(self, text: str, style: str = "", indent: int = 0) -> None:
        """Print lines. On a terminal long lines are wrapped, and indented by `indent`."""
        lines = [one_line(line) for line in text.split("\n")]
        if self.is_terminal:
            lines = ["\n".join(_wrapped(line, self.width, indent)) for line in lines]
        self.print(Text("\n".join(lines), style=style), soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Raise the error; rich would exit the process, without its cleanup."""
        raise BrokenPipeError

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with control characters as escapes of a Python string."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
