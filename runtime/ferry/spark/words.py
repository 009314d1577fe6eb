"""Windows, aggregates and durations as a pipeline names them. Values only."""

from __future__ import annotations

import re

from ferry.contract.errors import SpecRefused
from ferry.contract.shapes import Aggregate, Window


def tumbling(size: int | str) -> Window:
    """Windows [k * size, (k + 1) * size). Milliseconds, or text such as "60s"."""
    return sliding(size, size)


def sliding(size: int | str, slide: int | str) -> Window:
    """Windows of `size` that start at every multiple of `slide`. The slide must divide the size."""
    size_ms, slide_ms = milliseconds(size, "size"), milliseconds(slide, "slide")
    if slide_ms <= 0 or size_ms <= 0:
        raise SpecRefused(f"window: size {size!r} and slide {slide!r} must be positive")
    if size_ms % slide_ms:
        raise SpecRefused(f"window: slide {slide!r} does not divide size {size!r}; choose a slide that does")
    return Window(size_ms, slide_ms)


def count(column: str | None = None) -> Aggregate:
    """Number of records, or of those in which `column` is not null."""
    return Aggregate("", "count", column)


def sum(column: str) -> Aggregate:
    """Sum of an integer or float column; null when it has no value.

    A sum of integers beyond 64 bits stops the job. Floats are added in no certain order: their last digits may differ.
    """
    return Aggregate("", "sum", column)


def min(column: str) -> Aggregate:
    """Least value."""
    return Aggregate("", "min", column)


def max(column: str) -> Aggregate:
    """Greatest value."""
    return Aggregate("", "max", column)


def mean(column: str) -> Aggregate:
    """Mean in double precision of the exact sum and count."""
    return Aggregate("", "mean", column)


def arg_max(column: str, by: str) -> Aggregate:
    """The value of `column` where `by` is greatest, of the records that have both; ties go to the greater value."""
    return Aggregate("", "arg_max", column, by)


_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(value: int | str, what: str) -> int:
    """12 -> 12; "1.5s" -> 1500. Raises SpecRefused otherwise."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise SpecRefused(f"{what}: {value} is negative")
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)", str(value))
    if not match:
        raise SpecRefused(
            f'{what}: {value!r} is not a duration; use milliseconds, or text such as "500ms", "10s", "2m"'
        )
    return round(float(match[1]) * _UNITS[match[2]])
