"""Event time to slices, and slices to windows (contract/descriptors.py `Window`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ferry.contract.descriptors import Window
from ferry.contract.epoch_times import EpochTimes

Ints = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def slices_of(times: Ints, pane_ms: int) -> tuple[Ints, int]:
    """(start of each time's pane int64[n], greatest time); n > 0."""
    out = np.empty(times.size, np.int64)
    greatest = times[0]
    begin = times[0] // pane_ms * pane_ms
    for i in range(times.size):
        t = times[i]
        greatest = max(greatest, t)
        # Adjacent times mostly share a pane, and a division costs more than the rest.
        if t < begin or t >= begin + pane_ms:
            begin = t // pane_ms * pane_ms
        out[i] = begin
    return out, greatest


def last_ends(window: Window, slices: Ints) -> Ints:
    """`Window.last_end` of every slice."""
    return slices // window.slide_ms * window.slide_ms + window.size_ms


def ends_of_a_row(window: Window, times: EpochTimes) -> int:
    """Largest number of windows ending within (low, high] that one row can be in."""
    size, slide, high = window.size_ms, window.slide_ms, times.high
    return min(-(-size // slide), high // slide - max(times.low, high - size - slide) // slide)


def windows_between(window: Window, slices: Ints, low: int, high: int) -> list[tuple[int, Ints]]:
    """Windows with low < end <= high that contain one of these slices: (start, positions of its slices), by start."""
    slices = np.asarray(slices, np.int64)
    if slices.size == 0:
        return []
    order = np.argsort(slices, kind="stable")
    ordered = slices[order]
    pane, size, slide = window.pane_ms, window.size_ms, window.slide_ms
    # A pane at s is in the windows that start at the multiples of slide in [s + pane - size, s].
    begin = max(-((size - pane - int(ordered[0])) // slide), (low - size) // slide + 1)
    end = min(int(ordered[-1]), high - size) // slide
    per_slice = (size - pane) // slide + 1
    if end < begin:
        return []
    if end - begin < per_slice * ordered.size:
        starts = np.arange(begin, end + 1, dtype=np.int64) * slide
    else:
        # Few slices far apart: compute the windows of each slice.
        first = -((size - pane - ordered) // slide) * slide
        each = first[:, None] + np.arange(per_slice) * slide
        starts = np.unique(each[each <= ordered[:, None]])
        starts = starts[(starts >= begin * slide) & (starts <= end * slide)]
    froms = np.searchsorted(ordered, starts)
    tos = np.searchsorted(ordered, starts + size)
    return [(s, order[f:t]) for s, f, t in zip(starts.tolist(), froms.tolist(), tos.tolist(), strict=True) if f < t]
