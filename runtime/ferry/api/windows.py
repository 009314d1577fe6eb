"""Windows, and when an aggregate emits its rows, as a pipeline names them. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ferry.contract.descriptors import Emit, Window
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.texts import require_name


def tumbling(size: Duration) -> Window:
    """Windows [k * size, (k + 1) * size).

    Parameters:
        size: text such as "60s".
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if the size is no duration, or 0.
    Example:
        >>> ferry.tumbling("60s") == ferry.tumbling("1 minute")
        True
    """
    return sliding(size, size)


def sliding(size: Duration, slide: Duration) -> Window:
    """Windows of `size` that start at every multiple of `slide`.

    Parameters:
        size: text such as "60s".
        slide: the same; it must divide the size.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if one of them is no duration, or 0, or the slide does not divide the size.
    Example:
        >>> ferry.sliding("60s", "7s")
        Traceback (most recent call last):
        ferry.contract.errors.SpecRefused: window: slide '7s' does not divide size '60s'; choose a slide that does
    """
    size_ms, slide_ms = milliseconds(size, "size"), milliseconds(slide, "slide")
    if slide_ms <= 0 or size_ms <= 0:
        raise SpecRefused(f"window: size {size!r} and slide {slide!r} must be positive")
    if size_ms % slide_ms:
        raise SpecRefused(f"window: slide {slide!r} does not divide size {size!r}; choose a slide that does")
    return Window(size_ms, slide_ms)


class SessionGap(NamedTuple):
    """Sessions: records of a key that are at most so far apart."""

    gap_ms: int

    @property
    def alone(self) -> Window:
        """The session of a record that nothing else belongs to."""
        return Window(self.gap_ms, 1)


class LastRows(NamedTuple):
    """Windows of rows: the last ones of each key."""

    size: int
    slide: int


class EachRecord(NamedTuple):
    """A row for each record, with these columns of its own, in this order within an epoch."""

    columns: dict[str, str]
    order: list[str]


def session(gap: Duration) -> SessionGap:
    """Sessions: a record that is at most `gap` after the one before it, of the same key, is of the same session.

    A session ends `gap` after its last record, and is final when the watermark has reached that.

    Parameters:
        gap: text such as "10s".
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if the gap is no duration, or 0.
    Example:
        >>> visits = bids.event_time("ts", delay="3s").key_by("bidder").window(ferry.session("10s"))
        >>> visits.aggregate("visits", num=ferry.count()).columns
        ['bidder', 'window_start', 'window_end', 'num']
    """
    gap_ms = milliseconds(gap, "gap")
    if not gap_ms:
        raise SpecRefused(f"window: a session's gap of {gap!r} is no time at all")
    return SessionGap(gap_ms)


def rows(size: int, slide: int = 1) -> LastRows:
    """Windows of the last rows of each key: each record ends one, or every `slide`-th.

    Parameters:
        size: how many rows; the first windows of a key have less.
        slide: how many rows lie between the ends of two windows.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if one of them is not a positive number.
    Example:
        >>> last5 = bids.event_time("ts").key_by("auction").window(ferry.rows(5))
        >>> last5.aggregate("last5", ["seq"], total=ferry.sum("price")).columns
        ['seq', 'total']
    """
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in (size, slide)):
        raise SpecRefused(f"window: rows({size!r}, {slide!r}) needs numbers of rows, 1 at least")
    return LastRows(size, slide)


def records(*columns: str, order: str | Sequence[str] = ()) -> EachRecord:
    """Emit a row for each record, with the aggregates of its key until then, itself among them.

    Parameters:
        columns: those of the record itself that are there, too.
        order: columns that say in which order an epoch's records of a key are taken; none: that of event time.
    Returns: what `emit` of an aggregate without a window takes.
    Raises: SpecRefused for what is no name.
    Example:
        >>> counts = bids.event_time("ts").key_by("auction")
        >>> counts.aggregate("counts", num=ferry.count(), emit=ferry.records("seq", "auction", order="seq")).columns
        ['seq', 'auction', 'num']
    """
    by = [order] if isinstance(order, str) or not isinstance(order, Sequence) else list(order)
    for column in (*columns, *by):
        require_name(column, "records: column")
    return EachRecord({column: column for column in columns}, by)


def at_end() -> Emit:
    """Emit the rows of all keys once, when a finite input has ended.

    Returns: what `emit` of an aggregate without a window takes; it is the default.
    Raises: nothing.
    Example:
        >>> totals = bids.key_by("auction").aggregate("totals", num=ferry.count(), emit=ferry.at_end())
    """
    return "final"


def changes() -> Emit:
    """Emit after each epoch one row for every key that has changed in it, with its new values: Spark's update mode.

    How records fall into epochs decides which rows there are on the way; the last row of a key has its final values.
    That a key was forgotten (`ttl` of the aggregate) is no change: nothing is emitted for it.

    Returns: what `emit` of an aggregate without a window takes.
    Raises: nothing.
    Example:
        >>> totals = bids.key_by("auction").aggregate("totals", num=ferry.count(), emit=ferry.changes())
    """
    return "changes"
