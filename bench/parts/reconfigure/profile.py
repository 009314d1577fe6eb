"""How fast records come: always the same, or up and down in steps as in Rhino's figure 6.

There each thread of the generator begins with 1 MB/s, has 0.5 MB/s more each 10 s until it has 8, and then as much less
until it has 1 again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

Step = tuple[float, float]
"""(seconds, arrivals a second)"""

CONSTANT, VARYING = "constant", "varying"
LOWEST, HIGHEST, BY = 1.0, 8.0, 0.5
"""MB/s of the paper; only what part of the highest each of them is counts here."""

LEVELS = [LOWEST + BY * n for n in range(int((HIGHEST - LOWEST) / BY) + 1)]
ROUND = [*LEVELS, *LEVELS[-2:0:-1]]
"""Up and down, once."""

AFTER_SECONDS = 60.0
"""Records come for so long behind the measured time: a backlog is waited for."""


def steps(profile: str, rate: float, warm: float, seconds: float, each: float | None = None) -> list[Step]:
    """Of the warm-up, at the first rate, and of the measured time; `each`: seconds of a step; None: one round fits."""
    if profile == CONSTANT:
        return [(warm + seconds + AFTER_SECONDS, rate)]
    length = seconds / len(ROUND) if each is None else each
    many = int((seconds + AFTER_SECONDS) / length) + 1
    levels = islice((level for _ in range(many // len(ROUND) + 1) for level in ROUND), many)
    return [(warm, rate * LOWEST / HIGHEST), *((length, rate * level / HIGHEST) for level in levels)]


def mean(made: Sequence[Step]) -> float:
    """Arrivals a second, over all of it."""
    return sum(seconds * rate for seconds, rate in made) / sum(seconds for seconds, _ in made)


def rate_at(made: Sequence[Step], seconds: float) -> float:
    """Arrivals a second then; none before the begin."""
    for length, rate in made if seconds >= 0 else ():
        if seconds < length:
            return rate
        seconds -= length
    return 0.0


def as_text(made: Sequence[Step]) -> str:
    """As both systems are told: "seconds:rate,..."; arguments of Ferry's jobs have no lists in lists."""
    return ",".join(f"{seconds!r}:{rate!r}" for seconds, rate in made)


def of_text(text: str) -> list[Step]:
    """What `as_text` has made a text of."""
    return [(float(seconds), float(rate)) for seconds, rate in (one.split(":") for one in text.split(","))]
