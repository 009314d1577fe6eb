"""Text that somebody else wrote, as one plain line: no escape sequence reaches a terminal, and no line is made up."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of ASCII and C1, line ends of Unicode, signs that turn the direction of text, and halves of pairs."""

_LINES = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""The same but for line ends and tabs."""


def one_line(text: str) -> str:
    r"""The text with every control character and line end as Python writes it in a string.

    Example:
        >>> one_line("down \x1b[2J\n12:00 finished")
        'down \\x1b[2J\\n12:00 finished'
    """
    return _CONTROLS.sub(_escaped, text)


def printable(text: str) -> str:
    """The same, but for line ends and tabs, which stay: for text of several lines."""
    return _LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
