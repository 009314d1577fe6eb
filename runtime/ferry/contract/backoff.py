"""How long to wait before a retry: twice as long after each failure, up to a bound."""

from __future__ import annotations

DOUBLINGS_MAX = 60
"""A higher exponent would overflow a float; a retry that fails for hours fails thousands of times."""


def back_off(failures: int, first: float, most: float) -> float:
    """Seconds to wait after this many failures in a row: 0 after none, `first` after one, at most `most`."""
    return 0.0 if failures < 1 else min(first * 2.0 ** min(failures - 1, DOUBLINGS_MAX), most)
