"""How long to wait before the next try of what has failed: twice as long after each failure, up to a bound."""

from __future__ import annotations

DOUBLINGS_MAX = 60
"""More would only make a float overflow: what fails for hours fails thousands of times."""


def back_off(failures: int, first: float, most: float) -> float:
    """Seconds to wait after so many failures in a row: none after none, `first` after one, `most` at most."""
    return 0.0 if failures < 1 else min(first * 2.0 ** min(failures - 1, DOUBLINGS_MAX), most)
