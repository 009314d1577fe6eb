"""Where a handover without state may be: at the boundary of a window (UniMiCo, sections 3.1 and 3.2).

The origin goes on until its last window has ended; windows that begin later belong to the target, which has seen all of
their records. Pure arithmetic over times in milliseconds, and over rows by their number. The paper's words:

| here | in the paper |
|---|---|
| `heard` | ts_start: the first time from which on the target sees all records |
| `newest` | ts_last_w: the start of the newest window at the origin |
| what `last_window` gives | ts_mi, the migration timestamp: the start of the origin's last window |
| what `first_window` gives | the activation timestamp: older records are nothing to the target |

Of several window operators the last one is the controlling one: it alone is asked, if the rows that it reads have the
earliest time of what they are made of. Else `heard` is the time of the first row that reaches it at the target.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from ferry.contract.descriptors import OperatorDescriptor, Window


def last_window(heard: int, newest: int, slide: int) -> int:
    """Start of the last window of the origin (equation 1). Windows start at `newest`, and every `slide` from it."""
    return newest if heard <= newest else heard - _delta(heard - newest, slide)


def first_window(last: int, slide: int) -> int:
    """Start of the first window of the target, whose origin's last one starts at `last`."""
    return last + slide


def heard_of_all(starts: Sequence[int]) -> int:
    """`heard` of a window over several inputs, of which the target sees each from another time on."""
    return max(starts)


def heard_by_controlling(at_sources: Sequence[int], at_operator: int | None, stamped_earliest: bool) -> int | None:
    """`heard` of the controlling operator of several. `stamped_earliest`: rows have the earliest time of what they are made
    of, so it is known when the sources are; else when a row has reached the operator at the target (`at_operator`; None:
    none has yet)."""
    return heard_of_all(at_sources) if stamped_earliest else at_operator


class RowHandover(NamedTuple):
    """A handover between two windows of rows; rows by their number at the controlling operator."""

    last: int
    """where the last window of the origin starts"""
    skipped: int
    """rows that the target leaves out, from the first one on that it has heard of"""


def row_handover(times: Sequence[int], newest: int, heard: int, slide: int) -> RowHandover | None:
    """Equation 2. `times`: of all rows so far, in order; `newest`: the first row of the newest window at the origin.

    None: it is not known yet, for no row has come with a time of `heard` or later.
    """
    first = bisect_left(times, heard)
    if first == len(times):
        return None
    last = newest if first <= newest else first - rows_before(first - newest - 1, slide)
    return RowHandover(last, last + slide - first)


def rows_before(between: int, slide: int) -> int:
    """How many rows before the first one at the target the last window of the origin starts (delta of equation 2).

    `between`: rows between the newest window's first one and the target's (N).
    """
    return _delta(between + 1, slide)


def rows_before_of_all(between: Sequence[int], slide: int) -> int:
    """The same of a window over several inputs: the one with the most rows decides."""
    return rows_before(max(between), slide)


def _delta(distance: int, slide: int) -> int:
    return distance % slide or slide


def is_of_origin(times: Sequence[int], first: int, is_last_operator: bool) -> bool:
    """Whether the origin emits what is joined of rows of these times, where the target's windows start at `first`.

    If all of them are in windows of both, both find it. A final join emits it once, at the target; where another window
    operator follows, each side needs it for windows of its own (section 3.2.1).
    """
    return not is_last_operator or min(times) < first


def ends_at_origin(window: Window, slice_start: int) -> int:
    """The end of the origin's last window: milliseconds. The target hears of all that is later than this slice."""
    newest = slice_start // window.slide_ms * window.slide_ms
    return last_window(slice_start + window.pane_ms, newest, window.slide_ms) + window.size_ms


def begins_at_target(window: Window, end: int) -> int:
    """Where the target's first window starts, if the origin's last one ends here."""
    return first_window(end - window.size_ms, window.slide_ms)


ENDING = {
    "ferry.process.interval:IntervalJoin": "lower_ms",
    "ferry.process.interval:OuterIntervalJoin": None,
    "ferry.process.row_windows:RowWindows": None,
    "ferry.process.sessions:SessionAggregate": None,
    "ferry.process.sessions:SessionJoin": None,
    "ferry.process.windowed:WindowAggregate": None,
    "ferry.process.window_join:WindowJoin": None,
}
"""Processes of which all that they keep is over some time, and the argument that has to be given for it."""


def lasts_for_ever(descriptor: OperatorDescriptor) -> str:
    """Why this operator has no boundary at which it could be handed over; empty: it has."""
    if descriptor.kind == "process":
        shape = descriptor.shape
        bound = ENDING.get(shape.made_of, "")
        if bound is None or (bound and json.loads(shape.arguments).get(bound) is not None):
            return ""
        made_of = shape.made_of.rpartition(":")[2]
        return f"operator {descriptor.name} ({made_of}) keeps what no window brings to an end"
    return "" if descriptor.windowed else f"operator {descriptor.name} has no window: what it keeps is never over"
