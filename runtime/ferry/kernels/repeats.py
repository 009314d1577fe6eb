"""Finds records that repeat another one of their key within some time."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def goes_on(keys, times, went, within):  # type: ignore[no-untyped-def]
    """Records that are emitted, among records sorted by key and time: no emitted record of their key is nearer than
    `within`.

    `went` marks records emitted in an earlier epoch; a new record may be earlier than these.
    """
    near = np.zeros(keys.size, np.bool_)
    last = -1
    for i in range(keys.size - 1, -1, -1):
        if last >= 0 and keys[last] != keys[i]:
            last = -1
        if went[i]:
            last = i
        else:
            near[i] = last >= 0 and times[last] - times[i] < within
    emitted = np.zeros(keys.size, np.bool_)
    last = -1
    for i in range(keys.size):
        if last >= 0 and keys[last] != keys[i]:
            last = -1
        if went[i]:
            last = i
        elif not near[i] and (last < 0 or times[i] - times[last] >= within):
            emitted[i] = True
            last = i
    return emitted
