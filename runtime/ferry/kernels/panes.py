"""Event time to slices, and slices to windows (contract/descriptors.py `Window`)."""

from __future__ import annotations

from typing import NamedTuple

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


class Windows(NamedTuple):
    """Windows in order; window i has the slices froms[i] .. tos[i] - 1 of an ascending array, and at least one."""

    starts: Ints
    froms: Ints
    tos: Ints


def windows_between(window: Window, slices: Ints, low: int, high: int) -> Windows:
    """Windows with low < end <= high that contain one of these slices, int64[n] and ascending."""
    starts = _starts_between(window, slices, low, high) if slices.size else slices
    froms, tos = np.searchsorted(slices, starts), np.searchsorted(slices, starts + window.size_ms)
    some = froms < tos
    return Windows(starts[some], froms[some], tos[some])


def _starts_between(window: Window, slices: Ints, low: int, high: int) -> Ints:
    """Starts of these windows, and maybe of some that contain no slice."""
    pane, size, slide = window.pane_ms, window.size_ms, window.slide_ms
    # A pane at s is in the windows that start at the multiples of slide in [s + pane - size, s].
    begin = max(-((size - pane - int(slices[0])) // slide), (low - size) // slide + 1)
    end = min(int(slices[-1]), high - size) // slide
    per_slice = (size - pane) // slide + 1
    if end - begin < per_slice * slices.size:
        return np.arange(begin, end + 1, dtype=np.int64) * slide
    # Few slices far apart: compute the windows of each slice.
    first = -((size - pane - slices) // slide) * slide
    each = first[:, None] + np.arange(per_slice) * slide
    starts = np.unique(each[each <= slices[:, None]])
    return starts[(starts >= begin * slide) & (starts <= end * slide)]
