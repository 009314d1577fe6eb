"""Durations and times as users write them: "500ms", "10 seconds", a timedelta; "2026-12-01T00:00Z", a datetime."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ferry.contract.errors import SpecRefused

_UNITS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
"""Milliseconds of each unit."""

Duration = str | timedelta | int
"""Text with a unit, such as "10s" or "10 seconds", or a timedelta. Of numbers only 0, which is the same in every unit."""


def milliseconds(value: Duration, subject: str) -> int:
    """A duration in milliseconds. Raises SpecRefused, naming `subject`, for a number without a unit or another text.

    Example:
        >>> milliseconds("1.5s", "size"), milliseconds(timedelta(minutes=2), "size")
        (1500, 120000)
    """
    if isinstance(value, timedelta):
        value_ms = value / timedelta(milliseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if value != 0:
            raise SpecRefused(f'{subject}: {value} has no unit; write "{value}ms" or "{value}s"')
        value_ms = 0.0
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", str(value), re.IGNORECASE)
        if not match or match[2].lower() not in _UNITS:
            raise SpecRefused(f'{subject}: {value!r} is not a duration; write "500ms", "10s", "2 minutes", "1h", "1d"')
        value_ms = float(match[1]) * _UNITS[match[2].lower()]
    if value_ms < 0:
        raise SpecRefused(f"{subject}: {value} is negative")
    return round(value_ms)


Time = str | datetime | int
"""Text of a date and a time with a zone, such as "2026-12-01T00:00Z", a datetime with a zone, or milliseconds since 1970."""


def event_time(value: Time, subject: str) -> int:
    """A time in milliseconds since 1970. Raises SpecRefused, naming `subject`, for a time without a zone or another value.

    Example:
        >>> event_time("2026-12-01T00:00Z", "until"), event_time("1764547200000", "until")
        (1796083200000, 1764547200000)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SpecRefused(f"{subject} {value}: a time is 2026-11-22T10:00Z, or milliseconds since 1970") from None
    if when.tzinfo is None:
        whole = f"{value}T00:00" if re.fullmatch(r"[\d-]+", str(value)) else value
        raise SpecRefused(f"{subject} {value}: add the time zone: {whole}Z, {whole}+02:00")
    return round(when.timestamp() * 1000)
