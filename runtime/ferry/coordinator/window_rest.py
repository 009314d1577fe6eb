"""Remaining time of the windows that hold records now: how long a handover without state would have to wait.

An estimate from the recent pace of event time; the caller must have another way in case event time stops.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from ferry.contract.descriptors import Window
from ferry.protocol.boundaries import ends_at_origin

SPAN_SECONDS = 10.0
SPAN_SECONDS_MIN = 2.0
"""A shorter span does not measure the pace of event time."""

SAMPLE_SECONDS = 0.5


class WindowRest:
    """The estimate of one driver. Thread-safe."""

    def __init__(self) -> None:
        self.windows: tuple[Window, ...] = ()
        """Window of each operator. Empty: the state holds more than windows."""
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, int]] = deque()
        self._newest: Mapping[int, int] = {}
        self._distance = 0.0

    def seen(self, at: float, watermark: int, newest: Mapping[int, int]) -> None:
        """Add the watermark (milliseconds of event time) at the end of an epoch (seconds since 1970), and by operator
        the newest event time of its sources' records, which is far ahead of the watermark when flows diverge."""
        with self._lock:
            self._newest, self._distance = newest, at - self._seen[-1][0] if self._seen else 0.0
            if self._seen and watermark < self._seen[-1][1]:
                self._seen.clear()
            if len(self._seen) > 1 and at - self._seen[-2][0] < SAMPLE_SECONDS:
                self._seen.pop()
            self._seen.append((at, watermark))
            while at - self._seen[0][0] > SPAN_SECONDS and len(self._seen) > 2:
                self._seen.popleft()

    def seconds(self, now: float) -> float | None:
        """Seconds until all of these windows have ended, at the recent pace; None: unknown. `now`: since 1970."""
        with self._lock:
            seen, newest, distance = tuple(self._seen), self._newest, self._distance
        if not self.windows or len(seen) < 2 or now - seen[-1][0] > max(SPAN_SECONDS_MIN, 2 * distance):
            return None
        speed = min((_speed(seen[0], seen[-1]), *(_speed(*half) for half in _halves(seen))))
        if seen[-1][0] - seen[0][0] < SPAN_SECONDS_MIN or speed <= 0:
            return None
        watermark = seen[-1][1]
        return (
            max(_rest(one, max(watermark, newest.get(i, watermark)), watermark) for i, one in enumerate(self.windows))
            / speed
        )


def _rest(window: Window, newest: int, watermark: int) -> int:
    """Milliseconds of event time until the end of the last window that holds a record now."""
    return ends_at_origin(window, newest // window.pane_ms * window.pane_ms) - watermark


def _halves(seen: Sequence[tuple[float, int]]) -> Iterator[tuple[tuple[float, int], tuple[float, int]]]:
    """Two halves: event time may have jumped, or have just stopped."""
    if len(seen) > 2:
        middle = len(seen) // 2
        yield seen[0], seen[middle]
        yield seen[middle], seen[-1]


def _speed(begin: tuple[float, int], end: tuple[float, int]) -> float:
    """Milliseconds of event time per second."""
    return (end[1] - begin[1]) / max(end[0] - begin[0], 1e-3)
