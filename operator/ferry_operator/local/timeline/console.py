"""A terminal that shows text of others as it is: no markup, no escape sequences, nothing that moves the cursor.

Errors, names and reasons come from users' programs, sinks, brokers and clusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ferry.contract.one_line import printable


class PlainConsole(Console):
    """Console of rich; colours and tables are Ferry's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See Console: control characters are shown as Python writes them in a string."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)
