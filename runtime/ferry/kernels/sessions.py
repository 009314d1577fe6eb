"""Sessions of keys: merges records, or spans of time, into sessions."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def joined(keys, starts, lasts, gap, alone):  # type: ignore[no-untyped-def]
    """Spans of time, sorted by key and start, as sessions: (session of each span, first span and last time of each session).

    A span that begins at most `gap` after all earlier ones belongs to their session. Spans that begin at `alone` or
    before are each a session of their own.
    """
    session, begins, reach = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    count = 0
    for i in range(keys.size):
        if count == 0 or keys[i] != keys[i - 1] or starts[i] - reach[count - 1] > gap or starts[i - 1] <= alone:
            begins[count], reach[count] = i, lasts[i]
            count += 1
        else:
            reach[count - 1] = max(reach[count - 1], lasts[i])
        session[i] = count - 1
    return session, begins[:count].copy(), reach[:count].copy()
