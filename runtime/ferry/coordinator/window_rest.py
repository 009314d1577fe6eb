"""How long the windows last that hold records by now: what a handover without state would have to wait for.

An estimate, from how fast event time went of late; whoever relies on it must have another way where time stands still.
"""

from __future__ import annotations

import threading
from collections import deque

from ferry.contract.descriptors import Window
from ferry.protocol.boundaries import ends_at_origin

SPAN_SECONDS = 10.0
SPAN_SECONDS_MIN = 2.0
"""Of less it is not known how fast event time goes."""

SAMPLE_SECONDS = 0.5


class WindowRest:
    """Of one driver. Thread-safe."""

    def __init__(self) -> None:
        self.windows: tuple[tuple[Window, int], ...] = ()
        """Of each operator: its window, and by how much its newest records are ahead of the watermark, in milliseconds.
        Empty: there is something else in the state than windows."""
        self._lock = threading.Lock()
        self._seen: deque[tuple[float, int]] = deque()

    def seen(self, at: float, watermark: int) -> None:
        """The watermark (milliseconds of event time) at the end of an epoch (seconds since 1970)."""
        with self._lock:
            if self._seen and watermark < self._seen[-1][1]:
                self._seen.clear()
            if len(self._seen) > 1 and at - self._seen[-2][0] < SAMPLE_SECONDS:
                self._seen.pop()
            self._seen.append((at, watermark))
            while at - self._seen[0][0] > SPAN_SECONDS and len(self._seen) > 2:
                self._seen.popleft()

    def seconds(self) -> float | None:
        """Until all of them have ended, if event time goes on as it did; None: that is not known."""
        with self._lock:
            if not self.windows or len(self._seen) < 2:
                return None
            (begin, first), (end, now) = self._seen[0], self._seen[-1]
        if end - begin < SPAN_SECONDS_MIN or now <= first:
            return None
        rest = max(
            ends_at_origin(window, (now + ahead) // window.pane_ms * window.pane_ms) - now
            for window, ahead in self.windows
        )
        return rest * (end - begin) / (now - first)
