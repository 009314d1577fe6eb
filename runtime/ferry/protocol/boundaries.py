"""Boundaries of windows at which a vnode can be handed over without state (UniMiCo, sections 3.1 and 3.2).

The origin goes on until its last window has ended; windows that begin later belong to the target, which has received
all of their records. Pure arithmetic over times in milliseconds, and over rows by their number. The paper's words:

| here | in the paper |
|---|---|
| `heard` | ts_start: the time from which on the target receives all records |
| `newest` | ts_last_w: the start of the newest window at the origin |
| result of `last_window` | ts_mi, the migration timestamp: the start of the origin's last window |
| result of `first_window` | the activation timestamp: the target ignores older records |

Of several window operators the last one is the controlling one. It alone decides if the rows that it reads carry the
earliest time of their input rows. Else `heard` is the time of the first row that reaches it at the target.
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
    """Start of the target's first window; the last window of the origin starts at `last`."""
    return last + slide


def heard_of_all(starts: Sequence[int]) -> int:
    """`heard` of a window over several inputs, when the target receives each input from another time on."""
    return max(starts)


def heard_by_controlling(at_sources: Sequence[int], at_operator: int | None, stamped_earliest: bool) -> int | None:
    """`heard` of the controlling operator of several. `stamped_earliest`: rows carry the earliest time of their input
    rows, so the sources determine it; else it is known once a row has reached the operator at the target
    (`at_operator`; None: not yet)."""
    return heard_of_all(at_sources) if stamped_earliest else at_operator


class RowHandover(NamedTuple):
    """A handover between two windows of rows; rows by their number at the controlling operator."""

    last: int
    """start of the origin's last window"""
    skipped: int
    """rows that the target leaves out, from its first row on"""


def row_handover(times: Sequence[int], newest: int, heard: int, slide: int) -> RowHandover | None:
    """Equation 2. `times`: of all rows so far, in order; `newest`: the first row of the newest window at the origin.

    None: not known yet, because no row with a time of `heard` or later has come.
    """
    first = bisect_left(times, heard)
    if first == len(times):
        return None
    last = newest if first <= newest else first - rows_before(first - newest - 1, slide)
    return RowHandover(last, last + slide - first)


def rows_before(between: int, slide: int) -> int:
    """How many rows before the target's first row the origin's last window starts (delta of equation 2).

    `between`: rows between the first row of the newest window and the target's first row (N).
    """
    return _delta(between + 1, slide)


def rows_before_of_all(between: Sequence[int], slide: int) -> int:
    """The same for a window over several inputs: the input with the most rows decides."""
    return rows_before(max(between), slide)


def _delta(distance: int, slide: int) -> int:
    return distance % slide or slide


def is_of_origin(times: Sequence[int], first: int, is_last_operator: bool) -> bool:
    """Whether the origin emits a join of rows with these times, where the target's windows start at `first`.

    If all rows are in windows of both sides, both find the join. A final join emits it once, at the target; if another
    window operator follows, each side needs it for its own windows (section 3.2.1).
    """
    return not is_last_operator or min(times) < first


def ends_at_origin(window: Window, slice_start: int) -> int:
    """The end of the origin's last window: milliseconds. The target receives all records later than this slice."""
    newest = slice_start // window.slide_ms * window.slide_ms
    return last_window(slice_start + window.pane_ms, newest, window.slide_ms) + window.size_ms


def begins_at_target(window: Window, end: int) -> int:
    """The start of the target's first window, if the origin's last one ends here."""
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
"""Processes whose whole state expires, with the argument that enables this."""


def lasts_for_ever(descriptor: OperatorDescriptor) -> str:
    """Why this operator has no boundary for a handover; empty: it has one."""
    if descriptor.kind == "process":
        shape = descriptor.shape
        bound = ENDING.get(shape.made_of, "")
        if bound is None or (bound and json.loads(shape.arguments).get(bound) is not None):
            return ""
        made_of = shape.made_of.rpartition(":")[2]
        return f"operator {descriptor.name} ({made_of}) keeps state that no window ends"
    return "" if descriptor.windowed else f"operator {descriptor.name} has no window: its state never expires"
