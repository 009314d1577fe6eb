"""Which records repeat another of their key within some time."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def goes_on(keys, times, went, within):  # type: ignore[no-untyped-def]
    """Which records go on, of those that are sorted by key and time: none of their key that did is nearer than `within`.

    `went` are those that went on in an earlier epoch; a record may be of an earlier time than these.
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
    found = np.zeros(keys.size, np.bool_)
    last = -1
    for i in range(keys.size):
        if last >= 0 and keys[last] != keys[i]:
            last = -1
        if went[i]:
            last = i
        elif not near[i] and (last < 0 or times[i] - times[last] >= within):
            found[i] = True
            last = i
    return found
