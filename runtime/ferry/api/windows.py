"""Windows and emit modes of a pipeline. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ferry.contract.descriptors import Emit, Window
from ferry.contract.durations import Duration, milliseconds
from ferry.contract.errors import SpecRefused
from ferry.contract.texts import require_name


def tumbling(size: Duration) -> Window:
    """Tumbling windows [k * size, (k + 1) * size) since 1970, without overlap.

    Parameters:
        size: length of a window: text such as "60s" or "1 minute", or a timedelta.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if the size is not a positive duration.
    Example:
        >>> ferry.tumbling("60s") == ferry.tumbling("1 minute")
        True
    """
    return sliding(size, size)


def sliding(size: Duration, slide: Duration) -> Window:
    """Sliding windows of length `size` that start at every multiple of `slide` since 1970.

    Parameters:
        size: length of a window: text such as "60s", or a timedelta.
        slide: distance between the starts of two windows: text or a timedelta. It must divide the size.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if size or slide is not a positive duration, or the slide does not divide the size.
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
    """Sessions: the records of a key with at most `gap_ms` between neighbours."""

    gap_ms: int

    @property
    def alone(self) -> Window:
        """The window of a session with a single record."""
        return Window(self.gap_ms, 1)


class LastRows(NamedTuple):
    """Windows of the last `size` rows of each key, every `slide` rows."""

    size: int
    slide: int


class EachRecord(NamedTuple):
    """Emit a row for each record: its columns by output name, and the columns that order the records of an epoch."""

    columns: dict[str, str]
    order: list[str]


def session(gap: Duration) -> SessionGap:
    """Session windows: a record at most `gap` after the previous record of its key belongs to the same session.

    A session ends `gap` after its last record. It is final when the watermark has reached its end.

    Parameters:
        gap: the longest time between two records of a session: text such as "10s", or a timedelta.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if the gap is not a positive duration.
    Example:
        >>> visits = bids.event_time("ts", delay="3s").key_by("bidder").window(ferry.session("10s"))
        >>> visits.aggregate("visits", num=ferry.count()).columns
        ['bidder', 'window_start', 'window_end', 'num']
    """
    gap_ms = milliseconds(gap, "gap")
    if not gap_ms:
        raise SpecRefused(f"window: a session's gap of {gap!r} must be positive")
    return SessionGap(gap_ms)


def rows(size: int, slide: int = 1) -> LastRows:
    """Windows of the last `size` rows of each key. Every `slide`-th record of a key ends a window.

    Parameters:
        size: number of rows in a window. The first windows of a key have fewer rows.
        slide: number of rows between the ends of two windows.
    Returns: a window, for `.window(...)`.
    Raises: SpecRefused, if size or slide is not a positive integer.
    Example:
        >>> last5 = bids.event_time("ts").key_by("auction").window(ferry.rows(5))
        >>> last5.aggregate("last5", ["seq"], total=ferry.sum("price")).columns
        ['seq', 'total']
    """
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in (size, slide)):
        raise SpecRefused(f"window: rows({size!r}, {slide!r}) needs positive numbers of rows")
    return LastRows(size, slide)


def records(*columns: str, order: str | Sequence[str] = ()) -> EachRecord:
    """Emit a row for each record, with the aggregates of its key up to and including this record.

    Parameters:
        columns: names of the record's columns to keep in the row.
        order: a column or columns. Within an epoch, the records of a key are processed in the order of these columns. Empty:
            in the order of their event times.
    Returns: a value for `emit` of an aggregate without a window.
    Raises: SpecRefused, if a column is not a name.
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
    """Emit the rows of all keys once, at the end of a finite input. This is the default.

    Returns: a value for `emit` of an aggregate without a window.
    Raises: nothing.
    Example:
        >>> totals = bids.key_by("auction").aggregate("totals", num=ferry.count(), emit=ferry.at_end())
    """
    return "final"


def changes() -> Emit:
    """Emit a row with the new values of every changed key after each epoch: Spark's update mode.

    The intermediate rows depend on the distribution of records over epochs; the last row of a key has its final values. A
    key that is forgotten (`ttl` of the aggregate) emits no row.

    Returns: a value for `emit` of an aggregate without a window.
    Raises: nothing.
    Example:
        >>> totals = bids.key_by("auction").aggregate("totals", num=ferry.count(), emit=ferry.changes())
    """
    return "changes"
