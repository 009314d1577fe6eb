"""Windows and durations as a pipeline names them. Values only."""

from __future__ import annotations

import re

from ferry.contract.descriptors import Window
from ferry.contract.errors import SpecRefused


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
