"""Text of others: nothing in it acts on a terminal, or is taken for a line of ours."""

from __future__ import annotations

import unicodedata

from ferry.contract.one_line import one_line, printable

HOSTILE = (
    "db \x1b]0;PWNED\x07\x1b[2J\x1b[31m down\x9b2J\x1b]52;c;eA==\x1b\\\n00:00:00  finished: 999 rows\r\u2028x\u202ey"
)


def test_no_control_character_is_left() -> None:
    shown = one_line(HOSTILE)
    assert all(unicodedata.category(sign) not in ("Cc", "Zl", "Zp") for sign in shown) and len(shown.splitlines()) == 1
    assert r"\x1b]0;PWNED\x07" in shown and r"\n00:00:00" in shown and "\u202e" not in shown
    assert one_line("Grüße, 日本 – ok") == "Grüße, 日本 – ok"


def test_text_of_several_lines_keeps_them() -> None:
    assert printable("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"
    assert one_line("\ud800") == r"\ud800", "half of a pair could not be written"
