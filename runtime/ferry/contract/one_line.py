"""Foreign text as one plain line: no escape sequence reaches a terminal, and no text can fake a line."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters of ASCII and C1, Unicode line ends, signs that change the direction of text, and lone
surrogates."""

_LINES = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""The same without line ends and tabs."""


def one_line(text: str) -> str:
    r"""The text with every control character and line end as Python writes it in a string.

    Example:
        >>> one_line("down \x1b[2J\n12:00 finished")
        'down \\x1b[2J\\n12:00 finished'
    """
    return _CONTROLS.sub(_escaped, text)


def printable(text: str) -> str:
    """The text with control characters escaped, except line ends and tabs: for text of several lines."""
    return _LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]
