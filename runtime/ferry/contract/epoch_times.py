"""The times of an epoch for one operator: its watermarks, and the clock. A value only."""

from __future__ import annotations

from typing import NamedTuple


class EpochTimes(NamedTuple):
    """The times that a computation or a read of an epoch uses; milliseconds."""

    low: int
    """The operator's watermark before the epoch: records of windows that ended before it are late."""
    high: int
    """After it: windows with low < end <= high fire."""
    epoch: int = 0
    now: int = 0
    """Processing time, from the clock of the computing process."""
