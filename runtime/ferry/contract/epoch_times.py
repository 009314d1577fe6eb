"""When an epoch is, for one operator: its number, its watermarks, and the clock. A value only."""

from __future__ import annotations

from typing import NamedTuple


class EpochTimes(NamedTuple):
    """What computes and reads the rows of an epoch knows of time; milliseconds."""

    low: int
    """The operator's watermark before the epoch: what is final there is late."""
    high: int
    """After it: windows with low < end <= high fire."""
    epoch: int = 0
    now: int = 0
    """Processing time, of the clock of whoever computes."""
